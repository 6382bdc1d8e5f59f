#include "core/config/foreign_names.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/join_texts.h"
#include "core/base/number.h"

namespace tailrace {
namespace {

using Kind = ConfigNode::Kind;

std::string_view take_part(std::string_view& key) {
  const size_t dot = std::min(key.find('.'), key.size());
  const std::string_view part = key.substr(0, dot);
  key.remove_prefix(std::min(dot + 1, key.size()));
  return part;
}

ConfigNode* child_of(ConfigNode& node, std::string_view name) {
  for (auto& [key, child] : node.entries)
    if (key == name) return &child;
  return nullptr;
}

ConfigNode* node_at(ConfigNode& root, std::string_view key) {
  ConfigNode* node = &root;
  while (node != nullptr && !key.empty()) node = child_of(*node, take_part(key));
  return node;
}

// Takes out the node of a dotted key, with the sections that become empty by it.
std::optional<ConfigNode> extract(ConfigNode& node, std::string_view key) {
  if (node.kind != Kind::kMap) return std::nullopt;
  // A file may write the whole name as one word.
  auto found = std::ranges::find(node.entries, key, [](const auto& entry) { return entry.first; });
  std::optional<ConfigNode> taken;
  if (found != node.entries.end()) {
    taken = std::move(found->second);
  } else {
    const std::string_view first = take_part(key);
    if (key.empty()) return std::nullopt;
    found = std::ranges::find(node.entries, first, [](const auto& entry) { return entry.first; });
    if (found == node.entries.end()) return std::nullopt;
    taken = extract(found->second, key);
    if (!taken || !found->second.entries.empty()) {
      // The section is most likely another program's as a whole: what is left in it the binder
      // reports key by key.
      found->second.foreign = found->second.foreign || taken;
      return taken;
    }
  }
  node.entries.erase(found);
  return taken;
}

std::pair<std::string_view, std::string_view> split_setting(std::string_view setting) {
  const size_t equals = setting.find('=');
  return {setting.substr(0, equals), setting.substr(equals + 1)};
}

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// The words of a text with a blank between two.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t blank = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, blank));
    text.remove_prefix(std::min(blank + 1, text.size()));
  }
  return words;
}

// As it is where one is no number: "0" is "0.0".
bool is_same_value(std::string_view word, std::string_view other) {
  const auto number = parse_number(word);
  return word == other || (number && number == parse_number(other));
}

std::string lower_word(const ConfigNode& node) {
  std::string word = node.kind == Kind::kScalar ? node.text : "";
  std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
  return word;
}

// None of Python is null: as if it were not given.
bool is_nothing(const ConfigNode& node) {
  return node.kind == Kind::kNull || (node.kind == Kind::kScalar && node.text == "None");
}

// "optim.learning_rate" for the row of `learning_rate`; empty: the name has sections of its own.
std::string name_beside_key(const ForeignName& row) {
  const size_t dot = row.key.rfind('.');
  if (row.name.find('.') != std::string_view::npos || dot == std::string_view::npos) return "";
  return fmt::format("{}.{}", row.key.substr(0, dot), row.name);
}

class ForeignReader {
 public:
  ForeignReader(ConfigNode root, std::span<const ForeignName> names) {
    reading_.root = std::move(root);
    std::set<std::string_view> whole;
    for (const ForeignName& row : names) whole.insert(row.name);
    for (const ForeignName& row : names) {
      find_all(row, std::string(row.name));
      const std::string beside = name_beside_key(row);
      // Where both are called alike it is our key, and what another framework calls so in whole is
      // that one's.
      if (!beside.empty() && beside != row.key && !whole.contains(beside)) find_all(row, beside);
    }
    reading_.found = !found_.empty();
    // Only now, when the sections of theirs are out of the way of our keys.
    for (Found& each : found_) take(*each.row, each.name, std::move(each.node));
    for (Waiting& each : waiting_) give_switched(std::move(each));
    for (const Also& each : also_)
      if (!each.alone) give_also(each);
    for (const Also& each : also_)
      if (each.alone) give_also(each);
    for (const Wanting& each : wanting_) check_wanted(each);
    for (const Conditional& each : conditional_) check_condition(each);
    for (const Proposal& each : proposals_) propose(each);
    drop_empty_sections(reading_.root, "", names);
    note_left();
  }

