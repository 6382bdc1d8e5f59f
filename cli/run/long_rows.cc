#include "cli/run/long_rows.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"

namespace tailrace {

void refuse_long(const LongRowRefusal& refusal, const std::vector<LongRow>& rows, int64_t of) {
  const std::string file = refusal.file.string();
  // One row has one line: the editor that it is clicked in goes there.
  if (rows.size() == 1)
    throw UserError("{}:{}: the {} has {} tokens; {}.\n       {}", file, rows[0].line, refusal.noun,
                    rows[0].tokens, refusal.limit, refusal.advice);
  std::string list;
  for (size_t i = 0; i < std::min(rows.size(), kListedRows); ++i)
    list += fmt::format("\n         {}:{}: {} tokens", file, rows[i].line, rows[i].tokens);
  if (rows.size() > kListedRows)
    list +=
        fmt::format("\n         and {} more; the longest has {} tokens", rows.size() - kListedRows,
                    std::ranges::max(rows, {}, &LongRow::tokens).tokens);
  throw UserError("{}: {} of {} {}s are too long; {}:{}\n       {}", file, rows.size(), of,
                  refusal.noun, refusal.limit, list, refusal.advice);
}

std::string list_lines(const std::vector<LongRow>& rows, size_t most) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < std::min(rows.size(), most); ++i)
    lines.push_back(fmt::format("{} ({} tokens)", rows[i].line, rows[i].tokens));
  std::string text =
      fmt::format("{} {}", rows.size() == 1 ? "line" : "lines", fmt::join(lines, ", "));
  if (rows.size() > most) text += fmt::format(" and {} more", rows.size() - most);
  return text;
}

}  // namespace tailrace
