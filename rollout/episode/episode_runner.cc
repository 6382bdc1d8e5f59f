#include "rollout/episode/episode_runner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/time.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

using std::chrono::microseconds;

// Environments that answer this fast are waited for before the engine's next step: a sequence that
// misses a step costs more than the wait.
constexpr microseconds kPatience{2000};
constexpr double kQuickBatchSeconds = 1e-3;
constexpr Time kAskAgain = std::chrono::milliseconds(1);  // after `pending`

double seconds_since(Time start, Time now) { return seconds_of(now - start); }

}  // namespace

RunnerSettings runner_settings(const RolloutOptions& options) {
  return {.env_threads = static_cast<int>(options.env_threads),
          .step_timeout = std::chrono::duration_cast<Time>(
              std::chrono::duration<double>(options.step_timeout_s)),
          .store_turns_tokens = options.store_turns_tokens};
}

EpisodeRunner::EpisodeRunner(GeneratorDriver& generator, const chat::PromptFormat& format,
                             const RunnerSettings& settings, const Clock& clock)
    : generator_(generator),
      format_(format),
      clock_(clock),
      settings_(settings),
      environments_(settings.env_threads, settings.step_timeout, clock) {}

EpisodeRunner::~EpisodeRunner() {
  while (!running_.empty()) finish(running_.begin());
}

void EpisodeRunner::start(EpisodeSpec spec, EnvironmentCalls::Source source) {
  const Id id = generator_.open(*this);
  bool is_new = by_lease_.emplace(std::pair(spec.lane, spec.lease), id).second;
  TR_CHECK(is_new, "an episode of lease {} runs already", to_string(spec.lease));
  Episode episode(std::move(spec), source->info().name, format_);
  auto at =
      running_.emplace(id, Running{.episode = std::move(episode), .source = std::move(source)})
          .first;
  // A prefix is in the store already.
  at->second.stored_tokens = at->second.episode.num_storable();
  call_environment(id, at->second, CallKind::kReset);
}

bool EpisodeRunner::abort(const LeaseId& lease, Lane lane) {
  auto found = by_lease_.find({lane, lease});
  if (found == by_lease_.end()) return false;
  auto at = running_.find(found->second);
  at->second.episode.abort();
  finish(at);
  return true;
}

std::vector<BodyId> EpisodeRunner::running() const {
  std::vector<BodyId> ids;
  for (const auto& [lane_and_lease, id] : by_lease_)
    ids.push_back({lane_and_lease.first, lane_and_lease.second});
  return ids;
}

void EpisodeRunner::prepare(microseconds max_wait) {
  ask_pending_again();
  hand_over();
  hear_environments(max_wait);
}

std::vector<FinishedEpisode> EpisodeRunner::take() {
  hand_over();  // environments work while our caller does something else
  return std::exchange(finished_, {});
}

std::vector<Trajectory> EpisodeRunner::take_turns(bool leaving) {
  std::vector<Trajectory> turns;
  if (!leaving && settings_.store_turns_tokens == 0) return turns;
  for (const auto& [lane_and_lease, id] : by_lease_) {
    Running& running = running_.at(id);
    const int64_t tokens = running.episode.num_storable(), stored = running.stored_tokens;
    const int64_t grown = tokens - std::max(stored, running.episode.num_prompt_tokens());
    // Each time the whole episode so far is stored. It has to have grown by half of what was
    // stored, so that all stores of an episode together write at most three times the last one.
    const bool is_worth_it =
        leaving ? tokens > stored : grown >= settings_.store_turns_tokens && 2 * grown >= stored;
    if (!is_worth_it) continue;
    turns.push_back(running.episode.stored());
    running.stored_tokens = tokens;
  }
  return turns;
}

void EpisodeRunner::hear_environments(microseconds max_wait) {
  // The expected time of the last hand-over if all goes as usual: so many calls, divided among the
  // threads.
  bool quick = usual_call_seconds_ * static_cast<double>(num_handed_over_) <
               kQuickBatchSeconds * settings_.env_threads;
  auto answers = environments_.collect(quick ? kPatience : microseconds{0}, /*all=*/true);
  if (answers.empty() && generator_.idle() && finished_.empty()) {
    // Nobody answers for those that are to be asked again: do not sleep past that.
    if (!pending_.empty())
      max_wait = std::min(max_wait, std::chrono::duration_cast<microseconds>(kAskAgain));
    answers = environments_.collect(max_wait, /*all=*/false);
  }
  take(answers);
}

