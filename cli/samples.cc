#include "cli/samples.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

// Pieces of one role each. A piece's text is what its tokens add to the text before them, because
// some tokenizers write a blank differently at the start of a text.
std::vector<SampleText> decode_segment(const std::vector<TokenId>& tokens,
                                       const std::vector<int>& roles, const Tokenizer& tokenizer) {
  std::vector<SampleText> pieces;
  std::string before;
  for (size_t begin = 0; begin < tokens.size();) {
    size_t end = begin;
    while (end < tokens.size() && roles[end] == roles[begin]) ++end;
    std::string all = tokenizer.decode(std::span(tokens).first(end));
    bool grows = all.starts_with(before);
    pieces.push_back({static_cast<TokenRole>(roles[begin]),
                      grows ? all.substr(before.size())
                            : tokenizer.decode(std::span(tokens).subspan(begin, end - begin))});
    before = std::move(all);
    begin = end;
  }
  return pieces;
}

std::optional<double> number_of(const Json& row, const char* key) {
  auto found = row.find(key);
  return found != row.end() && found->is_number() ? std::optional(found->get<double>())
                                                  : std::nullopt;
}

Result<Sample> parse_sample(std::string_view line, const Tokenizer& tokenizer) {
  Json row = Json::parse(line, nullptr, false);
  if (!row.is_object()) return Failure{"not a JSON object"};
  Sample sample;
  try {
    sample.step = row.at("step").get<int64_t>();
    sample.version = row.value("version", int64_t{0});
    sample.reward = number_of(row, "reward");
    sample.success = number_of(row, "success");
    for (const Json& segment : row.at("segments")) {
      auto tokens = segment.at("tokens").get<std::vector<TokenId>>();
      auto roles = segment.at("roles").get<std::vector<int>>();
      if (tokens.size() != roles.size())
        return Failure{fmt::format("{} tokens, {} roles", tokens.size(), roles.size())};
      for (size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] < 0 || tokens[i] >= tokenizer.vocab_size() || roles[i] < 0 || roles[i] > 2)
          return Failure{fmt::format("token {} with role {} is out of range", tokens[i], roles[i])};
      sample.segments.push_back(decode_segment(tokens, roles, tokenizer));
    }
  } catch (const nlohmann::json::exception& error) {
    return Failure{error.what()};
  }
  return sample;
}

}  // namespace

Result<std::vector<Sample>> read_samples(const std::filesystem::path& path,
                                         const Tokenizer& tokenizer) {
  auto text = read_file(path);
  if (!text) return text.failure();
  std::vector<Sample> samples;
  LineReader lines(text.value());
  while (auto line = lines.next()) {
    if (!line->complete || line->text.empty()) continue;
    auto sample = parse_sample(line->text, tokenizer);
    if (!sample)
      return Failure{
          fmt::format("{}:{}: {}", path.string(), line->number, sample.failure().message)};
    samples.push_back(std::move(sample).value());
  }
  return samples;
}

std::string format_sample(const Trajectory& trajectory, int64_t step, int64_t version) {
  Json row;
  row["step"] = step;
  row["version"] = version;
  row["reward"] = trajectory.reward ? Json(*trajectory.reward) : Json();
  row["success"] = Json();
  for (const auto& [name, value] : trajectory.metrics)
    if (name == "success") row["success"] = value;
  row["segments"] = Json::array();
  for (const Segment& segment : trajectory.segments) {
    std::vector<int> roles;
    for (TokenRole role : segment.roles) roles.push_back(static_cast<int>(role));
    row["segments"].push_back({{"tokens", segment.tokens}, {"roles", roles}});
  }
  return row.dump();
}

}  // namespace tailrace
