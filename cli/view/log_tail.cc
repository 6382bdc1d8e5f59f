#include "cli/view/log_tail.h"

#include <algorithm>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/run/run_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Bytes of one poll: a log that grows faster than that is told of later.
constexpr int64_t kMostBytes = 1 << 20;

// 0: there is no such file (yet).
int64_t size_of(const fs::path& file) {
  std::error_code error;
  // To open a pipe would wait for its writer.
  if (!fs::is_regular_file(file, error)) return 0;
  const auto size = fs::file_size(file, error);
  return error ? 0 : static_cast<int64_t>(size);
}

}  // namespace

LogTail::LogTail(fs::path file) : file_(std::move(file)), offset_(size_of(file_)) {}

std::vector<std::string> LogTail::poll() {
  const int64_t size = size_of(file_);
  // The file was cut or replaced, and begins anew.
  if (size < offset_) offset_ = 0;
  if (size == offset_) return {};
  std::string text(static_cast<size_t>(std::min(size - offset_, kMostBytes)), '\0');
  std::ifstream in(file_, std::ios::binary);
  in.seekg(offset_);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  // A line that is longer than a poll would never end: its beginning is passed over.
  if (lines.empty() && std::ssize(text) == kMostBytes) begin = text.size();
  offset_ += static_cast<int64_t>(begin);
  return lines;
}

std::optional<std::string> note_of(std::string_view name, std::string_view line) {
  // Behind the name of the role, as core/run/log writes them.
  constexpr std::string_view kLevel = ": warning: ";
  const size_t level = line.find(kLevel);
  if (level != line.npos && line.find(kPassedOver) != line.npos)
    return fmt::format("note: {}: {}", line.substr(0, level), line.substr(level + kLevel.size()));
  if (line.ends_with(kHaveStarted)) return fmt::format("note: {}: {}", name, line);
  return std::nullopt;
}

}  // namespace tailrace
