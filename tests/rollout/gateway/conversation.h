// What the tests of the gateway share: the tokenizer of their model, and the messages of a
// conversation.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/text/tokenizer.h"

namespace tailrace::gateway {

inline const std::string kModelFolder =
    std::string(TAILRACE_SOURCE_DIR) + "/tests/data/tokenizers/minimind";

inline const text::Tokenizer& tokenizer() {
  static const auto loaded = text::load_tokenizer(kModelFolder);
  return *loaded;
}

// Role and content of each.
inline nlohmann::ordered_json said(
    std::initializer_list<std::pair<const char*, std::string>> list) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (const auto& [role, content] : list)
    messages.push_back({{"role", role}, {"content", content}});
  return messages;
}

}  // namespace tailrace::gateway
