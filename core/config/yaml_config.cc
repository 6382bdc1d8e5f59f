#include "core/config/yaml_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/base/number.h"

namespace tailrace {
namespace {

using Kind = ConfigNode::Kind;

// About one screen; of what is beyond it the names are listed. A config in the names of another
// framework is told all at once, so that a person can go through it line by line.
constexpr size_t kMaxErrors = 12, kMaxNames = 100;

// "an integer from 1 to 8" and the like: completes "it must be ...".
std::string accepted_number(std::string_view what, const OptionInfo& info) {
  bool low = std::isfinite(info.min), high = std::isfinite(info.max);
  if (low && high) return fmt::format("{} from {}", what, range_text(info));
  return low || high ? fmt::format("{} {}", what, range_text(info)) : std::string(what);
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool in_range(double value, const OptionInfo& info) {
  return value >= info.min && value <= info.max;
}

// Instead of a number that is no good: what is there without it, or else the bound that is nearer.
std::string range_advice(double value, double fallback, const OptionInfo& info) {
  const double bound = value < info.min ? info.min : info.max;
  return fmt::format("Try {}.", format_bound(in_range(fallback, info) ? fallback : bound));
}

// Whether the first comma of "1,000,000" and all others stand before groups of three digits.
bool has_thousands(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  const size_t first = text.find(',');
  if (first < 1 || first > 3 || text[0] == '0' || !std::all_of(&text[0], &text[first], is_digit))
    return false;
  for (text.remove_prefix(first); text.starts_with(',');) {
    const size_t digits = std::min(text.find_first_not_of("0123456789", 1), text.size()) - 1;
    if (digits != 3) return false;
    text.remove_prefix(1 + digits);
  }
  return text.find(',') == std::string_view::npos;
}

// "1,000.5", "1.000,5" and "5,0e-4" with a decimal point and no other marks.
std::string with_decimal_point(std::string text) {
  if (has_thousands(text)) {
    std::erase(text, ',');
  } else if (std::ranges::count(text, ',') == 1) {
    std::erase(text, '.');
    text[text.find(',')] = '.';
  }
  return text;
}

// Advice on what a person probably meant by "4k", "10%", "1_000", "64.0", "30s", "0,5"; empty when
// nothing comes to mind.
std::string number_advice(std::string_view text, bool integer, double fallback,
                          const OptionInfo& info) {
  std::string plain(text);
  std::erase(plain, '_');
  if (!integer && has_thousands(plain) && std::ranges::count(plain, ',') == 1) {
    std::string point = plain;
    point[point.find(',')] = '.';
    std::erase(plain, ',');
    if (parse_number(point) && parse_number(plain))
      return fmt::format("Write {}, or {} if you mean that.", point, plain);
  }
  plain = with_decimal_point(std::move(plain));
  if (plain.find(',') != std::string::npos) return "";
  if (auto value = parse_number(plain)) {
    const double meant = integer ? std::round(*value) : *value;
    if (!in_range(meant, info) || (integer && std::abs(meant) > kMaxExactInteger))
      return range_advice(meant, fallback, info);
    return integer ? fmt::format("Try {}.", static_cast<int64_t>(meant))
                   : fmt::format("Try {}.", plain);
  }
  size_t digits = plain.find_first_not_of("+-0123456789.eE");
  auto number = parse_number(std::string_view(plain).substr(0, digits));
  if (!number || digits == 0 || digits == std::string::npos) return "";
  std::string unit = plain.substr(digits);
  if (unit == "%") return fmt::format("Write the fraction: {}.", *number / 100);
  if (unit == "k" || unit == "K")
    return fmt::format("Units are in the key's name; write {} or {}.", format_bound(*number * 1000),
                       format_bound(*number * 1024));
  if (unit == "M" || unit == "m")
    return fmt::format("Units are in the key's name; write {}.", format_bound(*number * 1e6));
  return fmt::format("Units are in the key's name; write the number without '{}'.", unit);
}

}  // namespace

// Reads one tree into one options struct. Collects errors instead of stopping at the first.
class ConfigBinder final : public OptionVisitor {
 public:
  ConfigBinder(const ForeignReading& reading, std::span<const ForeignName> foreign,
               ConfigKeys& keys)
      : keys_(keys), foreign_(foreign) {
    stack_.push_back({&reading.root, "", {}});
    keys_.notes_ = reading.notes;
    keys_.has_foreign_names_ = reading.found;
    if (reading.found) max_errors_ = kMaxNames;
    for (const auto& [place, message, name] : reading.errors) {
      add_error(place, "{}", message);
      errors_.back().key = name;
    }
    for (const ForeignName& row : foreign)
      for (size_t dot = row.name.find('.'); dot != row.name.npos; dot = row.name.find('.', dot + 1))
        their_sections_.emplace(row.name.substr(0, dot));
  }

