// Options structs: each lists its fields once, and that list drives reading, checking, printing,
// --help and the reference in docs/.
//
//   struct OptimOptions {
//     double lr = 1e-6;
//     void visit(OptionVisitor& v) {
//       v.field("lr", lr, {.help = "peak learning rate", .min = 0});
//     }
//   };
//
// A nested struct is a section: v.section("sampling", sampling, "how tokens are drawn"), a vector
// of them a list: v.list("datasets", datasets, "what is learned from"). A choice among names is an
// enum with a table of them (enum_names.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/enum_names.h"

namespace tailrace {

// Whether a launch that continues a run may give an option another value.
enum class Resume : uint8_t {
  kFixed,      // it decides what is sampled or learned
  kMayChange,  // it decides how and where the work is done, what is measured, what is kept
  kMayGrow,    // an integer that may become larger
};
constexpr auto enum_names(Resume) {
  using enum Resume;
  return name_table<Resume>(
      {{kFixed, "fixed"}, {kMayChange, "may change"}, {kMayGrow, "may grow"}});
}

// Bounds for numbers that nothing else bounds: above any use, and such that sizes made of them fit
// 64 bits. Every number of a run has a least and a largest value.
inline constexpr double kMaxExactInteger = 9007199254740991;  // 2^53 - 1: a double holds each
inline constexpr double kMaxCount = 1e9;
inline constexpr double kMaxSequenceTokens = 1 << 20;
inline constexpr double kMaxThreads = 1024, kMaxProcesses = 1024;

// Why nothing reads a key, as its neighbours are. A key that somebody gave all the same is refused,
// or goes back to its default where what decides it was given later (cli/inputs/rules.h).
struct Idle {
  // Ends "has no effect: ...". Keys of the struct that says it stand in braces: "{coef} is 0" is
  // told with the full key.
  std::string reason = {};                 // empty: something reads it
  std::vector<std::string> deciders = {};  // keys of that struct; they are not idle themselves
  std::string advice = "Remove it.";
  bool is_told = true;  // false: to take the key's place is what the deciders are for

  explicit operator bool() const { return !reason.empty(); }
  friend bool operator==(const Idle&, const Idle&) = default;
};

// To stand beside the field or the section. The condition reads the struct's own values:
//   v.field("std_eps", std_eps,
//           {.idle = idle_if(!divides(kind), "{kind} divides by nothing", {"kind"})});
Idle idle_if(bool is_idle, std::string_view reason,
             std::initializer_list<std::string_view> deciders);

struct OptionInfo {
  std::string_view help = "";
  double min = -std::numeric_limits<double>::infinity();  // inclusive, numbers only
  double max = std::numeric_limits<double>::infinity();
  // Values that people know from elsewhere and that are no values of this choice, in lower case,
  // and what to tell them.
  struct Stranger {
    std::string_view name, advice;
  };
  std::span<const Stranger> strangers = {};
  // Other spellings, in lower case, of the names of a choice. The name itself is what is kept and
  // printed.
  struct Alias {
    std::string_view alias, name;
  };
  std::span<const Alias> aliases = {};
  bool required = false;  // no default: the file must give it
  // Texts only: names a file or folder. A relative one in a config file is relative to that file
  // (on the command line: to the working directory) and becomes absolute when it is read. Of a list
  // of texts those that name a file that is there become so.
  bool path = false;
  Resume resume = Resume::kFixed;
  // Builds that did not know the key did what its default says: a run that they began goes on.
  bool default_is_older = false;
  Idle idle = {};
};

// A visitor of the options of a struct: the YAML reader, the printer, the documentation.
class OptionVisitor {
 public:
  virtual ~OptionVisitor() = default;
  virtual void field(std::string_view key, bool& value, const OptionInfo& info) = 0;
  virtual void field(std::string_view key, int64_t& value, const OptionInfo& info) = 0;
  virtual void field(std::string_view key, double& value, const OptionInfo& info) = 0;
  virtual void field(std::string_view key, std::string& value, const OptionInfo& info) = 0;
  virtual void field(std::string_view key, std::vector<double>& value, const OptionInfo& info) = 0;
  virtual void field(std::string_view key, std::vector<std::string>& value,
                     const OptionInfo& info) = 0;
  // Free-form map of scalars that somebody else checks (an environment's own settings).
  virtual void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& value,
                     const OptionInfo& info) = 0;

