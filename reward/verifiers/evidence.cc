#include "reward/verifiers/evidence.h"

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace {

using nlohmann::json;

Result<json> parse_evidence(const std::string& evidence) {
  json value = parse_json(evidence);
  if (!value.is_object()) return Failure{"the evidence is not a JSON object"};
  return value;
}

std::optional<std::string> find_text(const json& evidence, const char* key) {
  auto it = evidence.find(key);
  if (it == evidence.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

std::optional<int64_t> find_integer(const json& evidence, const char* key) {
  auto it = evidence.find(key);
  if (it == evidence.end() || !it->is_number_integer()) return std::nullopt;
  return it->get<int64_t>();
}

Result<std::string> final_response(const json& evidence) {
  std::optional<std::string> response = find_text(evidence, "response");
  if (!response) return Failure{"the evidence has no string \"response\""};
  // A number or an answer tag inside the thoughts must not count.
  constexpr std::string_view kThought = "</think>";
  size_t thought = response->rfind(kThought);
  return thought == std::string::npos ? *response : response->substr(thought + kThought.size());
}

}  // namespace tailrace
