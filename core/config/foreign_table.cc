#include "core/config/foreign_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/config/config_document.h"

namespace tailrace {
namespace {

using Kind = ConfigNode::Kind;

class TableReader {
 public:
  explicit TableReader(const ConfigNode& root) {
    const Fields fields(root, "a table of names", {"program", "shared", "names", "refused"});
    if (const ConfigNode* program = fields.find("program")) {
      program_ = text(*program);
      table_.program = program_;
    }
    for (const char* section : {"names", "refused"}) {
      const ConfigNode* rows = fields.find(section);
      if (rows == nullptr || rows->kind == Kind::kNull) continue;
      require(*rows, Kind::kMap, section, "a map of names");
      for (const auto& [name, node] : rows->entries)
        table_.rows.push_back(row(name, node, section == std::string_view("names")));
    }
  }

  ForeignTable finish() { return std::move(table_); }

 private:
  // The entries of a map that may have `known` ones alone.
  class Fields {
   public:
    Fields(const ConfigNode& node, const std::string& whose, std::vector<std::string_view> known)
        : node_(node) {
      require(node, Kind::kMap, whose, "a map");
      for (const auto& [key, child] : node.entries)
        if (std::ranges::find(known, key) == known.end())
          throw UserError("{}: {} has no field {}; its fields are {}", child.place.text(), whose,
                          key, join_texts(known, ", "));
    }
    const ConfigNode* find(std::string_view key) const { return node_.find(key); }

   private:
    const ConfigNode& node_;
  };

  static void require(const ConfigNode& node, Kind kind, std::string_view what,
                      std::string_view accepted) {
    if (node.kind != kind)
      throw UserError("{}: {} is {}; it must be {}", node.place.text(), what, node.describe(),
                      accepted);
  }

  std::string_view keep(std::string text) { return table_.texts.emplace_back(std::move(text)); }

  std::string_view text(const ConfigNode& node) {
    if (node.kind != Kind::kScalar || node.text.empty())
      throw UserError("{}: found {} where a text is wanted", node.place.text(), node.describe());
    return keep(node.text);
  }
  std::string_view text_of(const Fields& fields, std::string_view key) {
    const ConfigNode* node = fields.find(key);
    return node != nullptr ? text(*node) : std::string_view();
  }

  // "a=1 b=2" of {a: 1, b: 2}.
  std::string_view settings(const ConfigNode& node, std::string_view what) {
    require(node, Kind::kMap, what, "a map (key: value)");
    std::string joined;
    for (const auto& [key, value] : node.entries) {
      if (value.kind != Kind::kScalar || value.text.find_first_of(" =") != std::string::npos)
        throw UserError("{}: {} has {} for {}; it must be one word", value.place.text(), what,
                        value.describe(), key);
      joined += fmt::format("{}{}={}", joined.empty() ? "" : " ", key, value.text);
    }
    return keep(std::move(joined));
  }
  std::string_view settings_of(const Fields& fields, std::string_view key) {
    const ConfigNode* node = fields.find(key);
    return node != nullptr ? settings(*node, key) : std::string_view();
  }

  std::string_view programs(const ConfigNode& node) {
    if (node.kind != Kind::kList) return text(node);
    std::vector<std::string_view> names;
    for (const ConfigNode& item : node.items) names.push_back(text(item));
    return keep(join_texts(names, ", "));
  }

  // "false 0" of [false, 0].
  std::string_view words(const ConfigNode& node) {
    if (node.kind != Kind::kList) return text(node);
    std::vector<std::string_view> words;
    for (const ConfigNode& item : node.items) words.push_back(text(item));
    return keep(join_texts(words, " "));
  }

