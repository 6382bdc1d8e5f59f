#include "core/base/metrics.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_file.h"

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
  return to_proved_row(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

Result<MetricsRow> parse_metrics_row(std::string_view line) {
  if (auto proved = prove_row(line); !proved) return proved.failure();
  auto json = nlohmann::ordered_json::parse(line, nullptr, false);
  if (!json.is_object()) return Failure{"not a JSON object"};
  MetricsRow row;
  for (const auto& [name, value] : json.items()) {
    if (name == "proof") continue;
    if (!value.is_number() && !value.is_null())
      return Failure{fmt::format("{} is not a number", name)};
    double number =
        value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
    if (name == "step" || name == "version") {
      if (!value.is_number_integer()) return Failure{fmt::format("{} is not an integer", name)};
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

Result<MetricsWriter> MetricsWriter::open(const std::filesystem::path& path, int64_t first_step,
                                          double unix_seconds) {
  if (std::filesystem::is_regular_file(path)) {
    auto rows = read_metrics(path);
    if (!rows) return rows.failure();
    std::string kept;
    // A run that goes on from a checkpoint makes these steps again.
    for (const MetricsRow& row : rows.value())
      if (row.version < 0 || row.step < first_step) kept += format_metrics_row(row) + '\n';
    // This also drops a last line that was cut, to which the next row would be glued.
    if (auto written = write_file_atomic(path, kept); !written) return written.failure();
  }
  auto file = AppendFile::open(path);
  if (!file) return file.failure();
  auto events = EventFile::create(path.parent_path(), unix_seconds, first_step);
  if (!events) return events.failure();
  MetricsWriter writer;
  writer.file_ = std::move(file).value();
  writer.events_ = std::move(events).value();
  return writer;
}

Result<void> MetricsWriter::write(const MetricsRow& row) {
  // First the file that reports and continued runs read; the events are a copy for TensorBoard.
  if (auto written = file_.append(format_metrics_row(row) + '\n'); !written) return written;
  return events_.add_scalars(row.unix_seconds, row.step, row.values);
}

}  // namespace tailrace
