// An environment of your own, in a library of your own.
//
//   class Maze : public tailrace::Env {
//    public:
//     explicit Maze(const tailrace::Settings& settings);
//     tailrace::Info info() const override;
//     tailrace::Observation reset(const tailrace::Task& task) override;
//     tailrace::Step step(std::string_view action) override;
//     std::string sample_action(tailrace::Random& random) override;
//   };
//
// One object plays one episode at a time; several play at once on several threads. The same task
// and the same actions give the same episode, or members of a group could not be compared. Throw
// tailrace::Failed where the environment fails (the episode is tried again), tailrace::TaskBroken
// where nobody can play this task. A constructor that refuses a setting throws; words that begin
// with the setting's name are shown at its line of the config. step() is only called between
// reset() and the end of an episode.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tailrace/library.h"

namespace tailrace {

struct Task {
  uint64_t seed = 0;
  std::string_view row = {};  // of the dataset (JSON); empty: draw the task from the seed
};

struct Info {
  int64_t max_turns = 1;
  int64_t max_action_tokens = 16;              // a suggestion; the config may say another
  std::vector<std::string> vocabulary = {};    // of a word-level tokenizer; empty: any will do
  std::vector<std::string> stop_strings = {};  // what ends an action, for example "\n"
  bool needs_dataset = false;
  std::string reward = {};  // who scores its episodes; empty: the environment itself
};

// The input of the policy: a text, or messages (JSON, a list of {"role", "content", ...}).
struct Observation {
  std::string text;
  std::string messages = {};
  std::string tools = {};  // of reset(): JSON, schemas of tools as transformers has them
  // The name of the state, for credit across episodes of one task (GiGPO): equal where they stand
  // in the same state, without counters of steps. Empty: what the policy hears.
  std::string state = {};
};

struct Step {
  std::string text = {}, messages = {};  // what the policy hears next
  double reward = 0;                     // of this step; the episode's reward is the sum
  int32_t ending = TR_RUNNING;
  bool is_pending = false;
  std::string reason = {};           // why it was truncated
  std::string evidence = {};         // at the end, where Info::reward scores: JSON for it
  std::vector<Metric> metrics = {};  // of the episode so far, for example {"success", 1}
  std::string state = {};            // as Observation::state, of what the policy hears next

  static Step observe(std::string text, double reward = 0) {
    Step step;
    step.text = std::move(text);
    step.reward = reward;
    return step;
  }
  // A natural end.
  static Step terminated(double reward = 0) {
    Step step;
    step.ending = TR_TERMINATED;
    step.reward = reward;
    return step;
  }
  // A limit ended it.
  static Step truncated(std::string reason, double reward = 0) {
    Step step;
    step.ending = TR_TRUNCATED;
    step.reason = std::move(reason);
    step.reward = reward;
    return step;
  }
  // Not ready yet: step() comes again with the same action.
  static Step pending() {
    Step step;
    step.is_pending = true;
    return step;
  }
  Step&& in_state(std::string name) && {
    state = std::move(name);
    return std::move(*this);
  }
  Step&& metric(std::string name, double value) && {
    metrics.push_back({std::move(name), value});
    return std::move(*this);
  }
};

class Env {
 public:
  virtual ~Env() = default;
  virtual Info info() const = 0;
  virtual Observation reset(const Task& task) = 0;
  virtual Step step(std::string_view action) = 0;
  // The player ends the episode at a limit of turns or tokens. `reward` comes on top of what the
  // steps gave; where a reward scores, give it the evidence that there is.
  virtual Step cut() { return Step::truncated("a limit of the player's"); }
  virtual void close() {}
  // Some legal action, also outside of an episode.
  virtual std::string sample_action(Random& random) = 0;

  // Optional. Behind the end of an episode, where judging it takes time: its reward comes on top,
  // and its metrics take the place of those before.
  virtual Step score() { return {}; }
  // Optional: what an imperfect demonstrator would answer now, for a supervised warm-up. In an
  // episode alone.
  virtual std::string demonstrate(Random& /*random*/) { return {}; }
};

}  // namespace tailrace

// The library's own object behind tr_env_type: an Env, what its last call gave, and where its
// episode is.
struct tr_env {
  enum class State { kNew, kRunning, kEnded, kClosed };

  std::unique_ptr<tailrace::Env> env;
  State state = State::kNew;
  tailrace::Step step;
  tailrace::Observation first;
  std::string reason, text, reward;
  tailrace::detail::MetricViews metrics;
  tailrace::detail::TextList vocabulary, stop_strings;

