// From a config tree to an options struct and back: strict reading, printing, description.
//
//   RunOptions options;
//   ConfigKeys keys = bind_config(load_config("a.yaml", overrides), options);
//   for (const std::string& note : keys.notes()) log.info("{}", note);
//   write_file_atomic(paths.config(), print_config(options));   // loads back to the same
//
// Everything here throws UserError; one message lists all that is wrong with a file, each with
// file:line, what was found, what is accepted, and what to try.
//
// Thread: any.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/config_document.h"
#include "core/base/options.h"

namespace tailrace {

// An options struct seen only through its list of fields.
using VisitOptions = std::function<void(OptionVisitor&)>;

// Which keys a person gave, and where: validate() names the line, and refuses keys without effect.
class ConfigKeys {
 public:
  bool given(std::string_view key) const { return places_.contains(key); }  // a full dotted key
  bool section_given(std::string_view section) const;                       // any key below it
  const ConfigPlace* place(std::string_view key) const;                     // null: not given
  std::string where(std::string_view key) const;  // "a.yaml:14", or "the defaults" when not given

  // For the log: aliases that were used, and what the reader of the options adds.
  const std::vector<std::string>& notes() const { return notes_; }
  void add_note(std::string note) { notes_.push_back(std::move(note)); }

 private:
  friend class ConfigBinder;
  std::map<std::string, ConfigPlace, std::less<>> places_;
  std::vector<std::string> notes_;
};

ConfigKeys bind_config(const ConfigNode& root, const VisitOptions& options);
std::string print_config(const VisitOptions& options);

// One key of the reference: docs/configuration.md and --help.
struct OptionDoc {
  std::string key;   // full dotted name
  std::string type;  // "true/false", "integer", "number", "text", "path", "list of numbers", "list
                     // of texts", "map"
  std::string default_text;  // as YAML: the value in the struct that was described
  std::string accepted;      // ">= 1", "0 to 1", "one of: a, b"; empty: anything
  std::string help;
  std::vector<std::string> aliases;
  bool required = false;
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
ConfigKeys bind_config(const ConfigNode& root, Options& options) {
  return bind_config(root, VisitOptions([&](OptionVisitor& v) { options.visit(v); }));
}
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
