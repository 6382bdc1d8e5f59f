#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_file.h"
#include "core/base/nearest.h"
#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/config_tokens.h"
#include "core/text/decoder.h"
#include "core/text/json_part.h"
#include "core/text/normalizer.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/token_model.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"
#include "core/text/word_level.h"
#include "kernels/base/check.h"

namespace tailrace::text {

namespace {

// The tokens that the post-processor puts around a text.
struct Frame {
  std::vector<TokenId> before, after;
};

struct Parts {
  std::unique_ptr<Normalizer> normalizer;       // null: text stays
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // null: text is one piece
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<Decoder> decoder;  // null: tokens joined by blanks
  std::vector<AddedToken> added;
  Frame frame;
  TokenId bos = -1, eos = -1;
};

bool holds_one(std::span<const size_t> offsets, std::ptrdiff_t begin, size_t size) {
  const auto first = static_cast<size_t>(begin);
  const auto next = std::ranges::lower_bound(offsets, first);
  return next != offsets.end() && *next < first + size;
}

int64_t num_white(std::string_view text) {
  int64_t white = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (is_white_space(next_code_point(text, at))) white += static_cast<int64_t>(at - begin);
  }
  return white;
}

class JsonTokenizer final : public Tokenizer {
 public:
  explicit JsonTokenizer(Parts parts)
      // The matchers are made from parts_, which is therefore declared before them.
      : parts_(std::move(parts)),
        all_(matchers(true)),
        without_special_(matchers(false)),
        normalized_special_(normalized_special()) {
    TokenId last = -1;
    for (const auto& [token, id] : parts_.model->vocabulary()) last = std::max(last, id);
    for (const AddedToken& token : parts_.added) last = std::max(last, token.id);
    tokens_.resize(last + 1);
    special_.resize(last + 1);
    for (const auto& [token, id] : parts_.model->vocabulary()) tokens_[id] = token;
    // After the model's own: an added token may replace an entry of the vocabulary.
    for (const AddedToken& token : parts_.added) {
      tokens_[token.id] = token.content;
      special_[token.id] = token.special;
      added_ids_.emplace(token.content, token.id);
    }
    max_token_bytes_ = longest_token();
    for (const AddedToken& token : parts_.added) {
      if (!token.lstrip && !token.rstrip) continue;
      strip_.push_back(token);
      strips_normalised_ = strips_normalised_ || (token.normalized && parts_.normalizer != nullptr);
    }
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::string repaired;
    if (!is_utf8(text)) {
      TR_CHECK(options.literal.empty(), "offsets of a text that is not UTF-8");
      text = repaired = repair_utf8(text);
    }
    std::vector<TokenId> ids;
    if (options.framed) ids = parts_.frame.before;
    std::vector<Section> sections;
    // Special tokens are found in the text as it is; those that are `normalized` in what the
    // normalizer makes of the rest.
    const Matchers& matchers = options.find_special ? all_ : without_special_;
    matchers.raw.cut(text, options.literal, sections);
    for (const Section& section : sections) {
      if (section.id >= 0)
        ids.push_back(section.id);
      else if (!options.find_special)
        encode_plain(text, section.text, ids);
      else if (holds_one(options.literal, section.text.data() - text.data(), section.text.size()))
        encode_marked(text, section.text, options.literal, ids);
      else
        encode_section(section.text, section.text.data() == text.data(), matchers.normal, ids);
    }
    if (options.framed) ids.insert(ids.end(), parts_.frame.after.begin(), parts_.frame.after.end());
    return ids;
  }

  std::string decode(std::span<const TokenId> ids, bool keep_special) const override {
    std::vector<std::string> tokens;
    for (TokenId id : ids) {
      // A model whose vocab_size is padded can sample an id that is no token: it has no text.
      bool known = id >= 0 && id < vocab_size() && tokens_[id].has_value();
      if (known && (keep_special || !special_[id])) tokens.push_back(*tokens_[id]);
    }
    if (parts_.decoder != nullptr) parts_.decoder->decode(tokens);
    std::string text;
    for (const std::string& token : tokens) {
      if (parts_.decoder == nullptr && !text.empty()) text += ' ';
      text += token;
    }
    return text;
  }

