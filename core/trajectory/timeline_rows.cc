#include "core/trajectory/timeline_rows.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/trajectory/require.h"
#include "core/trajectory/sample_name.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxDamagedNotes = 3;

Time time_at(const Json& json, const char* key) { return Time(json.at(key).get<int64_t>()); }

template <class Enum>
Enum enum_at(const Json& json, const char* key) {
  const auto value = value_of<Enum>(json.at(key).get_ref<const std::string&>());
  if (!value) throw std::invalid_argument(fmt::format("{} has no such value", key));
  return *value;
}

void write_lease(const TimelineRow& row, Json& json) {
  if (!row.sample) {
    json["lane"] = name_of(row.lane);
    json["leases"] = row.leases;
    json["busy_ns"] = row.busy.count();
    return;
  }
  json["sample"] = sample_name(*row.sample);
  if (row.what == TimelineWhat::kVerify) json["verify"] = row.verify_attempt;
  if (row.prefix_turns > 0) json["prefix_turns"] = row.prefix_turns;
  json["end"] = row.end;
  if (row.tokens >= 0) {
    json["tokens"] = row.tokens;
    json["versions"] = {row.min_version, row.max_version};
  }
  if (row.reward) json["reward"] = *row.reward;
}

void read_lease(const Json& json, TimelineRow& row) {
  if (!json.contains("sample")) {
    row.lane = enum_at<Lane>(json, "lane");
    row.leases = json.at("leases").get<int64_t>();
    row.busy = time_at(json, "busy_ns");
    require(row.leases > 0 && row.busy >= Time{}, "leases or busy_ns is out of range");
    return;
  }
  auto name = parse_sample_name(json.at("sample").get<std::string>());
  if (!name) throw std::invalid_argument(name.failure().message);
  row.sample = name.value();
  row.lane = row.sample->lane;
  row.busy = row.at - row.from;
  if (row.what == TimelineWhat::kVerify) row.verify_attempt = json.at("verify").get<int32_t>();
  row.prefix_turns = json.value("prefix_turns", 0);
  require(row.prefix_turns >= 0, "prefix_turns is negative");
  row.end = json.at("end").get<std::string>();
  if (json.contains("tokens")) {
    row.tokens = json.at("tokens").get<int64_t>();
    const auto versions = json.at("versions").get<std::array<int64_t, 2>>();
    row.min_version = versions[0];
    row.max_version = versions[1];
    require(row.tokens >= 0 && row.min_version >= -1 && row.min_version <= row.max_version,
            "tokens or versions is out of range");
  }
  // null: a reward that is no number was refused, and is shown as none.
  if (json.contains("reward") && !json.at("reward").is_null())
    row.reward = json.at("reward").get<double>();
}

void write_step(const TimelineRow& row, Json& json) {
  json["number"] = row.number;
  json["samples"] = row.trained.samples;
  json["truncated"] = row.trained.truncated;
  json["tokens"] = row.trained.tokens;
  json["staleness"] = row.trained.staleness;
  if (row.left_out > 0) json["left_out"] = row.left_out;
}

void read_step(const Json& json, TimelineRow& row) {
  row.number = json.at("number").get<int64_t>();
  row.trained = {.samples = json.at("samples").get<int64_t>(),
                 .truncated = json.at("truncated").get<int64_t>(),
                 .tokens = json.at("tokens").get<Deciles>(),
                 .staleness = json.at("staleness").get<Deciles>()};
  row.left_out = json.value("left_out", int64_t{0});
  require(std::ranges::is_sorted(row.trained.tokens) &&
              std::ranges::is_sorted(row.trained.staleness) && row.trained.samples >= 0,
          "its deciles do not ascend");
}

void read_fields(const Json& json, TimelineRow& row) {
  row.what = enum_at<TimelineWhat>(json, "what");
  row.at = row.from = time_at(json, "at_ns");
  if (is_span(row.what) || is_install_part(row.what)) row.from = time_at(json, "from_ns");
  require(row.from >= Time{} && row.from <= row.at, "it ends before it begins");
  if (json.contains("worker")) row.worker = json.at("worker").get<std::string>();
  switch (row.what) {
    case TimelineWhat::kStart:
      row.unix_seconds = json.at("unix").get<double>();
      return;
    case TimelineWhat::kUp:
      row.role = enum_at<Role>(json, "role");
      row.slots = json.at("slots").get<int64_t>();
      row.pool = json.value("pool", "");
      row.cluster = json.value("cluster", "");
      row.host = json.value("host", "");
      return require(row.slots > 0, "slots must be above 0");
    case TimelineWhat::kQuarantine:
      row.until = time_at(json, "until_ns");
      return;
    case TimelineWhat::kGenerate:
    case TimelineWhat::kVerify:
      return read_lease(json, row);
    case TimelineWhat::kInstall:
    case TimelineWhat::kTrain:
    case TimelineWhat::kSave:
      row.number = json.at("number").get<int64_t>();
      [[fallthrough]];
    case TimelineWhat::kDown:
    case TimelineWhat::kWarmUp:
      row.end = json.at("end").get<std::string>();
      return;
    case TimelineWhat::kFetch:
    case TimelineWhat::kStage:
    case TimelineWhat::kSwitch:
      row.number = json.at("number").get<int64_t>();
      row.until = time_at(json, "until_ns");
      return require(row.until >= row.from && row.until <= row.at, "it ends before it begins");
    case TimelineWhat::kStep:
      return read_step(json, row);
    case TimelineWhat::kDiscarded:
      row.end = json.at("end").get<std::string>();
      for (const Json& sample : json.at("samples")) {
        const auto numbers = sample.get<std::array<int64_t, 3>>();
        row.samples.push_back({numbers[0], numbers[1], numbers[2] != 0});
      }
      return;
  }
}

}  // namespace

