// Chat templates that take arguments, tools and roles in their own ways; the texts are those of
// transformers' apply_chat_template.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/chat/prompt_format.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

const std::string kEndOfTemplate =
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const std::string kTurn = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n";

const text::Tokenizer& chatml_tokenizer() {
  static const auto loaded = text::load_tokenizer(std::filesystem::path(TAILRACE_SOURCE_DIR) /
                                                  "tests/data/tokenizers/minimind");
  return *loaded;
}

PromptFormat kind_of(const std::string& source, const ChatOptions& options = {}) {
  return PromptFormat(chatml_tokenizer(), ChatTemplate::parse(source, "t.jinja"), options);
}

// The text of a prompt, or why there is none.
std::string text_of_prompt(const PromptFormat& format, const Said& said) {
  const auto text = format.write_first(said);
  return text ? text.value().text : text.failure().message;
}

ordered_json talk_with_call(ordered_json arguments) {
  ordered_json call = {{"id", "call00001"},
                       {"type", "function"},
                       {"function", {{"name", "f"}, {"arguments", std::move(arguments)}}}};
  return ordered_json::array({{{"role", "user"}, {"content", "hi"}},
                              {{"role", "assistant"},
                               {"content", ""},
                               {"tool_calls", ordered_json::array({std::move(call)})}},
                              {{"role", "tool"}, {"content", "2"}}});
}

std::string writing_calls(const std::string& call) {
  return "{% for m in messages %}{% if m.tool_calls %}" + call + "{% else %}" + kTurn +
         "{% endif %}{% endfor %}" + kEndOfTemplate;
}

constexpr const char* kCallAsJson =
    "<|im_start|>{{ m.tool_calls[0].function.arguments|tojson }}<|im_end|>\n";

