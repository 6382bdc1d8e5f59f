#include "reward/verifiers/text_rules.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "reward/verifiers/evidence.h"
#include "reward/verifiers/response_verifier.h"
#include "reward/verifiers/row_check.h"

namespace tailrace {

namespace {

constexpr int64_t kMinWords = 3, kMaxWords = 40;

// Letters and digits, and all of UTF-8 beyond ASCII; an apostrophe inside belongs to the word.
bool in_word(char c) {
  auto byte = static_cast<unsigned char>(c);
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte >= 0x80;
}

std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  auto flush = [&] {
    if (!word.empty()) words.push_back(lower(std::exchange(word, "")));
  };
  for (size_t i = 0; i < text.size(); ++i) {
    bool apostrophe =
        text[i] == '\'' && !word.empty() && i + 1 < text.size() && in_word(text[i + 1]);
    if (in_word(text[i]) || apostrophe) {
      word += text[i];
    } else {
      flush();
    }
  }
  flush();
  return words;
}

bool ends_in_full_stop(std::string_view text) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  // "She laughed." with its quotation mark behind the full stop.
  if (text.ends_with('"')) text.remove_suffix(1);
  return text.ends_with('.') || text.ends_with('!') || text.ends_with('?');
}

class TextRules final : public ResponseVerifier {
 public:
  Result<void> check_row(const std::string& text, Time /*budget*/) const override {
    constexpr int64_t kMost = 1'000'000;
    RowCheck row(text);
    const std::vector<std::string> words = row.texts("words");
    for (const std::string& word : words) {
      // Words are found among the words of an answer, and this would never be one.
      if (words_of(word).size() != 1)
        row.refuse(fmt::format("\"words\" holds '{}', which is not one word", word));
    }
    const auto min_words = row.integer("min_words", 0, kMost);
    const auto max_words = row.integer("max_words", 1, kMost);
    const int64_t least = min_words.value_or(kMinWords), most = max_words.value_or(kMaxWords);
    if (least > most)
      row.refuse(fmt::format("\"min_words\" is {} and \"max_words\" {}: no answer has so many",
                             least, most));
    // A slip of the pen in the name of a column is the better message.
    if (const Result<void> fit = row.finish(); !fit) return fit;
    // The defaults alone would reward any short sentence, whatever the prompt is.
    if (words.empty() && min_words.value_or(0) == 0 && !max_words)
      return Failure{
          "it has no rule; give it \"words\" (a list of words that the answer must hold), "
          "\"min_words\" or \"max_words\", or name another verifier"};
    return {};
  }

 private:
  Result<Score> score_response(const nlohmann::json& evidence,
                               const std::string& response) const override {
    Result<std::vector<std::string>> wanted = required_words(evidence);
    if (!wanted) return wanted.failure();

    std::vector<std::string> words = words_of(response);
    std::unordered_set<std::string> seen(words.begin(), words.end());
    auto found = std::count_if(wanted.value().begin(), wanted.value().end(),
                               [&](const std::string& word) { return seen.contains(lower(word)); });
    // Without required words there is nothing to miss.
    double share =
        wanted.value().empty() ? 1.0 : static_cast<double>(found) / wanted.value().size();
    auto count = static_cast<int64_t>(words.size());
    int64_t min_words = find_integer(evidence, "min_words").value_or(kMinWords);
    bool long_enough = count >= min_words;
    bool length_ok =
        long_enough && count <= find_integer(evidence, "max_words").value_or(kMaxWords);
    bool ends_well = ends_in_full_stop(response);
    // share is found / wanted, so it is exactly 1 when all are there.
    bool success = share == 1 && ends_well && length_ok;
    double reward = 0.5 * share + 0.25 * (ends_well ? 1 : 0) + 0.25 * (length_ok ? 1 : 0);
    // Else a full stop alone would earn a quarter.
    return Score{.reward = long_enough ? reward : 0.0,
                 .metrics = {{"success", success ? 1.0 : 0.0},
                             {"words_found", share},
                             {"ends_well", ends_well ? 1.0 : 0.0},
                             {"length_ok", length_ok ? 1.0 : 0.0}}};
  }

  static Result<std::vector<std::string>> required_words(const nlohmann::json& evidence) {
    std::vector<std::string> words;
    auto list = evidence.find("words");
    if (list == evidence.end()) return words;
    if (!list->is_array()) return Failure{"\"words\" of the evidence is not a list"};
    for (const auto& word : *list) {
      if (!word.is_string())
        return Failure{"\"words\" of the evidence holds something that is not a string"};
      words.push_back(word.get<std::string>());
    }
    return words;
  }
};

}  // namespace

std::unique_ptr<Verifier> make_text_rules_verifier() { return std::make_unique<TextRules>(); }

}  // namespace tailrace
