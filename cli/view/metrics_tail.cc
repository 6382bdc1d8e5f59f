#include "cli/view/metrics_tail.h"

#include <fstream>

namespace tailrace {

MetricsTail::MetricsTail(std::filesystem::path file, bool from_start) : file_(std::move(file)) {
  std::error_code error;
  const auto size = std::filesystem::file_size(file_, error);
  if (!from_start && !error) offset_ = static_cast<int64_t>(size);
}

std::vector<MetricsRow> MetricsTail::poll() {
  std::error_code error;
  // To open a pipe would wait for its writer, and a folder has no size.
  if (!std::filesystem::is_regular_file(file_, error)) return {};
  std::ifstream in(file_, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const auto size = static_cast<int64_t>(in.tellg());
  offset_ = std::min(offset_, size);  // rows were taken back
  std::string text(static_cast<size_t>(size - offset_), '\0');
  in.seekg(offset_);
  if (!in.read(text.data(), static_cast<std::streamsize>(text.size()))) return {};
  std::vector<MetricsRow> rows;
  LineReader lines(text);
  while (auto line = lines.next()) {
    // The writer is at it; the line comes whole with a later poll.
    if (!line->complete) break;
    // The writer ends a line with one byte, which `text` lacks.
    offset_ += static_cast<int64_t>(line->text.size()) + 1;
    if (auto row = parse_metrics_row(line->text)) rows.push_back(std::move(row).value());
  }
  return rows;
}

}  // namespace tailrace
