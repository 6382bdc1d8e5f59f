#include "rollout/gateway/refusals.h"

#include <fmt/format.h>

namespace tailrace::gateway {
namespace {

constexpr size_t kMostTold = 400;

std::string kind_of(const ApiError& error) {
  std::string field = error.param.substr(0, kMostTold);
  // Without numbers messages[3].role and messages[4].role are one kind, which is counted and told
  // once.
  std::erase_if(field, [](char c) { return c >= '0' && c <= '9'; });
  return fmt::format("{} {} {}", error.status, error.code, field);
}

}  // namespace

std::string told(const ApiError& error) {
  std::string text = fmt::format("{} ", error.status);
  // Most messages do not name the field again.
  if (!error.param.empty() && error.message.find(error.param) == std::string::npos)
    text += error.param + ": ";
  text += error.message;
  // A client's words are in there: they must not end the line of the log or act on a terminal.
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (text.size() <= kMostTold) return text;
  size_t end = kMostTold;
  // Not in the middle of a character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

void note_refusal(CountedLines& lines, const ApiError& error) {
  lines.note(kind_of(error), "the gateway refused a call: " + told(error));
}

}  // namespace tailrace::gateway
