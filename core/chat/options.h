// How a run writes what it says to the policy: the section `chat` of a configuration.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/enum_names.h"
#include "core/config/options.h"

namespace tailrace::chat {

enum class Style : uint8_t {
  kAuto,   // the model's chat template where it has one, else plain
  kPlain,  // text as it is, behind the special tokens that the tokenizer puts in front
};
constexpr auto enum_names(Style) {
  return name_table<Style>({{Style::kAuto, "auto"}, {Style::kPlain, "plain"}});
}

struct ChatOptions {
  Style style = Style::kAuto;
  std::string template_file = {};  // a Jinja template in the place of the model's own
  std::string system = {};  // the first message, where a conversation begins with none of its own
  // Other variables of the template: enable_thinking: false. Each a JSON value, or a text.
  std::vector<std::pair<std::string, std::string>> variables = {};
  // The day that strftime_now() tells, "2026-01-31": one for a whole run. Empty: a template that
  // asks for it is refused.
  std::string date = {};

  // The beginning of that day; nullopt: none is given. Throws UserError about chat.date.
  std::optional<std::tm> now() const;

  void visit(OptionVisitor& v);
};

}  // namespace tailrace::chat