bool is_lease(TimelineWhat what) {
  return what == TimelineWhat::kGenerate || what == TimelineWhat::kVerify;
}

bool is_span(TimelineWhat what) {
  return what >= TimelineWhat::kWarmUp && what <= TimelineWhat::kSave;
}

bool is_install_part(TimelineWhat what) {
  return what == TimelineWhat::kFetch || what == TimelineWhat::kStage ||
         what == TimelineWhat::kSwitch;
}

Deciles deciles_of(std::vector<int64_t> values) {
  TR_CHECK(!values.empty());
  std::ranges::sort(values);
  Deciles deciles{};
  for (size_t i = 0; i < deciles.size(); ++i) {
    const double rank = static_cast<double>(i) / 10 * static_cast<double>(values.size() - 1);
    // The nearest rank and no mean of two: deciles of whole numbers are values that were there.
    deciles[i] = values[static_cast<size_t>(std::lround(rank))];
  }
  return deciles;
}

std::string format_timeline_row(const TimelineRow& row) {
  Json json;
  json["at_ns"] = row.at.count();
  json["what"] = name_of(row.what);
  if (is_span(row.what) || is_install_part(row.what)) json["from_ns"] = row.from.count();
  if (!row.worker.empty()) json["worker"] = row.worker;
  switch (row.what) {
    case TimelineWhat::kStart:
      // Milliseconds: the double would have digits that no clock has.
      json["unix"] = std::round(row.unix_seconds * 1000) / 1000;
      break;
    case TimelineWhat::kUp:
      json["role"] = name_of(row.role);
      json["slots"] = row.slots;
      if (!row.pool.empty()) json["pool"] = row.pool;
      if (!row.cluster.empty()) json["cluster"] = row.cluster;
      if (!row.host.empty()) json["host"] = row.host;
      break;
    case TimelineWhat::kQuarantine:
      json["until_ns"] = row.until.count();
      break;
    case TimelineWhat::kGenerate:
    case TimelineWhat::kVerify:
      write_lease(row, json);
      break;
    case TimelineWhat::kInstall:
    case TimelineWhat::kTrain:
    case TimelineWhat::kSave:
      json["number"] = row.number;
      json["end"] = row.end;
      break;
    case TimelineWhat::kDown:
    case TimelineWhat::kWarmUp:
      json["end"] = row.end;
      break;
    case TimelineWhat::kFetch:
    case TimelineWhat::kStage:
    case TimelineWhat::kSwitch:
      json["number"] = row.number;
      json["until_ns"] = row.until.count();
      break;
    case TimelineWhat::kStep:
      write_step(row, json);
      break;
    case TimelineWhat::kDiscarded:
      json["end"] = row.end;
      json["samples"] = Json::array();
      for (const TimelineRow::Sample& s : row.samples)
        json["samples"].push_back({s.tokens, s.staleness, s.truncated ? 1 : 0});
      break;
  }
  // A worker names itself, and a name that is not UTF-8 must not end a run.
  return to_proved_row(json_text(json));
}

Result<TimelineRow> parse_timeline_row(std::string_view line) {
  if (auto proved = prove_row(line); !proved) return proved.failure();
  const Json json = parse_json(line);
  if (!json.is_object()) return Failure{"not a JSON object"};
  TimelineRow row;
  try {
    read_fields(json, row);
  } catch (const std::exception& error) {  // of nlohmann, or ours
    return Failure{error.what()};
  }
  return row;
}

namespace {

// The whole lines in the last `max_bytes` of a file, and how many bytes stand before them.
Result<std::pair<std::string, int64_t>> read_end(const std::filesystem::path& path,
                                                 int64_t max_bytes) {
  std::error_code error;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || size <= max_bytes) {
    auto text = read_file(path);
    if (!text) return text.failure();
    return std::pair(std::move(text).value(), int64_t{0});
  }
  std::string text(static_cast<size_t>(max_bytes), '\0');
  std::ifstream in(path, std::ios::binary);
  in.seekg(size - max_bytes);
  in.read(text.data(), max_bytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  // It begins in the middle of a line.
  text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  return std::pair(text, size - std::ssize(text));
}

}  // namespace

Result<TimelineFile> read_timeline(const std::filesystem::path& path, int64_t max_bytes) {
  auto read = read_end(path, max_bytes);
  if (!read) return read.failure();
  const auto& [text, skipped] = read.value();
  TimelineFile file;
  file.skipped_bytes = skipped;
  LineReader lines(text);
  while (auto line = lines.next()) {
    // The last line may be half written: the run goes on.
    if (!line->complete || line->text.empty()) continue;
    auto row = parse_timeline_row(line->text);
    if (row) {
      file.rows.push_back(std::move(row).value());
    } else if (++file.num_damaged <= kMaxDamagedNotes) {
      const std::string behind = skipped > 0 ? fmt::format(" (behind byte {})", skipped) : "";
      file.damaged.push_back(
          fmt::format("{}:{}{}: {}", path.string(), line->number, behind, row.failure().message));
    }
  }
  return file;
}

}  // namespace tailrace