  std::string bytes_of(TokenId id) const override {
    if (id < 0 || id >= vocab_size() || !tokens_[static_cast<size_t>(id)]) return "";
    if (parts_.decoder != nullptr)
      if (auto bytes = parts_.decoder->bytes_of(*tokens_[static_cast<size_t>(id)])) return *bytes;
    // The first of a text may lose its blank.
    const std::array<TokenId, 2> twice = {id, id};
    const std::string alone = decode(std::span(twice).first(1), /*keep_special=*/true);
    const std::string both = decode(twice, /*keep_special=*/true);
    return both.starts_with(alone) ? both.substr(alone.size()) : alone;
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  TokenId id_of(std::string_view token) const override {
    auto it = added_ids_.find(token);
    return it != added_ids_.end() ? it->second : parts_.model->find(token);
  }
  TokenId bos() const override { return parts_.bos; }
  TokenId eos() const override { return parts_.eos; }
  std::vector<std::string> special_tokens() const override {
    std::vector<std::string> texts;
    for (const AddedToken& token : parts_.added)
      if (token.special && !token.content.empty()) texts.push_back(token.content);
    return texts;
  }
  int64_t max_token_bytes() const override { return max_token_bytes_; }
  int64_t num_stripped(std::string_view text) const override {
    if (strip_.empty()) return 0;
    std::string repaired;
    if (!is_utf8(text)) text = repaired = repair_utf8(text);
    // In normalised text such a token may stand where this text does not have it.
    if (strips_normalised_) return num_white(text);
    return text::num_stripped(strip_, text);
  }
  bool is_special(TokenId id) const override {
    return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)] != 0;
  }

 private:
  // As tokens are written, which is never shorter than the text that they stand for.
  int64_t longest_token() const {
    const bool covers = parts_.model->covers_all_text() &&
                        (parts_.pre_tokenizer == nullptr || parts_.pre_tokenizer->keeps_text());
    // Text that the model may drop or fuse has no bound: any number of bytes can stand behind one
    // id.
    if (!covers) return 0;
    constexpr size_t kCharacter = 4;  // of an unknown token
    size_t longest = kCharacter;
    for (const auto& token : tokens_)
      if (token) longest = std::max(longest, token->size());
    return static_cast<int64_t>(longest) *
           (parts_.normalizer == nullptr ? 1 : parts_.normalizer->max_shrinking());
  }

  struct Matchers {
    AddedTokenMatcher raw, normal;  // matched on text as it is, and as it is normalised
  };
  Matchers matchers(bool special) const {
    return {matched_on(false, special), matched_on(true, special)};
  }
  AddedTokenMatcher matched_on(bool normalized, bool special) const {
    std::vector<AddedToken> tokens;
    for (AddedToken token : parts_.added) {
      if (token.normalized != normalized || (token.special && !special)) continue;
      // They are looked for in normalised text, so their content goes through the same.
      if (normalized) token.content = normalize(std::move(token.content));
      tokens.push_back(std::move(token));
    }
    return AddedTokenMatcher(std::move(tokens));
  }

  // The special tokens that are looked for in normalised text, as they are written.
  AddedTokenMatcher normalized_special() const {
    std::vector<AddedToken> tokens;
    for (const AddedToken& token : parts_.added)
      if (token.normalized && token.special) tokens.push_back(token);
    return AddedTokenMatcher(std::move(tokens));
  }

  std::string normalize(std::string text) const {
    return parts_.normalizer == nullptr ? text : parts_.normalizer->normalize(std::move(text));
  }

