#include "cli/env/check.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "cli/env/apart.h"
#include "cli/env/player.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/text/utf8.h"
#include "reward/judge.h"

namespace tailrace {
namespace {

using sandbox::Environment;
using sandbox::StepResult;
using Made = std::unique_ptr<Environment>;

struct Seen {
  CheckOutcome outcome = CheckOutcome::kOk;
  std::string text;
  std::optional<double> seconds_per_step = {};
};

Seen ok(std::string text) { return {CheckOutcome::kOk, std::move(text)}; }
Seen failed(std::string text) { return {CheckOutcome::kFailed, std::move(text)}; }
Seen skipped(std::string text) { return {CheckOutcome::kSkipped, std::move(text)}; }
Seen failed_in(int64_t episode, const std::string& text) {
  return failed(fmt::format("episode {}: {}", episode, text));
}

// Notes each call, so that the message about a crash or a hang names it.
class Noted final : public Environment {
 public:
  Noted(Made noted, const Note& note) : noted_(std::move(noted)), note_(note) {}

  const sandbox::EnvironmentInfo& info() const override { return noted_->info(); }
  Result<sandbox::Observation> reset(const sandbox::Task& task) override {
    turn_ = 0;
    seed_ = task.seed;
    say("reset()");
    return noted_->reset(task);
  }
  Result<StepResult> step(const std::string& action) override {
    ++turn_;
    constexpr size_t kShown = 40;
    say(fmt::format("step(\"{}\"{})", printable(action.substr(0, kShown)),
                    action.size() > kShown ? ", shortened" : ""));
    return noted_->step(action);
  }
  Result<StepResult> cut() override {
    say("cut()");
    return noted_->cut();
  }
  void close() override {
    say("close()");
    noted_->close();
  }
  std::optional<std::string> demonstrate(Rng& rng) override {
    say("demonstrate()");
    return noted_->demonstrate(rng);
  }
  std::string sample_action(Rng& rng) override {
    say("sample_action()");
    return noted_->sample_action(rng);
  }

 private:
  void say(const std::string& call) const {
    note_(fmt::format("{} in turn {} of task seed {}", call, turn_, seed_));
  }

  const Made noted_;
  const Note& note_;
  uint64_t seed_ = 0;
  int64_t turn_ = 0;
};

// The state that the checks share: tasks, legal actions, and when to stop.
class Course {
 public:
  Course(const EnvCheckPlan& plan, const Note& note)
      : plan_(plan), note_(note), end_(steady_now() + plan.patience) {}

  const EnvCheckPlan& plan() const { return plan_; }
  Made make() const {
    note_("create()");
    return std::make_unique<Noted>(plan_.make(), note_);
  }
  void note(const std::string& what) const { note_(what); }

  // Whether to play one more of `wanted` episodes.
  bool goes_on(int64_t played, int64_t wanted) const {
    // One at least, however slow it is: a check that has seen nothing must not pass.
    return played < wanted && (played < 1 || steady_now() < end_);
  }
  bool goes_on(int64_t played) const { return goes_on(played, plan_.episodes); }

  sandbox::Task task(int64_t episode) const {
    // Seeds as a run of this seed has them (TaskSource), so that a task that fails here is one of
    // the run's.
    sandbox::Task task{.seed = sandbox::task_seed(plan_.seed, /*held_out=*/false, episode)};
    if (!plan_.rows.empty())
      task.data = plan_.rows[static_cast<size_t>(episode) % plan_.rows.size()];
    return task;
  }

  Rng rng(int64_t episode) const { return Rng(mix({plan_.seed, static_cast<uint64_t>(episode)})); }

  // By legal actions of its own.
  Result<PlayedEpisode> play(Environment& environment, int64_t episode) const {
    Rng numbers = rng(episode);
    return play_episode(environment, task(episode),
                        [&](int64_t) { return environment.sample_action(numbers); });
  }

