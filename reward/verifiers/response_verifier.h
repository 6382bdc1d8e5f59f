// A verifier that scores what the policy answered, with the evidence read and the response found.
//
// Thread: any; immutable, as every verifier.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "reward/verifier.h"

namespace tailrace {

class ResponseVerifier : public Verifier {
 public:
  // A Failure when the evidence is no JSON object, or has no response.
  Result<Score> score(const std::string& evidence, Time budget) const final;

 private:
  // `response`: the final response of the evidence (evidence.h).
  virtual Result<Score> score_response(const nlohmann::json& evidence,
                                       const std::string& response) const = 0;
};

}  // namespace tailrace
