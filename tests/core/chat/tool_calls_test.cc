// Answers as policies write them, and as they should not.
#include "core/chat/tool_calls.h"

#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace tailrace::chat {
namespace {

constexpr AnswerForm kHermes{.tools = ToolForm::kHermes}, kLlama{.tools = ToolForm::kLlama3},
    kQwen3{.tools = ToolForm::kHermes, .thinks = true},
    kOpened{.tools = ToolForm::kHermes, .thinks = true, .begins_thinking = true};

std::string quoted(const std::string& text) { return fmt::format("{:?}", text); }

// What parse_answer() gives, on one line for each thing.
std::string read(std::string_view text, const AnswerForm& form) {
  const ParsedAnswer answer = parse_answer(text, form, 7);
  std::string lines;
  if (!answer.reasoning.empty()) lines += fmt::format("think {:?}\n", answer.reasoning);
  for (const ToolCall& call : answer.calls)
    lines += fmt::format("call {} {}\n", call.name, call.arguments);
  if (!answer.content.empty()) lines += fmt::format("say {:?}\n", answer.content);
  if (answer.num_malformed > 0) lines += fmt::format("malformed {}\n", answer.num_malformed);
  return lines;
}

TEST(ParseAnswer, OfHermesHoldsCallsAndTheTextAroundThem) {
  EXPECT_EQ(read("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":  1, \"b\": [\"}\", {}]}}\n"
                 "</tool_call>",
                 kHermes),
            "call f {\"a\":  1, \"b\": [\"}\", {}]}\n");
  EXPECT_EQ(read("I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
                 "<tool_call>\n{\"arguments\": {\"name\": \"x\"}, \"name\": \"g\"}\n</tool_call>\n",
                 kHermes),
            "call f {}\ncall g {\"name\": \"x\"}\nsay \"I look.\"\n");
  EXPECT_EQ(read("a <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> b", kHermes),
            "call f {}\nsay \"a\\nb\"\n");
  // Arguments as a text, and under the name of the schema.
  EXPECT_EQ(read(R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>)", kHermes),
            "call f {\"a\": 1}\n");
  EXPECT_EQ(read(R"(<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>)", kHermes),
            "call f {\"a\": 1}\n");
  // A key with escapes.
  EXPECT_EQ(read(R"(<tool_call>{"name": "f", "\u0061rguments": {"a" : 1}}</tool_call>)", kHermes),
            "call f {\"a\":1}\n");
}

TEST(ParseAnswer, TextWithoutCallsStaysAsItIs) {
  for (const AnswerForm& form : {kHermes, kLlama, kQwen3, AnswerForm{}})
    for (const char* text : {"  Five.\n", "\n", "a < b <tool", "1 </tool_call> 2", "a\n\n b\t"})
      EXPECT_EQ(read(text, form), "say " + quoted(text) + "\n");
  EXPECT_EQ(read("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", {}),
            "say \"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}</tool_call>\"\n");
  EXPECT_EQ(read("", kQwen3), "");
}

TEST(ParseAnswer, AMalformedCallIsTextAndCounted) {
  for (const char* body :
       {"", "{", "3", "[]", "null", R"({"name": "f"})", R"({"arguments": {}})",
        R"({"name": "", "arguments": {}})", R"({"name": 3, "arguments": {}})",
        R"({"name": "f", "arguments": []})", R"({"name": "f", "arguments": null})",
        R"({"name": "f", "arguments": "x"})", R"({"name": "f", "arguments": "[1]"})",
        R"({"name": "f", "arguments": {}} {"name": "f", "arguments": {}})",
        R"({"name": "f", "name": "g", "arguments": {}})", "{\"name\": \"\xff\", \"arguments\": {}}",
        R"({'name': 'f', 'arguments': {}})", R"(<tool_call>{"name": "f", "arguments": {}})"}) {
    const std::string block = fmt::format("<tool_call>{}</tool_call>", body);
    const ParsedAnswer answer = parse_answer("So: " + block + " and", kHermes, 1);
    EXPECT_EQ(answer.content, "So: " + block + " and");
    EXPECT_EQ(answer.num_malformed, 1) << body;
    EXPECT_TRUE(answer.calls.empty()) << body;
  }
  // The others count nevertheless; one without its end is none.
  EXPECT_EQ(read("<tool_call>{</tool_call>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}"
                 "</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": {}}",
                 kHermes),
            "call f {}\nsay \"<tool_call>{</tool_call>\\n<tool_call>{\\\"name\\\": \\\"g\\\", "
            "\\\"arguments\\\": {}}\"\nmalformed 2\n");
}

