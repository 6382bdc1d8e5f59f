#include "sandbox/command/command_environment.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "sandbox/command/answer_line.h"
#include "sandbox/command/command_loop.h"
#include "sandbox/command/episode_lines.h"

namespace tailrace::sandbox {
namespace {

// Beyond its deadline, until who asked gives up on the thread of the loop.
constexpr Time kLoopGrace = std::chrono::seconds(10);

// The state that all episodes of a source share.
struct OpenProgram {
  OpenProgram(const CommandStart& start, const CommandCall& greeting, EnvironmentInfo said,
              const CommandLimits& each, std::shared_ptr<ToldTracebacks> told)
      : name(shown(start)),
        info(std::move(said)),
        limits(each),
        loop(start, greeting, each.starts_at_once, std::move(told)) {}

  const std::string name;
  const EnvironmentInfo info;
  const CommandLimits limits;
  std::atomic<bool> hears_close = true;  // until it says that it does not
  CommandLoop loop;
};

// The episode of one environment object, in a process of the loop.
struct Playing {
  enum class Phase : uint8_t { kNew, kRunning, kEnded, kClosed };
  std::atomic<Phase> phase = Phase::kNew;
};

template <class T>
using DoneWith = std::function<void(Result<T>)>;

// A call whose answer `read` reads. `unsupported`: what it is worth that the program does not know
// the call.
template <class T, class Read>
CommandCall command_call(const OpenProgram& program, std::string line, const char* name,
                         bool begins, Read read, std::function<Result<T>()> unsupported,
                         DoneWith<T> done) {
  return {.line = std::move(line),
          .name = name,
          .timeout = program.limits.call,
          .begins = begins,
          .take = [program_name = program.name, name, read = std::move(read),
                   unsupported = std::move(unsupported),
                   done](const std::string& answer) -> std::optional<std::string> {
            Answered<T> said = read(answer);
            if (said.fault) return said.fault;
            if (said.is_unsupported) {
              done(unsupported());
            } else if (said.failure) {
              done(Failure{.message = fmt::format("'{}' says in {}: {}", program_name, name,
                                                  said.failure->message),
                           .is_final = said.failure->is_final});
            } else {
              done(std::move(*said.value));
            }
            return std::nullopt;
          },
          .fail = [done](const Failure& failure) { done(failure); }};
}

const char* name_of_call(EnvironmentCall::Kind kind) {
  switch (kind) {
    case EnvironmentCall::Kind::kReset:
      return "reset()";
    case EnvironmentCall::Kind::kStep:
      return "step()";
    case EnvironmentCall::Kind::kCut:
      break;
  }
  return "cut()";
}

class CommandEpisode final : public RemoteEnvironment {
 public:
  explicit CommandEpisode(std::shared_ptr<OpenProgram> program)
      : program_(std::move(program)), number_(program_->loop.open()) {}
  ~CommandEpisode() override { close(); }

  void begin(const EnvironmentCall& call, Done done) override {
    using Kind = EnvironmentCall::Kind;
    using Phase = Playing::Phase;
    const char* name = name_of_call(call.kind);
    if (call.kind != Kind::kReset && playing_->phase != Phase::kRunning)
      return done(Failure{fmt::format("a call out of order: {} outside of an episode", name)});
    if (call.kind == Kind::kReset) playing_->phase = Phase::kNew;
    auto read = [kind = call.kind, info = program_->info](const std::string& answer) {
      return read_step(kind, answer, info);
    };
    auto unsupported = [kind = call.kind, name, program_name = program_->name,
                        info = program_->info]() -> Result<StepResult> {
      if (kind == Kind::kCut) return cut_by_player(info);
      return Failure{fmt::format("'{}' does not know {}", program_name, name)};
    };
    auto ended = [kind = call.kind, playing = playing_,
                  done = std::move(done)](Result<StepResult> result) {
      if (result && kind == Kind::kReset) playing->phase = Phase::kRunning;
      if (result && (result.value().terminated || result.value().truncated))
        playing->phase = Phase::kEnded;
      done(std::move(result));
    };
    is_told_ = true;
    program_->loop.begin(number_, command_call<StepResult>(
                                      *program_, call_line(call), name, call.kind == Kind::kReset,
                                      std::move(read), std::move(unsupported), std::move(ended)));
  }

  // Empty: the program has none.
  void ask_action(std::string line, const char* name, DoneWith<std::optional<std::string>> done) {
    is_told_ = true;
    auto given = [done](Result<std::string> action) {
      if (!action) return done(action.failure());
      done(std::optional(std::move(action).value()));
    };
    CommandCall call = command_call<std::string>(*program_, std::move(line), name, /*begins=*/true,
                                                 read_action, nullptr, given);
    call.take = [take = call.take, done](const std::string& answer) {
      if (!read_action(answer).is_unsupported) return take(answer);
      done(std::optional<std::string>());
      return std::optional<std::string>();
    };
    program_->loop.begin(number_, std::move(call));
  }

