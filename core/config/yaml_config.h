// From a config tree to an options struct: strict reading. The way back is config_printer.h.
//
//   RunOptions options;
//   ConfigKeys keys = bind_config(load_config("a.yaml", overrides), options);
//   for (const std::string& note : keys.notes()) log.info("{}", note);
//
// Everything here throws UserError; one message lists all that is wrong with a file, each with
// file:line, what was found, what is accepted, and what to try.
//
// Thread: any.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/config/config_document.h"
#include "core/config/foreign_names.h"
#include "core/config/options.h"

namespace tailrace {

// Which keys a person gave, and where: validate() names the line, and refuses keys without effect.
class ConfigKeys {
 public:
  bool given(std::string_view key) const { return places_.contains(key); }  // a full dotted key
  const ConfigPlace* place(std::string_view key) const;                     // null: not given
  std::string where(std::string_view key) const;  // "a.yaml:14", or "the defaults" when not given

  // Which layer the value of a key comes from, for a person: "command line", "a.yaml:14", "preset
  // grpo" or "default"; else what derived() was told.
  std::string source(std::string_view key) const;
  // The value of a key that nobody gave was worked out from others.
  void derived(std::string key, std::string from) { derived_[std::move(key)] = std::move(from); }

  // With the place of its key in front, if that was given, and with the name of another program
  // that it was written under. The result is about no key any more, so
  // that nobody says the place twice.
  UserError placed(const UserError& error) const;

  // For the log: names of other programs that were used, and what the reader of the options adds.
  const std::vector<std::string>& notes() const { return notes_; }
  void add_note(std::string note) { notes_.push_back(std::move(note)); }

  // It was given under the name of another program, with the value that it has there where nobody
  // gives one: where nothing reads the key, that is no mistake.
  bool gives_way(std::string_view key) const { return giving_way_.contains(key); }

  // The config says some of it in the names of another program.
  bool has_foreign_names() const { return has_foreign_names_; }

 private:
  friend class ConfigBinder;
  std::map<std::string, ConfigPlace, std::less<>> places_;
  std::map<std::string, std::string, std::less<>> presets_;  // by the key that is set: "grpo"
  std::map<std::string, std::string, std::less<>> derived_;
  std::map<std::string, std::string, std::less<>> written_;  // by our key: the name of theirs
  std::set<std::string, std::less<>> giving_way_;
  std::vector<std::string> notes_;
  bool has_foreign_names_ = false;
};

// `foreign`: names of other programs, which are taken or refused as their table says. `mistakes`,
// where there is one, takes the message of all that is wrong, and what is right is bound; without
// it that message is thrown.
ConfigKeys bind_config(const ConfigNode& root, const VisitOptions& options,
                       std::span<const ForeignName> foreign = {},
                       std::optional<UserError>* mistakes = nullptr);

// The same for any struct with `void visit(OptionVisitor&)`.
template <class Options>
requires requires(Options& o, OptionVisitor& v) { o.visit(v); }
ConfigKeys bind_config(const ConfigNode& root, Options& options,
                       std::span<const ForeignName> foreign = {},
                       std::optional<UserError>* mistakes = nullptr) {
  return bind_config(root, VisitOptions([&](OptionVisitor& v) { options.visit(v); }), foreign,
                     mistakes);
}

}  // namespace tailrace
