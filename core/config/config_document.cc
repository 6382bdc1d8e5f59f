#include "core/config/config_document.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"

namespace tailrace {
namespace {

using Kind = ConfigNode::Kind;

// Far above any config, far below a weight file that was named by mistake.
constexpr int64_t kMaxFileBytes = 4 << 20;
constexpr int kMaxExtends = 16;
// Aliases may repeat a node many times over; this bounds the tree that they unfold to.
constexpr int kMaxNodes = 10'000;
// And one that stands inside of what it names unfolds for ever.
constexpr int kMaxDepth = 32;

class Converter {
 public:
  explicit Converter(ConfigPlace place) : place_(std::move(place)) {}

  // `line`: of the key that leads here; 0: the node's own.
  ConfigNode convert(const YAML::Node& yaml, int line, int depth = 1) {
    ConfigNode node;
    node.place = place_;
    if (place_.line > 0) node.place.line = line > 0 ? line : yaml.Mark().line + 1;
    if (depth > kMaxDepth)
      throw UserError(
          "{}: nested more than {} deep; an alias (*name) may stand inside of what "
          "it names",
          node.place.text(), kMaxDepth);
    if (++num_nodes_ > kMaxNodes)
      throw UserError("{}: more than {} values", place_.source, kMaxNodes);
    // yaml-cpp gives "?" to a plain scalar and "!" to a quoted one; anything else was written by a
    // person.
    if (!yaml.IsNull() && yaml.Tag() != "?" && yaml.Tag() != "!" && !yaml.Tag().empty())
      throw UserError("{}: the tag {} is not supported. Write a plain value.", node.place.text(),
                      yaml.Tag());
    switch (yaml.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        node.kind = Kind::kNull;
        break;
      case YAML::NodeType::Scalar:
        node.kind = Kind::kScalar;
        node.text = yaml.Scalar();
        node.quoted = yaml.Tag() == "!";
        break;
      case YAML::NodeType::Sequence:
        node.kind = Kind::kList;
        for (const YAML::Node& item : yaml) node.items.push_back(convert(item, 0, depth + 1));
        break;
      case YAML::NodeType::Map:
        convert_entries(yaml, node, depth);
        break;
    }
    return node;
  }

 private:
  void convert_entries(const YAML::Node& yaml, ConfigNode& node, int depth) {
    node.kind = Kind::kMap;
    for (const auto& entry : yaml) {
      int line = place_.line > 0 ? entry.first.Mark().line + 1 : 0;
      ConfigPlace place = place_;
      place.line = line;
      if (!entry.first.IsScalar()) throw UserError("{}: a key must be a plain word", place.text());
      std::string key = entry.first.Scalar();
      if (key == "<<")
        throw UserError(
            "{}: merge keys (<<) are not supported. Use extends: FILE, or repeat the keys.",
            place.text());
      // yaml-cpp takes both, and one would be without effect.
      if (const ConfigNode* first = node.find(key))
        throw UserError("{}: {} is given twice (first at {}). Remove one of them.", place.text(),
                        key, first->place.text());
      node.entries.emplace_back(key, convert(entry.second, line, depth + 1));
    }
  }

