#include "core/config/flags.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/base/number.h"
#include "core/config/options.h"

namespace tailrace {
namespace {

template <class T>
constexpr bool kIsVector = false;
template <class T>
constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;

// The type that one word is read as: the element of a list, the value of an optional.
template <class T>
struct ElementOf {
  using Type = T;
};
template <class T>
struct ElementOf<std::vector<T>> {
  using Type = T;
};
template <class T>
struct ElementOf<std::optional<T>> {
  using Type = T;
};

// The bounds of T itself, where they are tighter. Above 2^53 a double holds no bound; nothing that
// is counted comes near.
template <class T>
FlagInfo bounded(FlagInfo info) {
  if constexpr (std::is_integral_v<T>) {
    double most = kMaxExactInteger;
    if constexpr (sizeof(T) < sizeof(int64_t)) most = std::numeric_limits<T>::max();
    info.min = std::max(info.min, std::is_signed_v<T> ? -most : 0.0);
    info.max = std::min(info.max, most);
  }
  return info;
}

// "from 1 to 9", ">= 0".
std::string range_of(const FlagInfo& info) {
  const std::string range =
      info.max == std::numeric_limits<double>::infinity()
          ? fmt::format(">= {}", format_bound(info.min))
          : fmt::format("from {} to {}", format_bound(info.min), format_bound(info.max));
  return info.or_zero ? range + ", or 0" : range;
}

bool is_within(double value, const FlagInfo& info) {
  return (value >= info.min && value <= info.max) || (info.or_zero && value == 0);
}

// The library's own numbers wrap around, read "010" as 8 and let "nan" pass its ranges.
template <class T>
T read(const std::string& name, const std::string& word, const FlagInfo& info) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (info.one_of.empty() || std::ranges::find(info.one_of, word) != info.one_of.end())
      return word;
    throw CLI::ValidationError(
        fmt::format("{} is {}; it must be one of: {}", name, word, join_texts(info.one_of, ", ")));
  } else if constexpr (std::is_integral_v<T>) {
    const FlagInfo bounds = bounded<T>(info);
    const auto value = parse_integer(word);
    if (value && is_within(static_cast<double>(*value), bounds)) return static_cast<T>(*value);
    throw CLI::ValidationError(
        fmt::format("{} is {}; it must be an integer {}", name, word, range_of(bounds)));
  } else {
    const auto value = parse_number(word);
    if (value && is_within(*value, info)) return *value;
    throw CLI::ValidationError(
        fmt::format("{} is {}; it must be a number {}", name, word, range_of(info)));
  }
}

template <class T>
std::string kind_of(const FlagInfo& info) {
  using Element = typename ElementOf<T>::Type;
  if (!info.value.empty()) return std::string(info.value);
  if constexpr (std::is_same_v<Element, std::string>)
    return info.one_of.empty() ? "TEXT" : join_texts(info.one_of, "|");
  return std::is_integral_v<Element> ? "INT" : "NUMBER";
}

template <class T>
std::string help_of(const FlagInfo& info) {
  using Element = typename ElementOf<T>::Type;
  if constexpr (std::is_arithmetic_v<Element>) {
    // A bound that nobody comes to tells nothing.
    FlagInfo shown = bounded<Element>(info);
    if (shown.max >= kMaxCount) shown.max = std::numeric_limits<double>::infinity();
    const bool is_bounded = shown.max < kMaxCount || (shown.min != 0 && shown.min > -kMaxCount);
    if (is_bounded) return fmt::format("{} ({})", info.help, range_of(shown));
  }
  return std::string(info.help);
}

// As a shell takes it for one word.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

template <class T>
std::string default_of(const T& value) {
  if constexpr (kIsOptional<T>)
    return "";
  else if constexpr (std::is_same_v<T, std::vector<std::string>>)
    return join_texts(value, ",");
  else if constexpr (kIsVector<T>)
    return fmt::format("{}", fmt::join(value, ","));
  else
    return fmt::format("{}", value);
}

}  // namespace