  ForeignReading finish() { return std::move(reading_); }

 private:
  struct Found {
    const ForeignName* row;
    std::string name;
    ConfigNode node;
  };
  void find_all(const ForeignName& row, const std::string& name) {
    if (row.is_section) {
      const ConfigNode* node = node_at(reading_.root, name);
      if (node == nullptr || node->kind != Kind::kScalar) return;
    }
    // A name may stand there twice, as one word with dots and in sections.
    while (auto node = extract(reading_.root, name))
      found_.push_back({&row, name, std::move(*node)});
  }

  void take(const ForeignName& row, const std::string& name, ConfigNode node) {
    touched_.insert(row.key);
    if (is_nothing(node)) return left(row, name, node);
    if (row.key.empty() && is_neutral(row, node)) return left(row, name, node);
    if (row.key.empty()) return refuse_row(row, name, node);
    ConfigNode& seen = seen_.try_emplace(last_part(row.name), node).first->second;
    // Switches are looked up here by their last part, since names and their switches may come in
    // any order and from different layers.
    if (seen.place.layer < node.place.layer) seen = node;
    if (!row.several.empty() && node.kind == Kind::kList) {
      if (node.items.size() != 1)
        return refuse(node, name, "{} has {} values; {} takes one. {}", name, node.items.size(),
                      row.key, row.several);
      ConfigNode only = std::move(node.items.front());
      node = std::move(only);
    }
    node.written = name;
    node.gives_way = !row.neutral.empty() && row.needs.empty() && is_neutral(row, node);
    if (!row.values.empty() && !reword(row, name, node)) return;
    if (!row.only_with.empty()) conditional_.push_back({&row, name, node.place});
    if (!row.needs.empty())
      return waiting_.push_back({&row, name, std::move(node), /*gives=*/true});
    named_.insert(row.key);
    add_note(row, name, node);
    give(row.key, std::move(node));
  }

  void add_note(const ForeignName& row, const std::string& name, const ConfigNode& node) {
    if (row.note.empty()) return;
    reading_.notes.push_back(fmt::format("{}: {}: {}", node.place.text(), name, row.note));
  }

  // A section whose switch is off, whatever else it says, and one of such values alone.
  static bool is_off(const ForeignName& row, const ConfigNode& section) {
    const ConfigNode* path = section.find("path");
    const ConfigNode* enable = section.find("enable");
    return (path != nullptr && is_nothing(*path)) ||
           (enable != nullptr && lower_word(*enable) == "false") ||
           std::ranges::all_of(section.entries, [&](const auto& entry) {
             return is_nothing(entry.second) || is_neutral(row, entry.second);
           });
  }

  static bool is_neutral(const ForeignName& row, const ConfigNode& node) {
    if (node.kind == Kind::kList) return node.items.empty();
    if (node.kind == Kind::kMap) return is_off(row, node);
    const std::string word = lower_word(node);
    return word.empty() || std::ranges::any_of(words_of(row.neutral), [&](std::string_view other) {
             return is_same_value(word, other);
           });
  }

  void refuse_row(const ForeignName& row, const std::string& name, const ConfigNode& node) {
    refuse(node, name, "{}: {}", name, row.told);
    if (!row.write.empty() && node.kind == Kind::kScalar)
      proposals_.push_back({&row, name, node, reading_.errors.size() - 1});
  }