  void field(std::string_view key, bool& value, const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    if (const auto truth = is_plain(*node) ? parse_boolean(node->text) : std::nullopt) {
      value = *truth;
      return;
    }
    // Words that YAML 1.1 or other programs take for truth: a person is told, not guessed at.
    static const std::set<std::string> yes = {"yes", "on", "1", "y", "enabled"};
    static const std::set<std::string> no = {"no", "off", "0", "n", "none", "disabled"};
    std::string advice = yes.contains(node->text)  ? "Try true."
                         : no.contains(node->text) ? "Try false."
                                                   : "";
    refuse(*node, key, "true or false", advice);
  }

  void field(std::string_view key, int64_t& value, const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    auto number = is_plain(*node) ? parse_integer(node->text) : std::nullopt;
    if (number && in_range(static_cast<double>(*number), info)) {
      value = *number;
      return;
    }
    refuse(*node, key,
           accepted_number(is_large_integer(*node) ? "an integer of 64 bits" : "an integer", info),
           scalar_advice(*node, /*integer=*/true, static_cast<double>(value), info));
  }

  void field(std::string_view key, double& value, const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    auto number = is_plain(*node) ? parse_number(node->text) : std::nullopt;
    if (number && in_range(*number, info)) {
      value = *number;
      return;
    }
    refuse(*node, key, accepted_number("a number", info),
           scalar_advice(*node, /*integer=*/false, value, info));
  }

  void field(std::string_view key, std::string& value, const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    // Any scalar is a text: `name: 12` needs no quotes.
    if (node->kind != Kind::kScalar && !is_empty_override(*node))
      return refuse(*node, key, "text",
                    node->kind == Kind::kNull ? "Write \"\" for an empty text." : "");
    // An empty path stays empty: it means none, not the folder of the file.
    value = info.path && !node->text.empty() ? absolute_path(*node) : node->text;
  }

  void field(std::string_view key, std::vector<double>& value, const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    const std::string each = accepted_number("a number", info);
    if (node->kind != Kind::kList)
      return refuse(*node, key, fmt::format("a list, each {}", each), list_advice(*node));
    std::vector<double> read;
    for (size_t i = 0; i < node->items.size(); ++i) {
      const ConfigNode& item = node->items[i];
      auto number = is_plain(item) ? parse_number(item.text) : std::nullopt;
      // NaN lies in no range: an element without a default is told the bound.
      const double fallback = i < value.size() ? value[i] : std::nan("");
      if (!number || !in_range(*number, info))
        return refuse(item, fmt::format("{}[{}]", key, i), each,
                      scalar_advice(item, /*integer=*/false, fallback, info));
      read.push_back(*number);
    }
    value = std::move(read);
  }

  void field(std::string_view key, std::vector<std::string>& value,
             const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    if (node->kind != Kind::kList)
      return refuse(*node, key, "a list of texts", list_advice(*node, /*of_words=*/true));
    std::vector<std::string> read;
    for (const ConfigNode& item : node->items) {
      const std::string element = fmt::format("{}[{}]", key, read.size());
      if (item.kind != Kind::kScalar) return refuse(item, element, "text", "");
      read.push_back(info.path ? path_of_file(item) : item.text);
    }
    value = std::move(read);
  }

  void field(std::string_view key, std::vector<std::pair<std::string, std::string>>& value,
             const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    // A map without entries, and not a key that is left out: the defaults go.
    if (node->kind == Kind::kNull) {
      value.clear();
      return;
    }
    if (node->kind != Kind::kMap) return refuse(*node, key, "a map (name: value)", "");
    value.clear();
    for (const auto& [name, item] : node->entries) {
      std::string full = join_key(key, name);
      if (item.kind != Kind::kScalar && !is_empty_override(item))
        refuse(item, full, "one plain value", "");
      else
        value.emplace_back(name, item.text);
      full = join_key(stack_.back().key, full);
      note_written(item, full);
      keys_.places_[full] = item.place;
    }
  }