struct Command::Library {
  std::unique_ptr<CLI::App> program;  // of the program alone
  CLI::App* app = nullptr;
  std::vector<std::string>* rest = nullptr;
  bool takes_settings = false;

  void describe(CLI::Option& option, const FlagInfo& info) {
    takes_settings = takes_settings || info.settings;
    if (info.required) option.required();
    if (info.hidden) option.group("");
    if (!info.needs.empty()) option.needs(app->get_option(std::string(info.needs)));
    for (const std::string& other : info.excludes) option.excludes(app->get_option(other));
  }

  // The library takes the next word for the value, whatever it is: "--prompt --json".
  void refuse_option(const std::string& name, const std::string& word) const {
    if (word.starts_with("--") && app->get_option_no_throw(word) != nullptr)
      throw CLI::ValidationError(
          fmt::format("{} wants a value, and {} is an option. A value that begins so is written "
                      "{}={}",
                      name, word, name, word));
  }

  template <class T>
  CLI::Option& add(const std::string& name, T& variable, const FlagInfo& info) {
    using Element = typename ElementOf<T>::Type;
    const auto take = [this, name, &variable, info](const std::vector<std::string>& words) {
      for (const std::string& word : words) refuse_option(name, word);
      if constexpr (kIsVector<T>) {
        T values;
        for (const std::string& word : words) values.push_back(read<Element>(name, word, info));
        variable = std::move(values);
      } else {
        variable = read<Element>(name, words.at(0), info);
      }
      return true;
    };
    CLI::Option& option = *app->add_option(name, take, help_of<T>(info));
    option.type_name(kind_of<T>(info));
    if (const std::string initial = default_of(variable); !info.required && !initial.empty())
      option.default_str(initial);
    if constexpr (kIsVector<T>) {
      option.expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
      // A text may have commas of its own.
      if (!std::is_same_v<Element, std::string> || !info.one_of.empty()) option.delimiter(',');
    }
    return option;
  }
  CLI::Option& add(const std::string& name, bool& variable, const FlagInfo& info) {
    return *app->add_flag(name, variable, std::string(info.help));
  }
};