TEST(TemplateKinds, ATextThatIsNoObjectIsNotQuotedOnceMore) {
  const PromptFormat format = kind_of(writing_calls(kCallAsJson));
  const auto of = [&](const char* arguments) {
    return text_of_prompt(format, {.messages = talk_with_call(arguments).dump()});
  };
  EXPECT_EQ(of(R"({"a":1})"),
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>{\"a\": 1}<|im_end|>\n"
            "<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n");
  const auto fault = [](const std::string& what) {
    return "message 2 calls \"f\" with arguments that are " + what +
           ". The chat template writes the JSON of an object there, so a text must hold one";
  };
  EXPECT_EQ(of(R"({"wei": 12345678901234567890123})"),
            fault("too precise: the integer 12345678901234567890123 has more than 64 bits; write "
                  "it as a text"));
  EXPECT_EQ(of(R"({"a": 1, "a": 2})"), fault("ambiguous: it has \"a\" twice"));
  for (const char* broken : {R"({"x": NaN})", R"({"a": 1)", "", R"({"u": "\ud800"})"})
    EXPECT_EQ(of(broken), fault("not valid JSON")) << broken;
  for (const char* other : {"null", "[1]", "\"{}\""})
    EXPECT_EQ(of(other), fault("not a JSON object")) << other;
  // The same in an answer that is learned.
  ordered_json lesson = talk_with_call("[1]");
  lesson.erase(2);
  EXPECT_EQ(format.lesson(lesson, "").failure().message, fault("not a JSON object"));
}

TEST(TemplateKinds, ATemplateThatJoinsArgumentsToTextGetsText) {
  const PromptFormat format =
      kind_of(writing_calls("<|im_start|>{{ m.tool_calls[0].function.name + '|' + "
                            "m.tool_calls[0].function.arguments + '|' }}<|im_end|>\n"));
  const auto of = [](const std::string& arguments) {
    return "<|im_start|>user\nhi<|im_end|>\n<|im_start|>f|" + arguments +
           "|<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n";
  };
  for (const char* text : {R"({"a" :1})", R"({"a": 1)", ""})
    EXPECT_EQ(text_of_prompt(format, {.messages = talk_with_call(text).dump()}), of(text));
  EXPECT_EQ(
      text_of_prompt(format, {.messages = talk_with_call({{"a", 1}, {"b", "\u00E9"}}).dump()}),
      of("{\"a\": 1, \"b\": \"\u00E9\"}"));
}

TEST(TemplateKinds, ArgumentsThatNoTextCanHoldAreNamed) {
  const PromptFormat format =
      kind_of(writing_calls("<|im_start|>{{ m.tool_calls[0].function.name + '|' + "
                            "m.tool_calls[0].function.arguments }}<|im_end|>\n"));
  ordered_json deep = 1;
  for (int i = 0; i < 300; ++i) deep = ordered_json::array({std::move(deep)});
  ordered_json lesson = talk_with_call({{"deep", std::move(deep)}});
  lesson.erase(2);
  EXPECT_EQ(format.lesson(lesson, "").failure().message,
            "message 2 calls \"f\" with arguments that cannot be written: lists and dicts are "
            "nested deeper than 200");
}

TEST(TemplateKinds, ATemplateThatTakesBothGetsWhatIsGiven) {
  const PromptFormat format = kind_of(
      writing_calls("{% set a = m.tool_calls[0].function.arguments %}<|im_start|>{{ a if a is "
                    "string else a|tojson }}<|im_end|>\n"));
  EXPECT_NE(text_of_prompt(format, {.messages = talk_with_call(R"({"a" :1, "a": )").dump()})
                .find("<|im_start|>{\"a\" :1, \"a\": <|im_end|>"),
            std::string::npos);
  EXPECT_NE(
      text_of_prompt(format, {.messages = talk_with_call({{"a", 1}}).dump()}).find("{\"a\": 1}"),
      std::string::npos);
}

TEST(TemplateKinds, ATemplateMayWalkOverToolsWithoutAsking) {
  const PromptFormat format =
      kind_of("{% for t in tools %}{{ t|tojson }}\n{% endfor %}{% for m in messages %}" + kTurn +
              "{% endfor %}" + kEndOfTemplate);
  const std::string tools = R"([{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(text_of_prompt(format, {.text = "hi", .tools = tools}),
            "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n"
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_NE(text_of_prompt(format, {.text = "hi"}).find("'NoneType' object is not iterable"),
            std::string::npos);
  // It is known what it writes behind an answer.
  EXPECT_EQ(format.turns_fault(), std::nullopt);
  EXPECT_EQ(format.end_of_turn(), chatml_tokenizer().id_of("<|im_end|>"));
  EXPECT_EQ(format.write_next({.text = "so?"}).value().text,
            "<|im_end|>\n<|im_start|>user\nso?<|im_end|>\n<|im_start|>assistant\n");
  const ordered_json talk = ordered_json::array(
      {{{"role", "user"}, {"content", "hi"}}, {{"role", "assistant"}, {"content", "yes"}}});
  const Lesson lesson = format.lesson(talk, tools).value();
  EXPECT_TRUE(chatml_tokenizer().decode(lesson.tokens, true).ends_with("assistant\nyes<|im_end|>"));
}

// These write tools with a message of one role, so that it depends on the messages.
TEST(TemplateKinds, ToolsThatATemplateLeavesOutOfThisPromptAreRefused) {
  const auto with_role = [](const std::string& role) {
    return kind_of("{% for m in messages %}{% if tools and m.role == '" + role +
                   "' %}{{ tools|tojson }}\n{% endif %}" + kTurn + "{% endfor %}" + kEndOfTemplate);
  };
  const ordered_json rules = {{"role", "system"}, {"content", "Be brief."}},
                     hi = {{"role", "user"}, {"content", "hi"}};
  const auto of = [](const PromptFormat& format, ordered_json said, const std::string& tools) {
    return text_of_prompt(format, {.messages = said.dump(), .tools = tools});
  };
  const std::string fault =
      "it has tools, which this chat template leaves out (chat.template=FILE)";
  for (const char* tools : {R"([{"type": "function", "function": {"name": "f_of_x"}}])",
                            R"([{"name": "f_of_x"}])", R"([{"description": "\u00e9"}])"}) {
    const std::string written = "<|im_start|>user\nhi<|im_end|>";
    EXPECT_NE(of(with_role("user"), {hi}, tools).find(written), std::string::npos);
    EXPECT_NE(of(with_role("user"), {rules, hi}, tools).find(written), std::string::npos);
    EXPECT_NE(of(with_role("system"), {rules, hi}, tools).find(written), std::string::npos);
    EXPECT_EQ(of(with_role("user"), {rules}, tools), fault);
    EXPECT_EQ(of(with_role("system"), {hi}, tools), fault);
    // The name in the words of a message is not the tool.
    EXPECT_EQ(of(with_role("none"), {{{"role", "user"}, {"content", "f_of_x"}}}, tools), fault);
  }
}

TEST(TemplateKinds, AMessageThatATemplateLeavesOutIsRefused) {
  const PromptFormat format =
      kind_of("{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}" + kTurn +
              "{% elif m.role == 'tool' %}<|im_start|>user\n<r>{{ m.content|tojson }}"
              "</r><|im_end|>\n{% endif %}{% endfor %}" +
              kEndOfTemplate);
  const auto of = [&](ordered_json said) {
    return text_of_prompt(format, {.messages = said.dump()});
  };
  const ordered_json hi = {{"role", "user"}, {"content", "hi"}};
  const auto fault = [](int number, const std::string& role) {
    return "message " + std::to_string(number) + " has the role \"" + role +
           "\", whose words this chat template leaves out. Give it another role, or another "
           "template (chat.template=FILE)";
  };
  for (const char* role : {"developer", "function", "ipython"}) {
    EXPECT_EQ(of({{{"role", role}, {"content", "Answer."}}, hi}), fault(1, role));
    // Its words stand in another message too.
    EXPECT_EQ(of({hi, {{"role", role}, {"content", "hi"}}}), fault(2, role));
    EXPECT_EQ(of({{{"role", role}, {"content", ""}}, hi}),
              "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    EXPECT_EQ(
        format.write_next({.messages = ordered_json({{{"role", role}, {"content", "No."}}}).dump()})
            .failure()
            .message,
        fault(1, role));
  }
  // Words in another form are there.
  EXPECT_NE(of({hi, {{"role", "tool"}, {"content", "\"2\"\n"}}}).find("<r>\"\\\"2\\\"\\n\"</r>"),
            std::string::npos);
  EXPECT_NE(of({{{"role", "system"}, {"content", "  Be brief.\n"}}, hi}).find("Be brief."),
            std::string::npos);
  // In an answer that is learned, what stands before it counts as well.
  const ordered_json talk = ordered_json::array({{{"role", "developer"}, {"content", "Answer."}},
                                                 hi,
                                                 {{"role", "assistant"}, {"content", "yes"}}});
  EXPECT_EQ(format.lesson(talk, "").failure().message, fault(1, "developer"));
  EXPECT_EQ(of(talk_with_call({{"a", 1}})),
            "message 2 calls tools, which this chat template leaves out (chat.template=FILE)");
}

// strftime of Python's datetime(2024, 7, 26).
TEST(TemplateKinds, ATemplateThatAsksForTheDateIsToldThatOfTheConfig) {
  const std::string plain =
      "Today: {{ strftime_now('%d %b %Y, %A, day %j') }}\n{% for m in "
      "messages %}" +
      kTurn + "{% endfor %}" + kEndOfTemplate;
  const std::string llama =
      "{% if strftime_now is defined %}{% set date_string = date_string if date_string is defined "
      "else strftime_now('%d %b %Y') %}{% endif %}Today: {{ date_string }}\n{% for m in messages "
      "%}" +
      kTurn + "{% endfor %}" + kEndOfTemplate;
  const std::string rest = "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const PromptFormat dated = kind_of(plain, {.date = "2024-07-26"});
  EXPECT_EQ(text_of_prompt(dated, {.text = "hi"}), "Today: 26 Jul 2024, Friday, day 208" + rest);
  EXPECT_EQ(dated.turns_fault(), std::nullopt);
  EXPECT_EQ(text_of_prompt(kind_of(llama, {.date = "2024-07-26"}), {.text = "hi"}),
            "Today: 26 Jul 2024" + rest);
  EXPECT_EQ(text_of_prompt(kind_of(llama, {.variables = {{"date_string", "1 May 2025"}}}),
                           {.text = "hi"}),
            "Today: 1 May 2025" + rest);
  const Lesson lesson =
      dated
          .lesson(ordered_json::array({{{"role", "user"}, {"content", "hi"}},
                                       {{"role", "assistant"}, {"content", "yes"}}}),
                  "")
          .value();
  EXPECT_TRUE(chatml_tokenizer().decode(lesson.tokens, true).starts_with("Today: 26 Jul 2024"));
  for (const std::string& source : {plain, llama}) {
    try {
      kind_of(source);
      FAIL() << source;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).substr(0, 68),
                "chat.date is not given, and the chat template asks for today's date.");
      EXPECT_EQ(error.key(), "chat.date");
    }
  }
  for (const char* bad : {"26 Jul 2024", "2024-02-30", "2024-7-26", "0000-01-01", "2024-13-01",
                          "2024-+1-01", "-024-01-01", "today"}) {
    const ChatOptions options{.date = bad};
    EXPECT_THROW((void)options.now(), UserError) << bad;
  }
}

}  // namespace
}  // namespace tailrace::chat
