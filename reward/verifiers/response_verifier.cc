#include "reward/verifiers/response_verifier.h"

#include <nlohmann/json.hpp>

#include "reward/verifiers/evidence.h"

namespace tailrace {

Result<Score> ResponseVerifier::score(const std::string& evidence, Time /*budget*/) const {
  const Result<nlohmann::json> read = parse_evidence(evidence);
  if (!read) return read.failure();
  const Result<std::string> response = final_response(read.value());
  if (!response) return response.failure();
  return score_response(read.value(), response.value());
}

}  // namespace tailrace