Command::Command(std::string name, const std::string& help)
    : library_(std::make_unique<Library>()) {
  library_->program = std::make_unique<CLI::App>(help, std::move(name));
  library_->app = library_->program.get();
}
Command::Command(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Command::~Command() = default;

Command& Command::command(const std::string& name, const std::string& help) {
  auto library = std::make_unique<Library>();
  library->app = library_->app->add_subcommand(name, help);
  if (!action_) library_->app->require_subcommand(1);
  commands_.push_back(std::unique_ptr<Command>(new Command(std::move(library))));
  return *commands_.back();
}

void Command::add(const std::string& name, Variable variable, const FlagInfo& info) {
  std::visit([&](auto* target) { library_->describe(library_->add(name, *target, info), info); },
             variable);
}

void Command::add_choice(const std::string& name, std::span<const std::string_view> names,
                         std::string_view initial, const FlagInfo& info,
                         std::function<void(size_t)> choose) {
  FlagInfo known = info;
  known.one_of.assign(names.begin(), names.end());
  const auto take = [name, known, choose](const std::vector<std::string>& words) {
    const auto word = read<std::string>(name, words.at(0), known);
    choose(static_cast<size_t>(std::ranges::find(known.one_of, word) - known.one_of.begin()));
    return true;
  };
  CLI::Option& option = *library_->app->add_option(name, take, std::string(info.help));
  option.type_name(kind_of<std::string>(known));
  if (!initial.empty()) option.default_str(std::string(initial));
  library_->describe(option, known);
}

void Command::take_all(std::vector<std::string>& words) {
  library_->app->prefix_command();
  library_->rest = &words;
}
void Command::footer(const std::string& text) { library_->app->footer(text); }
void Command::version(const std::string& text) {
  library_->app->set_version_flag("--version", text);
}
void Command::action(std::function<int()> run) {
  action_ = std::move(run);
  library_->app->require_subcommand(0);
}
void Command::group(const std::string& heading) { library_->app->group(heading); }
void Command::moved(const std::string& name, const std::string& now, Rewrite rewrite) {
  moved_.push_back({.name = name, .now = now, .rewrite = std::move(rewrite)});
}

bool Command::given(std::string_view option) const {
  return library_->app->get_option(std::string(option))->count() > 0;
}

// The library would only say that a word was not expected.
void Command::check_names(int argc, const char* const* argv, int at) const {
  if (commands_.empty() || argc <= at || argv[at][0] == '-') return;
  check_moved({argv + at, argv + argc});
  std::vector<std::string> names;
  for (const auto& command : commands_) names.push_back(command->library_->app->get_name());
  const auto found = std::ranges::find(names, argv[at]);
  if (found != names.end())
    return commands_[static_cast<size_t>(found - names.begin())]->check_names(argc, argv, at + 1);
  if (action_) return;  // it may be an argument of its own
  std::vector<std::string> known = names;
  for (const Moved& moved : moved_) known.push_back(moved.name);
  const std::string near = nearest_name(argv[at], known);
  const auto old = std::ranges::find(moved_, near, &Moved::name);
  throw UserError("there is no command '{}'{} Commands: {}", argv[at],
                  old == moved_.end() ? did_you_mean(argv[at], names)
                                      : fmt::format("; did you mean '{}'?", old->now),
                  join_texts(names, ", "));
}

void Command::check_moved(std::span<const char* const> words) const {
  const auto found = std::ranges::find(moved_, std::string_view(words[0]), &Moved::name);
  if (found == moved_.end()) return;
  std::vector<std::string> rest(words.begin() + 1, words.end());
  if (found->rewrite) rest = found->rewrite(std::move(rest));
  std::string line;
  for (const std::string& word : rest) line += " " + shell_word(word);
  throw UserError("'{0} {1}' is '{0} {2}' now: {0} {2}{3}", path(), found->name, found->now, line);
}

// The one that the words name, once they are read.
const Command& Command::chosen() const {
  for (const auto& command : commands_)
    if (command->library_->app->parsed()) return command->chosen();
  return *this;
}

// "tailrace env list".
std::string Command::path() const {
  std::string words = library_->app->get_name();
  for (const CLI::App* at = library_->app->get_parent(); at != nullptr; at = at->get_parent())
    words = at->get_name() + " " + words;
  return words;
}

// Throws for --KEY, with or without a value, where KEY=VALUE is meant.
void Command::check_settings(int argc, const char* const* argv) const {
  if (!library_->takes_settings) return;
  std::vector<std::string> names;
  for (const CLI::Option* option : library_->app->get_options())
    names.push_back(option->get_name());
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const std::string name = word.substr(0, word.find('='));
    if (!name.starts_with("--") || name.size() < 3 || !nearest_name(name, names).empty()) continue;
    std::string setting = word.substr(2);
    if (word == name) {
      const bool has_value = i + 1 < argc && argv[i + 1][0] != '-';
      setting += fmt::format("={}", has_value ? argv[i + 1] : "VALUE");
    }
    throw UserError("there is no option {}. A key of a config is written without dashes: {}", name,
                    setting);
  }
}

int Command::run(int argc, const char* const* argv) {
  CLI::App& app = *library_->app;
  check_names(argc, argv, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    chosen().check_settings(argc, argv);
    throw UserError("{}\n       Run '{} --help'.", error.what(), chosen().path());
  }
  const Command& command = chosen();
  if (command.library_->rest) *command.library_->rest = command.library_->app->remaining();
  return command.action_ ? command.action_() : 0;
}

std::string flags_library_version() { return CLI11_VERSION; }

}  // namespace tailrace
