#include "rollout/gateway/chat_messages.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/json_text.h"
#include "rollout/gateway/api_error.h"

namespace tailrace::gateway {
namespace {

// Far more than any context holds; a template takes a while for each.
constexpr size_t kMaxMessages = 10'000;

using Json = nlohmann::ordered_json;

// Null is as good as not sent, as in the API.
const Json* given(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const std::string& string_at(const Json& object, std::string_view key, const std::string& path) {
  const Json* value = given(object, key);
  const std::string param = fmt::format("{}.{}", path, key);
  if (value == nullptr) refuse(param, fmt::format("{} is missing; it must be a string", param));
  if (!value->is_string())
    refuse(param, fmt::format("{} is a {}; it must be a string", param, value->type_name()));
  return value->get_ref<const std::string&>();
}

// A content is a string, or a list of parts of which only texts can be read.
std::string read_content(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    refuse(path, fmt::format("{} is a {}; it must be a string or a list of parts", path,
                             content.type_name()));
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    if (!content[i].is_object())
      refuse(at, fmt::format("{} is a {}; it must be an object with a type", at,
                             content[i].type_name()));
    const std::string& type = string_at(content[i], "type", at);
    if (type != "text")
      refuse(at + ".type",
             fmt::format("{}.type is \"{}\"; the model reads text only: send parts of type "
                         "\"text\"",
                         at, type),
             "unsupported_content");
    if (i > 0) text += '\n';
    text += string_at(content[i], "text", at);
  }
  return text;
}

Json read_calls(const Json& calls, const std::string& path) {
  if (!calls.is_array())
    refuse(path, fmt::format("{} is a {}; it must be a list", path, calls.type_name()));
  Json read = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const Json* function = calls[i].is_object() ? given(calls[i], "function") : nullptr;
    if (function == nullptr || !function->is_object())
      refuse(at, fmt::format("{} must be an object with an id, a type and a function", at));
    if (const Json* type = given(calls[i], "type"); type != nullptr && *type != "function")
      refuse(at + ".type",
             fmt::format("{}.type is {}; it must be \"function\"", at, json_text(*type)));
    const std::string of_function = at + ".function";
    read.push_back({{"id", string_at(calls[i], "id", at)},
                    {"type", "function"},
                    {"function",
                     {{"name", string_at(*function, "name", of_function)},
                      {"arguments", string_at(*function, "arguments", of_function)}}}});
  }
  return read;
}

Json read_message(const Json& message, const std::string& path) {
  if (!message.is_object())
    refuse(path, fmt::format("{} is a {}; it must be an object with role and content", path,
                             message.type_name()));
  std::string role = string_at(message, "role", path);
  // The API's newer word for the same role, which chat templates do not know.
  if (role == "developer") role = "system";
  const bool is_assistant = role == "assistant";
  if (!is_assistant && role != "system" && role != "user" && role != "tool")
    refuse(path + ".role",
           fmt::format("{}.role is \"{}\"; it must be system, developer, user, assistant or tool",
                       path, role));
  for (const char* field : {"audio", "function_call"}) {
    if (given(message, field) != nullptr)
      refuse(fmt::format("{}.{}", path, field),
             fmt::format("{}.{} is not supported{}", path, field,
                         std::string_view(field) == "audio" ? "; the model reads text only"
                                                            : "; use tool_calls"));
  }

  // Made anew from the fields that are checked, so that a template never meets any other.
  Json read;
  read["role"] = role;
  const Json* content = given(message, "content");
  // An assistant may have said nothing but calls, or nothing at all.
  if (content == nullptr && !is_assistant)
    refuse(
        path + ".content",
        fmt::format("{0}.content is missing; a message of the role {1} must have one", path, role));
  read["content"] = content == nullptr ? "" : read_content(*content, path + ".content");
  if (is_assistant) {
    // Servers name it both ways.
    for (const char* field : {"reasoning_content", "reasoning"}) {
      if (given(message, field) == nullptr || read.contains("reasoning_content")) continue;
      read["reasoning_content"] = string_at(message, field, path);
    }
    if (const Json* calls = given(message, "tool_calls"); calls != nullptr && !calls->empty())
      read["tool_calls"] = read_calls(*calls, path + ".tool_calls");
  }
  if (role == "tool") read["tool_call_id"] = string_at(message, "tool_call_id", path);
  if (given(message, "name") != nullptr) read["name"] = string_at(message, "name", path);
  return read;
}

}  // namespace

Json read_messages(const Json& messages) {
  if (!messages.is_array() || messages.empty())
    refuse("messages", "messages must be a list of at least one message");
  if (messages.size() > kMaxMessages)
    refuse("messages", fmt::format("messages has {} of them; at most {} are taken", messages.size(),
                                   kMaxMessages));
  Json read = Json::array();
  for (size_t i = 0; i < messages.size(); ++i)
    read.push_back(read_message(messages[i], fmt::format("messages[{}]", i)));
  return read;
}

std::string read_tools(const Json& request) {
  const Json* tools = given(request, "tools");
  if (tools != nullptr) {
    if (!tools->is_array())
      refuse("tools", fmt::format("tools is a {}; it must be a list", tools->type_name()));
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string at = fmt::format("tools[{}]", i);
      const Json& tool = (*tools)[i];
      if (!tool.is_object() || string_at(tool, "type", at) != "function")
        refuse(at, fmt::format("{} must be an object of type \"function\"", at));
      const Json* function = given(tool, "function");
      if (function == nullptr || !function->is_object())
        refuse(at + ".function", fmt::format("{}.function must be an object with a name", at));
      (void)string_at(*function, "name", at + ".function");
    }
  }
  const bool has_tools = tools != nullptr && !tools->empty();
  const Json* choice = given(request, "tool_choice");
  if (choice != nullptr && *choice == "none") return "";
  if (choice != nullptr && *choice != "auto")
    refuse("tool_choice",
           fmt::format("tool_choice is {}; no call can be forced on the model: it must be \"auto\" "
                       "or \"none\"",
                       json_text(*choice)),
           "unsupported_value");
  return has_tools ? json_text(*tools) : "";
}

}  // namespace tailrace::gateway
