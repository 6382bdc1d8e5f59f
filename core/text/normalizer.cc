#include "core/text/normalizer.h"

#include <algorithm>
#include <vector>

#include "core/text/nfc.h"
#include "core/text/pattern.h"

namespace tailrace::text {

namespace {

class Nfc final : public Normalizer {
 public:
  std::string normalize(std::string text) const override { return normalize_nfc(text); }
  // Three jamo of three bytes each become one syllable of three, and the sign of Kelvin a K.
  int64_t max_shrinking() const override { return 3; }
};

// Hugging Face's rule: an empty text stays empty, and each stretch between added tokens gets the
// prefix anew (the tokenizer normalizes them one by one).
class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string normalize(std::string text) const override {
    return text.empty() ? text : prefix_ + text;
  }
  int64_t max_shrinking() const override { return 1; }

 private:
  std::string prefix_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonPart& part)
      : pattern_(part.at("pattern")), content_(part.text("content")) {}
  std::string normalize(std::string text) const override {
    return pattern_.replace_all(std::move(text), content_);
  }
  int64_t max_shrinking() const override {
    const auto size = static_cast<int64_t>(content_.size());
    const int64_t literal = pattern_.literal_bytes();
    // A pattern may match any number of bytes, and text that is replaced by nothing leaves no byte
    // to count by: neither has a bound.
    return literal == 0 || size == 0 ? 0 : std::max<int64_t>(1, (literal + size - 1) / size);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps)
      : steps_(std::move(steps)) {}
  std::string normalize(std::string text) const override {
    for (const auto& step : steps_) text = step->normalize(std::move(text));
    return text;
  }
  int64_t max_shrinking() const override {
    constexpr int64_t kMost = 1000;  // beyond it there is none
    int64_t product = 1;
    // A step without a bound (0) makes the product 0, which is the answer for the whole.
    for (const auto& step : steps_) product = std::min(product * step->max_shrinking(), kMost);
    return product < kMost ? product : 0;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> normalizer_at(const JsonPart& part, int depth) {
  std::string type = part.text("type");
  if (type == "NFC") return std::make_unique<Nfc>();
  if (type == "Prepend") return std::make_unique<Prepend>(part.text("prepend"));
  if (type == "Replace") return std::make_unique<ReplaceNormalizer>(part);
  if (type == "Sequence" && depth < 8) {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const JsonPart& item : part.at("normalizers").items())
      steps.push_back(normalizer_at(item, depth + 1));
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  part.at("type").refuse("NFC, Prepend, Replace, Sequence (nested at most 8 deep)");
}

}  // namespace

std::unique_ptr<Normalizer> parse_normalizer(const JsonPart& part) {
  return normalizer_at(part, 0);
}

}  // namespace tailrace::text
