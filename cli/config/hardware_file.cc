#include "cli/config/hardware_file.h"

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/config/config_printer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHardwarePrefix = "hardware.", kMovedSection = "simulate";

std::string card_name(const EmbeddedFile& file) { return fs::path(file.path).stem().string(); }

// The keys and sections at the top of a hardware file.
const std::set<std::string, std::less<>>& top_keys() {
  static const std::set<std::string, std::less<>> keys = [] {
    std::set<std::string, std::less<>> found;
    for (const SectionDoc& section : describe_options(SimulateSection{}))
      for (const OptionDoc& option : section.options)
        found.insert(option.key.substr(0, option.key.find('.')));
    return found;
  }();
  return keys;
}

// As the file has it: "hardware.workers=4" is `workers` there, "hardware.h100.step_ms=8" an item of
// its list `hardware`. What has no second part is no item, and may be a slip of the pen.
std::string key_of_file(const std::string& text) {
  const std::string rest = text.substr(kHardwarePrefix.size());
  const size_t end = std::min(rest.find_first_of(".="), rest.size());
  const bool is_item =
      end < rest.size() && rest[end] == '.' && !top_keys().contains(rest.substr(0, end));
  return is_item ? text : rest;
}

std::vector<std::string> keys_of_file(std::span<const std::string> overrides) {
  std::vector<std::string> keys;
  for (const std::string& text : overrides) keys.push_back(key_of_file(text));
  return keys;
}

// Messages say each word as it was typed.
void place_as_typed(ConfigNode& node, std::span<const std::string> overrides) {
  for (const std::string& text : overrides)
    if (node.place.source == "override " + key_of_file(text)) {
      node.place.source = "override " + text;
      break;
    }
  for (ConfigNode& item : node.items) place_as_typed(item, overrides);
  for (auto& [key, value] : node.entries) place_as_typed(value, overrides);
}

HardwareFile bound(ConfigNode root, const std::string& name,
                   std::span<const std::string> overrides) {
  place_as_typed(root, overrides);
  HardwareFile file{.name = name, .section = {}, .keys = {}};
  file.keys = bind_config(root, file.section);
  try {
    file.section.validate();
  } catch (const UserError& error) {
    throw file.keys.placed(error);
  }
  return file;
}

// What a word of the command line has set in it: a place without a line.
const ConfigNode* typed_in(const ConfigNode& node) {
  if (node.place.line == 0) return &node;
  for (const auto& [key, value] : node.entries)
    if (const ConfigNode* typed = typed_in(value)) return typed;
  return nullptr;
}

}  // namespace

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : hardware_files()) names.push_back(card_name(file));
  return names;
}

HardwareFile parse_hardware(const std::string& text, const std::string& source,
                            std::span<const std::string> overrides) {
  return bound(parse_config(text, source, keys_of_file(overrides)), source, overrides);
}

HardwareFile load_hardware(const std::string& name, std::span<const std::string> overrides) {
  for (const EmbeddedFile& file : hardware_files())
    if (card_name(file) == name) {
      HardwareFile card = parse_hardware(std::string(file.text), std::string(file.path), overrides);
      card.name = name;
      return card;
    }
  std::error_code error;
  const bool is_path = name.find('/') != name.npos || name.ends_with(".yaml");
  if (!is_path && !fs::exists(name, error)) {
    const std::vector<std::string> names = hardware_names();
    throw UserError(
        "--hardware is {}; it must be one of: {}, or a file (docs/hardware.md){}\n"
        "       'tailrace plan --hardware list' shows them.",
        name, join_texts(names, ", "), did_you_mean(name, names));
  }
  return bound(load_config(name, keys_of_file(overrides)), name, overrides);
}

bool sets_hardware(std::string_view text) { return text.starts_with(kHardwarePrefix); }

std::string hardware_table() {
  std::string table = fmt::format("{:<12}{:>10}{:>14}{:>18}{:>12}\n", "name", "memory",
                                  "its bandwidth", "bf16, dense", "to the host");
  for (const std::string& name : hardware_names()) {
    const HardwareSection card = load_hardware(name, {}).section.hardware.front();
    table +=
        fmt::format("{:<12}{:>6.1f} GiB{:>9.0f} GB/s{:>11.0f} TFLOP/s{:>7.0f} GB/s\n", name,
                    card.memory_gib, card.memory_gb_per_s, card.bf16_tflops, card.link_gb_per_s);
  }
  return table;
}

fs::path hardware_beside(const fs::path& config) {
  return config.parent_path() / (config.stem().string() + ".hardware.yaml");
}

void refuse_simulate_section(const ConfigNode& root, const fs::path& config) {
  if (const ConfigNode* hardware = root.find("hardware"))
    throw UserError(
        "{}: the hardware is no part of a run's config; a plan takes it: 'tailrace plan {} "
        "--hardware FILE hardware.KEY=VALUE' (docs/hardware.md).",
        hardware->place.text(), config.string());
  const ConfigNode* section = root.find(kMovedSection);
  if (section == nullptr) return;
  const std::string file = hardware_beside(config).string();
  if (const ConfigNode* typed = typed_in(*section))
    throw UserError(
        "{}: the keys of `simulate` are those of a hardware file now, and on the command line they "
        "begin with `hardware.`: 'tailrace plan {} --hardware FILE hardware.KEY=VALUE' "
        "(docs/hardware.md).",
        typed->place.text(), config.string());
  throw UserError(
      "{}: the section simulate is no part of a run's config any more.\n"
      "       Move the lines below `simulate:` as they are to a hardware file, {}, and run\n"
      "       'tailrace plan {} --hardware {}'.",
      section->place.text(), file, config.string(), file);
}

void drop_simulate_section(ConfigNode& root) {
  std::erase_if(root.entries, [](const auto& entry) {
    return entry.first == kMovedSection && typed_in(entry.second) == nullptr;
  });
}

}  // namespace tailrace
