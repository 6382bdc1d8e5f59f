#include "rollout/gateway/api_error.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace::gateway {

std::string ApiError::json() const {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  return json_text(nlohmann::ordered_json{{"error",
                                           {{"message", message},
                                            {"type", type},
                                            {"param", text_or_null(param)},
                                            {"code", text_or_null(code)}}}});
}

void refuse(std::string param, std::string message, std::string code) {
  throw Refused{
      {.message = std::move(message), .code = std::move(code), .param = std::move(param)}};
}

}  // namespace tailrace::gateway
