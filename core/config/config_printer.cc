#include "core/config/config_printer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/join_texts.h"

namespace tailrace {
namespace {

// Plain where YAML reads it back as the same text, else in double quotes.
std::string yaml_text(const std::string& text) {
  auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '/' || c == '.' || c == '-' || c == '+';
  };
  // A list of what is safe rather than of what is special: YAML's own list is long.
  bool safe = !text.empty() && std::all_of(text.begin(), text.end(), plain) && text[0] != '-' &&
              text[0] != '.' && text != "null" && text != "Null" && text != "NULL";
  if (safe) return text;
  // `true` and `12` stay plain: an option of type text takes a scalar's text whatever it looks
  // like.
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      out += c;
  }
  return out + '"';
}

std::string yaml_list(const std::vector<double>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

std::string yaml_list(const std::vector<std::string>& values) {
  std::vector<std::string> texts;
  for (const auto& value : values) texts.push_back(yaml_text(value));
  return fmt::format("[{}]", join_texts(texts, ", "));
}

std::string yaml_map(const std::vector<std::pair<std::string, std::string>>& values) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : values)
    texts.push_back(fmt::format("{}: {}", yaml_text(name), yaml_text(value)));
  return fmt::format("{{{}}}", join_texts(texts, ", "));
}

// Shared by the printer and the reference: a field as one YAML value.
class ValueVisitor : public OptionVisitor {
 public:
  void field(std::string_view key, bool& value, const OptionInfo& info) override {
    add(key, {"true/false", value ? "true" : "false"}, info);
  }
  void field(std::string_view key, int64_t& value, const OptionInfo& info) override {
    add(key, {"integer", fmt::format("{}", value), range_text(info), value}, info);
  }
  void field(std::string_view key, double& value, const OptionInfo& info) override {
    // The shortest text that reads back to the same bits.
    add(key, {"number", fmt::format("{}", value), range_text(info)}, info);
  }
  void field(std::string_view key, std::string& value, const OptionInfo& info) override {
    add(key, {info.path ? "path" : "text", yaml_text(value)}, info);
  }
  void field(std::string_view key, std::vector<double>& value, const OptionInfo& info) override {
    add(key, {"list of numbers", yaml_list(value), range_text(info)}, info);
  }
  void field(std::string_view key, std::vector<std::string>& value,
             const OptionInfo& info) override {
    add(key, {"list of texts", yaml_list(value)}, info);
  }
  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& value,
             const OptionInfo& info) override {
    add(key, {"map", yaml_map(value)}, info);
  }

 protected:
  void choice(std::string_view key, size_t& index, std::span<const std::string_view> names,
              const OptionInfo& info) override {
    add(key, {"text", yaml_text(std::string(names[index])), choice_text(names)}, info);
  }

  struct Shown {
    std::string_view type;
    std::string value;
    std::string accepted = {};
    std::optional<int64_t> integer = {};
  };
  virtual void add(std::string_view key, Shown shown, const OptionInfo& info) = 0;
};

class Printer final : public ValueVisitor {
 public:
  std::string take() { return std::move(text_); }

 protected:
  void add(std::string_view key, Shown shown, const OptionInfo&) override {
    line(key, " " + shown.value);
  }
  // A section without keys prints as null, which the reader takes for a section that is not given.
  bool enter(std::string_view key, std::string_view, const Idle&) override {
    line(key, "");
    indent_ += 2;
    return true;
  }
  void leave() override { indent_ -= 2; }

  std::optional<size_t> enter_list(std::string_view key, std::span<const std::string> names,
                                   std::string_view) override {
    line(key, names.empty() ? " []" : "");
    indent_ += 2;
    return std::nullopt;
  }
  bool enter_item(std::optional<size_t> index) override {
    if (!index) return false;
    indent_ += 2;
    begins_item_ = true;
    return true;
  }
  void leave_list() override { indent_ -= 2; }

 private:
  void line(std::string_view key, const std::string& value) {
    const bool dash = std::exchange(begins_item_, false);
    text_ += fmt::format("{:{}}{}{}:{}\n", "", dash ? indent_ - 2 : indent_, dash ? "- " : "", key,
                         value);
  }

