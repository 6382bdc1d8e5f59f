#include "core/chat/options.h"

#include <charconv>
#include <chrono>

#include "core/base/error.h"

namespace tailrace::chat {

std::optional<std::tm> ChatOptions::now() const {
  if (date.empty()) return std::nullopt;
  const auto number = [&](size_t at, size_t size) {
    int value = -1;
    const char* begin = date.data() + at;
    const auto [end, error] = std::from_chars(begin, begin + size, value);
    return error == std::errc() && end == begin + size && *begin != '-' ? value : -1;
  };
  const bool formed = date.size() == 10 && date[4] == '-' && date[7] == '-';
  const int year = formed ? number(0, 4) : -1, month = formed ? number(5, 2) : -1,
            day = formed ? number(8, 2) : -1;
  const std::chrono::year_month_day ymd{std::chrono::year(year),
                                        std::chrono::month(static_cast<unsigned>(month)),
                                        std::chrono::day(static_cast<unsigned>(day))};
  if (year < 1 || month < 0 || day < 0 || !ymd.ok())
    throw UserError::at("chat.date", "is \"{}\"; it must be a day, as 2026-01-31", date);
  const std::chrono::sys_days days(ymd);
  std::tm tm{};
  tm.tm_year = year - 1900;
  tm.tm_mon = month - 1;
  tm.tm_mday = day;
  // strftime() reads these two for %a and %j; mktime() would fill them by the time zone of the
  // machine.
  tm.tm_wday = static_cast<int>(std::chrono::weekday(days).c_encoding());
  tm.tm_yday = static_cast<int>(
      (days - std::chrono::sys_days(ymd.year() / std::chrono::January / 1)).count());
  return tm;
}

void ChatOptions::visit(OptionVisitor& v) {
  const Idle plain = idle_if(style == Style::kPlain, "{style} is plain", {"style"});
  v.field("style", style,
          {.help = "auto: what environments say goes through the chat template (of chat.template, "
                   "or of the model) where there is one; plain: it goes to the policy as it is"});
  v.field("template", template_file,
          {.help = "file with a chat template (Jinja) in the place of the model's own; checkpoints "
                   "carry it",
           .path = true,
           .idle = plain});
  v.field("system", system,
          {.help = "system message in front of conversations that have none; empty: what the "
                   "template does without one",
           .idle = plain});
  v.field("variables", variables,
          {.help = "other variables of the template, for example enable_thinking: false",
           .idle = plain});
  v.field(
      "date", date,
      {.help = "day that the template is told as today's (strftime_now), as 2026-01-31: one for "
               "the whole run, so that it can be repeated; a template that asks for it is "
               "refused without",
       .idle = plain});
}

}  // namespace tailrace::chat
