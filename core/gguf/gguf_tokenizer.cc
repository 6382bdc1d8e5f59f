#include "core/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/base/utf8_sequence.h"
#include "core/chat/chat_template.h"

namespace tailrace {
namespace {

using Ordered = nlohmann::ordered_json;

// tokenizer.ggml.token_type
constexpr int64_t kUndefined = 0, kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4,
                  kByte = 6;

// How text is cut before byte pairs are merged. Names and patterns are those by which the released
// tokenizer.json of these models cut.
enum class Cut : uint8_t {
  kGpt2,    // words, numbers, others, each with the blank in front
  kDigits,  // each digit for itself, then as kGpt2
  kLlama3,  // numbers of up to three digits, and words without regard to case of contractions
  kQwen2,   // the same with each digit for itself, of text in NFC
};
struct PreTokenizerName {
  std::string_view name;
  Cut cut;
  bool ignore_merges = false;  // a word of the vocabulary is its token
  bool adds_bos = false;       // where the file does not say
};
constexpr PreTokenizerName kPreTokenizers[] = {
    {.name = "gpt-2", .cut = Cut::kGpt2},
    {.name = "phi-2", .cut = Cut::kGpt2},
    {.name = "olmo", .cut = Cut::kGpt2},
    {.name = "mpt", .cut = Cut::kGpt2},
    {.name = "smollm", .cut = Cut::kDigits},
    {.name = "starcoder", .cut = Cut::kDigits},
    {.name = "refact", .cut = Cut::kDigits},
    {.name = "command-r", .cut = Cut::kDigits},
    {.name = "codeshell", .cut = Cut::kDigits},
    {.name = "exaone", .cut = Cut::kDigits},
    {.name = "llama-bpe", .cut = Cut::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama3", .cut = Cut::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "llama-v3", .cut = Cut::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "falcon3", .cut = Cut::kLlama3, .ignore_merges = true, .adds_bos = true},
    {.name = "dbrx", .cut = Cut::kLlama3},
    {.name = "smaug-bpe", .cut = Cut::kLlama3},
    {.name = "qwen2", .cut = Cut::kQwen2},
    {.name = "deepseek-r1-qwen", .cut = Cut::kQwen2},
    {.name = "stablelm2", .cut = Cut::kQwen2},
    {.name = "megrez", .cut = Cut::kQwen2},
};

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kMetaspace = "\xe2\x96\x81";  // U+2581

Ordered byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Ordered sequence(const char* list, Ordered items) {
  return {{"type", "Sequence"}, {list, std::move(items)}};
}

Ordered split(const char* pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Ordered replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

Ordered pre_tokenizer_of(Cut cut, bool add_prefix_space) {
  switch (cut) {
    case Cut::kGpt2:
      return byte_level(add_prefix_space, true);
    case Cut::kDigits:
      return sequence("pretokenizers",
                      Ordered::array({{{"type", "Digits"}, {"individual_digits", true}},
                                      byte_level(add_prefix_space, true)}));
    case Cut::kLlama3:
      return sequence("pretokenizers",
                      Ordered::array({split(kLlama3Pattern), byte_level(add_prefix_space, false)}));
    case Cut::kQwen2:
      break;
  }
  return sequence("pretokenizers",
                  Ordered::array({split(kQwen2Pattern), byte_level(add_prefix_space, false)}));
}

class TokenizerReader {
 public:
  explicit TokenizerReader(const GgufFile& file) : file_(file) {
    const auto* tokens = file_.array<std::string_view>("tokenizer.ggml.tokens");
    if (tokens == nullptr || tokens->empty())
      throw UserError("{}: it has no tokens (tokenizer.ggml.tokens)", where());
    tokens_ = *tokens;
    if (const auto* types = file_.array<int64_t>("tokenizer.ggml.token_type"))
      types_ = *types;
    else
      types_.assign(tokens_.size(), kNormal);
    check_size("token_type", types_.size());
    for (const char* name : {"bos", "eos", "eot", "unknown", "padding"}) id_of(name);
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (tokens_[id].size() > kMaxGgufTokenBytes)
        throw UserError("{}: the token {} has {} bytes; at most {} are accepted", where(), id,
                        tokens_[id].size(), kMaxGgufTokenBytes);
      check_utf8(tokens_[id], fmt::format("the token {}", id));
      if (types_[id] < kUndefined || types_[id] > kByte)
        throw UserError("{}: the token {} is of the type {}; types are from {} to {}", where(), id,
                        types_[id], kUndefined, kByte);
      if (!ids_.emplace(tokens_[id], static_cast<int64_t>(id)).second)
        throw UserError("{}: the token '{}' is there twice, as {} and {}", where(),
                        shown_name(tokens_[id]), ids_.at(tokens_[id]), id);
    }
  }

  TokenizerTexts read() {
    const std::string_view model = file_.text("tokenizer.ggml.model");
    Ordered json = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}};
    json["added_tokens"] = added_tokens();
    if (model == "gpt2") {
      add_byte_level(json);
    } else if (model == "llama") {
      add_sentence_piece(json);
    } else {
      throw UserError(
          "{}: tokenizer.ggml.model is {}, which is not read; accepted: gpt2 (byte pairs), llama "
          "(SentencePiece).",
          where(), shown_name(model));
    }
    TokenizerTexts texts;
    texts.tokenizer = json_text(json, 1) + "\n";
    texts.config = json_text(config(), 2) + "\n";
    texts.notes = std::move(notes_);
    return texts;
  }