  struct Waiting {
    const ForeignName* row;
    std::string name;
    ConfigNode node;
    bool gives;  // false: its value leaves our key as it is
  };
  // Once all names are known, its switch among them.
  void give_switched(Waiting each) {
    if (!is_switched_on(*each.row)) {
      if (is_neutral(*each.row, each.node)) return left(*each.row, each.name, each.node);
      return refuse_row(*each.row, each.name, each.node);
    }
    if (!each.gives) return;
    named_.insert(each.row->key);
    add_note(*each.row, each.name, each.node);
    give(each.row->key, std::move(each.node));
  }
  bool is_switched_on(const ForeignName& row) const {
    const auto found = seen_.find(split_setting(row.needs).first);
    if (found == seen_.end()) return false;
    return row.needs.find('=') == std::string_view::npos ||
           lower_word(found->second) == split_setting(row.needs).second;
  }

  // The value as we write it. False: there is nothing to give.
  bool reword(const ForeignName& row, const std::string& name, ConfigNode& node) {
    const ForeignValue* value = value_of(row, node);
    if (value == nullptr) {
      std::vector<std::string_view> known;
      for (const ForeignValue& each : row.values)
        if (each.told.empty() || !each.wants.empty()) known.push_back(each.theirs);
      refuse(node, name, "{} is {}; what is taken here: {}. The key here is {}.", name,
             node.describe(), join_texts(known, ", "), row.key);
      return false;
    }
    if (!value->wants.empty()) {
      wanting_.push_back({value, name, node});
    } else if (!value->told.empty()) {
      refuse(node, name, "{} is {}: {}", name, node.describe(), value->told);
      return false;
    }
    for (const std::string_view setting : words_of(value->also))
      also_.push_back({&row, node, setting, /*alone=*/value->ours.empty()});
    if (value->ours.empty()) {
      if (!row.needs.empty())
        waiting_.push_back({&row, name, node, /*gives=*/false});
      else if (value->also.empty())
        left(row, name, node);
      return false;
    }
    if (value->ours == "*") return true;
    node.written = fmt::format("{} = {}", name, node.text);
    node.reworded = node.text != value->ours;
    node.text = value->ours;
    node.quoted = false;
    return true;
  }

  static const ForeignValue* value_of(const ForeignName& row, const ConfigNode& node) {
    const std::string word = lower_word(node);
    for (const std::string_view wanted : {std::string_view(word), std::string_view("*")}) {
      const auto found = std::ranges::find(row.values, wanted, &ForeignValue::theirs);
      if (found != row.values.end()) return &*found;
    }
    return nullptr;
  }

  void give(std::string_view key, ConfigNode node) {
    ConfigNode* spot = node_at(reading_.root, key);
    if (spot == nullptr) return put(key, std::move(node));
    if (spot->foreign && spot->kind == Kind::kMap) {
      // A section of theirs stands there, and its other names are in no table.
      for (const auto& [name, other] : spot->entries)
        refuse(other, fmt::format("{}.{}", key, name),
               "{}.{} is not a known key; 'tailrace docs' lists them", key, name);
      *spot = std::move(node);
      return;
    }
    if (spot->place.layer == node.place.layer) {
      return refuse(node, node.written,
                    "{} and {} (at {}) are two names of {}. Remove one of them.", node.written,
                    spot->written.empty() ? key : std::string_view(spot->written),
                    spot->place.text(), key);
    }
    // A higher layer overrides, under whichever name.
    if (spot->place.layer < node.place.layer) *spot = std::move(node);
  }

  // Where nothing is, in sections that are made if they are missing.
  void put(std::string_view key, ConfigNode node) {
    ConfigNode* section = &reading_.root;
    while (true) {
      const std::string part(take_part(key));
      ConfigNode* next = child_of(*section, part);
      if (key.empty()) {
        section->entries.emplace_back(part, std::move(node));
        return;
      }
      if (next == nullptr) {
        ConfigNode made;
        made.place = node.place;
        section->entries.emplace_back(part, std::move(made));
        next = &section->entries.back().second;
      }
      if (next->kind == Kind::kNull) next->kind = Kind::kMap;
      // It is no section, which the reader of the options says.
      if (next->kind != Kind::kMap) return;
      section = next;
    }
  }

