#include "core/text/decoder.h"

#include <charconv>

#include "core/text/byte_alphabet.h"
#include "core/text/metaspace.h"
#include "core/text/pattern.h"
#include "core/text/utf8.h"

namespace tailrace::text {

namespace {

void replace_by_one(std::vector<std::string>& tokens, std::string text) {
  tokens.clear();
  tokens.push_back(std::move(text));
}

class ByteLevelDecoder final : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += *bytes_of(token);
    // Joined first: a character's bytes may be spread over several tokens.
    replace_by_one(tokens, repair_utf8(bytes));
  }

  std::optional<std::string> bytes_of(const std::string& token) const override {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const std::optional<uint8_t> byte = byte_of_character(next_code_point(token, at));
      // An added token that is plain text. As in Hugging Face, one foreign character makes the
      // whole token plain, with what came before it.
      if (!byte) return token;
      bytes.push_back(static_cast<char>(*byte));
    }
    return bytes;
  }
};

// Runs of `<0x41>` become their bytes, or one U+FFFD a byte if these are not UTF-8.
class ByteFallback final : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string run;
    auto flush = [&] {
      if (run.empty()) return;
      if (is_utf8(run)) {
        out.push_back(std::move(run));
      } else {
        for (size_t i = 0; i < run.size(); ++i) out.push_back("\xEF\xBF\xBD");
      }
      run.clear();
    };
    for (std::string& token : tokens) {
      if (std::optional<char> byte = parse_byte(token)) {
        run.push_back(*byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    tokens = std::move(out);
  }

  std::optional<std::string> bytes_of(const std::string& token) const override {
    const std::optional<char> byte = parse_byte(token);
    return byte ? std::optional(std::string(1, *byte)) : std::nullopt;
  }

 private:
  static std::optional<char> parse_byte(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    uint8_t value = 0;
    auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
    if (error != std::errc() || end != token.data() + 5) return std::nullopt;
    return static_cast<char>(value);
  }
};

// Steps behind it see the whole text: a Strip then takes from its ends, not from those of each
// token.
class Fuse final : public Decoder {
 public:
  void decode(std::vector<std::string>& tokens) const override {
    std::string text;
    for (const std::string& token : tokens) text += token;
    replace_by_one(tokens, std::move(text));
  }
};

class ReplaceDecoder final : public Decoder {
 public:
  explicit ReplaceDecoder(const JsonPart& part)
      : pattern_(part.at("pattern")), content_(part.text("content")) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = pattern_.replace_all(std::move(token), content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// U+2581 becomes a blank; in the first token, where encoding may have put one, nothing.
class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(const JsonPart& part)
      : drops_first_(parse_prepend_scheme(part) != PrependScheme::kNever),
        mark_(part.text("replacement", kMetaspace)) {
    if (mark_.empty()) part.at("replacement").refuse("one character");
  }
  void decode(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const char* blank = i == 0 && drops_first_ ? "" : " ";
      std::string text;
      size_t done = 0;
      for (size_t at; (at = tokens[i].find(mark_, done)) != std::string::npos;
           done = at + mark_.size())
        text.append(tokens[i], done, at - done).append(blank);
      tokens[i] = text.append(tokens[i], done);
    }
  }

 private:
  bool drops_first_;
  std::string mark_;
};

// Up to `start` and `stop` copies of a character from each end of each token.
class Strip final : public Decoder {
 public:
  explicit Strip(const JsonPart& part)
      : content_(part.text("content")),
        start_(part.at("start").integer()),
        stop_(part.at("stop").integer()) {
    if (content_.empty()) part.at("content").refuse("one character");
  }
  void decode(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i)
        rest.remove_prefix(content_.size());
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

// A blank before each token but the first, unless it begins with the prefix, which is then taken
// off.
class WordPiece final : public Decoder {
 public:
  explicit WordPiece(const JsonPart& part) : prefix_(part.text("prefix", "##")) {
    // Cleanup rewrites English punctuation (" n't" becomes "n't"), which nothing here does.
    if (part.flag("cleanup", true)) part.at("cleanup").refuse("false");
  }
  void decode(std::vector<std::string>& tokens) const override {
    for (size_t i = 1; i < tokens.size(); ++i) {
      bool continues = !prefix_.empty() && tokens[i].starts_with(prefix_);
      tokens[i] = continues ? tokens[i].substr(prefix_.size()) : " " + tokens[i];
    }
  }

 private:
  std::string prefix_;
};

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> steps)
      : steps_(std::move(steps)) {}
  void decode(std::vector<std::string>& tokens) const override {
    for (const auto& step : steps_) step->decode(tokens);
  }

  std::optional<std::string> bytes_of(const std::string& token) const override {
    for (const auto& step : steps_)
      if (auto bytes = step->bytes_of(token)) return bytes;
    return std::nullopt;
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

std::unique_ptr<Decoder> decoder_at(const JsonPart& part, int depth) {
  std::string type = part.text("type");
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "ByteFallback") return std::make_unique<ByteFallback>();
  if (type == "Fuse") return std::make_unique<Fuse>();
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(part);
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(part);
  if (type == "Strip") return std::make_unique<Strip>(part);
  if (type == "WordPiece") return std::make_unique<WordPiece>(part);
  // Bounded, here and in the other parsers: decoder_at() calls itself, and a file must not end the
  // stack.
  if (type == "Sequence" && depth < 8) {
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const JsonPart& item : part.at("decoders").items())
      steps.push_back(decoder_at(item, depth + 1));
    return std::make_unique<DecoderSequence>(std::move(steps));
  }
  part.at("type").refuse(
      "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence (nested at most 8 deep), Strip, "
      "WordPiece");
}

}  // namespace

std::unique_ptr<Decoder> parse_decoder(const JsonPart& part) { return decoder_at(part, 0); }

}  // namespace tailrace::text