  template <NamedEnum Enum>
  void field(std::string_view key, Enum& value, const OptionInfo& info) {
    auto index = static_cast<size_t>(value);
    choice(key, index, kEnumNames<Enum>, info);
    value = static_cast<Enum>(index);
  }

  // A choice that names a preset of the section that it stands in. A reader that finds it gives
  // `section` the preset's values; then only keys of the same layer as the name or of a later one
  // override what the preset sets. A printer leaves the values alone.
  template <class Section, NamedEnum Enum>
  void preset(std::string_view key, Section& section, Enum& name, const OptionInfo& info) {
    field(key, name, info);
    if (!chose_preset(key)) return;
    const Enum chosen = name;
    const auto keys = Section::preset_keys(chosen);
    preset_sets(key, name_of(chosen), {keys.begin(), keys.end()});
    section = Section::preset(chosen);
  }

  // `idle`: of all that is in it; its keys are those of the struct that lists the section.
  template <class Section>
  void section(std::string_view key, Section& value, std::string_view help, const Idle& idle = {}) {
    if (enter(key, help, idle)) {
      value.visit(*this);
      leave();
    }
  }

  // Sections one after the other, each with a `name` that no other one has. A reader that finds the
  // list makes all of them anew; without any, what one would have is shown (enter_item).
  template <class Item>
  void list(std::string_view key, std::vector<Item>& items, std::string_view help) {
    std::vector<std::string> names;
    for (const Item& item : items) names.push_back(item.name);
    if (const auto given = enter_list(key, names, help)) items.assign(*given, Item());
    for (size_t i = 0; i < items.size(); ++i) visit_item(i, items[i]);
    Item example;
    if (items.empty()) visit_item(std::nullopt, example);
    leave_list();
  }

 protected:
  // One of a few names; `index` is the place of the chosen one.
  virtual void choice(std::string_view key, size_t& index, std::span<const std::string_view> names,
                      const OptionInfo& info) = 0;
  // The choice `key` names a preset. A reader that has found the choice says true, and is then told
  // the name, and which keys of the section that is open it sets.
  virtual bool chose_preset(std::string_view /*key*/) { return false; }
  virtual void preset_sets(std::string_view /*key*/, std::string_view /*name*/,
                           const std::vector<std::string>& /*keys*/) {}
  // False: skip the section.
  virtual bool enter(std::string_view key, std::string_view help, const Idle& idle) = 0;
  virtual void leave() = 0;

  // `names`: of the items that are there. A reader says how many there will be instead.
  virtual std::optional<size_t> enter_list(std::string_view /*key*/,
                                           std::span<const std::string> /*names*/,
                                           std::string_view /*help*/) {
    return std::nullopt;
  }
  // Nothing: of an item that is not there, for its keys. False: skip it; else leave() ends it.
  virtual bool enter_item(std::optional<size_t> /*index*/) { return false; }
  virtual void leave_list() {}

 private:
  template <class Item>
  void visit_item(std::optional<size_t> index, Item& item) {
    if (!enter_item(index)) return;
    item.visit(*this);
    leave();
  }
};

// An options struct seen only through its list of fields.
using VisitOptions = std::function<void(OptionVisitor&)>;

// "section.key", or the key alone at the top.
std::string join_key(std::string_view section, std::string_view key);

// Whether an item of a list can have this name: letters, digits, '_' and '-'.
bool is_item_name(std::string_view name);

// The prefix of the keys of an item: "LIST.NAME"; "LIST[2]" where its name is missing, is none or
// is another one's too.
std::string item_key(std::string_view list, std::span<const std::string> names, size_t index);

// A bound as a person writes it: whole where it is whole.
std::string format_bound(double value);

// The numbers that are accepted: ">= 1", "<= 5", "0 to 1" or nothing.
std::string range_text(const OptionInfo& info);

// The words that are accepted: "one of: token, turn".
std::string choice_text(std::span<const std::string_view> names);

}  // namespace tailrace
