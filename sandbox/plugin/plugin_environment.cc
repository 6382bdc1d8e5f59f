#include "sandbox/plugin/plugin_environment.h"

#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/run/call_board.h"

namespace tailrace::sandbox {
namespace {

class PluginEnvironment final : public LibraryEnvironment {
 public:
  PluginEnvironment(std::shared_ptr<const PluginLibrary> library,
                    const PluginLibrary::EnvironmentEntry& entry,
                    const EnvironmentSettings& settings)
      : library_(std::move(library)),
        type_(*entry.type),
        of_(call_place(library_->file(), entry.name)) {
    const CallMark mark("create()", of_, "");
    const PluginValues values(settings);
    tr_text reason{};
    const int32_t status =
        type_.create(&library_->host(), values.data(), values.size(), &env_, &reason);
    if (status != TR_OK || env_ == nullptr)
      throw refused_settings(settings, "environment " + entry.name, "env.settings",
                             failure_of(status == TR_OK ? TR_FAILED : status, reason).message);
    try {
      read_info(entry.name);
    } catch (...) {
      type_.destroy(env_);
      throw;
    }
  }
  ~PluginEnvironment() override {
    const CallMark mark("destroy()", of_, seed_);
    type_.destroy(env_);
  }

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    const CallMark mark("reset()", of_, seed_ = task.seed);
    ended_ = {};
    tr_task given{.size = sizeof given,
                  .reserved = 0,
                  .seed = task.seed,
                  .row = {task.data.data(), task.data.size()}};
    tr_step out = empty_step();
    const int32_t status = type_.reset(env_, &given, &out);
    if (status == TR_PENDING) return Failure{"reset() answers that it is pending; only step() may"};
    if (status != TR_OK) return failure_of(status, out.reason);
    Result<Observation> observation = read_observation(out);
    if (observation) observation.value().tools = string_of(out.tools);
    return observation;
  }

  Result<StepResult> step(const std::string& action) override {
    if (ended_) return score();
    const CallMark mark("step()", of_, seed_);
    tr_step out = empty_step();
    return read(type_.step(env_, {action.data(), action.size()}, &out), out);
  }

  Result<StepResult> cut() override {
    if (ended_) return score();
    const CallMark mark("cut()", of_, seed_);
    tr_step out = empty_step();
    return read(type_.cut(env_, &out), out);
  }

  void close() override {
    const CallMark mark("close()", of_, seed_);
    ended_ = {};
    (void)type_.close(env_);
  }

  std::optional<std::string> demonstrate(uint64_t random) override {
    if (!TR_HAS(&type_, demonstrate) || type_.demonstrate == nullptr) return std::nullopt;
    const CallMark mark("demonstrate()", of_, seed_);
    return text_of(type_.demonstrate, random);
  }
  std::string sample_action(uint64_t random) override {
    const CallMark mark("sample_action()", of_, seed_);
    return text_of(type_.sample_action, random).value_or("");
  }

 private:
  static tr_step empty_step() {
    tr_step step{};
    step.size = sizeof step;
    return step;
  }

  void read_info(const std::string& name) {
    tr_info out{};
    out.size = sizeof out;
    if (type_.info(env_, &out) != TR_OK)
      throw UserError("environment {}: it says nothing about itself", name);
    // Far beyond what any episode has room for.
    constexpr int64_t kMost = 1'000'000;
    for (const auto& [value, what] :
         {std::pair{out.max_turns, "max_turns"}, {out.max_action_tokens, "max_action_tokens"}})
      if (value < 0 || value > kMost)
        throw UserError("environment {}: its {} is {}; it must be from 1 to {}", name, what, value,
                        kMost);
    info_ = {.name = name,
             .vocabulary = strings_of(out.vocabulary),
             .stop_strings = strings_of(out.stop_strings),
             .max_turns = out.max_turns > 0 ? out.max_turns : 1,
             .max_action_tokens = out.max_action_tokens > 0 ? out.max_action_tokens : 16,
             .needs_dataset = out.needs_dataset != 0,
             .verifier = string_of(out.reward)};
  }

