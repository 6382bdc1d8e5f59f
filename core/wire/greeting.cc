#include "core/wire/greeting.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/messages/check.h"
#include "core/wire/tcp_address.h"

namespace tailrace::wire {
namespace {

// Never to be changed.
constexpr std::string_view kFirstWord = "tailrace-greeting ";
constexpr std::string_view kFirstLine = "tailrace-greeting 1";

// A value is the rest of a line, so it has none of its own.
std::string on_one_line(std::string text, size_t longest = 1000) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  // A message of two lines has its second one indented.
  const auto twice = [](char a, char b) { return a == ' ' && b == ' '; };
  text.erase(std::unique(text.begin(), text.end(), twice), text.end());
  return text.substr(0, longest);
}

std::vector<std::byte> text_of(
    const std::vector<std::pair<std::string_view, std::string>>& values) {
  std::string text = fmt::format("{}\n", kFirstLine);
  for (const auto& [key, value] : values)
    if (!value.empty()) text += fmt::format("{} {}\n", key, on_one_line(value));
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

using Values = std::map<std::string, std::string, std::less<>>;

std::optional<Values> values_of(std::span<const std::byte> bytes) {
  if (!is_greeting(bytes) || bytes.size() > kMaxGreetingBytes) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  LineReader lines(text);
  const auto first = lines.next();
  if (!first || first->text != kFirstLine) return std::nullopt;
  Values values;
  while (const auto line = lines.next()) {
    const size_t space = line->text.find(' ');
    if (space == std::string_view::npos) continue;
    values[std::string(line->text.substr(0, space))] =
        on_one_line(std::string(line->text.substr(space + 1)));
  }
  return values;
}

std::string value(const Values& values, std::string_view key) {
  const auto found = values.find(key);
  return found == values.end() ? std::string() : found->second;
}

// Names go into logs, rows and messages; nothing: it is none.
std::optional<std::string> place(const Values& values, std::string_view key,
                                 bool (*is_name)(std::string_view) = is_site_name) {
  std::string name = value(values, key);
  if (!name.empty() && !is_name(name)) return std::nullopt;
  return name;
}

}  // namespace

bool is_greeting(std::span<const std::byte> bytes) {
  return bytes.size() >= kFirstWord.size() &&
         std::memcmp(bytes.data(), kFirstWord.data(), kFirstWord.size()) == 0;
}

std::vector<std::byte> encode(const Greeting& greeting) {
  return text_of({{"build", greeting.build},
                  {"version", greeting.version},
                  {"incarnation", fmt::format("{}", greeting.incarnation)},
                  {"role", std::string(name_of(greeting.role))},
                  {"pool", greeting.pool},
                  {"cluster", greeting.cluster},
                  {"host", greeting.host},
                  {"relay", greeting.relay}});
}

std::optional<Greeting> decode_greeting(std::span<const std::byte> bytes) {
  const auto values = values_of(bytes);
  if (!values) return std::nullopt;
  Greeting greeting;
  greeting.build = value(*values, "build");
  greeting.version = value(*values, "version");
  const std::string number = value(*values, "incarnation");
  const auto [rest, error] =
      std::from_chars(number.data(), number.data() + number.size(), greeting.incarnation);
  if (error != std::errc() || rest != number.data() + number.size()) return std::nullopt;
  const std::string role = value(*values, "role");
  if (role != name_of(Role::kRollout) && role != name_of(Role::kReward)) return std::nullopt;
  greeting.role = role == name_of(Role::kReward) ? Role::kReward : Role::kRollout;
  const auto pool = place(*values, "pool"), cluster = place(*values, "cluster"),
             host = place(*values, "host", is_host_name),
             relay = place(*values, "relay", is_address_to_reach);
  if (greeting.incarnation == 0 || !pool || !cluster || !host || !relay) return std::nullopt;
  greeting.pool = *pool;
  greeting.cluster = *cluster;
  greeting.host = *host;
  greeting.relay = *relay;
  return greeting;
}

std::vector<std::byte> encode(const GreetingAnswer& answer) {
  using Kind = GreetingAnswer::Kind;
  // A key without a value is left out, and the answer would be none.
  const std::string reason = answer.reason.empty() ? "no reason was given" : answer.reason;
  return text_of({{"welcome", answer.kind == Kind::kWelcome ? answer.name : ""},
                  {"refused", answer.kind == Kind::kRefused ? reason : ""},
                  {"later", answer.kind == Kind::kLater ? reason : ""},
                  {"run", answer.run},
                  {"pool", answer.pool},
                  {"cluster", answer.cluster}});
}

std::optional<GreetingAnswer> decode_greeting_answer(std::span<const std::byte> bytes) {
  const auto values = values_of(bytes);
  if (!values) return std::nullopt;
  using Kind = GreetingAnswer::Kind;
  GreetingAnswer answer;
  answer.run = value(*values, "run");
  answer.cluster = value(*values, "cluster");
  answer.pool = value(*values, "pool");
  const auto name = place(*values, "welcome");
  if (name && !name->empty()) {
    answer.kind = Kind::kWelcome;
    answer.name = *name;
  } else if (values->contains("refused")) {
    answer.kind = Kind::kRefused;
    answer.reason = value(*values, "refused");
  } else if (values->contains("later")) {
    answer.kind = Kind::kLater;
    answer.reason = value(*values, "later");
  } else {
    return std::nullopt;
  }
  return answer;
}

}  // namespace tailrace::wire
