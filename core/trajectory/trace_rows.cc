#include "core/trajectory/trace_rows.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/trajectory/require.h"
#include "core/trajectory/sample_name.h"

namespace tailrace {
namespace {

// A row begins with the sample's name, so that a search needs to parse no other row.
constexpr std::string_view kSample = "{\"sample\":\"";
constexpr std::string_view kFile = "step_", kSuffix = ".jsonl";

// Written by hand: the numbers are nearly all of a row, and there may be millions.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}

  // Nine digits are enough for every float, and read as a double they still round to it.
  void number(double value) {
    // JSON has no such number.
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
  if (!segment.turn_begins.empty()) {
    writer.integers(",\"turn_begins\":", segment.turn_begins);
    writer.integers(",\"turn_numbers\":", segment.turn_numbers);
  }
  writer.integers(",\"mask\":", segment.mask);
  if (!segment.left_out.empty()) {
    std::string_view separator = ",\"left_out\":{";
    for (const auto& [why, places] : segment.left_out) {
      writer.integers(fmt::format("{}\"{}\":", separator, name_of(why)), places);
      separator = ",";
    }
    writer.text("}");
  }
  writer.floats(",\"old\":", segment.old_logprobs);
  writer.floats(",\"new\":", segment.new_logprobs);
  if (!segment.ref_logprobs.empty()) writer.floats(",\"ref\":", segment.ref_logprobs);
  if (!segment.advantages.empty()) writer.floats(",\"advantages\":", segment.advantages);
  writer.text("}");
}

void write_turn(const TraceTurn& turn, Writer& writer) {
  const auto exact = [&](std::string_view key, const std::optional<double>& value) {
    if (value) writer.text(fmt::format(",\"{}\":{}", key, json_text(nlohmann::json(*value))));
  };
  const auto single = [&](std::string_view key, const std::optional<float>& value) {
    if (!value) return;
    writer.text(fmt::format(",\"{}\":", key));
    writer.number(*value);
  };
  writer.text(fmt::format("{{\"turn\":{}", turn.number));
  exact("reward", turn.reward);
  if (turn.anchor != 0) writer.text(fmt::format(",\"anchor\":\"{}\"", anchor_text(turn.anchor)));
  writer.text(fmt::format(",\"tokens\":{},\"trained\":{}", turn.tokens, turn.trained));
  if (!turn.left_out.empty()) {
    std::string_view separator = ",\"left_out\":{";
    for (const auto& [why, count] : turn.left_out) {
      writer.text(fmt::format("{}\"{}\":{}", separator, name_of(why), count));
      separator = ",";
    }
    writer.text("}");
  }
  exact("value", turn.value);
  exact("return", turn.turn_return);
  single("advantage", turn.advantage);
  single("first", turn.first);
  single("last", turn.last);
  writer.text("}");
}

// null: a value that was not finite.
double number_of(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

std::vector<float> floats_of(const nlohmann::json& list) {
  std::vector<float> values;
  for (const nlohmann::json& value : list) {
    values.push_back(static_cast<float>(number_of(value)));
  }
  return values;
}

uint64_t read_anchor(const std::string& text) {
  uint64_t anchor = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, anchor, 16);
  require(error == std::errc{} && stop == end && anchor_text(anchor) == text && anchor != 0,
          "an anchor is not 16 hex digits");
  return anchor;
}

// The values that each reason left out, by its name.
template <class Value>
std::map<LeftOut, Value> read_left_out(const nlohmann::json& json) {
  std::map<LeftOut, Value> left_out;
  if (!json.contains("left_out")) return left_out;
  for (const auto& [name, value] : json.at("left_out").items()) {
    const auto why = value_of<LeftOut>(name);
    require(why.has_value(), "it was left out of the loss for a reason that nobody knows");
    left_out[*why] = value.template get<Value>();
  }
  return left_out;
}

TraceTurn read_turn(const nlohmann::json& json) {
  TraceTurn turn{.number = json.at("turn").get<int32_t>(),
                 .tokens = json.at("tokens").get<int64_t>(),
                 .trained = json.at("trained").get<int64_t>(),
                 .left_out = read_left_out<int64_t>(json)};
  const auto read = [&](const char* key, auto& value) {
    if (json.contains(key))
      value = static_cast<std::decay_t<decltype(*value)>>(number_of(json.at(key)));
  };
  if (json.contains("anchor")) turn.anchor = read_anchor(json.at("anchor").get<std::string>());
  read("reward", turn.reward);
  read("value", turn.value);
  read("return", turn.turn_return);
  read("advantage", turn.advantage);
  read("first", turn.first);
  read("last", turn.last);
  require(turn.trained >= 0 && turn.trained <= turn.tokens, "a turn trains more than it has");
  require(turn.advantage.has_value() == (turn.trained > 0) &&
              turn.first.has_value() == turn.advantage.has_value() &&
              turn.last.has_value() == turn.advantage.has_value(),
          "the advantages of a turn are not those of its trained tokens");
  return turn;
}

std::vector<TraceTurn> read_turns(const nlohmann::json& list) {
  std::vector<TraceTurn> turns;
  for (const nlohmann::json& json : list) {
    const TraceTurn& turn = turns.emplace_back(read_turn(json));
    require(turn.number > (turns.size() > 1 ? turns[turns.size() - 2].number : -1),
            "turns are not in their order");
  }
  return turns;
}

// Ascending places in a list of `size`.
bool are_places(const std::vector<int32_t>& places, size_t size) {
  return std::ranges::adjacent_find(places, std::greater_equal{}) == places.end() &&
         (places.empty() || (places.front() >= 0 && std::cmp_less(places.back(), size)));
}

// Answers begin with what was sampled, and each is one of the row's turns.
void require_sound_answers(const TraceSegment& segment, std::span<const TraceTurn> turns) {
  require(are_places(segment.turn_begins, segment.tokens.size()) &&
              segment.turn_numbers.size() == segment.turn_begins.size(),
          "its answers are not in their order");
  for (size_t i = 0; i < segment.turn_begins.size(); ++i) {
    require(segment.roles[static_cast<size_t>(segment.turn_begins[i])] == TokenRole::kSampled,
            "an answer begins with what nobody sampled");
    require(std::ranges::binary_search(turns, segment.turn_numbers[i], {}, &TraceTurn::number),
            "an answer is of no turn of the sample");
  }
}

TraceSegment read_segment(const nlohmann::json& json, std::span<const TraceTurn> turns) {
  const nlohmann::json none = nlohmann::json::array();
  TraceSegment segment{.parent = json.at("parent").get<int32_t>(),
                       .parent_tokens = json.at("parent_tokens").get<int32_t>(),
                       .tokens = json.at("tokens").get<std::vector<TokenId>>(),
                       .roles = {},
                       .versions = json.at("versions").get<std::vector<int64_t>>(),
                       .logprobs = floats_of(json.at("logprobs")),
                       .log_masses = floats_of(json.value("log_masses", none)),
                       .mask = json.at("mask").get<std::vector<uint8_t>>(),
                       .left_out = read_left_out<std::vector<int32_t>>(json),
                       .turn_begins = json.value("turn_begins", none).get<std::vector<int32_t>>(),
                       .turn_numbers = json.value("turn_numbers", none).get<std::vector<int32_t>>(),
                       .old_logprobs = floats_of(json.at("old")),
                       .new_logprobs = floats_of(json.at("new")),
                       .ref_logprobs = floats_of(json.value("ref", none)),
                       .advantages = floats_of(json.value("advantages", none))};
  // A row of an older build has this key.
  if (json.contains("rejected"))
    segment.left_out[LeftOut::kRejected] = json.at("rejected").get<std::vector<int32_t>>();
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
  require(segment.advantages.empty() || segment.advantages.size() == trained,
          "its advantages are not those of its mask");
  for (const auto& [why, places] : segment.left_out)
    require(are_places(places, tokens) &&
                std::ranges::all_of(
                    places, [&](int32_t at) { return segment.mask[static_cast<size_t>(at)] == 0; }),
            "what was left out of the loss is in its mask");
  require(std::ranges::all_of(segment.tokens, [](TokenId id) { return id >= 0; }),
          "a token is out of range");
  require_sound_answers(segment, turns);
  return segment;
}

}  // namespace

std::string format_trace_row(const TraceRow& row) {
  std::string out;
  Writer writer(out);
  writer.text(kSample);
  writer.text(sample_name({Lane::kTrain, row.lease}));
  writer.text(fmt::format("\",\"step\":{},\"outcome\":\"{}\",\"reward\":{}", row.step,
                          name_of(row.outcome), json_text(nlohmann::json(row.reward))));
  if (row.shaped_reward)
    writer.text(
        fmt::format(",\"shaped_reward\":{}", json_text(nlohmann::json(*row.shaped_reward))));
  writer.text(",\"advantage\":");
  if (row.advantage) {
    writer.number(*row.advantage);
  } else {
    writer.text("null");
  }
  writer.text(fmt::format(",\"temperature\":{}", json_text(nlohmann::json(row.temperature))));
  if (!row.turns.empty())
    writer.list(",\"turns\":", row.turns, [&](const TraceTurn& turn) { write_turn(turn, writer); });
  writer.text(",\"segments\":[");
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
    if (json.contains("shaped_reward")) row.shaped_reward = json.at("shaped_reward").get<double>();
    if (!json.at("advantage").is_null())
      row.advantage = static_cast<float>(json.at("advantage").get<double>());
    row.temperature = json.at("temperature").get<double>();
    if (json.contains("turns")) row.turns = read_turns(json.at("turns"));
    std::vector<int64_t> contexts;
    for (const nlohmann::json& json_segment : json.at("segments")) {
      const TraceSegment& segment =
          row.segments.emplace_back(read_segment(json_segment, row.turns));
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

std::string anchor_text(uint64_t anchor) { return fmt::format("{:016x}", anchor); }

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
