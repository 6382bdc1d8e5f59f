// A few episodes of a run, for people: the rows of RUN/samples.jsonl.
//
//   {"step": 0, "version": 0, "sample": "policy=0 domain=0 epoch=0 prompt=1 launch=0 member=0
//    attempt=1", "dataset": "grid", "reward": 0.5, "success": 1,
//    "segments": [{"tokens": [...], "roles": [...]}], "proof": "9f.."}
//
// Roles as in TokenRole (0 prompt, 1 sampled, 2 observation); reward and success may be absent or
// null; dataset is absent where a run has one. Ids and not text: the report decodes them with the
// run's tokenizer.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

struct SampleRow {
  struct Tokens {
    std::vector<TokenId> ids;
    std::vector<TokenRole> roles;  // same length
  };
  int64_t step = 0, version = 0;
  std::string sample = {};  // its name (sample_name.h); empty: of an older build
  std::optional<double> reward, success;
  std::vector<Tokens> segments;
  std::string dataset = {};  // its name; empty: the run has one
};

// `success` is the metric of that name.
SampleRow sample_row(const Trajectory& trajectory, int64_t step, int64_t version);

// One line without its newline, and back. A Failure says what is wrong with the line.
std::string format_sample_row(const SampleRow& row);
Result<SampleRow> parse_sample_row(std::string_view line);

}  // namespace tailrace