  template <class Run>
  int32_t call(tr_step* out, Run&& run) {
    const int32_t status = tailrace::detail::guarded(reason, std::forward<Run>(run));
    if (status != TR_OK && status != TR_PENDING) out->reason = tailrace::detail::view(reason);
    return status;
  }
  int32_t misuse(tr_step* out, const char* why) {
    out->reason = tailrace::detail::view(std::string_view(why));
    return TR_MISUSE;
  }
  void give(tr_step* out) {
    using tailrace::detail::view;
    out->ending = step.ending;
    out->text = view(step.text);
    out->messages = view(step.messages);
    out->reward = step.reward;
    out->reason = view(step.reason);
    out->evidence = view(step.evidence);
    metrics.fill(std::move(step.metrics), *out);
    if (TR_HAS(out, state)) out->state = view(step.state);
  }
};

namespace tailrace::detail {

inline int32_t env_info(tr_env* self, tr_info* out) {
  return guarded(self->reason, [&] {
    Info info = self->env->info();
    out->needs_dataset = info.needs_dataset;
    out->max_turns = info.max_turns;
    out->max_action_tokens = info.max_action_tokens;
    out->vocabulary = self->vocabulary.set(std::move(info.vocabulary));
    out->stop_strings = self->stop_strings.set(std::move(info.stop_strings));
    self->reward = std::move(info.reward);
    out->reward = self->reward.empty() ? nullptr : self->reward.c_str();
    return int32_t{TR_OK};
  });
}

inline int32_t env_reset(tr_env* self, const tr_task* task, tr_step* out) {
  self->state = tr_env::State::kNew;
  return self->call(out, [&] {
    self->first = self->env->reset({task->seed, view(task->row)});
    self->state = tr_env::State::kRunning;
    out->text = view(self->first.text);
    out->messages = view(self->first.messages);
    out->tools = view(self->first.tools);
    if (TR_HAS(out, state)) out->state = view(self->first.state);
    return int32_t{TR_OK};
  });
}

inline int32_t env_step(tr_env* self, tr_text action, tr_step* out) {
  if (self->state != tr_env::State::kRunning)
    return self->misuse(out, "step() outside of an episode");
  return self->call(out, [&] {
    self->step = self->env->step(view(action));
    if (self->step.is_pending) return int32_t{TR_PENDING};
    if (self->step.ending != TR_RUNNING) self->state = tr_env::State::kEnded;
    self->give(out);
    return int32_t{TR_OK};
  });
}

inline int32_t env_cut(tr_env* self, tr_step* out) {
  if (self->state != tr_env::State::kRunning)
    return self->misuse(out, "cut() outside of an episode");
  return self->call(out, [&] {
    self->step = self->env->cut();
    if (self->step.is_pending) return int32_t{TR_PENDING};
    self->step.ending = TR_TRUNCATED;
    self->state = tr_env::State::kEnded;
    self->give(out);
    return int32_t{TR_OK};
  });
}

inline int32_t env_score(tr_env* self, tr_step* out) {
  if (self->state != tr_env::State::kEnded)
    return self->misuse(out, "score() before the end of an episode");
  return self->call(out, [&] {
    self->step = self->env->score();
    if (self->step.is_pending) return int32_t{TR_PENDING};
    self->give(out);
    return int32_t{TR_OK};
  });
}

inline int32_t env_close(tr_env* self) {
  self->state = tr_env::State::kClosed;
  return guarded(self->reason, [&] {
    self->env->close();
    return int32_t{TR_OK};
  });
}

inline int32_t env_sample(tr_env* self, uint64_t random, tr_text* out) {
  return guarded(self->reason, [&] {
    Random numbers(random);
    self->text = self->env->sample_action(numbers);
    *out = view(self->text);
    return int32_t{TR_OK};
  });
}

inline int32_t env_demonstrate(tr_env* self, uint64_t random, tr_text* out) {
  if (self->state != tr_env::State::kRunning) return TR_MISUSE;
  return guarded(self->reason, [&] {
    Random numbers(random);
    self->text = self->env->demonstrate(numbers);
    *out = view(self->text);
    return int32_t{TR_OK};
  });
}

template <class E>
int32_t env_create(const tr_host*, const tr_setting_value* values, uint64_t count, tr_env** made,
                   tr_text* reason) {
  // Until this thread makes another: whoever reads it does so at once.
  static thread_local std::string why;
  const int32_t status = guarded(why, [&] {
    auto self = std::make_unique<tr_env>();
    self->env = std::make_unique<E>(Settings(values, count));
    *made = self.release();
    return int32_t{TR_OK};
  });
  if (status != TR_OK) *reason = view(std::string_view(why));
  return status;
}

template <class E>
tr_env_type env_type() {
  tr_env_type type{};
  type.create = env_create<E>;
  type.destroy = [](tr_env* self) { delete self; };
  type.info = env_info;
  type.reset = env_reset;
  type.step = env_step;
  type.cut = env_cut;
  type.close = env_close;
  type.sample_action = env_sample;
  // Offered by those that override them.
  if (!std::is_same_v<decltype(&E::score), Step (Env::*)()>) type.score = env_score;
  if (!std::is_same_v<decltype(&E::demonstrate), std::string (Env::*)(Random&)>)
    type.demonstrate = env_demonstrate;
  return type;
}

}  // namespace tailrace::detail