 private:
  const EnvCheckPlan& plan_;
  const Note& note_;
  const Time end_;
};

Result<PlayedEpisode> replay(Environment& environment, const sandbox::Task& task,
                             const PlayedEpisode& episode) {
  EpisodePlayer player(environment);
  if (auto begun = player.begin(task); !begun) return begun.failure();
  for (const std::string& action : episode.actions) {
    // An episode that ends earlier than before is a difference, and not a step behind its end.
    if (player.is_done()) break;
    if (auto taken = player.turn(action); !taken) return taken.failure();
  }
  return player.played();
}

// Why the replay is not the episode; none: it is.
std::optional<std::string> replay_difference(Environment& environment, const sandbox::Task& task,
                                             const PlayedEpisode& episode) {
  const auto again = replay(environment, task, episode);
  return again ? difference(episode, again.value()) : again.failure().message;
}

Seen check_making(const Course& course) {
  // Two at once, as a worker has many.
  const Made environment = course.make(), twin = course.make();
  const auto& info = environment->info();
  // The registry's word for a mistake of a person: the command ends with it.
  if (info.needs_dataset && course.plan().rows.empty())
    throw UserError("environment {} needs a dataset.\n       Give one with --dataset FILE.jsonl.",
                    info.name);
  if (info.name.empty()) return failed("its info has no name");
  if (info.max_turns < 1 || info.max_action_tokens < 1)
    return failed(fmt::format("max_turns is {} and max_action_tokens {}; both must be at least 1",
                              info.max_turns, info.max_action_tokens));
  if (auto first = environment->reset(course.task(0)); !first)
    return failed_in(0, "reset() fails: " + first.failure().message);
  return ok(fmt::format("{}: {} turn{} at most, {}", info.name, info.max_turns,
                        info.max_turns == 1 ? "" : "s",
                        info.verifier.empty() ? "scores itself" : "scored by " + info.verifier));
}

// Two instances play by turns; each must play as it does alone.
std::optional<std::string> interleaved_difference(Environment& one, Environment& other,
                                                  const sandbox::Task& task_of_one,
                                                  const sandbox::Task& task_of_other,
                                                  const PlayedEpisode& alone_one,
                                                  const PlayedEpisode& alone_other) {
  EpisodePlayer first(one), second(other);
  if (auto begun = first.begin(task_of_one); !begun) return begun.failure().message;
  if (auto begun = second.begin(task_of_other); !begun) return begun.failure().message;
  const auto play_turn = [](EpisodePlayer& player, const PlayedEpisode& alone,
                            size_t turn) -> Result<void> {
    if (player.is_done() || turn >= alone.actions.size()) return {};
    return player.turn(alone.actions[turn]);
  };
  for (size_t turn = 0; turn < std::max(alone_one.actions.size(), alone_other.actions.size());
       ++turn) {
    if (auto taken = play_turn(first, alone_one, turn); !taken) return taken.failure().message;
    if (auto taken = play_turn(second, alone_other, turn); !taken) return taken.failure().message;
  }
  if (auto found = difference(alone_one, first.played())) return found;
  return difference(alone_other, second.played());
}

Seen check_determinism(const Course& course) {
  const Made environment = course.make(), twin = course.make();
  std::optional<PlayedEpisode> previous;
  int64_t i = 0;
  for (; course.goes_on(i); ++i) {
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    const PlayedEpisode& episode = played.value();
    // Three ways to differ: state that outlives reset(), state that the library has for all
    // instances, and state that two instances share while both play.
    if (auto found = replay_difference(*environment, course.task(i), episode))
      return failed_in(i, "played again: " + *found);
    if (auto found = replay_difference(*twin, course.task(i), episode))
      return failed_in(i, "in a second instance: " + *found);
    if (previous) {
      if (auto found = interleaved_difference(*environment, *twin, course.task(i - 1),
                                              course.task(i), *previous, episode))
        return failed_in(i, "while another instance plays: " + *found);
    }
    previous = episode;
  }
  return ok(
      fmt::format("{} episodes are the same again, bit for bit, also in a second instance "
                  "and by turns",
                  i));
}

Seen check_order(const Course& course) {
  const Made environment = course.make();
  const auto answers = [&] { return step_when_ready(*environment, "anything\n").ok(); };
  if (answers()) return failed("step() before reset() is answered; it must fail");
  const auto played = course.play(*environment, 0);
  if (!played) return failed_in(0, played.failure().message);
  // Behind a cut the same holds: only reset() and close() follow.
  if (!played.value().is_cut && answers())
    return failed("step() after the end of an episode is answered; it must fail");
  if (!course.play(*environment, 0)) return failed("no episode begins after a step out of order");
  if (auto begun = environment->reset(course.task(1)); !begun)
    return failed_in(1, "reset() fails: " + begun.failure().message);
  environment->close();
  if (answers()) return failed("step() after close() is answered; it must fail");
  return ok("step() before reset(), after the end and after close() fails");
}

std::vector<std::pair<std::string, std::string>> invalid_actions(Rng rng) {
  std::string bytes, letters;
  for (int i = 0; i < 1024; ++i) {
    bytes += static_cast<char>(rng.below(256));
    letters += static_cast<char>('!' + rng.below(94));
  }
  return {{"an empty action", ""},
          {"a lone newline", "\n"},
          {"1 KB of printable garbage", letters},
          {"1 KB of random bytes", bytes},
          {"invalid UTF-8", "\xFF\xFE\xC3\x28\n"},
          {"bytes of 0", std::string(8, '\0')},
          {"64 KB of open brackets", std::string(1 << 16, '(') + "\n"}};
}

Seen check_invalid_actions(const Course& course) {
  const Made environment = course.make();
  const auto before = course.play(*environment, 0);
  if (!before) return failed_in(0, before.failure().message);
  const auto actions = invalid_actions(course.rng(0));
  for (const auto& [name, action] : actions) {
    constexpr int64_t kTurns = 16;  // more of the same show nothing new
    EpisodePlayer player(*environment);
    auto went = player.begin(course.task(0));
    for (int64_t turn = 0; went && !player.is_done() && turn < kTurns; ++turn)
      went = player.turn(action);
    if (went && !player.is_done()) went = player.cut();
    // A failed episode is tried again, so the policy would never learn that its action is wrong.
    if (!went) return failed(fmt::format("{}: {}", name, went.failure().message));
  }
  if (auto found = replay_difference(*environment, course.task(0), before.value()))
    return failed("an episode behind invalid actions is another one: " + *found);
  return ok(fmt::format("{} kinds of invalid actions are answered", actions.size()));
}

Seen check_reset(const Course& course) {
  const Made environment = course.make();
  int64_t i = 0;
  for (; course.goes_on(i); ++i) {
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    if (auto found = replay_difference(*environment, course.task(i), played.value()))
      return failed_in(i, "reset() after the end does not begin anew: " + *found);
    // In the middle of another episode, and of the same one.
    for (const int64_t middle : {i + 1, i}) {
      EpisodePlayer player(*environment);
      if (auto begun = player.begin(course.task(middle)); !begun)
        return failed_in(middle, begun.failure().message);
      Rng numbers = course.rng(middle + 1);
      if (auto taken = player.turn(environment->sample_action(numbers)); !taken)
        return failed_in(middle, taken.failure().message);
      if (auto found = replay_difference(*environment, course.task(i), played.value()))
        return failed_in(i, "reset() in the middle does not begin anew: " + *found);
    }
  }
  return ok(fmt::format("{} episodes begin anew after the end and in the middle of another", i));
}

// The fault at the end of an episode; none: nothing is wrong.
std::optional<std::string> fault_of_end(const PlayedEpisode& episode, const std::string& verifier) {
  const StepResult& end = episode.end();
  if (end.terminated && end.truncated) return "it is terminated and truncated at once";
  if (episode.is_cut && !end.truncated) return "cut() is answered by an episode that runs on";
  if (end.verifier != verifier)
    return fmt::format("it is to be scored by '{}', and info() says '{}'", end.verifier, verifier);
  return std::nullopt;
}

Seen check_ends(const Course& course) {
  const Made environment = course.make();
  const std::string verifier = environment->info().verifier;
  int64_t i = 0, cut = 0;
  for (; course.goes_on(i); ++i) {
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    if (auto fault = fault_of_end(played.value(), verifier)) return failed_in(i, *fault);
    cut += played.value().is_cut;
    // A limit of the player's may end it before any turn, and in the middle.
    EpisodePlayer player(*environment);
    auto went = player.begin(course.task(i));
    // Another turn in each episode, so that all of them are tried.
    const int64_t turns = i % static_cast<int64_t>(played.value().actions.size());
    for (int64_t turn = 0; went && turn < turns; ++turn)
      went = player.turn(played.value().actions[static_cast<size_t>(turn)]);
    if (went && !player.is_done()) went = player.cut();
    if (!went) return failed_in(i, went.failure().message);
    if (auto fault = fault_of_end(player.played(), verifier))
      return failed_in(i, fmt::format("cut after turn {}: {}", turns, *fault));
  }
  return ok(fmt::format("{} episodes: {} ended by themselves, {} were cut after {} turns", i,
                        i - cut, cut, environment->info().max_turns));
}

Seen check_numbers(const Course& course) {
  const Made environment = course.make();
  int64_t i = 0;
  double least = INFINITY, most = -INFINITY;
  for (; course.goes_on(i); ++i) {
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    for (size_t turn = 0; turn < played.value().steps.size(); ++turn) {
      const StepResult& step = played.value().steps[turn];
      if (!std::isfinite(step.reward))
        return failed_in(i, fmt::format("turn {}: the reward is {}", turn + 1, step.reward));
      for (const auto& [name, value] : step.metrics)
        if (!std::isfinite(value))
          return failed_in(i, fmt::format("turn {}: the metric {} is {}", turn + 1, name, value));
    }
    least = std::min(least, played.value().reward());
    most = std::max(most, played.value().reward());
  }
  // A verifier's rewards come later.
  const bool is_flat = least == 0 && most == 0 && environment->info().verifier.empty();
  return ok(fmt::format("rewards and metrics of {} episodes are finite; {}", i,
                        is_flat ? "no random episode had a reward other than 0. Can one be had?"
                                : fmt::format("rewards are {:.4g} to {:.4g}", least, most)));
}

constexpr size_t kMostBytes = 64 << 10;

// Texts that tokenizers read as one special token: a policy would see the end of a turn that nobody
// ended.
constexpr const char* kSpecialTexts[] = {"<|im_start|>",
                                         "<|im_end|>",
                                         "<|endoftext|>",
                                         "<|begin_of_text|>",
                                         "<|end_of_text|>",
                                         "<|start_header_id|>",
                                         "<|end_header_id|>",
                                         "<|eot_id|>",
                                         "<s>",
                                         "</s>",
                                         "<bos>",
                                         "<eos>",
                                         "<pad>",
                                         "<unk>",
                                         "<start_of_turn>",
                                         "<end_of_turn>",
                                         "[INST]",
                                         "[/INST]"};

std::optional<std::string> fault_of_text(const char* what, const std::string& text) {
  if (text.size() > kMostBytes)
    return fmt::format("{} has {} bytes; at most {} are useful", what, text.size(), kMostBytes);
  if (const size_t at = text::first_non_utf8(text); at != std::string::npos)
    return fmt::format("{} is not UTF-8 at byte {}", what, at);
  for (const char* special : kSpecialTexts)
    if (text.find(special) != std::string::npos)
      return fmt::format("{} has {}, which tokenizers take for a special token", what, special);
  return std::nullopt;
}

std::optional<std::string> fault_of_observation(const sandbox::Observation& observation) {
  if (auto fault = fault_of_text("the observation", observation.text)) return fault;
  if (auto fault = fault_of_text("the list of messages", observation.messages)) return fault;
  if (auto fault = fault_of_text("the list of tools", observation.tools)) return fault;
  for (const auto& [what, list] :
       {std::pair{"messages", &observation.messages}, std::pair{"tools", &observation.tools}})
    if (!list->empty() && !parse_json(*list).is_array())
      return fmt::format("its {} are no JSON list", what);
  return std::nullopt;
}

Seen check_observations(const Course& course) {
  const Made environment = course.make();
  int64_t i = 0;
  size_t longest = 0;
  for (; course.goes_on(i); ++i) {
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    if (auto fault = fault_of_observation(played.value().first))
      return failed_in(i, "after reset(): " + *fault);
    longest = std::max(longest, played.value().first.text.size());
    for (size_t turn = 0; turn < played.value().steps.size(); ++turn) {
      const auto& observation = played.value().steps[turn].observation;
      if (auto fault = fault_of_observation(observation))
        return failed_in(i, fmt::format("turn {}: {}", turn + 1, *fault));
      longest = std::max(longest, observation.text.size());
    }
  }
  return ok(fmt::format("observations are UTF-8 without special tokens; the longest has {} bytes",
                        longest));
}

// A metric `success`, of the environment or its verifier; where neither has one, the reward.
Result<double> success_of(const PlayedEpisode& episode, const VerifierRegistry& verifiers) {
  const auto find = [](const MetricList& metrics, double otherwise) {
    for (const auto& [name, value] : metrics)
      if (name == "success") return value;
    return otherwise;
  };
  const StepResult& end = episode.end();
  if (end.verifier.empty()) return find(end.metrics, episode.reward());
  const auto score = judge(verifiers, end.verifier, end.evidence, kScoreBudget);
  if (!score) return score.failure();
  return find(score.value().metrics, find(end.metrics, score.value().reward));
}

// Without a demonstrator at the start of an episode: none.
Result<std::optional<PlayedEpisode>> demonstrate(const Course& course, Environment& environment,
                                                 int64_t episode) {
  EpisodePlayer player(environment);
  if (auto begun = player.begin(course.task(episode)); !begun) return begun.failure();
  Rng numbers = course.rng(episode);
  while (!player.is_done()) {
    const auto action = environment.demonstrate(numbers);
    if (!action && player.played().actions.empty()) return std::optional<PlayedEpisode>();
    if (!action)
      return Failure{fmt::format("the demonstrator has no answer in turn {}",
                                 player.played().actions.size() + 1)};
    if (auto taken = player.turn(*action); !taken) return taken.failure();
  }
  return std::optional(player.played());
}

Seen check_demonstrator(const Course& course) {
  const Made environment = course.make();
  struct Sums {
    double success = 0, reward = 0;
  } shown, random;
  int64_t i = 0;
  for (; course.goes_on(i); ++i) {
    const auto demonstrated = demonstrate(course, *environment, i);
    if (!demonstrated) return failed_in(i, demonstrated.failure().message);
    if (!demonstrated.value())
      return i == 0 ? skipped("it has no demonstrator")
                    : failed_in(i, "the demonstrator has no first answer");
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    for (const auto& [sums, episode] :
         {std::pair{&shown, &*demonstrated.value()}, std::pair{&random, &played.value()}}) {
      const auto success = success_of(*episode, *course.plan().verifiers);
      if (!success) return failed_in(i, success.failure().message);
      sums->success += success.value();
      sums->reward += episode->reward();
    }
  }
  const auto count = static_cast<double>(i);
  std::string seen =
      fmt::format("its demonstrator succeeds in {:.3g} of {} episodes, random actions in {:.3g}",
                  shown.success / count, i, random.success / count);
  if (shown.success > random.success) return ok(seen);
  // Where every legal action is right, nobody can be better.
  if (shown.success == count && random.success == count) return ok(seen);
  // A long task may be beyond both, and the way there not.
  if (shown.success == 0 && random.success == 0 && shown.reward > random.reward)
    return ok(fmt::format("{}; its mean reward is {:.3g}, theirs {:.3g}", seen,
                          shown.reward / count, random.reward / count));
  return failed(seen);
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// Short, so that what is kept of each episode counts, and not what an episode takes.
Result<void> play_shortly(const Course& course, Environment& environment, int64_t episode) {
  constexpr int64_t kTurns = 4;
  EpisodePlayer player(environment);
  if (auto begun = player.begin(course.task(episode)); !begun) return begun;
  Rng numbers = course.rng(episode);
  for (int64_t turn = 0; !player.is_done(); ++turn) {
    auto taken = turn < kTurns ? player.turn(environment.sample_action(numbers)) : player.cut();
    if (!taken) return taken;
  }
  return {};
}

Seen check_memory(const Course& course) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  (void)course;
  return skipped("a sanitizer keeps what is given back, so memory grows");
#else
  const Made environment = course.make();
  // Caches, and pages of the allocator, fill up in the beginning.
  const int64_t episodes = course.plan().memory_episodes, warm_up = episodes / 10;
  int64_t i = 0, after_warm_up = 0, after_half = 0;
  const int64_t half = warm_up + episodes / 2;
  for (; course.goes_on(i, warm_up + episodes); ++i) {
    if (i == warm_up) after_warm_up = resident_bytes();
    if (i == half) after_half = resident_bytes();
    if (auto played = play_shortly(course, *environment, i); !played)
      return failed_in(i, played.failure().message);
  }
  const int64_t end = resident_bytes();
  if (i <= half)
    return skipped(fmt::format("only {} episodes were played in {:.0f} s", i,
                               seconds_of(course.plan().patience)));
  const int64_t grown = end - after_warm_up, lately = end - after_half;
  const std::string seen =
      fmt::format("over {} short episodes memory grew by {} KiB, {} of them in the last {}",
                  i - warm_up, grown >> 10, lately >> 10, i - half);
  // 400 bytes an episode. What levels off is no leak.
  constexpr int64_t kMargin = 4 << 20, kLateMargin = 1 << 20;
  return grown > kMargin && lately > kLateMargin ? failed(seen) : ok(seen);
#endif
}

Seen check_rewards(const Course& course) {
  const auto& plan = course.plan();
  const Made environment = course.make();
  std::vector<std::string> names = plan.rewards;
  const std::string own = environment->info().verifier;
  if (!own.empty() && std::ranges::find(names, own) == names.end()) names.push_back(own);
  if (names.empty()) return skipped("it scores itself");
  for (const std::string& name : names) {
    if (plan.verifiers->find(name) == nullptr)
      return failed(fmt::format("there is no reward '{}', which its info() names", name));
    for (const auto& [what, evidence] :
         {std::pair<std::string, std::string>{"empty evidence", ""},
          {"garbage for evidence", "?garbage? {\"\x01"},
          {"an empty object for evidence", "{}"},
          {"an empty list for evidence", "[]"},
          {"invalid UTF-8 for evidence", "{\"response\": \"\xFF\"}"}}) {
      course.note(fmt::format("{} to {}", what, name));
      const auto score = judge(*plan.verifiers, name, evidence, kScoreBudget);
      // A reward for evidence that says nothing would be earned by an answer that says nothing.
      if (score)
        return failed(fmt::format("{} gives {} a reward of {}; it must be no verdict", what, name,
                                  score.value().reward));
    }
  }
  const std::string seen = fmt::format("{} give no verdict on garbage", join_texts(names, ", "));
  if (own.empty()) return ok(seen);
  // A few, because a verifier may run programs.
  constexpr int64_t kScored = 20;
  int64_t i = 0;
  for (; course.goes_on(i, std::min(kScored, plan.episodes)); ++i) {
    course.note(fmt::format("a score by {}", own));
    const auto played = course.play(*environment, i);
    if (!played) return failed_in(i, played.failure().message);
    const auto score = judge(*plan.verifiers, own, played.value().end().evidence, kScoreBudget);
    if (!score) return failed_in(i, "its evidence is not scored: " + score.failure().message);
    for (const auto& [name, value] : score.value().metrics)
      if (!std::isfinite(value))
        return failed_in(i, fmt::format("{}: the metric {} is {}", own, name, value));
  }
  return ok(fmt::format("{}; {} episodes are scored", seen, i));
}

Seen check_speed(const Course& course) {
  const Made environment = course.plan().make();  // notes would be part of it
  std::vector<double> seconds;
  for (int64_t i = 0; course.goes_on(i); ++i) {
    Rng numbers = course.rng(i);
    EpisodePlayer player(*environment);
    if (auto begun = player.begin(course.task(i)); !begun)
      return failed_in(i, begun.failure().message);
    while (!player.is_done()) {
      const std::string action = environment->sample_action(numbers);
      const Time begun = steady_now();
      if (auto taken = player.turn(action); !taken) return failed_in(i, taken.failure().message);
      seconds.push_back(seconds_of(steady_now() - begun));
    }
  }
  std::ranges::nth_element(seconds, seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2));
  const double median = seconds[seconds.size() / 2];
  Seen seen = ok(fmt::format("a step takes {:.3g} us (p50 of {})", median * 1e6, seconds.size()));
  seen.seconds_per_step = median;
  return seen;
}

EnvCheck run_check(const EnvCheckPlan& plan, const char* name,
                   const std::function<Seen(const Course&)>& check) {
  // In a process of its own: a crash, a hang or an exit in somebody's library ends one check, and
  // the others still say what they see.
  const auto answer = run_apart(
      [&](const Note& note) {
        const Seen seen = check(Course(plan, note));
        nlohmann::json text = {{"outcome", static_cast<int>(seen.outcome)}, {"seen", seen.text}};
        if (seen.seconds_per_step) text["seconds_per_step"] = *seen.seconds_per_step;
        return json_text(text);
      },
      plan.limit, plan.call);
  if (!answer) return {name, CheckOutcome::kFailed, answer.failure().message};
  const nlohmann::json text = parse_json(answer.value());
  // Not ours: a library may have ended the process by itself, with whatever it wrote.
  if (!text.is_object() || !text.contains("outcome"))
    return {name, CheckOutcome::kFailed, "its answer cannot be read"};
  EnvCheck done{name, static_cast<CheckOutcome>(text.at("outcome").get<int>()),
                text.at("seen").get<std::string>()};
  if (text.contains("seconds_per_step"))
    done.seconds_per_step = text.at("seconds_per_step").get<double>();
  return done;
}

}  // namespace

std::vector<EnvCheck> check_env(const EnvCheckPlan& plan,
                                const std::function<void(const EnvCheck&)>& show) {
  std::vector<EnvCheck> done;
  const auto run = [&](const char* name, const std::function<Seen(const Course&)>& check) {
    // Each would say the same of an environment that cannot be made, or not begin.
    const bool is_playable = done.empty() || done.front().outcome != CheckOutcome::kFailed;
    done.push_back(is_playable ? run_check(plan, name, check)
                               : EnvCheck{name, CheckOutcome::kSkipped, "as above"});
    if (show) show(done.back());
  };
  run("made", check_making);
  run("deterministic", check_determinism);
  run("order of calls", check_order);
  run("invalid actions", check_invalid_actions);
  run("reset", check_reset);
  run("ends", check_ends);
  run("finite numbers", check_numbers);
  run("observations", check_observations);
  run("demonstrator", check_demonstrator);
  run("memory", check_memory);
  run("rewards", check_rewards);
  run("speed", check_speed);
  return done;
}

}  // namespace tailrace
