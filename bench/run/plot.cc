#include "bench/run/plot.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

constexpr int kColumns = 4;

// Each drawn at its place.
std::string side_by_side(std::vector<Chart> charts) {
  const auto count = static_cast<int>(charts.size());
  const int width = charts.front().width, height = charts.front().height;
  const int rows = (count + kColumns - 1) / kColumns;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\">\n",
      width * std::min(kColumns, count), height * rows);
  charts.front().standalone = true;  // its style is that of the whole file
  for (int i = 0; i < count; ++i) {
    // A chart fills what it stands in: here its place in the file.
    std::string drawn = draw_chart(charts[static_cast<size_t>(i)]);
    drawn.insert(std::string_view("<svg").size(),
                 fmt::format(" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"", i % kColumns * width,
                             i / kColumns * height, width, height));
    svg += drawn + "\n";
  }
  return svg + "</svg>\n";
}

}  // namespace

void check_plot(const std::string& file) {
  if (file.empty()) return;
  if (std::filesystem::is_directory(file))
    throw UserError("--plot {} is a folder; name a file in it.", file);
  // Leaves nothing behind, as it is not committed.
  if (const auto made = AtomicFile::create(file); !made)
    throw UserError("--plot: {}. Name a file in a folder that exists.", made.failure().message);
}

void write_plot(const std::string& file, std::vector<Chart> charts) {
  if (auto written = write_file_atomic(file, side_by_side(std::move(charts))); !written)
    throw UserError("{}", written.failure().message);
}

}  // namespace tailrace
