#include "cli/commands/jsonl_input.h"

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/text/utf8.h"

namespace tailrace {

JsonlInput::JsonlInput(std::istream& stream, std::string source)
    : stream_(stream), source_(std::move(source)) {}

std::string JsonlInput::where() const { return fmt::format("{}:{}", source_, line_); }

// False at the end.
bool JsonlInput::next_line(std::string& line) {
  constexpr int kEnd = std::char_traits<char>::eof();
  constexpr int kGzipByte = 0x1f;  // a control character that no JSON begins with
  line.clear();
  // A stream has no name that could say it, and would be told to be no text.
  if (++line_ == 1 && stream_.rdbuf()->sgetc() == kGzipByte)
    throw UserError("{}: it looks compressed (gzip). Try 'zcat FILE | tailrace ...'.", source_);
  for (int c; (c = stream_.rdbuf()->sbumpc()) != kEnd;) {
    if (c == '\n') return true;
    // /dev/zero has no second line.
    if (line.size() == kMaxRowBytes)
      throw UserError("{}: the line is longer than {} bytes", where(), kMaxRowBytes);
    line.push_back(static_cast<char>(c));
  }
  // The stream takes what cannot be read, such as a folder, for the end.
  if (&stream_ == &std::cin && std::ferror(stdin) != 0)
    throw UserError("{}", describe_errno("read", source_, errno));
  return !line.empty();
}

std::optional<nlohmann::ordered_json> JsonlInput::next() {
  std::string line;
  while (next_line(line)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    // Before parsing, which would only say that it is not JSON.
    if (const size_t at = text::first_non_utf8(line); at != std::string::npos)
      throw UserError("{}: not UTF-8: byte {} of the line is 0x{:02x}", where(), at + 1,
                      static_cast<unsigned char>(line[at]));
    Result<nlohmann::ordered_json> row = parse_json_row(line);
    if (!row)
      throw UserError("{}: {}: {}{}", where(), row.failure().message, line.substr(0, 60),
                      line.size() > 60 ? " ..." : "");
    return std::move(row).value();
  }
  return std::nullopt;
}

std::string JsonlInput::text(const nlohmann::ordered_json& row, const std::string& key) const {
  auto found = row.find(key);
  if (found == row.end())
    throw UserError("{}: \"{}\" is missing; a row is {{\"{}\": \"...\"}}", where(), key, key);
  if (!found->is_string())
    throw UserError("{}: \"{}\" is {}; it must be a text", where(), key, found->type_name());
  return found->get<std::string>();
}

std::vector<int32_t> JsonlInput::ids(const nlohmann::ordered_json& row,
                                     const std::string& key) const {
  auto found = row.find(key);
  if (found == row.end())
    throw UserError("{}: \"{}\" is missing; a row is {{\"{}\": [1, 2, ...]}}", where(), key, key);
  if (!found->is_array())
    throw UserError("{}: \"{}\" is {}; it must be a list of token ids", where(), key,
                    found->type_name());
  std::vector<int32_t> ids;
  ids.reserve(found->size());
  for (const auto& item : *found) {
    // A number too large for an int64 wraps to a negative one, and is refused as such.
    int64_t id = item.is_number_integer() ? item.get<int64_t>() : -1;
    if (id < 0 || id > std::numeric_limits<int32_t>::max())
      throw UserError("{}: {}[{}] is {}; it must be a token id (an integer >= 0)", where(), key,
                      ids.size(), json_text(item));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace tailrace