  // A text that the rest of a run can carry.
  static std::optional<Failure> too_long(tr_text text, const char* what,
                                         int64_t most = kMostObservationBytes) {
    if (text.data == nullptr && text.bytes > 0)
      return Failure{fmt::format("{} has {} bytes and no data", what, text.bytes)};
    if (text.bytes <= static_cast<uint64_t>(most)) return std::nullopt;
    return Failure{fmt::format("{} has {} bytes; at most {} are taken", what, text.bytes, most)};
  }

  static Result<Observation> read_observation(const tr_step& out) {
    for (const auto& [text, what] : {std::pair{out.text, "the observation"},
                                     {out.messages, "the list of messages"},
                                     {out.tools, "the list of tools"},
                                     {out.state, "the name of the state"}})
      if (auto fault = too_long(text, what)) return *fault;
    return Observation{.text = string_of(out.text),
                       .messages = string_of(out.messages),
                       .state = string_of(out.state)};
  }

  Result<StepResult> read(int32_t status, const tr_step& out) {
    if (status == TR_PENDING) return pending();
    if (status != TR_OK) return failure_of(status, out.reason);
    Result<Observation> observation = read_observation(out);
    if (!observation) return observation.failure();
    if (auto fault = too_long(out.evidence, "the evidence", kMostEvidenceBytes)) return *fault;
    if (auto fault = too_long(out.reason, "the reason of its end")) return *fault;
    StepResult result{.observation = std::move(observation).value(),
                      .reward = out.reward,
                      .terminated = out.ending == TR_TERMINATED,
                      .truncated = out.ending == TR_TRUNCATED,
                      .pending = false,
                      .verifier = {},
                      .evidence = string_of(out.evidence),
                      .reason = out.ending == TR_TRUNCATED ? string_of(out.reason) : "",
                      .metrics = metrics_of(out.metrics, out.num_metrics)};
    if (!result.terminated && !result.truncated) {
      if (out.ending == TR_RUNNING) return result;
      return Failure{fmt::format("it ends with {}, which the ABI does not have", out.ending)};
    }
    result.verifier = info_.verifier;
    ended_ = std::move(result);
    return score();
  }

  // Behind the end. What is pending there comes again as the same call, and ends up here.
  Result<StepResult> score() {
    if (!TR_HAS(&type_, score) || type_.score == nullptr) return *std::exchange(ended_, {});
    const CallMark mark("score()", of_, seed_);
    tr_step out = empty_step();
    const int32_t status = type_.score(env_, &out);
    if (status == TR_PENDING) return pending();
    if (status != TR_OK) {
      ended_ = {};
      return failure_of(status, out.reason);
    }
    ended_->reward += out.reward;
    if (out.num_metrics > 0) ended_->metrics = metrics_of(out.metrics, out.num_metrics);
    return *std::exchange(ended_, {});
  }

  static StepResult pending() {
    StepResult result;
    result.pending = true;
    return result;
  }

  std::optional<std::string> text_of(int32_t (*call)(tr_env*, uint64_t, tr_text*),
                                     uint64_t random) {
    tr_text text{};
    if (call(env_, random, &text) != TR_OK || too_long(text, "")) return std::nullopt;
    return string_of(text);
  }

  const std::shared_ptr<const PluginLibrary> library_;
  const tr_env_type& type_;
  const std::string of_;  // for marks
  uint64_t seed_ = 0;     // of the task
  tr_env* env_ = nullptr;
  EnvironmentInfo info_;
  std::optional<StepResult> ended_;  // whose score is not there yet
};

}  // namespace

std::unique_ptr<LibraryEnvironment> make_plugin_environment(
    std::shared_ptr<const PluginLibrary> library, const PluginLibrary::EnvironmentEntry& entry,
    const EnvironmentSettings& settings) {
  return std::make_unique<PluginEnvironment>(std::move(library), entry, settings);
}

}  // namespace tailrace::sandbox