  bool is_running() const { return playing_->phase == Playing::Phase::kRunning; }

  void close() {
    playing_->phase = Playing::Phase::kClosed;
    if (!std::exchange(is_told_, false)) return;
    std::optional<CommandCall> goodbye;
    if (program_->hears_close)
      goodbye = CommandCall{.line = close_line(),
                            .name = "close()",
                            .timeout = program_->limits.call,
                            .take = [program = program_.get()](const std::string& answer) {
                              const auto said = read_action(answer);
                              if (said.is_unsupported) program->hears_close = false;
                              return said.fault;
                            }};
    program_->loop.release(number_, std::move(goodbye));
    number_ = program_->loop.open();
  }

 private:
  const std::shared_ptr<OpenProgram> program_;
  const std::shared_ptr<Playing> playing_ = std::make_shared<Playing>();
  CommandLoop::Episode number_;
  bool is_told_ = false;  // the loop knows `number_`
};

class CommandEnvironment final : public Environment {
 public:
  explicit CommandEnvironment(const std::shared_ptr<OpenProgram>& program)
      : program_(program), episode_(program) {}

  const EnvironmentInfo& info() const override { return program_->info; }
  Result<Observation> reset(const Task& task) override {
    auto first = await({.kind = EnvironmentCall::Kind::kReset, .task = task});
    if (!first) return first.failure();
    return std::move(first).value().observation;
  }
  Result<StepResult> step(const std::string& action) override {
    return await({.kind = EnvironmentCall::Kind::kStep, .action = action});
  }
  Result<StepResult> cut() override { return await({.kind = EnvironmentCall::Kind::kCut}); }
  void close() override { episode_.close(); }

  std::optional<std::string> demonstrate(Rng& rng) override {
    const uint64_t random = number_from(rng);
    if (!episode_.is_running()) return std::nullopt;
    return action(demonstrate_line(random), "demonstrate()");
  }
  std::string sample_action(Rng& rng) override {
    const uint64_t random = number_from(rng);
    if (auto given = action(sample_line(random), "sample_action()")) return *given;
    // A small number is an action of many, and other environments say what is wrong with it.
    const auto& stop = program_->info.stop_strings;
    return std::to_string(random % 10) + (stop.empty() ? "" : stop.front());
  }

 private:
  static uint64_t number_from(Rng& rng) {
    const uint64_t high = rng.next_u32();
    return (high << 32) | rng.next_u32();
  }

  template <class T, class Begin>
  Result<T> await_answer(const Begin& begin) {
    // Shared: it is answered once, also when nobody waits any more.
    auto answer = std::make_shared<std::promise<Result<T>>>();
    auto given = answer->get_future();
    begin([answer](Result<T> result) { answer->set_value(std::move(result)); });
    // A process may start for it.
    const Time longest = program_->limits.start + program_->limits.call + kLoopGrace;
    if (given.wait_for(longest) == std::future_status::ready) return given.get();
    return Failure{fmt::format("'{}' is not asked in time", program_->name)};
  }
  Result<StepResult> await(const EnvironmentCall& call) {
    return await_answer<StepResult>(
        [&](RemoteEnvironment::Done done) { episode_.begin(call, std::move(done)); });
  }
  std::optional<std::string> action(const std::string& line, const char* name) {
    const auto given =
        await_answer<std::optional<std::string>>([&](DoneWith<std::optional<std::string>> done) {
          episode_.ask_action(line, name, std::move(done));
        });
    return given ? given.value() : std::nullopt;
  }

  const std::shared_ptr<OpenProgram> program_;
  CommandEpisode episode_;
};

class CommandSource final : public EnvironmentSource {
 public:
  CommandSource(CommandStart start, EnvironmentSettings settings, EnvironmentInfo info,
                std::string answer, const CommandLimits& limits,
                std::shared_ptr<ToldTracebacks> told)
      : start_(std::move(start)),
        settings_(std::move(settings)),
        info_(std::move(info)),
        answer_(std::move(answer)),
        limits_(limits),
        told_(std::move(told)) {}

  const EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<Environment> open() const override {
    return std::make_unique<CommandEnvironment>(program());
  }
  std::unique_ptr<RemoteEnvironment> open_remote() const override {
    return std::make_unique<CommandEpisode>(program());
  }