  // Throws when anything was wrong.
  void finish() {
    // The top of the file is a section too, whose keys may be unknown.
    leave();
    report_unknown();
    if (errors_.empty()) return note_presets();
    // In the order of the files: fields are read in the order of their struct.
    std::stable_sort(errors_.begin(), errors_.end(), [](const Error& a, const Error& b) {
      return std::pair(a.place.layer, a.place.line) < std::pair(b.place.layer, b.place.line);
    });
    std::string message;
    for (size_t i = 0; i < std::min(errors_.size(), max_errors_); ++i) {
      if (i > 0) message += "\n       ";
      message += errors_[i].message;
    }
    if (errors_.size() > max_errors_) message += "\n       " + rest_of_errors();
    throw UserError("{}", message);
  }

 protected:
  void choice(std::string_view key, size_t& index, std::span<const std::string_view> names,
              const OptionInfo& info) override {
    const ConfigNode* node = take(key, info);
    if (!node) return;
    // People write GRPO as its paper does.
    const std::string word = lower_case(node->text);
    const auto alias = std::ranges::find(info.aliases, word, &OptionInfo::Alias::alias);
    const auto found = std::ranges::find(names, alias == info.aliases.end() ? word : alias->name);
    if (node->kind == Kind::kScalar && found != names.end()) {
      index = static_cast<size_t>(found - names.begin());
      return;
    }
    refuse(*node, key, choice_text(names), word_advice(*node, names, info));
  }

  bool chose_preset(std::string_view key) override {
    return keys_.given(join_key(stack_.back().key, key));
  }
  // Comes before the fields that the preset sets are visited: take() then passes over what a lower
  // layer says of them, and the preset's value in the struct stays.
  void preset_sets(std::string_view key, std::string_view name,
                   const std::vector<std::string>& keys) override {
    const std::string& section = stack_.back().key;
    const std::string full_key = join_key(section, key);
    presets_.push_back({full_key, std::string(name), *keys_.place(full_key), {}});
    for (const std::string& set : keys) {
      std::string full = join_key(section, set);
      keys_.presets_[full] = name;
      preset_of_[std::move(full)] = presets_.size() - 1;
    }
  }

  bool enter(std::string_view key, std::string_view, const Idle&) override {
    Section& parent = stack_.back();
    std::string full = join_key(parent.key, key);
    known_.push_back(full);
    const ConfigNode* node = parent.node ? parent.node->find(key) : nullptr;
    // Also when it is no section: it has its own message, and is not unknown besides.
    if (node) parent.entered.insert(std::string(key));
    if (node && node->kind != Kind::kMap) {
      if (node->kind != Kind::kNull)
        add_error(node->place, "{} is {}; it is a section (with keys below it)", full,
                  node->describe());
      node = nullptr;
    }
    // Walked even where the file has none: its required keys are missed, and its names can be the
    // nearest of a mistyped one.
    stack_.push_back({node, full, {}});
    return true;
  }

  std::optional<size_t> enter_list(std::string_view key, std::span<const std::string> names,
                                   std::string_view) override {
    Section& parent = stack_.back();
    List list{.key = join_key(parent.key, key), .items = {}, .names = {}};
    known_.push_back(list.key);
    const ConfigNode* node = parent.node ? parent.node->find(key) : nullptr;
    if (!node) {
      // The items that are there stay as they are.
      list.items.resize(names.size());
      list.names.assign(names.begin(), names.end());
      lists_.push_back(std::move(list));
      return std::nullopt;
    }
    parent.entered.insert(std::string(key));
    keys_.places_[list.key] = node->place;
    if (node->kind != Kind::kList && node->kind != Kind::kNull)
      add_error(node->place, "{} is {}; it must be a list of sections (- name: ...)", list.key,
                node->describe());
    for (const ConfigNode& item : node->items) {
      const ConfigNode* name = item.find("name");
      list.items.push_back(&item);
      list.names.push_back(name && name->kind == Kind::kScalar ? name->text : "");
    }
    lists_.push_back(std::move(list));
    return node->items.size();
  }