  ConfigPlace place_;
  int num_nodes_ = 0;
};

// The first line with a tab among what it is indented with; 0: none.
int line_with_tab(const std::string& text) {
  LineReader lines(text);
  while (const auto line = lines.next()) {
    const size_t tab = line->text.find('\t');
    if (tab != std::string_view::npos && line->text.find_first_not_of(" \t") > tab)
      return static_cast<int>(line->number);
  }
  return 0;
}

// YAML text to a tree. An empty text, or one that is null, is an empty map.
ConfigNode parse(const std::string& text, const ConfigPlace& place) {
  std::vector<YAML::Node> documents;
  try {
    // Load() would read the first document and say nothing of the others.
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& failure) {
    ConfigPlace at = place;
    if (place.line > 0) at.line = failure.mark.line + 1;
    // Asked only of a text that is no YAML: inside a block of text such a line is legal.
    if (const int tab = line_with_tab(text); place.line > 0 && tab > 0) {
      at.line = tab;
      throw UserError("{}: the line begins with a tab; YAML indents with blanks. Replace the tab.",
                      at.text());
    }
    throw UserError("{}: not valid YAML: {}", at.text(), failure.msg);
  }
  if (documents.size() > 1)
    throw UserError("{}: holds {} YAML documents; it must be one. Remove the lines '---'.",
                    place.source, documents.size());
  ConfigNode node;
  node.place = place;
  if (documents.empty() || documents[0].IsNull()) return node;
  return Converter(place).convert(documents[0], 0);
}

// The text of a section's `name`; empty: it has none.
std::string name_of_section(const ConfigNode& node) {
  const ConfigNode* name = node.find("name");
  return name != nullptr ? name->text : "";
}

bool is_list_of_sections(const ConfigNode& node) {
  return node.kind == Kind::kList && !node.items.empty() &&
         std::ranges::all_of(node.items, [](const ConfigNode& item) {
           return item.kind == Kind::kMap && !name_of_section(item).empty();
         });
}

void merge(ConfigNode& base, ConfigNode over);

// A map over a list of sections: each of its keys names one of them.
void merge_by_name(ConfigNode& list, ConfigNode& over) {
  for (auto& [name, value] : over.entries) {
    const auto found = std::ranges::find(list.items, name, name_of_section);
    if (found == list.items.end()) {
      std::vector<std::string> names;
      for (const ConfigNode& item : list.items) names.push_back(name_of_section(item));
      throw UserError("{}: the list at {} has no {}; it has {}", value.place.text(),
                      list.place.text(), name, join_texts(names, ", "));
    }
    merge(*found, std::move(value));
  }
}

bool is_number(const std::string& key) {
  return !key.empty() && key.size() < 9 && key.find_first_not_of("0123456789") == std::string::npos;
}

// A map with numbers for keys over a list: each of its keys counts to one item.
bool counts_items(const ConfigNode& base, const ConfigNode& over) {
  return base.kind == Kind::kList && over.kind == Kind::kMap && !over.entries.empty() &&
         std::ranges::all_of(over.entries,
                             [](const auto& entry) { return is_number(entry.first); });
}

void merge_by_number(ConfigNode& list, ConfigNode& over) {
  for (auto& [key, value] : over.entries) {
    const auto index = static_cast<size_t>(std::stoul(key));
    if (index >= list.items.size())
      throw UserError("{}: the list at {} has {} items, counted from 0", value.place.text(),
                      list.place.text(), list.items.size());
    merge(list.items[index], std::move(value));
  }
}

// `over` wins; maps are joined key by key, everything else is replaced.
void merge(ConfigNode& base, ConfigNode over) {
  if (is_list_of_sections(base) && over.kind == Kind::kMap) return merge_by_name(base, over);
  if (counts_items(base, over)) return merge_by_number(base, over);
  if (base.kind != Kind::kMap || over.kind != Kind::kMap) {
    // An empty section ("rollout:" with all its keys commented out) overrides nothing.
    if (base.kind == Kind::kMap && over.kind == Kind::kNull) return;
    // Of one file: its keys with dots are beside the section, which holds no other.
    if (base.kind == Kind::kNull && over.kind == Kind::kMap && over.place.line > 0) {
      base = std::move(over);
      return;
    }
    // A file has a layer of its own, so these are two overrides.
    if (base.place.layer == over.place.layer)
      throw UserError("{}: the key has a value already, from '{}'. Remove one of them.",
                      over.place.text(), base.place.text());
    base = std::move(over);
    return;
  }
  for (auto& [key, value] : over.entries) {
    auto found = std::find_if(base.entries.begin(), base.entries.end(),
                              [&k = key](auto& e) { return e.first == k; });
    if (found == base.entries.end())
      base.entries.emplace_back(key, std::move(value));
    else
      merge(found->second, std::move(value));
  }
}

void require_map(const ConfigNode& node) {
  if (node.kind != Kind::kMap)
    throw UserError("{}: a config is a map of sections (key: value); found {}", node.place.text(),
                    node.describe());
}

// Wraps a value in one map for each part of a dotted key, from the inside out.
ConfigNode in_maps(std::string key, ConfigNode value, const ConfigPlace& place) {
  if (std::ranges::count(key, '.') >= kMaxDepth)
    throw UserError("{}: the key has more than {} parts", place.text(), kMaxDepth);
  while (true) {
    const size_t dot = key.rfind('.');
    std::string part = dot == std::string::npos ? key : key.substr(dot + 1);
    if (part.empty()) throw UserError("{}: the key has an empty part", place.text());
    ConfigNode outer;
    outer.place = place;
    outer.entries.emplace_back(std::move(part), std::move(value));
    value = std::move(outer);
    if (dot == std::string::npos) return value;
    key.resize(dot);
  }
}

// Keys with dots at the top of a file stand for sections, as on the command line. They come last,
// when the sections that are written out are there.
void put_in_sections(ConfigNode& root) {
  const auto first = std::ranges::stable_partition(root.entries, [](const auto& entry) {
                       return entry.first.find('.') == std::string::npos;
                     }).begin();
  std::vector<std::pair<std::string, ConfigNode>> dotted;
  std::move(first, root.entries.end(), std::back_inserter(dotted));
  root.entries.erase(first, root.entries.end());
  for (auto& [key, value] : dotted) {
    const ConfigPlace place = value.place;
    ConfigNode wrapped = in_maps(key, std::move(value), place);
    wrapped.place = root.place;
    merge(root, std::move(wrapped));
  }
}

class Loader {
 public:
  // `named_by`: the value of extends that leads here; null: a person did.
  ConfigNode load(const std::filesystem::path& path, const ConfigNode* named_by = nullptr) {
    std::error_code ignored;
    // One file by two paths is still a ring.
    std::filesystem::path identity = std::filesystem::weakly_canonical(path, ignored);
    if (std::find(open_.begin(), open_.end(), identity) != open_.end())
      throw UserError("{}: extends itself, through {}. Remove one of the extends lines.",
                      path.string(), open_.size() == 1 ? "its own extends" : open_.back().string());
    // Counted over all parents and not only those that are open: files that each extend the next
    // one twice are no ring, and would be read 2^n times.
    if (++num_files_ > kMaxExtends)
      throw UserError("{}: more than {} files through extends", path.string(), kMaxExtends);

    auto text = read_file(path, kMaxFileBytes);
    if (!text && named_by)
      throw UserError(
          "{}: extends: {}{}", named_by->place.text(), text.failure().message,
          missing_file_hint(path, "; correct the path, which begins at the folder of its file"));
    if (!text)
      throw UserError("{}{}", text.failure().message,
                      missing_file_hint(
                          path, "; name a YAML file by its path, such as configs/quickstart.yaml"));
    if (path.extension() == ".toml")
      throw UserError(
          "{}: a config is YAML, and this is TOML. Write a [section] as 'section:' with "
          "its keys indented below it, and 'key = value' as 'key: value'.",
          path.string());
    open_.push_back(identity);
    ConfigNode own =
        parse(text.value(),
              {.source = path.string(), .line = 1, .layer = 0, .folder = path.parent_path()});
    require_map(own);
    put_in_sections(own);

    ConfigNode merged;
    merged.place = own.place;
    // Parents before the file itself, in their order: who comes later has the higher layer and
    // wins.
    for (const ConfigNode& parent : take_extends(own))
      merge(merged, load(path.parent_path() / parent.text, &parent));
    set_layer(own, ++layer_);
    merge(merged, std::move(own));
    open_.pop_back();
    return merged;
  }