  // A vocabulary of words has its special tokens among them, and finds them without being asked.
  void check_plain(std::string_view text, std::span<const TokenId> ids) const {
    for (TokenId id : ids) {
      // The unknown token may stand for anything, and forges nothing.
      if (special_[id] && id != parts_.model->unknown() &&
          text.find(*tokens_[id]) != std::string_view::npos)
        throw UserError("the text holds '{}', which the vocabulary knows as a special token alone",
                        *tokens_[id]);
    }
  }

  // A section of `text` in which nothing is a special token.
  void encode_plain(std::string_view text, std::string_view section,
                    std::vector<TokenId>& ids) const {
    const size_t first = ids.size();
    encode_section(section, section.data() == text.data(), without_special_.normal, ids);
    check_plain(section, std::span(ids).subspan(first));
  }

  // One that holds a literal offset. Offsets do not outlive the normalizer: tokens that are looked
  // for behind it are found before it here, where their text stands as it is.
  void encode_marked(std::string_view text, std::string_view section,
                     std::span<const size_t> literal, std::vector<TokenId>& ids) const {
    const auto begin = static_cast<size_t>(section.data() - text.data());
    std::vector<size_t> inside;
    for (const size_t offset : literal)
      if (offset >= begin && offset < begin + section.size()) inside.push_back(offset - begin);
    std::vector<Section> parts;
    normalized_special_.cut(section, inside, parts);
    for (const Section& part : parts) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_plain(text, part.text, ids);
    }
  }

  void encode_section(std::string_view text, bool at_start, const AddedTokenMatcher& normal_tokens,
                      std::vector<TokenId>& ids) const {
    std::string normal = normalize(std::string(text));
    std::vector<Section> sections;
    normal_tokens.cut(normal, {}, sections);
    for (const Section& section : sections) {
      if (section.id >= 0) {
        ids.push_back(section.id);
        continue;
      }
      Pieces pieces{std::string(section.text)};
      pieces.at_start = at_start && section.text.data() == normal.data();
      if (parts_.pre_tokenizer != nullptr) parts_.pre_tokenizer->cut(pieces);
      parts_.model->encode(pieces, ids);
    }
  }

  Parts parts_;
  Matchers all_, without_special_;
  AddedTokenMatcher normalized_special_;
  std::vector<std::optional<std::string>> tokens_;  // by id; none: a hole
  std::vector<char> special_;                       // by id
  Vocabulary added_ids_;
  int64_t max_token_bytes_ = 0;
  std::vector<AddedToken> strip_;   // added tokens that take blanks with them
  bool strips_normalised_ = false;  // one of them is looked for in normalised text
};

void add_template(const JsonPart& part, Frame& frame) {
  bool seen_text = false;
  // `pair`, for models that compare two texts, is not read.
  for (const JsonPart& item : part.at("single").items()) {
    if (item.has("Sequence")) {
      if (seen_text || item.at("Sequence").text("id", "A") != "A")
        item.refuse("the sequence A, once");
      seen_text = true;
      continue;
    }
    JsonPart token = part.at("special_tokens").at(item.at("SpecialToken").text("id"));
    for (const JsonPart& id : token.at("ids").items()) {
      (seen_text ? frame.after : frame.before).push_back(static_cast<TokenId>(id.integer()));
    }
  }
  if (!seen_text) part.at("single").refuse("a template that holds the sequence A");
}

// ["</s>", 2]
TokenId numbered_token(const JsonPart& part) {
  std::vector<JsonPart> items = part.items();
  if (items.size() != 2) part.refuse("[\"token\", id]");
  return static_cast<TokenId>(items[1].integer());
}

