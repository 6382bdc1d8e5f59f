#include "core/text/token_model.h"

#include <unordered_set>

#include <nlohmann/json.hpp>

namespace tailrace::text {

namespace {

// The tables are as long as the largest id: without a bound a file of one line could ask for all
// memory.
constexpr int64_t kMaxId = 1 << 24;

}  // namespace

Vocabulary parse_vocabulary(const JsonPart& part) {
  if (!part.value().is_object()) part.refuse("an object of token: id");
  Vocabulary vocabulary;
  vocabulary.reserve(part.value().size());
  std::unordered_set<int64_t> seen;
  seen.reserve(part.value().size());
  for (const auto& [token, id] : part.value().items()) {
    bool fits = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMaxId;
    JsonPart entry(id, part.where() + "[\"" + token + "\"]");
    if (!fits) entry.refuse("an integer from 0 to 16777215");
    // Decoding could give only one of two tokens with the same id.
    if (!seen.insert(id.get<int64_t>()).second) entry.refuse("an id that no other token has");
    vocabulary.emplace(token, id.get<TokenId>());
  }
  return vocabulary;
}

}  // namespace tailrace::text