 private:
  // Many hold a source and play nothing, and some are copied by a fork before they play.
  std::shared_ptr<OpenProgram> program() const {
    MutexLock lock(mutex_);
    if (program_ != nullptr) return program_;
    CommandCall greeting{.line = info_line(settings_),
                         .name = "info()",
                         .timeout = limits_.start,
                         .take = [known = answer_](const std::string& answer) {
                           return difference_of_infos(known, answer);
                         }};
    program_ = std::make_shared<OpenProgram>(start_, greeting, info_, limits_, told_);
    return program_;
  }

  // A run is played by what it was checked with.
  static std::optional<std::string> difference_of_infos(const std::string& known,
                                                        const std::string& answer) {
    const auto said = read_info(answer);
    if (said.fault) return said.fault;
    if (said.failure) return "says in info(): " + said.failure->message;
    if (parse_json(known) == parse_json(answer)) return std::nullopt;
    return fmt::format("answers info with '{}', and has said '{}' before", excerpt(answer),
                       excerpt(known));
  }

  const CommandStart start_;
  const EnvironmentSettings settings_;
  const EnvironmentInfo info_;
  const std::string answer_;
  const CommandLimits limits_;
  const std::shared_ptr<ToldTracebacks> told_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<OpenProgram> program_ TR_GUARDED_BY(mutex_);
};

// The first line of a process, and no more of it.
Result<std::string> ask_for_info(const CommandStart& start, const EnvironmentSettings& settings,
                                 const CommandLimits& limits) {
  std::promise<Result<std::string>> promise;
  auto answered = promise.get_future();
  bool is_answered = false;  // of the loop's thread
  const auto answer_once = [&](Result<std::string> answer) {
    if (!std::exchange(is_answered, true)) promise.set_value(std::move(answer));
  };
  CommandCall greeting{.line = info_line(settings), .name = "info()", .timeout = limits.start};
  greeting.take = [&](const std::string& answer) -> std::optional<std::string> {
    const auto said = read_info(answer);
    if (said.fault) return said.fault;
    if (said.is_unsupported) return "does not know info, which each program must";
    if (said.failure)
      answer_once(
          Failure{fmt::format("'{}' says in info(): {}", shown(start), said.failure->message)});
    else
      answer_once(answer);
    return std::nullopt;
  };
  // The call that starts a process; only its failure is heard.
  CommandCall call{.line = close_line(), .name = "info()", .timeout = limits.call, .begins = true};
  call.take = [](const std::string&) { return std::optional<std::string>(); };
  call.fail = [&](const Failure& failure) { answer_once(failure); };
  CommandLoop loop(start, std::move(greeting), /*starts_at_once=*/1, /*told=*/nullptr);
  loop.begin(loop.open(), std::move(call));
  // The loop answers each call, at its own end at the latest.
  if (answered.wait_for(limits.start + kLoopGrace) == std::future_status::ready)
    return answered.get();
  return Failure{fmt::format("'{}' was not started in time", shown(start))};
}

}  // namespace

EnvironmentInfo UsedProgram::info(const EnvironmentSettings& settings) {
  {
    MutexLock lock(mutex_);
    for (const Known& known : known_)
      if (known.settings == settings) return known.info;
  }
  const auto answer = ask_for_info(start_, settings, limits_);
  if (!answer) throw UserError("{}", answer.failure().message);
  Known known{settings, answer.value(), *read_info(answer.value()).value};
  MutexLock lock(mutex_);
  return known_.emplace_back(std::move(known)).info;
}

std::shared_ptr<const EnvironmentSource> UsedProgram::source(std::shared_ptr<UsedProgram> program,
                                                             const EnvironmentSettings& settings) {
  EnvironmentInfo info = program->info(settings);
  MutexLock lock(program->mutex_);
  const auto known = std::ranges::find(program->known_, settings, &Known::settings);
  return std::make_shared<CommandSource>(program->start_, settings, std::move(info), known->answer,
                                         program->limits_, program->told_);
}

nlohmann::ordered_json UsedProgram::facts() const {
  nlohmann::ordered_json used = nlohmann::ordered_json::array();
  MutexLock lock(mutex_);
  for (const Known& known : known_)
    used.push_back({{"settings", known.settings}, {"info", parse_ordered_json(known.answer)}});
  return {{"command", start_.words}, {"used", std::move(used)}};
}

void UsedProgram::know(const nlohmann::json& facts) {
  MutexLock lock(mutex_);
  for (const auto& row : facts.at("used")) {
    Known known{row.at("settings").get<EnvironmentSettings>(), json_text(row.at("info")), {}};
    auto said = read_info(known.answer);
    if (!said.value) throw UserError("'{}' says nothing of use about itself", shown(start_));
    known.info = std::move(*said.value);
    known_.push_back(std::move(known));
  }
}

}  // namespace tailrace::sandbox