void add_post_processor(const JsonPart& part, Frame& frame, int depth = 0) {
  std::string type = part.text("type");
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "TemplateProcessing") return add_template(part, frame);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    // Outermost: what a sequence of processors has added so far lies between the two.
    frame.before.insert(frame.before.begin(), numbered_token(part.at("cls")));
    frame.after.push_back(numbered_token(part.at("sep")));
    return;
  }
  if (type == "Sequence" && depth < 8) {
    for (const JsonPart& item : part.at("processors").items()) {
      add_post_processor(item, frame, depth + 1);
    }
    return;
  }
  part.at("type").refuse(
      "BertProcessing, ByteLevel, RobertaProcessing, Sequence (nested at most 8 deep), "
      "TemplateProcessing");
}

// The file gives these ids as numbers; a wrong one would first be noticed by the embedding.
void check_frame(const JsonPart& part, const Frame& frame, const Parts& parts) {
  auto check = [&](TokenId id) {
    bool known = std::any_of(parts.added.begin(), parts.added.end(),
                             [&](const AddedToken& token) { return token.id == id; }) ||
                 std::any_of(parts.model->vocabulary().begin(), parts.model->vocabulary().end(),
                             [&](const auto& entry) { return entry.second == id; });
    if (!known) throw UserError("{}: the id {} is in no vocabulary", part.where(), id);
  };
  for (TokenId id : frame.before) check(id);
  for (TokenId id : frame.after) check(id);
}

// "<s>", {"content": "<s>", ...} or null.
TokenId named_token(const JsonPart& config, const std::string& key, const Parts& parts) {
  if (!config.has(key)) return -1;
  JsonPart part = config.at(key);
  std::string name = part.value().is_object() ? part.text("content") : part.text();
  // An added token hides the model's entry of the same text, as in id_of().
  for (const AddedToken& token : parts.added) {
    if (token.content == name) return token.id;
  }
  TokenId id = parts.model->find(name);
  if (id < 0) part.refuse("null, or a token of tokenizer.json");
  return id;
}

std::unique_ptr<TokenModel> parse_token_model(const JsonPart& part) {
  // Files of before 2020 have no type; only BPE has merges.
  std::string type = !part.has("type") && part.has("merges") ? "BPE" : part.text("type");
  if (type == "BPE") return parse_bpe(part);
  if (type == "WordLevel") return parse_word_level(part);
  part.at("type").refuse("BPE, WordLevel");
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& directory) {
  std::filesystem::path path = directory / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    throw UserError(
        "{}: not found{}. A tokenizer is a folder with a tokenizer.json of Hugging Face; for a "
        "model that has other tokenizer files, save it once with transformers (AutoTokenizer, "
        "save_pretrained).{}",
        path.string(), nearest_path_hint(directory), hub_id_hint(directory));
  }
  nlohmann::json document = read_json_object(path);
  JsonPart root(document, path.string() + ": ");
  Parts parts;
  if (root.has("normalizer")) parts.normalizer = parse_normalizer(root.at("normalizer"));
  if (root.has("pre_tokenizer"))
    parts.pre_tokenizer = parse_pre_tokenizer(root.at("pre_tokenizer"));
  if (root.has("decoder")) parts.decoder = parse_decoder(root.at("decoder"));
  // Before the post-processor and the config, whose tokens are looked up in these two.
  parts.model = parse_token_model(root.at("model"));
  if (root.has("added_tokens")) parts.added = parse_added_tokens(root.at("added_tokens"));
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  const nlohmann::json config = std::filesystem::exists(config_path) ? read_json_object(config_path)
                                                                     : nlohmann::json::object();
  const JsonPart config_root(config, config_path.string() + ": ");
  join_config_tokens(config_root, directory, *parts.model, parts.added);
  if (root.has("post_processor")) {
    add_post_processor(root.at("post_processor"), parts.frame);
    check_frame(root.at("post_processor"), parts.frame, parts);
  }
  parts.bos = named_token(config_root, "bos_token", parts);
  parts.eos = named_token(config_root, "eos_token", parts);
  return std::make_unique<JsonTokenizer>(std::move(parts));
}

}  // namespace tailrace::text
