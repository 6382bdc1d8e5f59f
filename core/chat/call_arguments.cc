#include "core/chat/call_arguments.h"

#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/chat/jinja_budget.h"
#include "core/chat/jinja_error.h"
#include "core/chat/jinja_json.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

// As `tojson` writes them. Throws jinja::Error.
std::string text_of(const ordered_json& arguments) {
  jinja::Budget budget;
  return jinja::to_json(jinja::from_json(arguments), jinja::JsonStyle{}, budget);
}

std::string name_of(const ordered_json& function) {
  const auto name = function.find("name");
  return name != function.end() && name->is_string() ? json_text(*name) : "a tool";
}

}  // namespace

void bring_arguments_into(ArgumentsForm form, ordered_json& messages) {
  if (form == ArgumentsForm::kAsGiven) return;
  size_t number = 0;
  for (ordered_json& said : messages) {
    ++number;
    const auto calls = said.find("tool_calls");
    if (calls == said.end() || !calls->is_array()) continue;
    for (ordered_json& call : *calls) {
      if (!call.is_object()) continue;
      const auto inner = call.find("function");
      // OpenAI's form has the call below "function"; older data sets write name and arguments bare.
      ordered_json& function = inner != call.end() && inner->is_object() ? *inner : call;
      const auto arguments = function.find("arguments");
      if (arguments == function.end()) continue;
      if (form == ArgumentsForm::kTexts) {
        if (arguments->is_string()) continue;
        try {
          *arguments = text_of(*arguments);
        } catch (const jinja::Error& error) {
          throw UserError("message {} calls {} with arguments that cannot be written: {}", number,
                          name_of(function), error.what());
        }
        continue;
      }
      if (!arguments->is_string()) continue;
      // A text that is kept under a template which writes arguments|tojson would be quoted once
      // more, and the policy would learn that.
      auto object = parse_json_row(arguments->get_ref<const std::string&>());
      if (!object)
        throw UserError(
            "message {} calls {} with arguments that are {}. The chat template writes the JSON of "
            "an object there, so a text must hold one",
            number, name_of(function), object.failure().message);
      *arguments = std::move(object).value();
    }
  }
}

}  // namespace tailrace::chat