  std::string text_;
  int indent_ = 0;
  bool begins_item_ = false;
};

class Describer final : public ValueVisitor {
 public:
  // For options that stand outside of every section.
  Describer() { sections_.push_back({}); }

  std::vector<SectionDoc> take() {
    // A section that only holds sections has nothing to say.
    std::erase_if(sections_, [](const SectionDoc& section) {
      return section.options.empty() && section.help.empty();
    });
    return std::move(sections_);
  }

 protected:
  void add(std::string_view key, Shown shown, const OptionInfo& info) override {
    OptionDoc option;
    option.key = full_key(key);
    option.type = shown.type;
    option.value = std::move(shown.value);
    option.accepted = std::move(shown.accepted);
    option.integer = shown.integer;
    option.help = info.help;
    option.required = info.required;
    option.resume = info.resume;
    option.default_is_older = info.default_is_older;
    option.aliases.assign(info.aliases.begin(), info.aliases.end());
    option.idle = idle_of(option.key, info.idle);
    option.place = num_options_++;
    sections_[open_.empty() ? 0 : open_.back()].options.push_back(std::move(option));
  }
  bool enter(std::string_view key, std::string_view help, const Idle& idle) override {
    std::string full = full_key(key);
    idle_.push_back(with_full_keys(idle));
    if (!items_.empty()) {
      items_.push_back(std::move(full));
      return true;
    }
    open_.push_back(sections_.size());
    sections_.push_back({std::move(full), std::string(help), {}});
    return true;
  }
  void leave() override {
    idle_.pop_back();
    // The options that items hold, also in sections of their own, are options of the list.
    items_.empty() ? open_.pop_back() : items_.pop_back();
  }

  std::optional<size_t> enter_list(std::string_view key, std::span<const std::string> names,
                                   std::string_view help) override {
    enter(key, help, {});
    names_.assign(names.begin(), names.end());
    return std::nullopt;
  }
  bool enter_item(std::optional<size_t> index) override {
    const std::string& list = sections_[open_.back()].key;
    // Stands for the item and makes enter() below open no section of its own.
    items_ = {index ? item_key(list, names_, *index) : join_key(list, "NAME")};
    idle_.emplace_back();
    return true;
  }
  void leave_list() override {
    idle_.pop_back();
    open_.pop_back();
  }

 private:
  // The full name of a key in the section or item that is open.
  std::string full_key(std::string_view key) const {
    const bool is_top = items_.empty() && open_.empty();
    return is_top ? std::string(key)
                  : join_key(items_.empty() ? sections_[open_.back()].key : items_.back(), key);
  }

  Idle with_full_keys(Idle idle) const {
    for (std::string& key : idle.deciders) key = full_key(key);
    std::string reason;
    std::string_view rest = idle.reason;
    for (size_t open = rest.find('{'); open != std::string_view::npos; open = rest.find('{')) {
      const size_t close = std::min(rest.find('}', open), rest.size());
      reason += rest.substr(0, open);
      reason += full_key(rest.substr(open + 1, close - open - 1));
      rest.remove_prefix(std::min(close + 1, rest.size()));
    }
    idle.reason = reason.append(rest);
    return idle;
  }

  // A reason that makes a whole section idle says more than the key's own.
  Idle idle_of(const std::string& full, const Idle& own) const {
    // The keys that decide it are never idle: they are how a person turns the section on.
    for (const Idle& idle : idle_)
      if (idle && std::ranges::find(idle.deciders, full) == idle.deciders.end()) return idle;
    return with_full_keys(own);
  }

  std::vector<SectionDoc> sections_;
  std::vector<size_t> open_;        // indices in sections_
  std::vector<std::string> names_;  // of the open list
  std::vector<std::string> items_;  // keys of the open item and of its open sections
  std::vector<Idle> idle_;          // of all open sections, with full keys
  size_t num_options_ = 0;
};

}  // namespace

std::string print_config(const VisitOptions& options) {
  Printer printer;
  options(printer);
  return printer.take();
}

std::vector<SectionDoc> describe_options(const VisitOptions& options) {
  Describer describer;
  options(describer);
  return describer.take();
}

}  // namespace tailrace