  struct Also {
    const ForeignName* row;
    ConfigNode node;
    std::string_view setting;
    bool alone;  // the value says nothing else
  };
  void give_also(const Also& each) {
    const auto [key, value] = split_setting(each.setting);
    // Whoever overrides the key in a higher layer overrides what its value said besides.
    const ConfigNode* own = node_at(reading_.root, each.row->key);
    if (!each.alone && own != nullptr && own->place.layer > each.node.place.layer) return;
    // Another name says it itself, in whatever layer.
    if (named_.contains(key) || (each.alone && implied_.contains(key))) return;
    if (!each.alone) implied_.insert(key);
    ConfigNode node = each.node;
    if (value != "*") {
      if (!node.reworded) node.written = fmt::format("{} = {}", node.written, node.text);
      node.reworded = true;
      node.text = value;
      node.quoted = false;
    }
    const ConfigNode* spot = node_at(reading_.root, key);
    if (spot == nullptr || spot->place.layer < node.place.layer)
      give(key, std::move(node));
    else if (each.alone)
      left(*each.row, std::string(each.row->name), each.node);
  }

  struct Conditional {
    const ForeignName* row;
    std::string name;
    ConfigPlace place;
  };
  void check_condition(const Conditional& each) {
    for (const std::string_view setting : words_of(each.row->only_with)) {
      const auto [key, value] = split_setting(setting);
      const ConfigNode* spot = node_at(reading_.root, key);
      if (spot == nullptr || spot->text == value) continue;
      reading_.errors.push_back(
          {each.place,
           fmt::format("{} with {} = {}: {}", each.name, key, spot->describe(), each.row->told),
           each.name});
      return;
    }
  }

  struct Wanting {
    const ForeignValue* value;
    std::string name;
    ConfigNode node;
  };
  void check_wanted(const Wanting& each) {
    const std::string_view key = each.value->wants;
    if (node_at(reading_.root, key) == nullptr && !touched_.contains(key))
      refuse(each.node, each.name, "{} is {}: {}", each.name, each.node.describe(),
             each.value->told);
  }

  struct Proposal {
    const ForeignName* row;
    std::string name;
    ConfigNode node;
    size_t error;  // which it is added to
  };
  // "eps_clip: 0.2  ->  algo.clip_low: 0.2" on a line of its own, and below it those of other keys.
  void propose(const Proposal& each) {
    const bool in_file = each.node.place.line > 0;
    std::vector<std::string> settings;
    for (const std::string_view setting : words_of(each.row->write)) {
      const auto [key, formula] = split_setting(setting);
      const std::optional<std::string> value = worked_out(formula, each.node);
      if (!value) return;
      settings.push_back(fmt::format("{}{}{}", key, in_file ? ": " : "=", *value));
    }
    // Pasted where the name stands, a key with dots would be one of their section.
    const bool stands_within = in_file && each.name.find('.') != std::string::npos;
    const std::string begin =
        fmt::format("         {}{}{}  ->  ", each.name, in_file ? ": " : "=", each.node.text);
    const std::string between = in_file ? "\n" + std::string(begin.size(), ' ') : " ";
    std::string& message = reading_.errors[each.error].message;
    message += fmt::format("\n{}{}", begin, join_texts(settings, between));
    if (stands_within) message += "  (at the left margin)";
  }
  // A formula of factors and divisors. None: one of them is not known, or the result is no count.
  std::optional<std::string> worked_out(std::string_view formula, const ConfigNode& node) {
    if (formula == "*") return node.text;
    if (formula.find_first_of("*/") == std::string_view::npos) return std::string(formula);
    double result = 1;
    bool divides = false;
    while (true) {
      const size_t end = std::min(formula.find_first_of("*/"), formula.size());
      const std::string_view factor = formula.substr(0, end);
      const ConfigNode* spot = factor == "value" ? &node : node_at(reading_.root, factor);
      const auto number = spot != nullptr ? parse_number(spot->text) : std::nullopt;
      if (!number || *number == 0) return std::nullopt;
      result = divides ? result / *number : result * *number;
      if (end == formula.size()) break;
      divides = formula[end] == '/';
      formula.remove_prefix(end + 1);
    }
    if (result < 1 || result != std::floor(result)) return std::nullopt;
    return fmt::format("{:.0f}", result);
  }

