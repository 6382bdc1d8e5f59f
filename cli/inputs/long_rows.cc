#include "cli/inputs/long_rows.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"

namespace tailrace {

std::string size_of(const LongRow& row) {
  return row.bytes > 0 ? fmt::format("{} bytes", row.bytes) : fmt::format("{} tokens", row.tokens);
}

bool is_shorter(const LongRow& a, const LongRow& b) {
  return std::pair(a.bytes, a.tokens) < std::pair(b.bytes, b.tokens);
}

void refuse_long(const LongRowRefusal& refusal, const std::vector<LongRow>& rows, int64_t of) {
  const std::string file = refusal.file.string();
  // One row has one line: the editor that it is clicked in goes there.
  if (rows.size() == 1)
    throw UserError("{}:{}: the {} has {}; {}.\n       {}", file, rows[0].line, refusal.noun,
                    size_of(rows[0]), refusal.limit, refusal.advice);
  std::string list;
  for (size_t i = 0; i < std::min(rows.size(), kListedRows); ++i)
    list += fmt::format("\n         {}:{}: {}", file, rows[i].line, size_of(rows[i]));
  if (rows.size() > kListedRows)
    list += fmt::format("\n         and {} more; the longest has {}", rows.size() - kListedRows,
                        size_of(std::ranges::max(rows, is_shorter)));
  throw UserError("{}: {} of {} {}s are too long; {}:{}\n       {}", file, rows.size(), of,
                  refusal.noun, refusal.limit, list, refusal.advice);
}

std::string list_lines(const std::vector<LongRow>& rows, size_t most) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(rows.size(), most); ++i)
    lines.push_back(fmt::format("{} ({})", rows[i].line, size_of(rows[i])));
  std::string text =
      fmt::format("{} {}", rows.size() == 1 ? "line" : "lines", join_texts(lines, ", "));
  if (rows.size() > most) text += fmt::format(" and {} more", rows.size() - most);
  return text;
}

}  // namespace tailrace
