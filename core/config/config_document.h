// A YAML config as a tree of plain values with the place of each, before any options struct has
// seen it.
//
// Accepted: maps with unique text keys, lists, scalars, anchors and aliases. Refused with
// file:line: duplicate keys, tags, merge keys ("<<"), several documents. The key `extends:` at the
// top names one file or a list of files, relative to this one, whose values this file overrides key
// by key. Lists are replaced as a whole; of a list of sections with names a map changes those that
// it names (`datasets: {grid: {ratio: 2}}`, or the override datasets.grid.ratio=2), and of a list
// of plain values one with numbers for keys changes those (`command.1=other.py`, counted from 0).
// A key with dots at the top of a file stands for sections, as on the command line, also beside
// such a section that is written out (`optim.lr: 1e-6`).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tailrace {

struct ConfigPlace {
  std::string source;  // a file, or "override a.b=c"
  int line = 0;        // from 1; 0: no lines (an override)
  // A higher layer wins over a lower one: a file over what it extends, the overrides, which share
  // the highest, over all files.
  int layer = 0;

  // The folder that relative paths in this place are relative to.
  std::filesystem::path folder;

  std::string text() const;  // "configs/a.yaml:14"
};

struct ConfigNode {
  enum class Kind { kNull, kScalar, kList, kMap };

  Kind kind = Kind::kMap;
  ConfigPlace place;  // of the key, or of the value in a list
  std::string text;   // kScalar
  bool quoted = false;
  // Name of another program that it was written under (foreign_names.h), with the value where that
  // was another one too; empty: ours.
  std::string written = {};
  bool reworded = false;   // `text` is ours for another value of theirs
  bool gives_way = false;  // written so, it is no mistake where nothing reads the key
  bool foreign = false;    // a section of another program, some of whose names are ours by now
  std::vector<ConfigNode> items;  // kList
  // kMap, in the order of the file. Without the initializer clang would want the pair's definition,
  // which needs this one, for ConfigNode's default constructor.
  std::vector<std::pair<std::string, ConfigNode>> entries = {};

  const ConfigNode* find(std::string_view key) const;
  std::string describe() const;  // "12", "\"12\" (text)", "a list", "a section", "nothing"
};

// Reads `path` and what it extends, then applies `overrides` ("a.b=c", c in YAML). Throws
// UserError, also for a key that two overrides give.
ConfigNode load_config(const std::filesystem::path& path, std::span<const std::string> overrides);

// The same for a text; `extends` is refused. `source` stands for the file in messages.
ConfigNode parse_config(const std::string& text, const std::string& source,
                        std::span<const std::string> overrides);

}  // namespace tailrace
