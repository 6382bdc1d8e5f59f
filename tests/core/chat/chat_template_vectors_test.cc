// Six published templates against what transformers and Jinja2 made of them: tests/data/golden.
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/chat/chat_template.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

const std::filesystem::path kData = std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data";

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

const ordered_json& vectors() {
  static const ordered_json all =
      ordered_json::parse(read_text(kData / "golden/chat_template_vectors.json"));
  return all;
}

// The template as its model's folder would have it.
ChatTemplate load(const std::string& model) {
  const auto from = vectors().at(model).at("template_from").get<std::string>();
  TemporaryDirectory folder;
  folder.write(from.ends_with(".jinja") ? "chat_template.jinja" : "tokenizer_config.json",
               read_text(kData / from));
  return ChatTemplate::of_folder(folder.path()).value();
}

ChatInput input_of(const ordered_json& messages, const ordered_json& args) {
  ChatInput input;
  input.messages = messages;
  for (const auto& [name, value] : args.items()) {
    if (name == "tools") {
      input.tools = value;
    } else if (name == "add_generation_prompt") {
      input.add_generation_prompt = value.get<bool>();
    } else {
      input.variables[name] = value;
    }
  }
  return input;
}

class ChatTemplateVectors : public testing::TestWithParam<const char*> {};

TEST_P(ChatTemplateVectors, RendersAndRefusesAsTransformersDoes) {
  const ChatTemplate chat_template = load(GetParam());
  int cases = 0;
  for (const ordered_json& entry : vectors().at(GetParam()).at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    ++cases;
    const ChatInput input = input_of(entry.at("messages"), entry.at("args"));
    if (!entry.value("error", false)) {
      EXPECT_EQ(chat_template.render(input), entry.at("rendered").get<std::string>());
      continue;
    }
    try {
      ADD_FAILURE() << "not refused: " << chat_template.render(input);
    } catch (const UserError& error) {
      const auto from = entry.at("error_from").get<std::string>();
      const std::string what = error.what();
      if (from == "raise_exception") {
        EXPECT_TRUE(what.ends_with(": " + entry.at("error_message").get<std::string>())) << what;
      }
      EXPECT_NE(what.find(".json: chat_template:") != std::string::npos,
                what.find("chat_template.jinja:") != std::string::npos)
          << what;
    }
  }
  EXPECT_GE(cases, 3);
}

TEST_P(ChatTemplateVectors, KnowsWhichConversationsOnlyAppend) {
  const ChatTemplate chat_template = load(GetParam());
  int cases = 0;
  for (const ordered_json& entry : vectors().at(GetParam()).at("append_only")) {
    SCOPED_TRACE(entry.at("case").get<std::string>());
    ++cases;
    const ordered_json& args = entry.at("args");
    const ChatInput before = input_of(entry.at("messages"), args);
    ordered_json messages = entry.at("messages");
    for (const ordered_json& message : entry.at("appended")) messages.push_back(message);
    const ChatInput after = input_of(messages, entry.value("args_after", args));
    const auto difference = [&] {
      return first_difference(chat_template, before, entry.at("sampled").get<std::string>(), after);
    };
    if (entry.value("error_after", false)) {
      EXPECT_THROW(difference(), UserError);
    } else if (entry.at("holds").get<bool>()) {
      EXPECT_EQ(difference(), std::nullopt);
    } else {
      EXPECT_EQ(difference(), entry.at("first_difference_byte").get<size_t>());
    }
  }
  EXPECT_GE(cases, 5);
}

// Mutations of a real template never crash, hang or end in anything but a text or a UserError.
TEST_P(ChatTemplateVectors, MutationsOfTheTemplateAreRenderedOrRefused) {
  std::vector<std::string> sources;
  for (const auto& [model, entry] : vectors().items()) {
    if (!entry.is_object()) continue;
    const auto from = entry.at("template_from").get<std::string>();
    const std::string text = read_text(kData / from);
    sources.push_back(from.ends_with(".jinja")
                          ? text
                          : ordered_json::parse(text).at("chat_template").get<std::string>());
    if (model == GetParam()) std::swap(sources.front(), sources.back());
  }
  std::vector<ChatInput> inputs;
  for (const ordered_json& entry : vectors().at(GetParam()).at("cases"))
    inputs.push_back(input_of(entry.at("messages"), entry.at("args")));

  std::minstd_rand random(7);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % std::max<size_t>(n, 1)); };
  int rendered = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(fmt::format("round {}", round));
    std::string source = sources[0];
    for (size_t edits = 1 + below(3); edits > 0; --edits) {
      const size_t at = below(source.size()), size = below(60);
      const std::string& other = sources[below(sources.size())];
      switch (below(4)) {
        case 0:
          source.erase(at, size);
          break;
        case 1:
          source.insert(at, other.substr(below(other.size()), size));
          break;
        case 2:
          source.replace(at, 1, 1, "{}%#-+'\"|.()[]~\\\n0 x"[below(21)]);
          break;
        default:
          source.insert(at, source.substr(at, size));
          break;
      }
    }
    try {
      ChatTemplate::parse(source, "mutant").render(inputs[below(inputs.size())]);
      ++rendered;
    } catch (const UserError&) {
      ++refused;
    }
  }
  // Both kinds are met, or the mutations say little.
  EXPECT_GT(rendered, 20);
  EXPECT_GT(refused, 20);
}

INSTANTIATE_TEST_SUITE_P(All, ChatTemplateVectors,
                         testing::Values("qwen2.5", "minimind", "qwen3", "llama3", "llama3.1",
                                         "chatml"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase(name, '.');
                           return name;
                         });

}  // namespace
}  // namespace tailrace::chat
