#include "core/chat/chat_template.h"

#include <ctime>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

std::tm fifth_of_march() {
  std::tm day{};
  day.tm_year = 2026 - 1900;
  day.tm_mon = 2;
  day.tm_mday = 5;
  day.tm_hour = 9;
  day.tm_wday = 4;
  day.tm_yday = 63;
  return day;
}

std::string render(std::string_view source,
                   const ordered_json& variables = ordered_json::object()) {
  ChatInput input;
  input.variables = variables;
  input.now = fifth_of_march();
  return ChatTemplate::parse(source, "t.jinja").render(input);
}

std::string refusal(std::string_view source,
                    const ordered_json& variables = ordered_json::object()) {
  try {
    return "rendered: " + render(source, variables);
  } catch (const UserError& error) {
    return error.what();
  }
}

// Each construct alone, as Jinja2 3.1.6 renders or refuses it in transformers' environment.
TEST(Jinja, DoesWhatJinja2Does) {
  std::ifstream in(std::filesystem::path(TAILRACE_SOURCE_DIR) /
                   "tests/data/golden/jinja_vectors.json");
  const ordered_json vectors = ordered_json::parse(in);
  int rendered = 0, refused = 0;
  for (const ordered_json& entry : vectors.at("cases")) {
    const auto source = entry.at("template").get<std::string>();
    SCOPED_TRACE(source);
    if (entry.contains("text")) {
      EXPECT_EQ(render(source, vectors.at("vars")), entry.at("text").get<std::string>());
      ++rendered;
    } else {
      EXPECT_THROW(render(source, vectors.at("vars")), UserError);
      ++refused;
    }
  }
  EXPECT_GE(rendered, 80);
  EXPECT_GE(refused, 70);
}

// Of data: an id, or the bound of a schema.
TEST(Jinja, IntegersBeyondTheSignedOnesKeepTheirDigits) {
  const auto variables = ordered_json::parse(
      R"({"a": 9223372036854775808, "b": {"most": 18446744073709551615}, "c": 9223372036854775807})");
  EXPECT_EQ(render("{{ a }} {{ b }} {{ b | tojson }}", variables),
            "9223372036854775808 {'most': 18446744073709551615} {\"most\": 18446744073709551615}");
  EXPECT_EQ(render("{{ a == a }} {{ a == b.most }} {{ a == c }} {{ 1 if a else 0 }}", variables),
            "True False False 1");
  for (const char* source : {"{{ a + 1 }}", "{{ a < c }}", "{{ range(a) }}", "{{ -a }}"})
    EXPECT_THROW(render(source, variables), UserError) << source;
}

TEST(ChatTemplate, SaysFileLineAndReasonOfARefusal) {
  EXPECT_EQ(refusal("a\n\n{{ raise_exception('no ' ~ 'way') }}"), "t.jinja:3: no way");
  EXPECT_EQ(refusal("\n{{ x + 1 }}"), "t.jinja:2: 'x' is undefined");
  EXPECT_EQ(refusal("{{ m.content + 'a' }}", {{"m", {{"role", "user"}}}}),
            "t.jinja:1: 'dict object' has no attribute 'content'");
  EXPECT_EQ(refusal("{{ 'a' + none }}"),
            "t.jinja:1: unsupported operand type(s) for +: 'str' and 'NoneType'");
  // Nothing of a message acts on the terminal.
  EXPECT_EQ(refusal("{{ raise_exception('\\x1b[2J') }}"), "t.jinja:1: \\x1b[2J");
}

TEST(ChatTemplate, RefusesWhatTheSubsetLacksByNameBeforeAnythingIsRendered) {
  EXPECT_EQ(refusal("{% if false %}\n{{ x | urlize }}{% endif %}").substr(0, 60),
            "t.jinja:2: no filter 'urlize'; there are: abs, capitalize, c");
  EXPECT_EQ(refusal("{{ x is filter }}").substr(0, 49),
            "t.jinja:1: no test 'filter'; there are: !=, <, <=");
  EXPECT_EQ(refusal("{{ xs | map('urlize') }}").substr(0, 29), "t.jinja:1: no filter 'urlize'");
  EXPECT_EQ(refusal("{{ xs | selectattr('a', 'fat') }}").substr(0, 24), "t.jinja:1: no test 'fat'");
  EXPECT_EQ(refusal("{% include 'x' %}"),
            "t.jinja:1: no statement 'include'; there are: break, call, continue, filter, for, "
            "generation, if, macro, set, with, raw");
}

