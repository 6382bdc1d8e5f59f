#include "core/text/messages.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace::text {

using Json = nlohmann::ordered_json;

namespace {

std::string shown(const Json& value) { return shortened(json_text(value), 60); }

bool is_text_part(const Json& part) {
  return part.is_object() && part.contains("type") && part.at("type") == "text" &&
         part.contains("text") && part.at("text").is_string();
}

bool calls_tools(const Json& message) {
  const auto calls = message.find("tool_calls");
  return message.at("role") == "assistant" && calls != message.end() && calls->is_array() &&
         !calls->empty();
}

// The fault of content that is no text. Joins parts.
std::optional<std::string> join(Json& content) {
  if (!content.is_array() || content.empty())
    return fmt::format("{}; it must be a text", shown(content));
  std::string all;
  for (const Json& part : content) {
    if (!is_text_part(part))
      return fmt::format(
          "the part {}; parts must be {{\"type\": \"text\", \"text\": \"...\"}}: models read text "
          "alone "
          "(no images). Leave the row out",
          shown(part));
    all += part.at("text").get<std::string>();
  }
  content = std::move(all);
  return std::nullopt;
}

// nullptr: it is absent or null.
const Json* given(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The fault of a call, or of the function in it. A template would write null, or a list as
// arguments, for the policy to learn.
std::optional<std::string> fault_of_call(const Json& call) {
  if (!call.is_object())
    return fmt::format("{}; it must be an object with a function ({{\"name\", \"arguments\"}})",
                       shown(call));
  if (const Json* function = given(call, "function")) return fault_of_call(*function);
  const auto arguments = call.find("arguments");
  if (arguments == call.end() || arguments->is_object() || arguments->is_string())
    return std::nullopt;
  return fmt::format(
      "one with the arguments {}; they must be an object or the text of one. Write {{}} for none",
      shown(*arguments));
}

// The fault of the calls that a message has in one of two forms.
std::optional<std::string> fault_of_calls(const Json& message) {
  if (const Json* calls = given(message, "tool_calls")) {
    if (!calls->is_array())
      return fmt::format("tool_calls are {}; they must be a list", shown(*calls));
    for (size_t i = 0; i < calls->size(); ++i)
      if (const auto fault = fault_of_call((*calls)[i]))
        return fmt::format("call {} is {}", i + 1, *fault);
  }
  if (const Json* call = given(message, "function_call"))
    if (const auto fault = fault_of_call(*call)) return fmt::format("function_call is {}", *fault);
  return std::nullopt;
}

// Erases the nulls of all objects in `value`.
// A column of Parquet has one set of keys for all of its calls, or schemas, so each has a null for
// what only others have; a template would write it, and the policy learn it.
int64_t erase_nulls(Json& value) {
  int64_t erased = 0;
  if (value.is_object()) {
    auto& members = value.get_ref<Json::object_t&>();
    const auto nulls =
        std::ranges::count_if(members, [](const auto& member) { return member.second.is_null(); });
    if (nulls > 0) {
      // An ordered map looks at all of its keys for each one that it adds or erases.
      Json::object_t kept;
      for (auto& [key, inner] : members)
        if (!inner.is_null()) kept.Json::object_t::Container::emplace_back(key, std::move(inner));
      members = std::move(kept);
      erased += nulls;
    }
  }
  if (value.is_structured())
    for (Json& inner : value) erased += erase_nulls(inner);
  return erased;
}

// Erases the nulls in the arguments of a call, or of the function in it.
int64_t erase_nulls_of_arguments(Json& call) {
  if (!call.is_object()) return 0;
  int64_t erased = 0;
  if (const auto arguments = call.find("arguments"); arguments != call.end())
    erased += erase_nulls(*arguments);
  if (const auto function = call.find("function"); function != call.end())
    erased += erase_nulls_of_arguments(*function);
  return erased;
}

}  // namespace

bool are_messages(const Json& list) {
  return list.is_array() && !list.empty() && std::ranges::all_of(list, [](const Json& message) {
           return message.is_object() && message.contains("role") && message.at("role").is_string();
         });
}

Result<bool> make_texts(Json& messages) {
  bool changed = false;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    if (const auto fault = fault_of_calls(message))
      return Failure{fmt::format("message {} ({}): its {}", i + 1,
                                 message.at("role").get<std::string>(), *fault)};
    const auto content = message.find("content");
    if (content == message.end() || content->is_null()) {
      if (calls_tools(message)) continue;
      return Failure{fmt::format(
          "message {} ({}) has no content, which only an assistant with tool_calls may lack. Write "
          "\"\" for an empty text",
          i + 1, message.at("role").get<std::string>())};
    }
    if (content->is_string()) continue;
    if (const auto fault = join(*content))
      return Failure{fmt::format("the content of message {} ({}) is {}", i + 1,
                                 message.at("role").get<std::string>(), *fault)};
    changed = true;
  }
  return changed;
}

int64_t leave_out_nulls(Json& messages) {
  int64_t erased = 0;
  for (Json& message : messages) {
    if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
      for (Json& call : *calls) erased += erase_nulls_of_arguments(call);
    if (const auto call = message.find("function_call"); call != message.end())
      erased += erase_nulls_of_arguments(*call);
  }
  return erased;
}

int64_t leave_out_nulls_of_tools(Json& tools) { return erase_nulls(tools); }

}  // namespace tailrace::text