  // Of sections that only hold names of theirs, those that hold nothing: `wandb: {}`.
  void drop_empty_sections(ConfigNode& section, const std::string& key,
                           std::span<const ForeignName> names) {
    const auto is_theirs = [&](const std::string& full) {
      const std::string start = full + ".";
      const auto begins = [&](std::string_view name) { return name.starts_with(start); };
      return std::ranges::any_of(names, begins, &ForeignName::name) &&
             std::ranges::none_of(
                 names, [&](const ForeignName& row) { return row.key == full || begins(row.key); });
    };
    std::erase_if(section.entries, [&](auto& entry) {
      auto& [name, node] = entry;
      const std::string full = key.empty() ? name : fmt::format("{}.{}", key, name);
      const bool held = !node.entries.empty();
      if (node.kind == Kind::kMap) drop_empty_sections(node, full, names);
      if (node.kind != Kind::kNull && (node.kind != Kind::kMap || !node.entries.empty()))
        return false;
      if (!is_theirs(full)) return false;
      if (!held) left_.push_back({node.place, full, full + " says nothing"});
      return true;
    });
  }

  struct Left {
    ConfigPlace place;
    std::string name, text;
  };
  void left(const ForeignName& row, const std::string& name, const ConfigNode& node) {
    const bool has_word = node.kind == Kind::kScalar && !node.text.empty() && node.text != "None";
    left_.push_back(
        {node.place, name,
         row.key.empty()
             ? fmt::format("{}{} says nothing", name, has_word ? " = " + node.text : "")
             : fmt::format("{} = {} leaves {} as it is", name, node.describe(), row.key)});
  }

  // A recipe has some forty of them, which would hide what is said behind them.
  static constexpr size_t kFewLeft = 3;
  void note_left() {
    if (left_.size() <= kFewLeft) {
      for (const Left& each : left_)
        reading_.notes.push_back(fmt::format("{}: {}", each.place.text(), each.text));
      return;
    }
    std::ranges::stable_sort(
        left_, {}, [](const Left& each) { return std::pair(each.place.layer, each.place.line); });
    std::vector<std::string_view> names;
    for (const Left& each : left_)
      if (std::ranges::find(names, each.name) == names.end()) names.push_back(each.name);
    reading_.notes.push_back(
        fmt::format("{} names say nothing here or leave our keys as they are: "
                    "{}",
                    names.size(), join_texts(names, ", ")));
  }

  template <class... Args>
  void refuse(const ConfigNode& node, const std::string& name, fmt::format_string<Args...> format,
              Args&&... args) {
    reading_.errors.push_back({node.place, fmt::format(format, std::forward<Args>(args)...), name});
  }

  ForeignReading reading_;
  std::map<std::string_view, ConfigNode> seen_;  // by the last part of a name: the highest layer's
  std::vector<Found> found_;                     // in the order of the rows
  std::set<std::string_view> touched_;           // keys that a name of theirs is of, taken or not
  std::vector<Waiting> waiting_;
  std::set<std::string_view> named_;    // keys that a name of theirs has given
  std::set<std::string_view> implied_;  // keys that a value which says something gives besides
  std::vector<Also> also_;
  std::vector<Wanting> wanting_;
  std::vector<Conditional> conditional_;
  std::vector<Proposal> proposals_;
  std::vector<Left> left_;  // names that left our keys as they were
};

}  // namespace

ForeignReading read_foreign_names(ConfigNode root, std::span<const ForeignName> names) {
  return ForeignReader(std::move(root), names).finish();
}

}  // namespace tailrace