TEST(ChatTemplate, RefusesWhatItWouldRenderOtherwiseThanJinja) {
  for (const char* source :
       {"{{ '\\é' }}", "{{ range(5)[2] }}", "{{ range(3) is sequence }}",
        "{{ range(3) == range(3) }}", "{{ '1_0' | int }}", "{{ '٣' | int }}",
        "{{ '0x1A' | int(base=16) }}", "{{ [1] is sameas [1] }}", "{{ ['<' | safe] }}",
        "{{ '2ⁿ'.islower() }}", "{{ 1e15 | round(15, 'ceil') }}"})
    EXPECT_TRUE(refusal(source).starts_with("t.jinja:1: ")) << source;
}

TEST(ChatTemplate, AsksForTheDateThatItShallTell) {
  EXPECT_EQ(render("{{ strftime_now('%d %b %Y') }}"), "05 Mar 2026");
  const ChatTemplate chat_template = ChatTemplate::parse("{{ strftime_now('%Y') }}", "t");
  EXPECT_THROW(chat_template.render({}), UserError);
}

TEST(ChatTemplate, ToolsAndDocumentsAreNoneAndOthersUndefinedWhenNotGiven) {
  EXPECT_EQ(render("{{ tools }},{{ documents }},{{ add_generation_prompt }},"
                   "{{ enable_thinking is defined }},{{ messages }}"),
            "None,None,False,False,[]");
}

TEST(ChatTemplate, IsTheOneOfTheFolder) {
  TemporaryDirectory folder;
  EXPECT_FALSE(ChatTemplate::of_folder(folder.path()));
  folder.write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": null})");
  EXPECT_FALSE(ChatTemplate::of_folder(folder.path()));

  folder.write("tokenizer_config.json",
               R"({"bos_token": {"content": "<s>"}, "eos_token": "",
                   "additional_special_tokens": ["<a>", {"content": "<b>"}],
                   "chat_template": "{{ bos_token }}text{{ eos_token is defined }}"})");
  EXPECT_EQ(ChatTemplate::of_folder(folder.path())->render({}), "<s>textFalse");
  ChatInput other;
  other.variables["bos_token"] = "<b>";
  EXPECT_EQ(ChatTemplate::of_folder(folder.path())->render(other), "<b>textFalse");

  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "one"},
                                     {"name": "tool_use", "template": "two"}]})");
  EXPECT_EQ(ChatTemplate::of_folder(folder.path())->render({}), "one");
  EXPECT_EQ(ChatTemplate::of_folder(folder.path(), "tool_use")->render({}), "two");
  try {
    ChatTemplate::of_folder(folder.path(), "rag");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              (folder / "tokenizer_config.json").string() +
                  ": no chat template \"rag\"; there are: default, tool_use");
  }

  folder.write("chat_template.jinja", "three");
  EXPECT_EQ(ChatTemplate::of_folder(folder.path())->render({}), "three");
  EXPECT_EQ(ChatTemplate::of_folder(folder.path(), "tool_use")->render({}), "two");
}

TEST(ChatTemplate, RefusesFilesThatHoldNoTemplate) {
  TemporaryDirectory folder;
  for (const char* config :
       {"[]", "{", R"({"chat_template": 7})", R"({"chat_template": [{"name": "default"}]})",
        R"({"chat_template": "{% if %}"})", R"({"chat_template": "a", "bos_token": 7})",
        R"({"chat_template": "a", "bos_token": [[7]]})"}) {
    folder.write("tokenizer_config.json", config);
    EXPECT_THROW(ChatTemplate::of_folder(folder.path()), UserError) << config;
  }
  EXPECT_THROW(ChatTemplate::parse("\xff", "t"), UserError);
  EXPECT_THROW(ChatTemplate::parse(std::string(2 << 20, 'x'), "t"), UserError);
}

// Each key of such a file was once looked for among all the others.
TEST(ChatTemplate, ReadsAConfigurationOfManyKeys) {
  std::string config = R"({"chat_template": "text", "added": {)";
  for (int i = 0; i < 200000; ++i) config += fmt::format("\"key{}\": 1, ", i);
  TemporaryDirectory folder;
  folder.write("tokenizer_config.json", config + R"("last": 1}})");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ChatTemplate::of_folder(folder.path())->render({}), "text");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(ChatTemplate, BadBytesOfAMessageBecomeReplacementCharacters) {
  ChatInput input;
  input.messages = ordered_json::array({{{"role", "user"},
                                         {"content",
                                          "a\xff"
                                          "b"}}});
  const ChatTemplate chat_template = ChatTemplate::parse("{{ messages[0].content | tojson }}", "t");
  EXPECT_EQ(chat_template.render(input),
            "\"a\xEF\xBF\xBD"
            "b\"");
}

