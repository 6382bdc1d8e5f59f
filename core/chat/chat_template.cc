#include "core/chat/chat_template.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/chat/jinja_evaluator.h"
#include "core/chat/jinja_json.h"
#include "core/chat/jinja_parser.h"
#include "core/text/tokenizer.h"
#include "core/text/utf8.h"

namespace tailrace::chat {

using nlohmann::json;

struct ChatTemplate::Impl {
  static std::shared_ptr<Impl> parse(std::string_view source, std::string where);

  std::string where;
  jinja::Body body;
  jinja::Variables special_tokens;
};

namespace {

constexpr int64_t kMaxTemplateBytes = 1 << 20;
// A tokenizer_config.json may list all its added tokens, which takes megabytes.
constexpr int64_t kMaxConfigBytes = 64 << 20;
constexpr const char* kSpecialTokens[] = {
    "bos_token", "eos_token", "unk_token",  "sep_token",
    "pad_token", "cls_token", "mask_token", "additional_special_tokens"};

// The words of an error may come from a template or a message: nothing of them acts on a terminal.
[[noreturn]] void refuse(const std::string& where, const jinja::Error& error) {
  throw UserError("{}:{}: {}", where, error.line, printable(error.what()));
}

// Not an ordered_json, which looks for each key among all the others.
json read_config(const std::filesystem::path& path) {
  const auto text = read_file(path, kMaxConfigBytes);
  if (!text) throw UserError("{}", text.failure().message);
  json config = parse_json(text.value());
  if (!config.is_object()) throw UserError("{}: not a JSON object", path.string());
  return config;
}

// A token is a text, or an object that describes it.
jinja::Value token_text(const json& token, const std::string& where) {
  const json& text = token.is_object() && token.contains("content") ? token.at("content") : token;
  if (!text.is_string()) throw UserError("{}: is not the text of a token", where);
  return jinja::from_json(text.get<std::string>());
}

// As transformers has it, an empty token is none.
jinja::Variables special_tokens(const json& config, const std::string& file) {
  jinja::Variables tokens;
  for (const char* name : kSpecialTokens) {
    const auto it = config.find(name);
    if (it == config.end() || it->is_null()) continue;
    const std::string where = fmt::format("{}: {}", file, name);
    jinja::Value token;
    if (it->is_array()) {
      std::vector<jinja::Value> texts;
      for (const json& one : *it) texts.push_back(token_text(one, where));
      token = jinja::Value::list(std::move(texts));
    } else {
      token = token_text(*it, where);
    }
    // Not set and not an empty text: templates ask "if bos_token".
    if (jinja::truth(token)) tokens[name] = std::move(token);
  }
  return tokens;
}

// The text of the template `name`; nullopt: the file has none at all.
std::optional<std::string> template_in(const json& config, std::string_view name,
                                       const std::string& where) {
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) return std::nullopt;
  std::string names;
  if (it->is_string()) {
    if (name == "default") return it->get<std::string>();
    names = "default";
  } else {
    // transformers saved several templates as a list of pairs before they were files of their own.
    for (const json& entry : it->is_array() ? *it : json::array({*it})) {
      const auto text = [&](const char* key) {
        return entry.is_object() && entry.contains(key) && entry.at(key).is_string()
                   ? std::optional(entry.at(key).get<std::string>())
                   : std::nullopt;
      };
      const auto found = text("name"), source = text("template");
      if (!found || !source)
        throw UserError("{}: chat_template is neither a text nor a list of {{name, template}}",
                        where);
      if (*found == name) return source;
      names += (names.empty() ? "" : ", ") + *found;
    }
  }
  throw UserError("{}: no chat template \"{}\"; there are: {}", where, name, names);
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view source, std::string where) {
  return ChatTemplate(Impl::parse(source, std::move(where)));
}

std::shared_ptr<ChatTemplate::Impl> ChatTemplate::Impl::parse(std::string_view source,
                                                              std::string where) {
  auto impl = std::make_shared<Impl>();
  impl->where = std::move(where);
  if (source.size() > static_cast<size_t>(kMaxTemplateBytes))
    throw UserError("{}: a chat template of {} bytes; the most is {}", impl->where, source.size(),
                    kMaxTemplateBytes);
  if (!text::is_utf8(source)) throw UserError("{}: the chat template is not UTF-8", impl->where);
  try {
    impl->body = jinja::parse(source);
  } catch (const jinja::Error& error) {
    refuse(impl->where, error);
  }
  return impl;
}

std::optional<ChatTemplate> ChatTemplate::of_folder(const std::filesystem::path& directory,
                                                    std::string_view name) {
  const std::filesystem::path config_path = directory / "tokenizer_config.json";
  const std::filesystem::path jinja_path = directory / text::kTemplateFile;
  json config = json::object();
  if (std::filesystem::exists(config_path)) config = read_config(config_path);

  std::optional<std::string> source;
  std::string where = jinja_path.string();
  // The file wins over tokenizer_config.json, as in transformers; it holds the default template
  // alone.
  if (name == "default" && std::filesystem::exists(jinja_path)) {
    auto text = read_file(jinja_path, kMaxTemplateBytes);
    if (!text) throw UserError("{}", text.failure().message);
    source = std::move(text).value();
  } else {
    where = config_path.string();
    source = template_in(config, name, where);
    where += ": chat_template";
  }
  if (!source) return std::nullopt;
  auto impl = Impl::parse(*source, std::move(where));
  impl->special_tokens = special_tokens(config, config_path.string());
  return ChatTemplate(std::move(impl));
}

ChatTemplate ChatTemplate::of_file(const std::filesystem::path& file,
                                   const std::filesystem::path& directory) {
  const auto text = read_file(file, kMaxConfigBytes);
  if (!text) throw UserError("{}", text.failure().message);
  auto impl = Impl::parse(text.value(), file.string());
  const std::filesystem::path config = directory / "tokenizer_config.json";
  if (std::filesystem::exists(config))
    impl->special_tokens = special_tokens(read_config(config), config.string());
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(const ChatInput& input) const {
  jinja::Variables variables = impl_->special_tokens;
  try {
    variables["messages"] = jinja::from_json(input.messages);
    variables["tools"] = jinja::from_json(input.tools);
    variables["documents"] = jinja::from_json(input.documents);
    variables["add_generation_prompt"] = input.add_generation_prompt;
    // Last, so that a variable of the run may hide a special token; the constructor of PromptFormat
    // has refused the other names.
    for (const auto& [name, value] : input.variables.items())
      variables[name] = jinja::from_json(value);
  } catch (const jinja::Error& error) {
    throw UserError("{}: the conversation cannot be rendered: {}", impl_->where, error.what());
  }
  try {
    return jinja::render(impl_->body, variables, input.now);
  } catch (const jinja::Error& error) {
    refuse(impl_->where, error);
  }
}

std::optional<size_t> first_difference(const ChatTemplate& chat_template, const ChatInput& before,
                                       std::string_view sampled, const ChatInput& after) {
  const std::string old_text = chat_template.render(before).append(sampled);
  const std::string new_text = chat_template.render(after);
  const auto [it, _] =
      std::mismatch(old_text.begin(), old_text.end(), new_text.begin(), new_text.end());
  if (it == old_text.end()) return std::nullopt;
  return static_cast<size_t>(it - old_text.begin());
}

}  // namespace tailrace::chat