 private:
  std::string where() const { return file_.path().string(); }

  void check_size(std::string_view name, size_t size) const {
    if (size != tokens_.size())
      throw UserError("{}: tokenizer.ggml.{} has {} entries, and there are {} tokens", where(),
                      name, size, tokens_.size());
  }
  void check_utf8(std::string_view text, std::string_view name) const {
    for (size_t at = 0; at < text.size();) {
      const int length = sequence_length(text, at);
      if (length <= 0) throw UserError("{}: {} is no UTF-8", where(), name);
      at += static_cast<size_t>(length);
    }
  }

  // The id that a key names; -1: it names none.
  int64_t id_of(const std::string& name) const {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const int64_t id = file_.integer(key, -1);
    if (id < -1 || id >= std::ssize(tokens_))
      throw UserError("{}: {} is {}; there are {} tokens", where(), key, id, tokens_.size());
    return id;
  }
  std::string token_of(const std::string& name) const {
    const int64_t id = id_of(name);
    return id < 0 ? "" : std::string(tokens_[static_cast<size_t>(id)]);
  }

  Ordered vocabulary() const {
    Ordered vocabulary = Ordered::object();
    auto& entries = vocabulary.get_ref<Ordered::object_t&>();
    entries.reserve(tokens_.size());
    // An ordered object looks for a key at each insertion, and these are known to differ.
    for (size_t id = 0; id < tokens_.size(); ++id)
      entries.emplace_back(std::string(tokens_[id]), static_cast<int64_t>(id));
    return vocabulary;
  }

