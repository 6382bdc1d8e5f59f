// From an options struct to text: the YAML that reads back to the same values, and the reference of
// its keys.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config/options.h"

namespace tailrace {

// A whole config file: bind_config() of it gives equal options.
std::string print_config(const VisitOptions& options);

// One key of the reference: docs/configuration.md and --help.
struct OptionDoc {
  std::string key;  // full dotted name
  // "true/false", "integer", "number", "text", "path", "list of numbers", "list of texts", "map"
  std::string type;
  std::string value;     // as YAML; the default, when a struct of defaults was described
  std::string accepted;  // ">= 1", "0 to 1", "one of: a, b"; empty: anything
  std::string help;
  bool required = false;
  Resume resume = Resume::kFixed;
  bool default_is_older = false;
  std::optional<int64_t> integer = {};  // the value, where the type is one
  std::vector<OptionInfo::Alias> aliases = {};
  Idle idle = {};    // with full keys, as the described values are: its own, or that of a section
  size_t place = 0;  // among all keys, in the order of the option lists
};
struct SectionDoc {
  std::string key;  // empty: the top
  std::string help;
  std::vector<OptionDoc> options;
};
std::vector<SectionDoc> describe_options(const VisitOptions& options);

// The same for any struct with `void visit(OptionVisitor&)`.
template <class Options>
requires requires(Options& o, OptionVisitor& v) { o.visit(v); }
std::string print_config(Options options) {  // by value: a visitor could write
  return print_config(VisitOptions([&](OptionVisitor& v) { options.visit(v); }));
}
template <class Options>
requires requires(Options& o, OptionVisitor& v) { o.visit(v); }
std::vector<SectionDoc> describe_options(Options options) {
  return describe_options(VisitOptions([&](OptionVisitor& v) { options.visit(v); }));
}

}  // namespace tailrace
