// Patterns of tokenizer.json, cut as tokenizers 0.23 (Oniguruma) cuts: pre_tokenizers.Split of the
// pattern, isolated, gave the pieces here.
#include "core/text/oniguruma.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/regex.h"

namespace tailrace::text {
namespace {

using Texts = std::vector<std::string>;

Texts split(const std::string& pattern, const std::string& text,
            const std::string& behavior = "Isolated") {
  const nlohmann::json part = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}};
  const auto pre_tokenizer = parse_pre_tokenizer(JsonPart(part, "t.json: "));
  Pieces pieces{text};
  pre_tokenizer->cut(pieces);
  Texts texts;
  for (const Span& span : pieces.spans) texts.emplace_back(pieces.piece(span));
  return texts;
}

TEST(Oniguruma, PatternsCutAsTheTokenizersLibraryCuts) {
  struct Case {
    const char *pattern, *text;
    Texts pieces;
  };
  const Case cases[] = {
      {R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}|\s+)",
       "he 漢字、and in 1234",
       {"he", " ", "漢字", "、and", " in", " ", "123", "4"}},
      {R"([a-z&&[^aeiou]]+)", "beautiful", {"b", "eau", "t", "i", "f", "u", "l"}},
      {R"([^a-c&&b-d])", "abcde", {"a", "bc", "d", "e"}},
      {R"([a[^b-y]]+)", "abcz9b", {"a", "bc", "z9", "b"}},
      {R"([a-c&&]|x)", "abx", {"ab", "x"}},
      {R"(\p{N}{1,3}+)", "12345 6", {"12345", " ", "6"}},
      {R"(\d{2}?)", "12345", {"12", "34", "5"}},
      {R"(\d{,2})", "12345", {"12", "34", "5"}},
      {R"(\w+)", "x²①_Ⅷ é-", {"x²", "①", "_Ⅷ", " ", "é", "-"}},
      {R"([\w]+)", "x²①_é-", {"x", "²①", "_é", "-"}},
      {R"(\h+)", "face it 09", {"face", " it ", "09"}},
      {R"([[:punct:]]+)", "a$+!b", {"a", "$+!", "b"}},
      {R"((?m:a.b)|c$)", "a\nb c\nd", {"a\nb", " ", "c", "\nd"}},
      {R"(^a)", "a\na", {"a", "\n", "a"}},
      {R"(\bfoo\b)", "a foo² foo", {"a foo² ", "foo"}},
      {R"((?=(\d{3})+(?!\d)))", "1234567 12", {"1", "234", "567 12"}},
      {R"((?<=[a-z])(?=[A-Z]))", "camelCaseText", {"camel", "Case", "Text"}},
      {R"(x*)", "axb", {"a", "x", "b"}},
      {R"(a(?i)b|c)", "aB aC c ab ac", {"aB", " ", "aC", " c ", "ab", " ", "ac"}},
      {R"((?:x(?i)y|z)w)", "xYw zw xZw ZW xyW", {"xYw", " zw ", "xZw", " ZW xyW"}},
      {R"(a(?i)b|c(?-i)d|e)", "aB aCd aCD aCe aE", {"aB", " ", "aCd", " aCD ", "aCe", " aE"}},
      {R"((a(?i)b|c)+d)", "aBaCd cd", {"aBaCd", " cd"}},
      {R"((?<=x(?i)y|z)w)", "xYw xZw zw", {"xY", "w", " xZ", "w", " zw"}},
      {R"((?i)a|b)", "A B", {"A", " ", "B"}},
      {"(?x)a\u2028b", "ab a\u2028b", {"ab ", "a\u2028b"}},
      {"(?x)a\vb", "ab a\vb", {"ab ", "a\vb"}},
      {"(?xx)[a b]", "a b", {"a", " ", "b"}},
      {R"((?x)a b(?-x) c)", "ab c", {"ab c"}},
      {R"((?<n>[ab])\k'n'\h)", "aa1 aab bbh aa>", {"aa1", " ", "aab", " bbh aa>"}},
      {R"((?<n>[ab])\k<n>\h)", "aa1 aab bbh", {"aa1", " ", "aab", " bbh"}},
  };
  for (const Case& one : cases) EXPECT_EQ(split(one.pattern, one.text), one.pieces) << one.pattern;
}

TEST(Oniguruma, AMatchOfNothingCutsInEveryBehavior) {
  const std::pair<const char*, Texts> cases[] = {{"Isolated", {"a", "xx", "b"}},
                                                 {"Removed", {"a", "b"}},
                                                 {"MergedWithPrevious", {"axx", "b"}},
                                                 {"MergedWithNext", {"a", "xxb"}},
                                                 {"Contiguous", {"a", "xx", "b"}}};
  for (const auto& [behavior, pieces] : cases) {
    EXPECT_EQ(split("(?=[A-Z])", "aBcD", behavior), (Texts{"a", "Bc", "D"})) << behavior;
    EXPECT_EQ(split("x*", "axxb", behavior), pieces) << behavior;
  }
}

TEST(Oniguruma, APatternThatIsNotTranslatedIsRefusedByItsPart) {
  const auto fault = [](const char* pattern) -> std::string {
    try {
      pcre2_pattern(pattern, "t.json: pattern");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(fault(R"([\w--[a-z]]+)"),
            R"(t.json: pattern: the pattern '[\w--[a-z]]+' has '-' before byte 3, which Tailrace )"
            "does not read as the tokenizers library does");
  for (const char* pattern :
       {R"((?s:.))", R"(\p{sc=Han})", R"(\p{L&})", R"(a\y)", R"(\xE6)", R"((*FAIL))", R"((?R))",
        R"([^a[^b[c]]])", R"([a-c--x])", R"([[:foo:]])", R"([a)", R"(\)", R"(\k{n})", R"(\k<n)",
        R"(\k'n>)", R"(a(?)b)"})
    EXPECT_NE(fault(pattern).find("the pattern '"), std::string::npos) << pattern;
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += "[a";
  EXPECT_NE(fault(deep.c_str()).find("nested more than 100 deep"), std::string::npos);
}

TEST(Oniguruma, AHostilePatternIsBoundedAndNotRepeatedWhole) {
  const auto fault = [](const std::string& pattern) -> std::string {
    try {
      Regex(pattern, "t.json: pattern");
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  std::string many = "a";
  for (int i = 0; i < 200'000; ++i) many += "{1}+";
  EXPECT_EQ(fault(many),
            "t.json: pattern: the pattern has 800001 bytes, more than 65536; it begins with 'a" +
                many.substr(1, 59) + "...'");
  EXPECT_EQ(fault(std::string(kMaxPatternBytes, 'a')).find("more than"), std::string::npos);
  // One that PCRE2 refuses, one that is not translated, and a long part of it.
  const std::string text(2000, 'a');
  for (const std::string& pattern : {text + "(", text + "\\y", "\\p{" + text + "=}"}) {
    const std::string told = fault(pattern);
    EXPECT_NE(told.find("..."), std::string::npos) << told;
    EXPECT_LT(told.size(), 800u) << told;
  }
}

// Each repetition of a repetition opens a group before what it repeats.
TEST(Oniguruma, RepetitionsOfRepetitionsOpenTheirGroupsInPlace) {
  EXPECT_EQ(pcre2_pattern("xa{1}+{2}+b{3}?", "t.json"), "x(?:(?:a{1})+{2})+(?:b{3})?");
  EXPECT_EQ(pcre2_pattern("((a{1}+b){2}+c){3}+", "t.json"), "(?:((?:((?:a{1})+b){2})+c){3})+");
}

}  // namespace
}  // namespace tailrace::text
