// Errors in the form of OpenAI's API.
//
// Thread: any.
#pragma once

#include <string>

namespace tailrace::gateway {

// The error that a client gets instead of an answer. The official client raises for it: 400
// BadRequestError, 401 AuthenticationError, 403 PermissionDeniedError, 404 NotFoundError, 409
// ConflictError, 422 UnprocessableEntityError, 429 RateLimitError, from 500 on InternalServerError.
// It tries 408, 409, 429 and those from 500 on again.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string code = {}, param = {};  // "" is null

  std::string json() const;
};

// Thrown inside this room for a request that is wrong; nobody outside sees it.
struct Refused {
  ApiError error;
};

// `param` names the field as its path: "messages[2].content".
[[noreturn]] void refuse(std::string param, std::string message, std::string code = "");

}  // namespace tailrace::gateway
