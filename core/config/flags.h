// The command line of a program: its commands, and of each its options, listed once: the list
// reads, checks and explains them. The library behind it is seen in flags.cc alone.
//
//   Command program("tailrace", "Tailrace post-trains LLM agents.");
//   Command& serve = program.command("serve", "Answer OpenAI's API with a model");
//   serve.option("--model", arguments->model, {.help = "a model folder", .value = "DIR",
//                                              .required = true});
//   serve.option("--threads", arguments->threads, {.help = "0: all cores", .max = 1024});
//   serve.action([arguments] { return serve_model(*arguments); });
//   return program.run(argc, argv);
//
// Thread: one.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/exit_code.h"

namespace tailrace {

// The facts about an option beside its name and its variable.
struct FlagInfo {
  std::string_view help = "";
  // The placeholder of the value in --help: "DIR". Empty: the kind of the variable.
  std::string_view value = "";
  // Bounds of numbers, inclusive. Integers are from 0 up where nothing is said.
  double min = 0;
  double max = std::numeric_limits<double>::infinity();
  bool or_zero = false;  // numbers: 0 is accepted below `min` too
  // Texts: the ones that are accepted; empty: any.
  std::vector<std::string> one_of = {};
  bool required = false;
  bool hidden = false;  // not in --help
  // It takes KEY=VALUE, which people who are used to --KEY VALUE are told.
  bool settings = false;
  // Names of options of the same command that were listed before: one that must be given too, and
  // those that cannot be given beside this one.
  std::string_view needs = "";
  std::vector<std::string> excludes = {};
};

class Command {
 public:
  // A program: what it is called, and one sentence about it.
  Command(std::string name, const std::string& help);
  ~Command();
  Command(const Command&) = delete;

  // A command of the program, or of another command ("env list"); one that has an action too does
  // that without a further word. Lives as long as the program.
  Command& command(const std::string& name, const std::string& help);
  // The heading in --help that it stands under with others of its kind; else that of all commands.
  void group(const std::string& heading);
  // A name that a command of the program had, and its words now. Whoever types it is told the whole
  // new command line (status 2). `rewrite` makes the words behind the new name of those that were
  // typed behind the old one; without it they stay.
  using Rewrite = std::function<std::vector<std::string>(std::vector<std::string>)>;
  void moved(const std::string& name, const std::string& now, Rewrite rewrite = {});

  // An option. A name with dashes is given by name, another one by its place. A bool is a switch,
  // a vector takes several values, by spaces, commas (numbers and `one_of`) or repetition. The
  // variable's value is the default, shown in --help; it must live until run() has returned.
  template <class T>
  void option(const std::string& name, T& variable, const FlagInfo& info = {}) {
    if constexpr (NamedEnum<T>) {
      add_choice(name, kEnumNames<T>, name_of(variable), info,
                 [&variable](size_t index) { variable = static_cast<T>(index); });
    } else {
      add(name, &variable, info);
    }
  }
  // A choice without a default.
  template <NamedEnum T>
  void option(const std::string& name, std::optional<T>& variable, const FlagInfo& info = {}) {
    add_choice(name, kEnumNames<T>, "", info,
               [&variable](size_t index) { variable = static_cast<T>(index); });
  }

  // The first word that is no option, and all behind it, --help too, are the command's own.
  void take_all(std::vector<std::string>& words);
  // The text that --help ends with.
  void footer(const std::string& text);
  // The text that --version prints; for the program.
  void version(const std::string& text);
  // The work of the command; it gives back the exit status (exit_code.h) and may throw UserError.
  void action(std::function<int()> run);

  // Whether the option was given, also where its value is the default; once run() has read it.
  bool given(std::string_view option) const;

  // Reads the words, and does what the command that they name does. Gives back the exit status; 0
  // after --help and --version. Throws UserError where words are not as listed, and what the action
  // throws.
  int run(int argc, const char* const* argv);

 private:
  struct Library;
  using Variable =
      std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*, std::optional<int>*,
                   std::optional<int64_t>*, std::optional<uint64_t>*, std::vector<int>*,
                   std::vector<int64_t>*, std::vector<std::string>*>;

  explicit Command(std::unique_ptr<Library> library);
  void check_names(int argc, const char* const* argv, int at) const;
  void check_moved(std::span<const char* const> words) const;
  const Command& chosen() const;
  std::string path() const;
  void check_settings(int argc, const char* const* argv) const;
  void add(const std::string& name, Variable variable, const FlagInfo& info);
  void add_choice(const std::string& name, std::span<const std::string_view> names,
                  std::string_view initial, const FlagInfo& info,
                  std::function<void(size_t)> choose);

  std::unique_ptr<Library> library_;
  struct Moved {
    std::string name, now;
    Rewrite rewrite;
  };

  std::vector<std::unique_ptr<Command>> commands_;
  std::vector<Moved> moved_;
  std::function<int()> action_;
};

// Version of the library that reads the command line.
std::string flags_library_version();

}  // namespace tailrace
