// Reads the names of one program from a text: the rows of foreign_names.h as people edit them.
//
//   program: verl          # of each row that does not say `programs`; may be left out
//   shared: {logs: &logs each step goes to metrics.jsonl. Remove it.}  # for the rows below
//   names:
//     data.prompt_key: env.columns.prompt                # the same under a key of ours
//     data.truncation:                                   # or the fields of ForeignName
//       key: env.too_long
//       values: {error: ~, left: {ours: cut}, "*": {told: write env.too_long.}}
//   refused:
//     trainer.logger: *logs                              # what the error says
//
// A value of theirs leads to ours (~: our key stays as it is; "*": the same value), or to the
// fields of ForeignValue. `also` of a row is that of every value. Settings of ours are maps (key:
// value).
//
// Thread: any.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/config/foreign_names.h"

namespace tailrace {

struct ForeignTable {
  ForeignTable() = default;
  ForeignTable(ForeignTable&&) = default;  // a copy would borrow the texts of the first
  ForeignTable& operator=(ForeignTable&&) = default;

  std::string program;  // empty: each row says its own
  std::vector<ForeignName> rows;
  std::deque<std::string> texts;  // which the rows borrow; they stay in place when it is moved
};

// `source` stands for the file in messages. Throws UserError with the line of what is wrong.
ForeignTable parse_foreign_table(const std::string& text, const std::string& source);

}  // namespace tailrace
