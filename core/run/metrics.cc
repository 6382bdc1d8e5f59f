#include "core/run/metrics.h"

#include <cerrno>
#include <cmath>
#include <limits>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "core/base/json_file.h"
#include "core/base/json_text.h"

namespace tailrace {

const double* MetricsRow::find(std::string_view name) const {
  for (const auto& [key, value] : values)
    if (key == name) return &value;
  return nullptr;
}

std::string format_metrics_row(const MetricsRow& row) {
  nlohmann::ordered_json json;
  json["step"] = row.step;
  json["version"] = row.version;
  // Milliseconds: a double's other digits are noise that a reader would have to look at.
  json["time"] = std::round(row.unix_seconds * 1000) / 1000;
  // nlohmann writes NaN and infinities as null.
  for (const auto& [name, value] : row.values) json[name] = value;
  // dump() throws for a name that is not UTF-8, and a name must not end a run.
  return to_proved_row(json_text(json));
}

Result<MetricsRow> parse_metrics_row(std::string_view line) {
  if (auto proved = prove_row(line); !proved) return proved.failure();
  auto json = parse_ordered_json(line);
  if (!json.is_object()) return Failure{"not a JSON object"};
  MetricsRow row;
  for (const auto& [name, value] : json.items()) {
    if (name == "proof") continue;
    if (!value.is_number() && !value.is_null())
      return Failure{fmt::format("{} is not a number", name)};
    double number =
        value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    if (name == "step" || name == "version") {
      // A larger one would be read as another number, below 0.
      constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
      if (!value.is_number_integer() ||
          (value.is_number_unsigned() && value.get<uint64_t>() > kMax))
        return Failure{fmt::format("{} is not an integer that fits", name)};
      (name == "step" ? row.step : row.version) = value.get<int64_t>();
    } else if (name == "time") {
      row.unix_seconds = number;
    } else {
      row.values.emplace_back(name, number);
    }
  }
  return row;
}

Result<std::vector<MetricsRow>> read_metrics(const std::filesystem::path& path) {
  auto text = read_file(path);
  if (!text) return text.failure();
  std::vector<MetricsRow> rows;
  LineReader lines(text.value());
  while (auto line = lines.next()) {
    // The last line may be half written: by a crash, or by a writer that is at it.
    if (!line->complete || line->text.empty()) continue;
    auto row = parse_metrics_row(line->text);
    if (!row)
      return Failure{fmt::format("{}:{}: {}. Remove the line to go on without its row",
                                 path.string(), line->number, row.failure().message)};
    rows.push_back(std::move(row).value());
  }
  return rows;
}

Result<MetricsWriter> MetricsWriter::open(const std::filesystem::path& path, int64_t first_version,
                                          double unix_seconds) {
  std::vector<MetricsRow> dropped_by_events;
  if (std::filesystem::is_regular_file(path)) {
    auto rows = read_metrics(path);
    if (!rows) return rows.failure();
    std::string kept;
    // A run that goes on from a checkpoint makes these steps again.
    for (const MetricsRow& row : rows.value()) {
      if (row.version >= first_version) continue;
      kept += format_metrics_row(row) + '\n';
      if (row.version >= 0 && row.step >= first_version) dropped_by_events.push_back(row);
    }
    // This also drops a last line that was cut, to which the next row would be glued.
    if (auto written = write_file_atomic(path, kept); !written) return written.failure();
  }
  MetricsWriter writer;
  writer.path_ = path;
  if (auto followed = writer.follow(); !followed) return followed.failure();
  auto events = EventFile::create(path.parent_path(), unix_seconds, first_version);
  if (!events) return events.failure();
  writer.events_ = std::move(events).value();
  // TensorBoard drops by step alone, and so the step that published `first_version` too.
  for (const MetricsRow& row : dropped_by_events) {
    if (auto added = writer.events_.add_scalars(row.unix_seconds, row.step, row.values); !added)
      return added.failure();
  }
  return writer;
}

// Writes to what has the name now.
Result<void> MetricsWriter::follow() {
  auto file = AppendFile::open(path_);
  if (!file) return file.failure();
  FileDescriptor own(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!own.is_open() || ::fstat(own.get(), &status) != 0)
    return Failure{describe_errno("read", path_, errno)};
  if (!S_ISREG(status.st_mode)) own.reset();
  file_ = std::move(file).value();
  own_ = std::move(own);
  size_ = status.st_size;
  return {};
}

Result<MetricsWriter::Kept> MetricsWriter::keep() {
  struct stat own {
  }, named{};
  if (!own_.is_open() || ::fstat(own_.get(), &own) != 0) return Kept::kWhole;
  const bool is_named = ::stat(path_.c_str(), &named) == 0 && named.st_dev == own.st_dev &&
                        named.st_ino == own.st_ino;
  const bool is_cut = own.st_size < size_;
  if (is_named && !is_cut) return Kept::kWhole;
  // A file without a name lives as long as it is open, and has all that was written.
  auto text = read_file(fmt::format("/proc/self/fd/{}", own_.get()));
  if (!text) return text.failure();
  // Half a line is what a cut leaves.
  text.value().resize(text.value().rfind('\n') + 1);
  // A new file also where this one was cut: whoever cuts it may be about to write more.
  if (auto written = write_file_atomic(path_, text.value()); !written) return written.failure();
  if (auto followed = follow(); !followed) return followed.failure();
  return is_cut ? Kept::kCut : Kept::kPutBack;
}

Result<void> MetricsWriter::write(const MetricsRow& row) {
  const std::string line = format_metrics_row(row) + '\n';
  // First the file that reports and continued runs read; the events are a copy for TensorBoard.
  if (auto written = file_.append(line); !written) return written;
  size_ += static_cast<int64_t>(line.size());
  return events_.add_scalars(row.unix_seconds, row.step, row.values);
}

}  // namespace tailrace