  bool enter_item(std::optional<size_t> index) override {
    const List& list = lists_.back();
    if (!index) {
      stack_.push_back({.node = nullptr, .key = join_key(list.key, "NAME"), .is_example = true});
      return true;
    }
    const ConfigNode* node = list.items[*index];
    if (!node) return false;
    const std::string full = item_key(list.key, list.names, *index);
    if (node->kind != Kind::kMap) {
      add_error(node->place, "{} is {}; it must be a section (with keys below it)", full,
                node->describe());
      return false;
    }
    keys_.places_[full] = node->place;
    stack_.push_back({.node = node, .key = full});
    return true;
  }

  void leave_list() override { lists_.pop_back(); }

  void leave() override {
    Section section = std::move(stack_.back());
    stack_.pop_back();
    if (!section.node) return;
    // Reported by finish(), when all sections were walked: only then is every name known that may
    // be the nearest one.
    for (const auto& [name, child] : section.node->entries)
      if (!section.entered.contains(name))
        unknown_.emplace_back(join_key(section.key, name), &child);
  }

 private:
  // "and 3 more: a, b and others".
  std::string rest_of_errors() const {
    std::vector<std::string_view> names;
    const size_t rest = errors_.size() - max_errors_;
    for (const Error& error : std::span(errors_).last(rest))
      if (!error.key.empty() && names.size() < kMaxNames) names.push_back(error.key);
    std::string text = fmt::format("and {} more", rest);
    if (!names.empty()) text += fmt::format(": {}", join_texts(names, ", "));
    if (!names.empty() && names.size() < rest) text += " and others";
    return text;
  }

  struct Section {
    const ConfigNode* node;              // null: not in the file
    std::string key;                     // full dotted
    std::set<std::string> entered = {};  // keys and sections of it that were read
    bool is_example = false;             // of a list without items: nothing is missed in it
  };
  struct List {
    std::string key;                       // full dotted
    std::vector<const ConfigNode*> items;  // null: not in the file
    std::vector<std::string> names;        // of all items
  };
  struct Error {
    ConfigPlace place;
    std::string message;
    std::string key;  // that is not known here
  };
  struct Preset {
    std::string key, name;  // "algo.name", "grpo"
    ConfigPlace place;
    std::vector<std::string> replaced;  // keys of lower layers that it sets, each with its place
  };

  // The node of a field.
  const ConfigNode* take(std::string_view key, const OptionInfo& info) {
    Section& section = stack_.back();
    const std::string full = join_key(section.key, key);
    known_.push_back(full);
    const ConfigNode* node = section.node ? section.node->find(key) : nullptr;
    if (node) section.entered.insert(std::string(key));
    if (node && is_replaced(full, *node)) node = nullptr;
    if (!node) {
      if (info.required && !section.is_example) {
        const ConfigPlace& place = section.node ? section.node->place : root_place();
        add_error(place, "{} is missing; it is required: {}", full, info.help);
      }
      return nullptr;
    }
    keys_.places_[full] = node->place;
    note_written(*node, full);
    return node;
  }

  void note_written(const ConfigNode& node, const std::string& full) {
    if (node.written.empty()) return;
    keys_.written_[full] = node.written;
    if (node.gives_way) keys_.giving_way_.insert(full);
    keys_.notes_.push_back(fmt::format("{}: {} is read as {}{}", node.place.text(), node.written,
                                       full, node.reworded ? fmt::format(" = {}", node.text) : ""));
  }

  // A preset of a higher layer sets it.
  bool is_replaced(const std::string& full, const ConfigNode& node) {
    const auto set = preset_of_.find(full);
    if (set == preset_of_.end()) return false;
    Preset& preset = presets_[set->second];
    if (node.place.layer >= preset.place.layer) return false;
    preset.replaced.push_back(
        fmt::format("{} ({})", node.written.empty() ? full : node.written, node.place.text()));
    return true;
  }

  // Whoever wrote a key that a preset of a higher layer sets is told that it counts no more.
  void note_presets() {
    for (const Preset& preset : presets_) {
      if (!preset.replaced.empty())
        keys_.notes_.push_back(fmt::format("{}: {} {} replaces {}", preset.place.text(), preset.key,
                                           preset.name, join_texts(preset.replaced, ", ")));
    }
  }