  int next_layer() const { return layer_ + 1; }

 private:
  static std::vector<ConfigNode> take_extends(ConfigNode& node) {
    auto found = std::find_if(node.entries.begin(), node.entries.end(),
                              [](auto& e) { return e.first == "extends"; });
    if (found == node.entries.end()) return {};
    ConfigNode value = std::move(found->second);
    node.entries.erase(found);
    const std::vector<ConfigNode> parents =
        value.kind == Kind::kScalar ? std::vector{value} : value.items;
    if (parents.empty() || std::any_of(parents.begin(), parents.end(), [](const ConfigNode& item) {
          return item.kind != Kind::kScalar;
        }))
      throw UserError("{}: extends is {}; it must be a file or a list of files", value.place.text(),
                      value.describe());
    return parents;
  }

  static void set_layer(ConfigNode& node, int layer) {
    node.place.layer = layer;
    for (auto& item : node.items) set_layer(item, layer);
    for (auto& [key, value] : node.entries) set_layer(value, layer);
  }

  std::vector<std::filesystem::path> open_;
  int num_files_ = 0;
  int layer_ = 0;
};

void apply_override(ConfigNode& root, const std::string& text, int layer) {
  size_t equals = text.find('=');
  ConfigPlace place{
      .source = fmt::format("override {}", text), .line = 0, .layer = layer, .folder = {}};
  if (equals == std::string::npos || equals == 0)
    throw UserError(
        "{}: an override is written section.key=value, for example rollout.group_size=8",
        place.text());
  std::string value_text = text.substr(equals + 1);
  ConfigNode value = parse(value_text, place);
  // "key=" and "key=null" are nothing, and not the empty map that such a file is.
  if (value.kind == Kind::kMap && value.entries.empty() && value_text.find('{') == value_text.npos)
    value.kind = Kind::kNull;

  // An override thus merges by the rules of a file, lists by name or number included.
  value = in_maps(text.substr(0, equals), std::move(value), place);
  merge(root, std::move(value));
}

}  // namespace

std::string ConfigPlace::text() const {
  return line > 0 ? fmt::format("{}:{}", source, line) : source;
}

const ConfigNode* ConfigNode::find(std::string_view key) const {
  for (const auto& [name, value] : entries)
    if (name == key) return &value;
  return nullptr;
}

std::string ConfigNode::describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return quoted ? fmt::format("\"{}\" (text in quotes)", text) : text;
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a section";
  }
  return "";
}

ConfigNode load_config(const std::filesystem::path& path, std::span<const std::string> overrides) {
  Loader loader;
  ConfigNode root = loader.load(path);
  for (const std::string& text : overrides) apply_override(root, text, loader.next_layer());
  return root;
}

ConfigNode parse_config(const std::string& text, const std::string& source,
                        std::span<const std::string> overrides) {
  ConfigNode root = parse(text, {.source = source, .line = 1, .layer = 0, .folder = {}});
  require_map(root);
  put_in_sections(root);
  if (const ConfigNode* extends = root.find("extends"))
    throw UserError("{}: extends works in files only", extends->place.text());
  for (const std::string& override_text : overrides)
    apply_override(root, override_text, /*layer=*/1);
  return root;
}

}  // namespace tailrace
