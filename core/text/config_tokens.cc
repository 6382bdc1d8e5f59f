#include "core/text/config_tokens.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_file.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace::text {
namespace {

constexpr int64_t kMostId = (1 << 24) - 1;  // the bound of parse_vocabulary()
constexpr size_t kShownBytes = 60;

struct Declared {
  AddedToken token;
  std::string where;
};
// By id, as transformers adds them.
using DeclaredTokens = std::map<TokenId, Declared>;

TokenId checked_id(int64_t id, const JsonPart& part) {
  if (id < 0 || id > kMostId)
    throw UserError("{}: the id of a token is from 0 to {}", part.where(), kMostId);
  return static_cast<TokenId>(id);
}

// {"content": ..., "lstrip": ...}; of a text the defaults.
AddedToken token_of(const JsonPart& part, bool special) {
  if (part.value().is_string())
    return {.content = part.text(), .special = special, .normalized = !special};
  special = part.flag("special", special);
  return {.content = part.text("content"),
          .special = special,
          .normalized = part.flag("normalized", !special),
          .single_word = part.flag("single_word", false),
          .lstrip = part.flag("lstrip", false),
          .rstrip = part.flag("rstrip", false)};
}

DeclaredTokens of_decoder(const JsonPart& decoder) {
  DeclaredTokens declared;
  if (!decoder.value().is_object()) decoder.refuse("an object of tokens by their ids");
  for (const auto& [key, value] : decoder.value().items()) {
    const JsonPart part(value, decoder.where() + "." + shortened(key, kShownBytes));
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) id = -1;
    Declared one{.token = token_of(part, false), .where = part.where()};
    one.token.id = checked_id(id, part);
    const TokenId token = one.token.id;
    // "256" and "0256" are two keys.
    if (!declared.emplace(token, std::move(one)).second)
      throw UserError("{}: the id {} is there twice", part.where(), token);
  }
  return declared;
}

// {"<|im_start|>": 151644}
DeclaredTokens of_encoder(const JsonPart& encoder, const std::set<std::string>& special) {
  DeclaredTokens declared;
  if (!encoder.value().is_object()) encoder.refuse("an object of ids by their tokens");
  for (const auto& [content, value] : encoder.value().items()) {
    const JsonPart part(value, encoder.where() + shortened(content, kShownBytes));
    Declared one{.token = {.id = checked_id(part.integer(), part), .content = content},
                 .where = part.where()};
    one.token.special = special.contains(content);
    one.token.normalized = !one.token.special;
    const TokenId token = one.token.id;
    if (!declared.emplace(token, std::move(one)).second)
      throw UserError("{}: the id {} is there twice", part.where(), token);
  }
  return declared;
}

// Special tokens that a config or special_tokens_map.json names.
void add_named(const JsonPart& config, std::vector<AddedToken>& named) {
  const auto add = [&](const JsonPart& part) {
    if (part.value().is_string() || part.value().is_object()) {
      named.push_back(token_of(part, true));
      named.back().special = true;
    }
  };
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
    if (config.has(key)) add(config.at(key));
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!config.has(key)) continue;
    const JsonPart list = config.at(key);
    if (list.value().is_array())
      for (const JsonPart& item : list.items()) add(item);
    else if (list.value().is_object())
      for (const auto& [name, value] : list.value().items())
        add(JsonPart(value, list.where() + "." + name));
  }
}

// Adds tokens by the rules of transformers: a text that is known keeps its id, and any other gets
// the next free one. A config that says another id would make the model read rows that were never
// trained for the token, so it is refused.
class Joiner {
 public:
  Joiner(const TokenModel& model, std::vector<AddedToken>& tokens)
      : model_(model), tokens_(tokens), next_(static_cast<TokenId>(model.vocabulary().size())) {
    for (size_t i = 0; i < tokens.size(); ++i) know(i);
  }

  void join(const Declared& declared) {
    const AddedToken& token = declared.token;
    if (token.content.empty()) return;
    const auto known = by_content_.find(token.content);
    const TokenId in_vocabulary = model_.find(token.content);
    const TokenId id = known != by_content_.end() ? tokens_[known->second].id
                       : in_vocabulary >= 0       ? in_vocabulary
                                                  : next_;
    if (id != token.id)
      throw UserError(
          "{}: the token {} has the id {} here, and {} by tokenizer.json{}. Save the tokenizer "
          "anew "
          "(AutoTokenizer, save_pretrained) from the files that the model was trained with",
          declared.where, json_text(nlohmann::json(shortened(token.content, kShownBytes))),
          token.id, id,
          known != by_content_.end() || in_vocabulary >= 0 ? "" : ", where it would be added");
    if (known == by_content_.end()) {
      tokens_.push_back(token);
      return know(tokens_.size() - 1);
    }
    // How the token is looked for is the config's to say; whether it is special is not.
    AddedToken& own = tokens_[known->second];
    const bool special = own.special;
    own = token;
    own.special = special;
  }

  // One that neither the files nor the vocabulary has gets an id from transformers for which no
  // model has a row; it stays text. So does one that the model finds by itself ("!" as padding),
  // which is a word as well.
  void join_named(AddedToken token) {
    if (token.content.empty() || by_content_.contains(token.content)) return;
    token.id = model_.find(token.content);
    if (token.id < 0) return;
    std::vector<TokenId> ids;
    Pieces alone(token.content);
    model_.encode(alone, ids);
    if (ids == std::vector<TokenId>{token.id}) return;
    tokens_.push_back(std::move(token));
    know(tokens_.size() - 1);
  }

 private:
  void know(size_t i) {
    by_content_.emplace(tokens_[i].content, i);
    next_ = std::max(next_, tokens_[i].id + 1);
  }

  const TokenModel& model_;
  std::vector<AddedToken>& tokens_;
  TokenId next_;
  std::map<std::string, size_t, std::less<>> by_content_;  // index of `tokens_`
};

}  // namespace

void join_config_tokens(const JsonPart& config, const std::filesystem::path& directory,
                        const TokenModel& model, std::vector<AddedToken>& tokens) {
  std::vector<AddedToken> named;
  add_named(config, named);
  DeclaredTokens declared;
  if (config.has("added_tokens_decoder")) {
    declared = of_decoder(config.at("added_tokens_decoder"));
  } else {
    const auto read = [&](const char* name, const auto& use) {
      const std::filesystem::path path = directory / name;
      if (!std::filesystem::exists(path)) return;
      const nlohmann::json document = read_json_object(path);
      use(JsonPart(document, path.string() + ": "));
    };
    read("special_tokens_map.json", [&](const JsonPart& part) { add_named(part, named); });
    std::set<std::string> special;
    for (const AddedToken& token : named) special.insert(token.content);
    read("added_tokens.json", [&](const JsonPart& part) {
      declared = of_encoder(part, special);
      // Where both files declare a token, tokenizer.json says how it is looked for.
      std::erase_if(declared, [&](const auto& entry) {
        const AddedToken& token = entry.second.token;
        return std::ranges::any_of(tokens, [&](const AddedToken& own) {
          return own.id == token.id && own.content == token.content;
        });
      });
    });
  }
  Joiner joiner(model, tokens);
  for (const auto& [id, one] : declared) joiner.join(one);
  for (AddedToken& token : named) joiner.join_named(std::move(token));
}

}  // namespace tailrace::text