TEST(ParseAnswer, ACallIsBoundedInDepthAndSize) {
  const auto nested = [](size_t depth) {
    return "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + std::string(depth, '[') +
           std::string(depth, ']') + "}}</tool_call>";
  };
  EXPECT_EQ(parse_answer(nested(50), kHermes, 1).calls.size(), 1u);
  EXPECT_EQ(parse_answer(nested(100'000), kHermes, 1).num_malformed, 1);
  const auto call_of = [](size_t bytes) {
    const std::string call = R"({"name": "f", "arguments": {"a": ""}})";
    std::string sized = call;
    return sized.insert(call.size() - 3, bytes - call.size(), 'x');
  };
  for (const AnswerForm& form : {kHermes, kLlama}) {
    const bool is_hermes = form == kHermes;
    const auto answer = [&](size_t bytes) {
      const std::string call = call_of(bytes);
      const std::string text = is_hermes ? "<tool_call>" + call + "</tool_call>" : call;
      ParsedAnswer parsed = parse_answer(text, form, 1);
      EXPECT_EQ(parsed.content, parsed.calls.empty() ? text : "");
      return parsed;
    };
    EXPECT_EQ(answer(kMostCallBytes).calls.size(), 1u);
    EXPECT_EQ(answer(kMostCallBytes + 1).num_malformed, 1);
  }
}

TEST(ParseAnswer, OfLlamaIsTheBareObject) {
  const std::string call = R"({"name": "f", "parameters": {"a": 1}})";
  for (const std::string& text : {call, "<|python_tag|>" + call, "\n " + call + "\n"})
    EXPECT_EQ(read(text, kLlama), "call f {\"a\": 1}\n");
  for (const char* between : {"; ", ";", "\n", "\n;\n", " "})
    EXPECT_EQ(read(call + between + call + ";", kLlama), "call f {\"a\": 1}\ncall f {\"a\": 1}\n");
  EXPECT_EQ(read(call + "\nThat is it.\n" + call, kLlama),
            fmt::format("call f {{\"a\": 1}}\nsay {:?}\n", "That is it.\n" + call));
  // An answer may be JSON, or begin with text.
  EXPECT_EQ(read(R"({"total": 3})", kLlama), "say \"{\\\"total\\\": 3}\"\n");
  EXPECT_EQ(read("I call " + call, kLlama), fmt::format("say {:?}\n", "I call " + call));
  // Malformed.
  for (const char* text : {R"({"name": "f"})", R"({"name": "f", "parameters": {)",
                           "<|python_tag|>f.call(a=1)", "<|python_tag|>", "<|python_tag|> {}"})
    EXPECT_EQ(read(text, kLlama), "say " + quoted(text) + "\nmalformed 1\n");
}

TEST(ParseAnswer, ThinkingStandsAtTheBeginning) {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  EXPECT_EQ(read("<think>\nSix?\n\nYes.\n</think>\n\nIt is 6.", kQwen3),
            "think \"Six?\\n\\nYes.\"\nsay \"It is 6.\"\n");
  EXPECT_EQ(read("<think>\nI ask.\n</think>\n\n" + call, kQwen3), "think \"I ask.\"\ncall f {}\n");
  EXPECT_EQ(read("<think>" + call, kQwen3), fmt::format("think {:?}\n", call));
  EXPECT_EQ(read("<think>\nand so </thi", kQwen3), "think \"and so </thi\"\n");
  EXPECT_EQ(read("<think>\n\n</think>\n\n  Six.\n", kQwen3), "say \"  Six.\\n\"\n");
  EXPECT_EQ(read("Six <think>a</think>", kQwen3), "say \"Six <think>a</think>\"\n");
  EXPECT_EQ(read("<think>a</think>b", kHermes), "say \"<think>a</think>b\"\n");
  // The template has opened it; a policy may do so again.
  EXPECT_EQ(read("I ask.\n</think>\n\n" + call, kOpened), "think \"I ask.\"\ncall f {}\n");
  EXPECT_EQ(read("\n<think>\nI ask.\n</think>Six", kOpened), "think \"I ask.\"\nsay \"Six\"\n");
  EXPECT_EQ(read("I ask.", kOpened), "think \"I ask.\"\n");
  EXPECT_EQ(read("\n", kOpened), "");
}

TEST(ParseAnswer, IdsAreDecidedBySaltAndPlace) {
  const std::string call = R"(<tool_call>{"name": "f", "arguments": {}}</tool_call>)";
  const auto first = parse_answer(call + call, kHermes, 1), again = parse_answer(call, kHermes, 1),
             other = parse_answer(call, kHermes, 2);
  EXPECT_EQ(first.calls[0].id, again.calls[0].id);
  EXPECT_NE(first.calls[0].id, first.calls[1].id);
  EXPECT_NE(first.calls[0].id, other.calls[0].id);
  EXPECT_TRUE(first.calls[0].id.starts_with("call_"));
}

// Read in these pieces it is the same, and what was shown is its beginning.
void check_pieces(std::string_view text, const AnswerForm& form, const std::vector<size_t>& cuts) {
  const ParsedAnswer whole = parse_answer(text, form, 3);
  AnswerReader reader(form, 3);
  ParsedAnswer shown;
  const auto show = [&](const AnswerReader::Delta& delta) {
    shown.content += delta.content;
    shown.reasoning += delta.reasoning;
    shown.calls.insert(shown.calls.end(), delta.calls.begin(), delta.calls.end());
    ASSERT_TRUE(whole.content.starts_with(shown.content)) << text;
    ASSERT_TRUE(whole.reasoning.starts_with(shown.reasoning)) << text;
  };
  size_t at = 0;
  for (const size_t cut : cuts) {
    show(reader.read(text.substr(at, cut - at)));
    at = cut;
  }
  show(reader.read(text.substr(at)));
  show(reader.finish());
  shown.num_malformed = reader.answer().num_malformed;
  ASSERT_EQ(shown, whole) << text;
  ASSERT_EQ(reader.answer(), whole) << text;
}

const std::vector<std::string>& answers() {
  static const std::vector<std::string> all = {
      "<think>\nI äsk €.\n</think>\n\nWell,\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": "
      "\"</tool\\\"_call> {\"}}\n</tool_call>\n<tool_call>{\"name\": \"g\", \"arguments\": \"{}\"}"
      "</tool_call> and\n\n<tool_call>{\"name\": 3}</tool_call>\n",
      "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": \"}\\\"{\"}}; {\"name\": \"g\", "
      "\"arguments\": {}}\n{\"name\": }{ \n That is it;\n",
      "<think>a</think></think><think><tool_call><tool_call>{}</tool_call></tool_call>  ",
      "\n {\"total\": [{}]} \n;; {\"name\": \"f\", \"parameters\": {}} ;\n"};
  return all;
}

const std::vector<AnswerForm>& forms() {
  static const std::vector<AnswerForm> all = [] {
    std::vector<AnswerForm> made;
    for (const ToolForm tools : {ToolForm::kNone, ToolForm::kHermes, ToolForm::kLlama3})
      for (const int thinks : {0, 1, 2})
        made.push_back({.tools = tools, .thinks = thinks > 0, .begins_thinking = thinks > 1});
    return made;
  }();
  return all;
}

TEST(AnswerReader, PiecesCutAnywhereAreTheWhole) {
  for (const AnswerForm& form : forms()) {
    for (const std::string& text : answers()) {
      std::vector<size_t> everywhere;
      for (size_t cut = 1; cut < text.size(); ++cut) {
        everywhere.push_back(cut);
        check_pieces(text, form, {cut});
        check_pieces(std::string_view(text).substr(0, cut), form, {});
      }
      check_pieces(text, form, everywhere);
    }
  }
}

TEST(AnswerReader, MutationsAreReadTheSameInPieces) {
  std::minstd_rand random(11);
  const auto below = [&](size_t n) {
    return static_cast<size_t>(random() % std::max<size_t>(n, 1));
  };
  int64_t calls = 0, malformed = 0;
  for (int round = 0; round < 20'000; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    std::string text = answers()[below(answers().size())];
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::string& other = answers()[below(answers().size())];
      const size_t at = below(text.size()), from = below(other.size());
      switch (below(4)) {
        case 0:
          text.erase(at, below(30));
          break;
        case 1:
          text.insert(at, other.substr(from, below(60)));
          break;
        case 2:
          text.insert(at, 1, static_cast<char>(below(256)));
          break;
        default:
          text.replace(at, below(8), other.substr(from, below(8)));
      }
    }
    const AnswerForm& form = forms()[below(forms().size())];
    std::vector<size_t> cuts;
    for (size_t cut = below(12); cut < text.size(); cut += 1 + below(12)) cuts.push_back(cut);
    check_pieces(text, form, cuts);
    if (HasFatalFailure()) return;
    const ParsedAnswer answer = parse_answer(text, form, 3);
    calls += std::ssize(answer.calls);
    malformed += answer.num_malformed;
    for (const ToolCall& call : answer.calls) {
      EXPECT_FALSE(call.name.empty());
      EXPECT_TRUE(nlohmann::json::parse(call.arguments).is_object());
    }
  }
  // The mutations reach both.
  EXPECT_GT(calls, 1000);
  EXPECT_GT(malformed, 1000);
}

TEST(AnswerReader, ShowsTextAtOnceAndCallsWhenTheyAreWhole) {
  AnswerReader reader(kQwen3, 1);
  EXPECT_EQ(reader.read("<think>Let me").reasoning, "Let me");
  EXPECT_EQ(reader.read(" see</think>\n\nI look").reasoning, " see");
  EXPECT_EQ(reader.answer().content, "I look");
  EXPECT_EQ(reader.read(" it up\n<tool").content, " it up");
  EXPECT_TRUE(reader.read("_call>{\"name\": \"f\", \"arguments\": {}}").calls.empty());
  EXPECT_EQ(reader.read("</tool_call>").calls.size(), 1u);
  // Half a character is not shown.
  EXPECT_EQ(reader.read("5 \xe2\x82").content, "\n5 ");
  EXPECT_EQ(reader.read("\xac").content, "\xe2\x82\xac");
  EXPECT_EQ(reader.finish().content, "");
}

}  // namespace
}  // namespace tailrace::chat