  // The rows of programs that have the name, whatever section it stands in there. A short word
  // within a section ("name", "mode") says too little.
  std::vector<const ForeignName*> rows_named(std::string_view name) const {
    std::vector<const ForeignName*> found;
    for (const ForeignName& row : foreign_) {
      const size_t dot = row.name.rfind('.');
      if (row.is_section || row.name.substr(dot + 1) != name) continue;
      if (dot != std::string_view::npos && name.find('_') == std::string_view::npos) continue;
      found.push_back(&row);
    }
    return found;
  }

  // What stands behind a name that is not known, for a row that has such a name.
  static std::string hint(const ForeignName& row) {
    const bool is_same = std::ranges::all_of(row.values, [](const ForeignValue& value) {
      return value.theirs == "*" && value.ours == "*" && value.told.empty();
    });
    if (row.key.empty() || !row.needs.empty()) return fmt::format(": {}", row.told);
    return fmt::format("; here it is called {}{}", row.key,
                       is_same ? "" : ", whose values have other names");
  }

  static std::string program_text(std::string_view programs) {
    return programs == "others" ? "another framework" : std::string(programs);
  }

  // As programs differ in what they call so, each meaning is told with the name that has it.
  static std::string hints(const std::vector<const ForeignName*>& rows) {
    std::vector<std::pair<std::string, const ForeignName*>> meanings;
    for (const ForeignName* row : rows) {
      std::string text = hint(*row);
      if (std::ranges::find(meanings, text, [](const auto& m) { return m.first; }) ==
          meanings.end())
        meanings.emplace_back(std::move(text), row);
    }
    if (meanings.size() == 1) return meanings.front().first;
    std::string all = ", and frameworks differ in what they call so:";
    for (const auto& [text, row] : meanings)
      all += fmt::format("\n         {} of {}{}", row->name, program_text(row->programs), text);
    return all;
  }

  // The section of another program that a key stands in, as deep as its name is known; empty: it
  // stands in ours, or in none.
  std::string_view their_section(std::string_view key) const {
    for (size_t dot = key.rfind('.'); dot != key.npos && dot > 0; dot = key.rfind('.', dot - 1)) {
      const std::string_view section = key.substr(0, dot);
      if (std::ranges::find(known_, section) != known_.end()) return {};
      if (their_sections_.contains(section)) return section;
    }
    return {};
  }

  // Names in such a section are compared in whole, and one slip weighs as in the last part alone:
  // names of five sections are all alike.
  const ForeignName* nearest_within(std::string_view key, std::string_view section) const {
    const std::string_view name = key.substr(key.rfind('.') + 1);
    const ForeignName* nearest = nullptr;
    int least = name.size() < 6 ? 1 : 2;
    for (const ForeignName& row : foreign_) {
      if (row.name.substr(0, row.name.find('.')) != section.substr(0, section.find('.'))) continue;
      const int slips = edit_distance(key, row.name);
      if (slips > least || (nearest && slips == least)) continue;
      nearest = &row;
      least = slips;
    }
    return nearest;
  }

  // "verl or prime-rl".
  std::string programs_of(std::string_view section) const {
    std::vector<std::string_view> programs;
    for (const ForeignName& row : foreign_)
      if (row.name.starts_with(std::string(section) + ".") &&
          std::ranges::find(programs, row.programs) == programs.end())
        programs.push_back(row.programs);
    std::string text;
    for (const std::string_view program : programs)
      text += (text.empty() ? "" : " or ") + program_text(program);
    return text;
  }

  // Names of other programs that stand in none of their sections, at the top and beside our key.
  // Shorter ones are near to too much.
  static constexpr size_t kLeastName = 4;
  const std::map<std::string, const ForeignName*>& plain_names() {
    if (plain_names_.empty()) {
      for (const ForeignName& row : foreign_) {
        if (row.name.size() < kLeastName || row.name.find('.') != row.name.npos) continue;
        plain_names_.emplace(row.name, &row);
        const size_t dot = row.key.rfind('.');
        if (dot != row.key.npos)
          plain_names_.emplace(fmt::format("{}.{}", row.key.substr(0, dot), row.name), &row);
      }
    }
    return plain_names_;
  }

