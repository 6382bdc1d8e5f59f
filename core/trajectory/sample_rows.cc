#include "core/trajectory/sample_rows.h"

#include <nlohmann/json.hpp>

#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/trajectory/sample_name.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> number_of(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? std::optional(found->get<double>())
                                                  : std::nullopt;
}

}  // namespace

SampleRow sample_row(const Trajectory& trajectory, int64_t step, int64_t version) {
  SampleRow row{.step = step,
                .version = version,
                .sample = sample_name({trajectory.lane, trajectory.lease}),
                .reward = trajectory.reward,
                .success = {},
                .segments = {}};
  // An environment without this metric has no success, which is not the same as 0.
  for (const auto& [name, value] : trajectory.metrics) {
    if (name == "success") row.success = value;
  }
  for (const Segment& segment : trajectory.segments)
    row.segments.push_back({segment.tokens, segment.roles});
  return row;
}

std::string format_sample_row(const SampleRow& row) {
  Json json;
  json["step"] = row.step;
  json["version"] = row.version;
  if (!row.dataset.empty()) json["dataset"] = row.dataset;
  if (!row.sample.empty()) json["sample"] = row.sample;
  // null and not 0: no verifier has spoken, or the environment counts no success.
  json["reward"] = row.reward ? Json(*row.reward) : Json();
  json["success"] = row.success ? Json(*row.success) : Json();
  json["segments"] = Json::array();
  for (const SampleRow::Tokens& segment : row.segments) {
    std::vector<int> roles;
    for (TokenRole role : segment.roles) roles.push_back(static_cast<int>(role));
    json["segments"].push_back({{"tokens", segment.ids}, {"roles", roles}});
  }
  return to_proved_row(json_text(json));
}

Result<SampleRow> parse_sample_row(std::string_view line) {
  if (auto proved = prove_row(line); !proved) return proved.failure();
  const Json json = parse_json(line);
  if (!json.is_object()) return Failure{"not a JSON object"};
  SampleRow row;
  try {
    row.step = json.at("step").get<int64_t>();
    row.version = json.value("version", int64_t{0});
    row.dataset = json.value("dataset", std::string());
    row.sample = json.value("sample", std::string());
    row.reward = number_of(json, "reward");
    row.success = number_of(json, "success");
    for (const Json& segment : json.at("segments")) {
      SampleRow::Tokens tokens{segment.at("tokens").get<std::vector<TokenId>>(), {}};
      const auto roles = segment.at("roles").get<std::vector<int>>();
      if (tokens.ids.size() != roles.size())
        return Failure{fmt::format("{} tokens, {} roles", tokens.ids.size(), roles.size())};
      for (size_t i = 0; i < roles.size(); ++i) {
        // A cast from any other number would give a TokenRole that does not exist.
        if (tokens.ids[i] < 0 || roles[i] < 0 || roles[i] > 2)
          return Failure{
              fmt::format("token {} with role {} is out of range", tokens.ids[i], roles[i])};
        tokens.roles.push_back(static_cast<TokenRole>(roles[i]));
      }
      row.segments.push_back(std::move(tokens));
    }
  } catch (const nlohmann::json::exception& error) {
    return Failure{error.what()};
  }
  return row;
}

}  // namespace tailrace
