#include "core/text/pre_tokenizer.h"

#include <algorithm>
#include <functional>

#include "core/text/byte_alphabet.h"
#include "core/text/metaspace.h"
#include "core/text/pattern.h"

namespace tailrace::text {

namespace {

// The pattern of GPT-2's encoder (Radford et al. 2019), which ByteLevel means by use_regex.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// `\w` of Rust's regex crate: Alphabetic, marks, decimal digits, connectors, join controls.
constexpr const char* kWordPattern =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149})"
    R"(\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]+|)"
    R"([^\s\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F149})"
    R"(\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]+)";

enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior parse_behavior(const JsonPart& part) {
  std::string name = part.text();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  part.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

struct Part {
  Span span;
  bool matched = false;
};

// Joins what `behavior` joins. `parts` cover a piece without gaps.
// A match joins one neighbour at most, as in Hugging Face: of two delimiters in a row one stays
// alone ("a--b" by MergedWithPrevious is "a-", "-", "b").
void arrange(const std::vector<Part>& parts, Behavior behavior, std::vector<Span>& out) {
  size_t first = out.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [span, matched] = parts[i];
    bool join = false;  // with the part before
    if (i > 0) {
      bool before = parts[i - 1].matched;
      if (behavior == Behavior::kContiguous) join = matched == before;
      if (behavior == Behavior::kMergedWithPrevious) join = matched && !before;
      if (behavior == Behavior::kMergedWithNext) join = !matched && before;
    }
    if (behavior == Behavior::kRemoved && matched) continue;
    if (join && out.size() > first) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
  }
}

class Split final : public PreTokenizer {
 public:
  using FindAll = std::function<void(std::string_view, std::vector<Span>&)>;
  Split(FindAll find_all, Behavior behavior, bool invert)
      : find_all_(std::move(find_all)), behavior_(behavior), invert_(invert) {}

  void cut(Pieces& pieces) const override {
    std::vector<Span> out, matches;
    std::vector<Part> parts;
    for (const Span& span : pieces.spans) {
      matches.clear();
      find_all_(pieces.piece(span), matches);
      parts.clear();
      size_t done = span.begin;
      // An empty match cuts too; what lies between matches is never empty.
      const auto add = [&](size_t end, bool matched) {
        if (matched || end > done) parts.push_back({{done, end}, matched != invert_});
        done = end;
      };
      for (const Span& match : matches) {
        add(span.begin + match.begin, false);
        add(span.begin + match.end, true);
      }
      add(span.end, false);
      arrange(parts, behavior_, out);
    }
    std::erase_if(out, [](const Span& span) { return span.begin == span.end; });
    pieces.spans = std::move(out);
  }
  bool keeps_text() const override { return behavior_ != Behavior::kRemoved; }

 private:
  FindAll find_all_;
  Behavior behavior_;
  bool invert_;
};

std::unique_ptr<PreTokenizer> split_regex(const char* pattern, const JsonPart& part,
                                          Behavior behavior, bool invert) {
  // Shared: a std::function must be copyable, and a Regex is not.
  auto regex = std::make_shared<const Regex>(pattern, part.where());
  return std::make_unique<Split>(
      [regex](std::string_view text, std::vector<Span>& out) { regex->find_all(text, out); },
      behavior, invert);
}

class ByteLevelSplit final : public PreTokenizer {
 public:
  explicit ByteLevelSplit(const JsonPart& part)
      : add_prefix_space_(part.flag("add_prefix_space", true)) {
    // Files older than this field mean true.
    if (part.flag("use_regex", true)) {
      words_ = split_regex(kGpt2Pattern, part, Behavior::kIsolated, /*invert=*/false);
    }
  }

  void cut(Pieces& pieces) const override {
    // In this order: the pattern is made for text, the blank before the first word included; only
    // the cut pieces become stand-ins for bytes.
    if (add_prefix_space_) prefix(pieces);
    if (words_ != nullptr) words_->cut(pieces);
    std::string text;
    // A stand-in takes two bytes for a blank and for every byte beyond ASCII; a quarter more is
    // enough for most prose.
    text.reserve(pieces.text.size() + pieces.text.size() / 4);
    for (Span& span : pieces.spans) {
      size_t begin = text.size();
      for (char byte : pieces.piece(span)) text += byte_character(static_cast<uint8_t>(byte));
      span = {begin, text.size()};
    }
    pieces.text = std::move(text);
  }

 private:
  static void prefix(Pieces& pieces) {
    std::string text;
    for (Span& span : pieces.spans) {
      size_t begin = text.size();
      if (pieces.text[span.begin] != ' ') text += ' ';
      text += pieces.piece(span);
      span = {begin, text.size()};
    }
    pieces.text = std::move(text);
  }