// What a render may cost is bounded, whatever the template asks for.
TEST(ChatTemplate, RefusesEndlessWorkSoon) {
  const auto repeated = [](std::string_view text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
  };
  const std::string long_text = "{% set a = '                ' * 300000 %}";
  const std::string costly[] = {
      "{{ 'x' * 1000000000000 }}",
      "{{ [0] * 1000000000000 }}",
      "{{ [] * 9223372036854775807 }}",
      "{{ range(1000000000000) | length }}",
      "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}"
      "{% endfor %}",
      "{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}"
      "{% set ns.s = ns.s.replace('', ns.s) %}{% endfor %}",
      "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
      "{% macro f(n) %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f(1) %}{{ g() }}"
      "{% endcall %}{% endmacro %}{{ g() }}",
      "{{ 'a' | indent(1000000000000) }}",
      "{{ [1] | tojson(indent=1000000000000) }}",
      // Long texts that are looked for, copied or stripped again and again.
      long_text + "{{ (a + 'b') in (a + a) }}",
      long_text + "{{ (a + a).split(a + 'b') | length }}",
      long_text + "{{ (a + a) | replace(a + 'b', '') }}",
      long_text + "{% for i in range(100000) %}{{ 'x'.startswith(a) }}{% endfor %}",
      long_text + "{% for i in range(100000) %}{{ a | int }}{% endfor %}",
      // The same of members, keys and affixes.
      long_text + "{% for i in range(100000) %}{{ {'k': 1}[a] }}{% endfor %}",
      long_text + "{% for i in range(100000) %}{% set d = {a: 1} %}{% endfor %}",
      long_text +
          "{% set d = {a: 1} %}{% for i in range(100000) %}{% set x = d | list %}"
          "{% endfor %}",
      long_text + "{{ (a + 'x').startswith((a + 'y',) * 100000) }}",
      "{{ ((',' * 1000) * 30000).split(',') | length }}",
      // Methods and loops that hold each other, which would be freed recursively.
      "{% set ns = namespace(f=1) %}{% for i in range(100000) %}{% set ns.f = [ns.f].count %}"
      "{% endfor %}",
      "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% for x in [ns.l] %}"
      "{% set ns.l = loop %}{% endfor %}{% endfor %}",
      "{{ " + repeated("n", 100000) + " }}",
      "{{ 10 ** 100 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}",
      "{{ " + repeated("not ", 100000) + "1 }}",
      "{{ " + repeated("-", 100000) + "1 }}",
      "{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}",
      "{{ 1" + repeated(" + 1", 100000) + " }}",
      "{{ x" + repeated(".a", 100000) + " }}",
      "{{ x" + repeated("|list", 100000) + " }}",
      "{{ " + repeated("1 if 1 else ", 50000) + "1 }}",
      "{% set " + repeated("(", 100000) + "x" + repeated(")", 100000) + " = 1 %}",
      repeated("{% if true %}", 50000) + repeated("{% endif %}", 50000),
  };
  for (const std::string& source : costly) {
    SCOPED_TRACE(source.substr(0, 120));
    const std::clock_t start = std::clock();
    EXPECT_THROW(render(source), UserError);
    // Of the processor, since others may use this machine. Seconds with sanitizers; without bounds
    // it were hours.
    EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 30);
  }
  ordered_json deep = ordered_json::array();
  for (int i = 0; i < 1000; ++i) deep = ordered_json::array({deep});
  EXPECT_THROW(render("x", {{"deep", deep}}), UserError);
}

TEST(ChatTemplate, NamespacesAndMacrosThatHoldEachOtherEndWithTheRender) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.self = ns %}"
                   "{% for i in range(3) %}{% macro m() %}{{ i }}{% endmacro %}"
                   "{% set ns.m = m %}{% endfor %}{{ ns.m() }}{{ ns.self.self.m() }}"),
            "22");
}

TEST(FirstDifference, CountsFromTheStartOfTheText) {
  const ChatTemplate chat_template =
      ChatTemplate::parse("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "t");
  const auto input = [](std::initializer_list<const char*> contents) {
    ChatInput made;
    for (const char* content : contents) made.messages.push_back({{"content", content}});
    return made;
  };
  EXPECT_EQ(first_difference(chat_template, input({"a"}), "<b>", input({"a", "b", "c"})),
            std::nullopt);
  EXPECT_EQ(first_difference(chat_template, input({"a"}), "< b>", input({"a", " b"})), 4u);
  // What was there is cut short.
  EXPECT_EQ(first_difference(chat_template, input({"a"}), "<b", input({"a"})), 3u);
}

}  // namespace
}  // namespace tailrace::chat