  // "; the nearest is optim.lr", among our keys and the names of other programs.
  std::string nearest_hint(const std::string& key) {
    std::vector<std::string> all = known_;
    for (const auto& [name, row] : plain_names()) all.push_back(name);
    const std::string nearest = nearest_name(key, all);
    if (std::ranges::find(known_, nearest) == known_.end() && !nearest.empty()) {
      const ForeignName& row = *plain_names().at(nearest);
      return fmt::format("; the nearest is {} of {}{}", nearest, program_text(row.programs),
                         row.key.empty() ? "" : fmt::format(", here {}", row.key));
    }
    const std::vector<std::string> ours = nearest_keys(key, known_);
    if (ours.empty()) return "; 'tailrace docs' lists them";
    return fmt::format("; the nearest {} {}", ours.size() == 1 ? "is" : "are",
                       join_texts(ours, ", "));
  }

  // In a section that is not ours, the keys that another program has say more than the section;
  // in one of theirs all do. `within`: the node stands in such a one.
  void collect_unknown(const std::string& key, const ConfigNode& node,
                       std::vector<std::pair<std::string, ConfigPlace>>& unknown,
                       bool within = false) const {
    within = within || node.foreign || their_sections_.contains(key);
    if (within && !node.entries.empty()) {
      for (const auto& [name, child] : node.entries)
        collect_unknown(join_key(key, name), child, unknown, within);
      return;
    }
    const size_t before = unknown.size();
    for (const auto& [name, child] : node.entries)
      if (!rows_named(name).empty()) unknown.emplace_back(join_key(key, name), child.place);
    if (unknown.size() == before) unknown.emplace_back(key, node.place);
  }

  const ConfigPlace& root_place() const { return stack_.front().node->place; }

  // `a.b=""`, from which a shell takes the quotes.
  static bool is_empty_override(const ConfigNode& node) {
    return node.kind == Kind::kNull && node.place.line == 0 && node.place.source.ends_with('=');
  }

  static std::string absolute_path(const ConfigNode& node) {
    return std::filesystem::absolute(node.place.folder / node.text).lexically_normal().string();
  }
  // As it is where it names no file.
  static std::string path_of_file(const ConfigNode& node) {
    std::error_code error;
    std::string path = node.text.empty() ? "" : absolute_path(node);
    return std::filesystem::is_regular_file(path, error) ? path : node.text;
  }
  static bool is_plain(const ConfigNode& node) {
    return node.kind == Kind::kScalar && !node.quoted;
  }
  // Written as an integer, but too large for one.
  static bool is_large_integer(const ConfigNode& node) {
    return is_plain(node) && node.text.find_first_not_of("+-0123456789") == std::string::npos &&
           parse_number(node.text) && !parse_integer(node.text);
  }
  // `fallback`: what is there when the key is left out.
  static std::string scalar_advice(const ConfigNode& node, bool integer, double fallback,
                                   const OptionInfo& info) {
    if (node.kind != Kind::kScalar) return "";
    if (node.quoted && parse_number(node.text)) return "Remove the quotes.";
    return number_advice(node.text, integer, fallback, info);
  }
  static std::string word_advice(const ConfigNode& node, std::span<const std::string_view> names,
                                 const OptionInfo& info) {
    if (node.kind != Kind::kScalar) return "";
    const std::string word = lower_case(node.text);
    // Before the nearest: "dpo" is no slip of the pen for "dapo".
    const auto stranger = std::ranges::find(info.strangers, word, &OptionInfo::Stranger::name);
    if (stranger != info.strangers.end()) return std::string(stranger->advice);
    const std::vector<std::string> known(names.begin(), names.end());
    const std::string nearest = nearest_name(word, known);
    return nearest.empty() ? "" : fmt::format("Try {}.", nearest);
  }
  // `of_words`: a command, written as a shell would have it, becomes one item a word.
  static std::string list_advice(const ConfigNode& node, bool of_words = false) {
    if (node.kind != Kind::kScalar) return "";
    std::string items;
    for (const char c : node.text) items += c == ' ' && of_words ? ", " : std::string(1, c);
    return fmt::format("Try [{}].", items);
  }

  void refuse(const ConfigNode& node, std::string_view key, const std::string& accepted,
              const std::string& advice) {
    const std::string written =
        node.written.empty() ? "" : fmt::format(" (written {})", node.written);
    add_error(node.place, "{}{} is {}; it must be {}.{}{}", join_key(stack_.back().key, key),
              written, node.describe(), accepted, advice.empty() ? "" : " ", advice);
  }

  // "a: {b: ...}" of a.b.
  static std::string in_sections(std::string_view key) {
    std::string text, closing;
    for (size_t dot = key.find('.'); dot != key.npos; dot = key.find('.')) {
      text += std::string(key.substr(0, dot)) + ": {";
      closing += '}';
      key.remove_prefix(dot + 1);
    }
    return text + std::string(key) + ": ..." + closing;
  }