  ForeignValue value(const std::string& theirs, const ConfigNode& node) {
    ForeignValue value{.theirs = keep(theirs)};
    if (std::ranges::any_of(theirs, [](char c) { return c >= 'A' && c <= 'Z'; }))
      throw UserError("{}: the value {} must be in lower case, as all are compared",
                      node.place.text(), theirs);
    if (node.kind != Kind::kMap) {
      value.ours = node.kind == Kind::kNull ? std::string_view() : text(node);
      return value;
    }
    const Fields fields(node, "a value", {"ours", "told", "also", "wants"});
    if (const ConfigNode* ours = fields.find("ours"))
      value.ours = ours->kind == Kind::kNull ? std::string_view() : text(*ours);
    value.told = text_of(fields, "told");
    value.also = settings_of(fields, "also");
    value.wants = text_of(fields, "wants");
    if (!value.wants.empty() && value.told.empty())
      throw UserError("{}: a value lacks told, which says what to write where nobody gives {}",
                      node.place.text(), value.wants);
    return value;
  }

  ForeignName row(const std::string& name, const ConfigNode& node, bool is_taken) {
    if (!names_.insert(name).second)
      throw UserError("{}: {} has two rows. Remove one of them.", node.place.text(), name);
    ForeignName row{.programs = program_, .name = keep(name)};
    if (node.kind != Kind::kMap) {
      (is_taken ? row.key : row.told) = text(node);
    } else if (is_taken) {
      read_taken(node, row);
    } else {
      const Fields fields(node, name, {"programs", "told", "section", "neutral", "write"});
      read_shared(fields, row);
    }
    if (is_taken ? row.key.empty() : row.told.empty())
      throw UserError("{}: {} lacks {}", node.place.text(), name,
                      is_taken ? "key, the name here" : "told, which says what to write");
    if (row.programs.empty())
      throw UserError("{}: {} lacks programs; the table is of no program", node.place.text(), name);
    return row;
  }

  void read_shared(const Fields& fields, ForeignName& row) {
    if (const ConfigNode* node = fields.find("programs")) row.programs = programs(*node);
    row.told = text_of(fields, "told");
    row.write = settings_of(fields, "write");
    if (const ConfigNode* node = fields.find("neutral")) row.neutral = words(*node);
    if (const ConfigNode* node = fields.find("section")) {
      if (node->text != "true")
        throw UserError("{}: section is {}; it must be true, or left out", node->place.text(),
                        node->describe());
      row.is_section = true;
    }
  }

  void read_taken(const ConfigNode& node, ForeignName& row) {
    const Fields fields(node, std::string(row.name),
                        {"programs", "key", "told", "values", "also", "only_with", "needs",
                         "section", "several", "neutral", "note"});
    read_shared(fields, row);
    row.key = text_of(fields, "key");
    row.several = text_of(fields, "several");
    row.note = text_of(fields, "note");
    row.only_with = settings_of(fields, "only_with");
    if (const ConfigNode* needs = fields.find("needs"))
      row.needs = needs->kind == Kind::kMap ? settings(*needs, "needs") : text(*needs);
    const ConfigNode* values = fields.find("values");
    const ConfigNode* also = fields.find("also");
    if (values != nullptr && also != nullptr)
      throw UserError("{}: {} has values and also; write also beside the value that says it",
                      also->place.text(), row.name);
    if (values != nullptr) {
      require(*values, Kind::kMap, "values", "a map (theirs: ours)");
      for (const auto& [theirs, each] : values->entries) row.values.push_back(value(theirs, each));
    }
    if (also != nullptr) row.values = {{.theirs = "*", .also = settings(*also, "also")}};
    if ((!row.only_with.empty() || !row.needs.empty()) && row.told.empty())
      throw UserError("{}: {} lacks told, which says what to write where it is not taken",
                      node.place.text(), row.name);
  }

  ForeignTable table_;
  std::string_view program_;
  std::set<std::string> names_;
};

}  // namespace

ForeignTable parse_foreign_table(const std::string& text, const std::string& source) {
  return TableReader(parse_config(text, source, {})).finish();
}

}  // namespace tailrace
