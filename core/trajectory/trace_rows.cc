#include "core/trajectory/trace_rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/trajectory/require.h"
#include "core/trajectory/sample_name.h"

namespace tailrace {
namespace {

constexpr std::string_view kSample = "{\"sample\":\"";
constexpr std::string_view kFile = "step_", kSuffix = ".jsonl";

// Written by hand: the numbers are nearly all of a row, and there may be millions.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  // Nine digits are enough for every float, and read as a double they still round to it.
  void number(double value) {
    if (!std::isfinite(value)) return text("null");
    if (value == 0 && std::signbit(value)) return text("-0.0");
    fmt::format_to(std::back_inserter(out_), "{:.9g}", value);
  }
  template <class Values, class Write>
  void list(std::string_view key, const Values& values, Write write) {
    text(key);
    char separator = '[';
    for (const auto& value : values) {
      out_ += separator;
      write(value);
      separator = ',';
    }
    text(separator == '[' ? "[]" : "]");
  }
  void integers(std::string_view key, const auto& values) {
    list(key, values, [&](auto value) {
      fmt::format_to(std::back_inserter(out_), "{}", static_cast<int64_t>(value));
    });
  }
  void floats(std::string_view key, const std::vector<float>& values) {
    list(key, values, [&](float value) { number(value); });
  }
  void text(std::string_view piece) { out_ += piece; }

 private:
  std::string& out_;
};

void write_segment(const TraceSegment& segment, Writer& writer) {
  writer.text(
      fmt::format("{{\"parent\":{},\"parent_tokens\":{}", segment.parent, segment.parent_tokens));
  writer.integers(",\"tokens\":", segment.tokens);
  writer.integers(",\"roles\":", segment.roles);
  writer.integers(",\"versions\":", segment.versions);
  writer.floats(",\"logprobs\":", segment.logprobs);
  if (!segment.log_masses.empty()) writer.floats(",\"log_masses\":", segment.log_masses);
  writer.integers(",\"mask\":", segment.mask);
  writer.floats(",\"old\":", segment.old_logprobs);
  writer.floats(",\"new\":", segment.new_logprobs);
  if (!segment.ref_logprobs.empty()) writer.floats(",\"ref\":", segment.ref_logprobs);
  writer.text("}");
}

std::vector<float> floats_of(const nlohmann::json& list) {
  std::vector<float> values;
  for (const nlohmann::json& value : list) {
    values.push_back(value.is_null() ? std::numeric_limits<float>::quiet_NaN()
                                     : static_cast<float>(value.get<double>()));
  }
  return values;
}

TraceSegment read_segment(const nlohmann::json& json) {
  TraceSegment segment{.parent = json.at("parent").get<int32_t>(),
                       .parent_tokens = json.at("parent_tokens").get<int32_t>(),
                       .tokens = json.at("tokens").get<std::vector<TokenId>>(),
                       .roles = {},
                       .versions = json.at("versions").get<std::vector<int64_t>>(),
                       .logprobs = floats_of(json.at("logprobs")),
                       .log_masses = floats_of(json.value("log_masses", nlohmann::json::array())),
                       .mask = json.at("mask").get<std::vector<uint8_t>>(),
                       .old_logprobs = floats_of(json.at("old")),
                       .new_logprobs = floats_of(json.at("new")),
                       .ref_logprobs = floats_of(json.value("ref", nlohmann::json::array()))};
  for (const int role : json.at("roles").get<std::vector<int>>()) {
    require(role >= 0 && role <= 2, "a role is out of range");
    segment.roles.push_back(static_cast<TokenRole>(role));
  }
  const size_t tokens = segment.tokens.size();
  require(segment.roles.size() == tokens && segment.versions.size() == tokens &&
              segment.logprobs.size() == tokens && segment.mask.size() == tokens &&
              (segment.log_masses.empty() || segment.log_masses.size() == tokens),
          "its lists have different lengths");
  const auto trained = static_cast<size_t>(std::ranges::count(segment.mask, 1));
  require(segment.old_logprobs.size() == trained && segment.new_logprobs.size() == trained &&
              (segment.ref_logprobs.empty() || segment.ref_logprobs.size() == trained),
          "its log-probabilities are not those of its mask");
  require(std::ranges::all_of(segment.tokens, [](TokenId id) { return id >= 0; }),
          "a token is out of range");
  return segment;
}

}  // namespace