  void report_unknown() {
    std::vector<std::pair<std::string, ConfigPlace>> unknown;
    for (const auto& [key, node] : unknown_) collect_unknown(key, *node, unknown);
    std::ranges::stable_sort(unknown, {}, [](const auto& entry) {
      return std::pair(entry.second.layer, entry.second.line);
    });
    for (size_t i = 0; i < unknown.size(); ++i) {
      const auto& [key, place] = unknown[i];
      // Only those that are shown are looked at: thousands of them would take seconds.
      if (i >= max_errors_) {
        add_error(place, "{} is not a known key", key);
        errors_.back().key = key;
        continue;
      }
      // By the last part alone: the section that a person put it in may be the mistake.
      const auto rows = rows_named(std::string_view(key).substr(key.rfind('.') + 1));
      const std::string_view section = their_section(key);
      const ForeignName* nearest = section.empty() ? nullptr : nearest_within(key, section);
      if (nearest)
        add_error(place, "{}: no option of {} that is known; the nearest is {}", key,
                  program_text(nearest->programs), nearest->name);
      else if (!rows.empty())
        add_error(place, "{} is not a known key{}", key, hints(rows));
      else if (std::ranges::find(known_, key) != known_.end())
        add_error(place, "{} is written in sections here, as {}; with dots at the top of the file",
                  key, in_sections(key));
      else if (!section.empty())
        add_error(place, "{}: no option of {} that is known; docs/coming-from.md lists them", key,
                  programs_of(section));
      else
        add_error(place, "{} is not a known key{}", key, nearest_hint(key));
      errors_.back().key = key;
    }
  }

  template <class... Args>
  void add_error(const ConfigPlace& place, fmt::format_string<Args...> format, Args&&... args) {
    errors_.push_back(
        {place,
         fmt::format("{}: {}", place.text(), fmt::format(format, std::forward<Args>(args)...)),
         ""});
  }

  ConfigKeys& keys_;
  std::span<const ForeignName> foreign_;
  std::vector<Section> stack_;
  std::vector<List> lists_;         // open ones
  std::vector<std::string> known_;  // all keys and sections, dotted
  std::vector<std::pair<std::string, const ConfigNode*>> unknown_;
  std::set<std::string, std::less<>> their_sections_;  // of other programs, dotted
  std::map<std::string, const ForeignName*> plain_names_;
  std::vector<Preset> presets_;
  std::map<std::string, size_t, std::less<>> preset_of_;  // by the key that is set; in presets_
  std::vector<Error> errors_;
  size_t max_errors_ = kMaxErrors;
};

const ConfigPlace* ConfigKeys::place(std::string_view key) const {
  auto found = places_.find(key);
  return found == places_.end() ? nullptr : &found->second;
}

UserError ConfigKeys::placed(const UserError& error) const {
  if (!given(error.key())) return error;
  std::string text = error.what();
  const auto name = written_.find(error.key());
  if (name != written_.end() && text.starts_with(error.key() + " "))
    text.insert(error.key().size(), fmt::format(" (written {})", name->second));
  return UserError("{}: {}", where(error.key()), text);
}

std::string ConfigKeys::where(std::string_view key) const {
  const ConfigPlace* found = place(key);
  return found ? found->text() : "the defaults";
}

std::string ConfigKeys::source(std::string_view key) const {
  if (const auto found = derived_.find(key); found != derived_.end()) return found->second;
  if (const ConfigPlace* found = place(key))
    return found->line > 0 ? found->text() : "command line";  // only an override has no line
  if (const auto found = presets_.find(key); found != presets_.end())
    return fmt::format("preset {}", found->second);
  return "default";
}

ConfigKeys bind_config(const ConfigNode& root, const VisitOptions& options,
                       std::span<const ForeignName> foreign, std::optional<UserError>* mistakes) {
  const ForeignReading reading = read_foreign_names(root, foreign);
  ConfigKeys keys;
  ConfigBinder binder(reading, foreign, keys);
  options(binder);
  try {
    binder.finish();
  } catch (const UserError& error) {
    if (mistakes == nullptr) throw;
    *mistakes = error;
  }
  return keys;
}

}  // namespace tailrace
