#include "core/messages/message.h"

#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "core/base/printable.h"

namespace tailrace::wire {
namespace {

constexpr size_t kShownBytes = 200;  // of a text in a line of the log

std::string short_name(const LeaseId& id) {
  const MemberId& m = id.member;
  return fmt::format("p{}/d{}/e{}/q{}/l{}/m{}#{}", m.policy, m.dataset, m.epoch, m.prompt, m.launch,
                     m.member, id.attempt);
}

// A field list as " name=value" of each field that says something; of a list its size.
class Describer {
 public:
  explicit Describer(std::string_view names) : names_(names) {}

  template <class... Ts>
  void operator()(const Ts&... values) {
    (add(values), ...);
  }
  std::string take() { return std::move(text_); }

 private:
  template <class T>
  void add(const T& value) {
    const std::string_view name = names_.substr(0, names_.find(','));
    names_.remove_prefix(std::min(name.size() + 2, names_.size()));
    const std::string text = text_of(value);
    if (!text.empty()) text_ += fmt::format(" {}={}", name, text);
  }

  static std::string text_of(const LeaseId& lease) { return short_name(lease); }
  static std::string text_of(const std::string& text) {
    return printable(shortened(text, kShownBytes));
  }
  template <class T>
  static std::string text_of(const std::optional<T>& value) {
    return value ? text_of(*value) : "";
  }
  template <class T>
  static std::string text_of(const std::vector<T>& values) {
    return values.empty() ? "" : std::to_string(values.size());
  }
  template <class T>
  requires std::is_arithmetic_v<T> || NamedEnum<T>
  static std::string text_of(T value) {
    if constexpr (NamedEnum<T>)
      return std::string(name_of(value));
    else
      return fmt::format("{}", value);
  }

  std::string_view names_;
  std::string text_;
};

bool is_from(Role role, Speaker speaker) {
  switch (speaker) {
    case Speaker::kScheduler:
      return false;
    case Speaker::kWorker:
      return true;
    case Speaker::kRollout:
      return role == Role::kRollout;
    case Speaker::kReward:
      return role == Role::kReward;
    case Speaker::kTrainer:
      return role == Role::kTrainer;
  }
  return false;
}

Speaker speaker_of(const Message& message) {
  return std::visit([](const auto& m) { return m.kSpeaker; }, message);
}

}  // namespace

std::string_view name_of(const Message& message) {
  return std::visit([](const auto& m) { return m.kName; }, message);
}

std::string describe(const Message& message) {
  return std::visit(
      []<class M>(const M& m) {
        Describer describer(M::kFieldNames);
        // The list is shared with readers, hence not const; a description changes nothing.
        const_cast<M&>(m).fields(describer);
        return std::string(M::kName) + describer.take();
      },
      message);
}

bool is_said_by(Role role, const Message& message) { return is_from(role, speaker_of(message)); }

bool is_from_worker(const Message& message) { return speaker_of(message) != Speaker::kScheduler; }

}  // namespace tailrace::wire