void EpisodeRunner::take(std::vector<EnvironmentCalls::Answer>& answers) {
  for (EnvironmentCalls::Answer& answer : answers) {
    // Over about twenty calls. Also of abandoned ones: after one hang nobody is waited for until
    // many quick answers have come.
    usual_call_seconds_ += 0.05 * (answer.seconds - usual_call_seconds_);
    auto at = running_.find(answer.id);
    if (at == running_.end()) continue;  // aborted meanwhile
    Running& running = at->second;
    // reset() answers with an observation and is never pending, so only steps and cuts are asked
    // again.
    if (running.last_call == CallKind::kReset) {
      follow(at, running.episode.observed(std::move(answer.heard), answer.seconds));
    } else {
      if (answer.heard && answer.heard.value().step.pending) {
        Time now = clock_.now();
        if (running.pending_since == Time{}) running.pending_since = now;
        if (now - running.pending_since < settings_.step_timeout) {
          if (pending_.empty()) ask_again_ = now + kAskAgain;
          pending_.push_back(answer.id);
          continue;
        }
        // The deadline of one call does not see an environment that answers `pending` at once, for
        // ever.
        answer.heard = Failure{fmt::format("the environment was still pending after {} s",
                                           seconds_since(Time{}, settings_.step_timeout))};
      }
      // An answer that was pending took since the first call, however short the last one was.
      double seconds = answer.seconds;
      if (running.pending_since != Time{})
        seconds = std::max(seconds, seconds_since(running.asked, clock_.now()));
      running.pending_since = Time{};
      follow(at, running.episode.stepped(std::move(answer.heard), seconds));
    }
  }
}

void EpisodeRunner::ask_pending_again() {
  if (pending_.empty() || clock_.now() < ask_again_) return;
  for (Id id : std::exchange(pending_, {})) {
    auto at = running_.find(id);
    if (at != running_.end()) call_environment(id, at->second, at->second.last_call);
  }
}

void EpisodeRunner::answered(Generation generation) {
  const auto at = running_.find(generation.session);
  Running& running = at->second;
  const double seconds = seconds_since(running.submitted, clock_.now());
  follow(at, running.episode.answered(generation, seconds));
}

void EpisodeRunner::call_environment(Id id, Running& running, CallKind kind) {
  EnvironmentCalls::Call call{.id = id,
                              .call = {.kind = kind},
                              .source = running.source,
                              .encode = running.episode.encoder()};
  if (kind == CallKind::kReset) call.call.task = running.episode.task();
  if (kind == CallKind::kStep) call.call.action = running.episode.action();
  if (running.pending_since == Time{}) running.asked = clock_.now();
  // Collected, and handed over in one go: waking threads costs more than most calls.
  running.last_call = kind;
  calls_.push_back(std::move(call));
}

void EpisodeRunner::follow(RunningMap::iterator at, Episode::Next next) {
  Running& running = at->second;
  switch (next) {
    case Episode::Next::kGenerate:
      running.submitted = clock_.now();
      generator_.submit(running.episode.request(at->first));
      break;
    case Episode::Next::kStep:
      call_environment(at->first, running, CallKind::kStep);
      break;
    case Episode::Next::kCut:
      call_environment(at->first, running, CallKind::kCut);
      break;
    case Episode::Next::kDone:
      finish(at);
      break;
  }
}

void EpisodeRunner::finish(RunningMap::iterator at) {
  Running& running = at->second;
  generator_.release(at->first);
  std::erase_if(calls_, [&](const auto& call) { return call.id == at->first; });
  environments_.close(at->first);
  Trajectory& trajectory = running.episode.trajectory();
  // Now and not when the result is acknowledged: the same lease may be granted again.
  by_lease_.erase({trajectory.lane, trajectory.lease});
  finished_.push_back({std::move(trajectory), running.episode.failure()});
  running_.erase(at);
}

void EpisodeRunner::hand_over() {
  if (!calls_.empty()) num_handed_over_ = static_cast<int64_t>(calls_.size());
  environments_.hand_over(std::exchange(calls_, {}));
}

}  // namespace tailrace
