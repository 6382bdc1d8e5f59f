#include "core/trajectory/sample_rows.h"

#include <nlohmann/json.hpp>

#include "core/base/enum_names.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/trajectory/require.h"
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

// A piece's text is what its tokens add to the text before them, because some tokenizers write a
// blank differently at the start of a text.
std::vector<SampleText> text_by_role(std::span<const TokenId> ids, std::span<const TokenRole> roles,
                                     const TokenText& text, size_t from) {
  std::vector<SampleText> pieces;
  std::string before = from > 0 ? text(ids.first(from)) : "";
  for (size_t begin = from; begin < ids.size();) {
    size_t end = begin;
    while (end < ids.size() && roles[end] == roles[begin]) ++end;
    std::string all = text(ids.first(end));
    // Not where a character's bytes lie on both sides: of half of it U+FFFD was made.
    const bool grows = all.starts_with(before);
    pieces.push_back(
        {roles[begin], grows ? all.substr(before.size()) : text(ids.subspan(begin, end - begin))});
    before = std::move(all);
    begin = end;
  }
  return pieces;
}

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
    row.segments.push_back({.ids = segment.tokens,
                            .roles = segment.roles,
                            .parent = segment.parent,
                            .parent_tokens = segment.parent_tokens});
  return row;
}

std::vector<SampleText> segment_text(const SampleRow& row, size_t segment, const TokenText& text) {
  // The tokens that it continues, from the end to the beginning.
  std::vector<TokenId> ids;
  std::vector<TokenRole> roles;
  const auto add_in_front = [&](const SampleRow::Tokens& of, size_t count) {
    const auto size = static_cast<std::ptrdiff_t>(count);
    ids.insert(ids.begin(), of.ids.begin(), of.ids.begin() + size);
    roles.insert(roles.begin(), of.roles.begin(), of.roles.begin() + size);
  };
  const SampleRow::Tokens* at = &row.segments[segment];
  add_in_front(*at, at->ids.size());
  auto wanted = static_cast<size_t>(at->parent_tokens);
  const size_t from = wanted;
  while (at->parent >= 0) {
    at = &row.segments[static_cast<size_t>(at->parent)];
    const auto inherited = static_cast<size_t>(at->parent_tokens);
    if (wanted <= inherited) continue;  // nothing of its own
    add_in_front(*at, wanted - inherited);
    wanted = inherited;
  }
  return text_by_role(ids, roles, text, from);
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
    Json entry = Json::object();
    if (segment.parent >= 0)
      entry = {{"parent", segment.parent}, {"parent_tokens", segment.parent_tokens}};
    entry["tokens"] = segment.ids;
    entry["roles"] = roles;
    for (const SampleText& piece : segment.text)
      entry["text"].push_back({{"role", name_of(piece.role)}, {"text", piece.text}});
    json["segments"].push_back(std::move(entry));
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
    std::vector<int64_t> contexts;
    for (const Json& segment : json.at("segments")) {
      SampleRow::Tokens tokens{.ids = segment.at("tokens").get<std::vector<TokenId>>(),
                               .roles = {},
                               .parent = segment.value("parent", -1),
                               .parent_tokens = segment.value("parent_tokens", 0)};
      contexts.push_back(
          require_sound_parent(tokens.parent, tokens.parent_tokens, contexts, tokens.ids.size()));
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
  } catch (const std::exception& error) {  // of nlohmann, or ours
    return Failure{error.what()};
  }
  return row;
}

}  // namespace tailrace