  Ordered added_tokens() const {
    Ordered added = Ordered::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const int64_t type = types_[id];
      const bool special = type == kControl || type == kUnknown;
      if (!special && type != kUserDefined) continue;
      added.push_back({{"id", id},
                       {"content", tokens_[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", special}});
    }
    return added;
  }

  // Around a text: its first and last token, where the file asks for them.
  Ordered frame(bool bos_by_default) const {
    Ordered single = Ordered::array(), special = Ordered::object();
    const auto add = [&](const std::string& name) {
      const std::string token = token_of(name);
      if (token.empty()) return;
      single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
      special[token] = {{"id", token}, {"ids", {id_of(name)}}, {"tokens", {token}}};
    };
    if (file_.flag("tokenizer.ggml.add_bos_token", bos_by_default)) add("bos");
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (file_.flag("tokenizer.ggml.add_eos_token", false)) add("eos");
    if (special.empty()) return nullptr;
    return {{"type", "TemplateProcessing"},
            {"single", single},
            {"pair", Ordered::array({{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                     {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
            {"special_tokens", special}};
  }

  void add_byte_level(Ordered& json) {
    const std::string_view name = file_.text("tokenizer.ggml.pre");
    const auto* found = std::ranges::find(kPreTokenizers, name, &PreTokenizerName::name);
    if (found == std::end(kPreTokenizers))
      throw UserError("{}: tokenizer.ggml.pre is {}, which is not read; accepted: {}.", where(),
                      shown_name(name), all_gguf_pre_tokenizers());
    const bool prefix = file_.flag("tokenizer.ggml.add_space_prefix", false);
    json["normalizer"] = found->cut == Cut::kQwen2 ? Ordered({{"type", "NFC"}}) : Ordered(nullptr);
    json["pre_tokenizer"] = pre_tokenizer_of(found->cut, prefix);
    json["post_processor"] = frame(found->adds_bos);
    json["decoder"] = byte_level(true, true);
    Ordered& model = json["model"];
    model = {{"type", "BPE"},
             {"dropout", nullptr},
             {"unk_token", nullptr},
             {"continuing_subword_prefix", nullptr},
             {"end_of_word_suffix", nullptr},
             {"fuse_unk", false},
             {"byte_fallback", false},
             {"ignore_merges", found->ignore_merges}};
    model["vocab"] = vocabulary();
    model["merges"] = given_merges();
  }

  Ordered given_merges() const {
    const auto* merges = file_.array<std::string_view>("tokenizer.ggml.merges");
    if (merges == nullptr) throw UserError("{}: it has no merges (tokenizer.ggml.merges)", where());
    Ordered list = Ordered::array();
    for (size_t i = 0; i < merges->size(); ++i) {
      const std::string_view merge = (*merges)[i];
      // From the second byte on, as llama.cpp looks: the first token may begin with a blank.
      const size_t blank = merge.find(' ', 1);
      const bool known = blank != std::string_view::npos && ids_.contains(merge.substr(0, blank)) &&
                         ids_.contains(merge.substr(blank + 1));
      if (!known)
        throw UserError("{}: merge {} is '{}'; it must be two tokens and a blank between them",
                        where(), i, shown_name(merge));
      list.push_back({merge.substr(0, blank), merge.substr(blank + 1)});
    }
    return list;
  }

  void add_sentence_piece(Ordered& json) {
    const auto* scores = file_.array<double>("tokenizer.ggml.scores");
    if (scores == nullptr) throw UserError("{}: it has no scores (tokenizer.ggml.scores)", where());
    check_size("scores", scores->size());
    for (size_t id = 0; id < scores->size(); ++id)
      if (!std::isfinite((*scores)[id]))
        throw UserError("{}: tokenizer.ggml.scores has {} for the token {}; it must be finite",
                        where(), (*scores)[id], id);
    if (file_.flag("tokenizer.ggml.remove_extra_whitespaces", false))
      notes_.push_back("tokenizer.ggml.remove_extra_whitespaces is true, and blanks stay");
    const bool prefix = file_.flag("tokenizer.ggml.add_space_prefix", true);
    const Ordered blanks = replace(" ", kMetaspace);
    json["normalizer"] =
        prefix ? sequence("normalizers",
                          Ordered::array({{{"type", "Prepend"}, {"prepend", kMetaspace}}, blanks}))
               : blanks;
    json["pre_tokenizer"] = nullptr;
    json["post_processor"] = frame(true);
    Ordered decoders =
        Ordered::array({replace(kMetaspace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
    if (prefix)
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    json["decoder"] = sequence("decoders", decoders);
    const auto unknown = std::ranges::find(types_, kUnknown);
    Ordered& model = json["model"];
    model = {{"type", "BPE"}, {"dropout", nullptr}};
    model["unk_token"] =
        unknown == types_.end()
            ? Ordered(nullptr)
            : Ordered(std::string(tokens_[static_cast<size_t>(unknown - types_.begin())]));
    model["continuing_subword_prefix"] = nullptr;
    model["end_of_word_suffix"] = nullptr;
    model["fuse_unk"] = true;
    model["byte_fallback"] = std::ranges::find(types_, kByte) != types_.end();
    model["ignore_merges"] = false;
    model["vocab"] = vocabulary();
    model["merges"] = merges_of(*scores);
  }

  // SentencePiece joins the neighbours whose joined piece has the highest score. As merges, these
  // are all ways to make a piece of two, by the score of the piece, and of one piece by the scores
  // of its halves.
  Ordered merges_of(const std::vector<double>& scores) const {
    struct Way {
      double score, left_score, right_score;
      std::string_view left, right;
    };
    const auto is_piece = [&](int64_t id) {
      const int64_t type = types_[static_cast<size_t>(id)];
      return type == kNormal || type == kUserDefined;
    };
    std::vector<Way> ways;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_piece(static_cast<int64_t>(id))) continue;
      const std::string_view token = tokens_[id];
      for (size_t at = 0; at + 1 < token.size();) {
        at += static_cast<size_t>(sequence_length(token, at));
        if (at >= token.size()) break;
        const auto left = ids_.find(token.substr(0, at)), right = ids_.find(token.substr(at));
        if (left == ids_.end() || right == ids_.end() || !is_piece(left->second) ||
            !is_piece(right->second))
          continue;
        ways.push_back({scores[id], scores[static_cast<size_t>(left->second)],
                        scores[static_cast<size_t>(right->second)], left->first, right->first});
      }
    }
    std::ranges::stable_sort(ways, [](const Way& a, const Way& b) {
      return std::tie(a.score, a.left_score, a.right_score) >
             std::tie(b.score, b.left_score, b.right_score);
    });
    Ordered list = Ordered::array();
    for (const Way& way : ways) list.push_back({way.left, way.right});
    return list;
  }

  Ordered config() const {
    Ordered json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"clean_up_tokenization_spaces", false}};
    for (const auto& [name, key] :
         std::initializer_list<std::pair<const char*, const char*>>{{"bos", "bos_token"},
                                                                    {"eos", "eos_token"},
                                                                    {"unknown", "unk_token"},
                                                                    {"padding", "pad_token"}})
      if (const std::string token = token_of(name); !token.empty()) json[key] = token;
    constexpr const char* kTemplate = "tokenizer.chat_template";
    if (file_.find(kTemplate) != nullptr) {
      const std::string_view text = file_.text(kTemplate);
      check_utf8(text, kTemplate);
      chat::ChatTemplate::parse(text, fmt::format("{}: {}", where(), kTemplate));
      json["chat_template"] = text;
    }
    return json;
  }

  const GgufFile& file_;
  std::vector<std::string_view> tokens_;
  std::vector<int64_t> types_;
  std::unordered_map<std::string_view, int64_t> ids_;
  std::vector<std::string> notes_;
};

}  // namespace

TokenizerTexts tokenizer_texts(const GgufFile& file) { return TokenizerReader(file).read(); }

std::string all_gguf_pre_tokenizers() {
  std::string names;
  for (const PreTokenizerName& one : kPreTokenizers)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", one.name);
  return names;
}

}  // namespace tailrace