std::string format_trace_row(const TraceRow& row) {
  std::string out;
  Writer writer(out);
  writer.text(kSample);
  writer.text(sample_name({Lane::kTrain, row.lease}));
  writer.text(fmt::format("\",\"step\":{},\"outcome\":\"{}\",\"reward\":{},\"advantage\":",
                          row.step, name_of(row.outcome), json_text(nlohmann::json(row.reward))));
  if (row.advantage) {
    writer.number(*row.advantage);
  } else {
    writer.text("null");
  }
  writer.text(fmt::format(",\"temperature\":{},\"segments\":[",
                          json_text(nlohmann::json(row.temperature))));
  for (size_t i = 0; i < row.segments.size(); ++i) {
    if (i > 0) writer.text(",");
    write_segment(row.segments[i], writer);
  }
  writer.text("]}");
  return to_proved_row(std::move(out));
}

Result<TraceRow> parse_trace_row(std::string_view line) {
  if (auto proved = prove_row(line); !proved) return proved.failure();
  const nlohmann::json json = parse_json(line);
  if (!json.is_object()) return Failure{"not a JSON object"};
  TraceRow row;
  try {
    auto name = parse_sample_name(json.at("sample").get<std::string>());
    if (!name) return name.failure();
    row.lease = name.value().lease;
    row.step = json.at("step").get<int64_t>();
    const auto outcome = value_of<Outcome>(json.at("outcome").get_ref<const std::string&>());
    require(outcome.has_value(), "there is no such outcome");
    row.outcome = *outcome;
    row.reward = json.at("reward").get<double>();
    if (!json.at("advantage").is_null())
      row.advantage = static_cast<float>(json.at("advantage").get<double>());
    row.temperature = json.at("temperature").get<double>();
    std::vector<int64_t> contexts;
    for (const nlohmann::json& json_segment : json.at("segments")) {
      const TraceSegment& segment = row.segments.emplace_back(read_segment(json_segment));
      contexts.push_back(require_sound_parent(segment.parent, segment.parent_tokens, contexts,
                                              segment.tokens.size()));
    }
  } catch (const std::exception& error) {  // of nlohmann, or ours
    return Failure{error.what()};
  }
  return row;
}

std::optional<std::string_view> sample_of_trace_line(std::string_view line) {
  if (!line.starts_with(kSample)) return std::nullopt;
  line.remove_prefix(kSample.size());
  const size_t end = line.find('"');
  if (end == line.npos) return std::nullopt;
  return line.substr(0, end);
}

std::string format_trace_head(int64_t step, int64_t samples) {
  return to_proved_row(fmt::format("{{\"step\":{},\"samples\":{}}}", step, samples));
}

std::optional<int64_t> parse_trace_head(std::string_view line) {
  if (!prove_row(line)) return std::nullopt;
  const nlohmann::json json = parse_json(line);
  if (!json.is_object() || !json.contains("samples") || !json["samples"].is_number_integer())
    return std::nullopt;
  return json["samples"].get<int64_t>();
}

std::string trace_file_name(int64_t step) { return fmt::format("{}{:06}{}", kFile, step, kSuffix); }

std::optional<int64_t> trace_file_step(const std::filesystem::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with(kFile) || !name.ends_with(kSuffix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size() - kSuffix.size();
  const auto [stop, error] = std::from_chars(name.data() + kFile.size(), end, step);
  if (error != std::errc{} || stop != end || step < 0) return std::nullopt;
  return step;
}

}  // namespace tailrace