  bool add_prefix_space_;
  std::unique_ptr<PreTokenizer> words_;  // null: pieces stay whole
};

// Blanks become U+2581, one more is put before what has none, and each begins a piece:
// SentencePiece's marks of words, as Llama 2 and Mistral have them.
class MetaspaceSplit final : public PreTokenizer {
 public:
  explicit MetaspaceSplit(const JsonPart& part)
      : scheme_(parse_prepend_scheme(part)), mark_(part.text("replacement", kMetaspace)) {
    if (mark_.empty()) part.at("replacement").refuse("one character");
    if (part.flag("split", true))
      words_ = std::make_unique<Split>(
          [mark = mark_](std::string_view text, std::vector<Span>& out) {
            for (size_t at = 0; (at = text.find(mark, at)) != std::string_view::npos;
                 at += mark.size())
              out.push_back({at, at + mark.size()});
          },
          Behavior::kMergedWithNext, /*invert=*/false);
  }

  void cut(Pieces& pieces) const override {
    std::string text;
    for (size_t i = 0; i < pieces.spans.size(); ++i) {
      Span& span = pieces.spans[i];
      const std::string_view piece = pieces.piece(span);
      const bool begins = pieces.at_start && i == 0 && span.begin == 0;
      const bool wanted =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && begins);
      const size_t begin = text.size();
      if (wanted && !piece.starts_with(mark_) && !piece.starts_with(' ')) text += mark_;
      for (const char c : piece) {
        if (c == ' ') {
          text += mark_;
        } else {
          text += c;
        }
      }
      span = {begin, text.size()};
    }
    pieces.text = std::move(text);
    if (words_ != nullptr) words_->cut(pieces);
  }

 private:
  PrependScheme scheme_;
  std::string mark_;
  std::unique_ptr<Split> words_;  // null: pieces stay whole
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> steps)
      : steps_(std::move(steps)) {}
  void cut(Pieces& pieces) const override {
    for (const auto& step : steps_) step->cut(pieces);
  }
  bool keeps_text() const override {
    return std::ranges::all_of(steps_, [](const auto& step) { return step->keeps_text(); });
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

std::unique_ptr<PreTokenizer> pre_tokenizer_at(const JsonPart& part, int depth) {
  std::string type = part.text("type");
  if (type == "ByteLevel") return std::make_unique<ByteLevelSplit>(part);
  if (type == "Split") {
    auto pattern = std::make_shared<const Pattern>(part.at("pattern"));
    return std::make_unique<Split>(
        [pattern](std::string_view text, std::vector<Span>& out) { pattern->find_all(text, out); },
        parse_behavior(part.at("behavior")), part.flag("invert", false));
  }
  if (type == "Metaspace") return std::make_unique<MetaspaceSplit>(part);
  if (type == "Digits") {
    bool each = part.flag("individual_digits", false);
    // \p{N} is what Rust's is_numeric() means: fractions and Roman numerals too.
    return split_regex(R"(\p{N})", part, each ? Behavior::kIsolated : Behavior::kContiguous,
                       /*invert=*/false);
  }
  if (type == "Punctuation") {
    Behavior behavior =
        part.has("behavior") ? parse_behavior(part.at("behavior")) : Behavior::kIsolated;
    // To Unicode the nine in ASCII are symbols; Hugging Face counts all of ASCII's as punctuation.
    return split_regex(R"([\p{P}$+<=>^`|~])", part, behavior, /*invert=*/false);
  }
  // Here the matches are what stays, hence inverted.
  if (type == "Whitespace")
    return split_regex(kWordPattern, part, Behavior::kRemoved, /*invert=*/true);
  if (type == "WhitespaceSplit")
    return split_regex(R"(\s)", part, Behavior::kRemoved, /*invert=*/false);
  if (type == "Sequence" && depth < 8) {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (const JsonPart& item : part.at("pretokenizers").items())
      steps.push_back(pre_tokenizer_at(item, depth + 1));
    return std::make_unique<PreTokenizerSequence>(std::move(steps));
  }
  part.at("type").refuse(
      "ByteLevel, Digits, Metaspace, Punctuation, Sequence (nested at most 8 deep), Split, "
      "Whitespace, WhitespaceSplit");
}

}  // namespace

std::unique_ptr<PreTokenizer> parse_pre_tokenizer(const JsonPart& part) {
  return pre_tokenizer_at(part, 0);
}

}  // namespace tailrace::text
