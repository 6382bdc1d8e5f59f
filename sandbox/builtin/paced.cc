#include "sandbox/builtin/paced.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sandbox/builtin/settings_reader.h"

namespace tailrace::sandbox {

const SettingsSchema& paced_settings() {
  static const SettingsSchema schema = {
      number_setting("turns", "of an episode, the median", 8, 1, 1000),
      number_setting("turns_sigma", "of their logarithm, over prompts; 0: all prompts are equal", 0,
                     0, 3),
      number_setting("member_turns_sigma",
                     "the same over the members of a prompt; 0: they are alike", 0, 0, 3),
      number_setting("endless_prompts", "share of the prompts that have endless members", 0, 0, 1),
      number_setting("endless_members", "share of the members there that run to max_turns", 0.1, 0,
                     1),
      integer_setting("max_turns", "of an episode, the most", 64, 1, 1000),
      number_setting("latency_ms", "that a step takes, the median; 0: none", 0, 0, 1e6),
      number_setting("latency_sigma", "of its logarithm", 0, 0, 3),
      number_setting("max_latency_ms",
                     "but it is never more; it stays below rollout.step_timeout_s", 10'000, 0, 1e6),
      number_setting("demo_right",
                     "share of its turns in which the demonstrator repeats the word; else any", 0.5,
                     0, 1),
  };
  return schema;
}

namespace {

constexpr std::array<const char*, 8> kWords = {"red",  "blue",  "green", "black",
                                               "four", "seven", "nine",  "ten"};

// By its first actions a member is told from its siblings.
constexpr int64_t kForks = 4;

class Paced final : public Environment {
 public:
  Paced(const Clock& clock, const EnvironmentSettings& settings) : clock_(clock) {
    const SettingsReader reader("paced", paced_settings(), settings);
    median_turns_ = reader.number("turns");
    turns_sigma_ = reader.number("turns_sigma");
    member_sigma_ = reader.number("member_turns_sigma");
    endless_prompts_ = reader.number("endless_prompts");
    endless_members_ = reader.number("endless_members");
    info_.max_turns = reader.integer("max_turns");
    latency_ms_ = reader.number("latency_ms");
    latency_sigma_ = reader.number("latency_sigma");
    max_latency_ms_ = reader.number("max_latency_ms");
    demo_right_ = reader.number("demo_right");
    if (median_turns_ > static_cast<double>(info_.max_turns)) {
      throw reader.mistake("turns", "turns is {:g}, above max_turns {}", median_turns_,
                           info_.max_turns);
    }
    if (endless_prompts_ == 0 && reader.has("endless_members")) {
      throw reader.mistake("endless_members",
                           "endless_members is {:g} without endless_prompts, the share of the "
                           "prompts that have such members: set that as well, as in 0.1",
                           endless_members_);
    }
    if (members_differ() && info_.max_turns < kForks) {
      throw reader.mistake("max_turns",
                           "max_turns is {}; where members differ an episode has at least {} turns",
                           info_.max_turns, kForks);
    }
    if (latency_ms_ > max_latency_ms_) {
      throw reader.mistake("latency_ms", "latency_ms is {:g}, above max_latency_ms {:g}",
                           latency_ms_, max_latency_ms_);
    }
    info_.name = "paced";
    info_.stop_strings = {"\n"};
    info_.max_action_tokens = 2;
    info_.vocabulary = {"\n", ">"};
    info_.vocabulary.insert(info_.vocabulary.end(), kWords.begin(), kWords.end());
  }

  const EnvironmentInfo& info() const override { return info_; }

  Result<Observation> reset(const Task& task) override {
    seed_ = task.seed;
    turns_ = members_differ() ? 0 : draw_turns();
    turn_ = right_ = invalid_ = 0;
    history_ = seed_;
    ready_.reset();
    is_demonstrated_ = false;
    running_ = true;
    return Observation{view()};
  }

  Result<StepResult> step(const std::string& action) override {
    if (!running_) return Failure{"paced: step() without a running episode"};
    StepResult result;
    if (is_waiting(action)) {
      result.pending = true;
      return result;
    }
    ready_.reset();
    is_demonstrated_ = false;
    history_ = history_after(action);
    const bool right = action == " " + word() + "\n" || action == word() + "\n";
    right_ += right;
    invalid_ += !right && !is_word(action);
    if (++turn_ == kForks && members_differ()) turns_ = draw_turns();
    result.terminated = turn_ == turns_;
    if (result.terminated)
      result.reward = static_cast<double>(right_) / static_cast<double>(turns_);
    running_ = !result.terminated;
    if (running_) result.observation.text = view();
    result.metrics = {{"success", result.terminated && right_ == turns_ ? 1.0 : 0.0},
                      {"invalid_actions", static_cast<double>(invalid_)}};
    return result;
  }

  void close() override { running_ = false; }

  std::optional<std::string> demonstrate(Rng& rng) override {
    if (!running_) return std::nullopt;
    is_demonstrated_ = true;
    return rng.chance(demo_right_) ? word() + "\n" : sample_action(rng);
  }

  std::string sample_action(Rng& rng) override {
    return std::string(kWords[rng.below(kWords.size())]) + "\n";
  }

 private:
  std::string word() const {
    Rng rng(mix({seed_, 0x776f'7264, static_cast<uint64_t>(turn_)}));  // "word"
    return kWords[rng.below(kWords.size())];
  }
  std::string view() const { return word() + " >"; }

  bool members_differ() const { return member_sigma_ > 0 || endless_prompts_ > 0; }

  // Of the prompt by its seed, and of the member by what it has done so far.
  int64_t draw_turns() const {
    Rng rng(mix({seed_, 0x7475'726e}));  // "turn": its own stream
    double log_factor = turns_sigma_ * rng.normal();
    if (members_differ()) {
      const bool may_be_endless = rng.chance(endless_prompts_);
      Rng member(mix({history_, 0x666f'726b}));  // "fork"
      log_factor += member_sigma_ * member.normal();
      if (may_be_endless && member.chance(endless_members_)) return info_.max_turns;
    }
    // Compared as numbers: the tail may be beyond any integer.
    const double turns =
        std::clamp(median_turns_ * std::exp(log_factor), 1.0, static_cast<double>(info_.max_turns));
    return std::max(std::lround(turns), members_differ() ? kForks : 1);
  }

  static bool is_word(const std::string& action) {
    return std::any_of(kWords.begin(), kWords.end(), [&](const char* word) {
      return action == word + std::string("\n") || action == " " + std::string(word) + "\n";
    });
  }

  // What distinguishes an episode from others of its task.
  uint64_t history_after(const std::string& action) const {
    uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
    for (const char c : action) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100'0000'01b3;
    return mix({history_, hash});
  }

  // Of one answer.
  Time draw_latency(uint64_t history) const {
    Rng rng(mix({history, 0x7761'6974}));  // "wait"
    const double ms = latency_ms_ * std::exp(latency_sigma_ * rng.normal());
    return std::chrono::duration_cast<Time>(
        std::chrono::duration<double, std::milli>(std::min(ms, max_latency_ms_)));
  }

  bool is_waiting(const std::string& action) {
    if (latency_ms_ == 0 || is_demonstrated_) return false;
    const Time now = clock_.now();
    if (!ready_) {
      ready_ = now;
      if (turn_ == 0) *ready_ += draw_latency(history_);  // the reset's
      *ready_ += draw_latency(history_after(action));
    }
    return now < *ready_;
  }

  const Clock& clock_;
  EnvironmentInfo info_;
  double median_turns_ = 0, turns_sigma_ = 0, member_sigma_ = 0;
  double endless_prompts_ = 0, endless_members_ = 0, latency_ms_ = 0, latency_sigma_ = 0;
  double max_latency_ms_ = 0, demo_right_ = 0;
  uint64_t seed_ = 0;
  uint64_t history_ = 0;  // of the task and the actions so far
  int64_t turns_ = 0, turn_ = 0, right_ = 0, invalid_ = 0;
  std::optional<Time> ready_;  // when the answer to the running step may be given
  bool is_demonstrated_ = false;
  bool running_ = false;
};

const SteadyClock kClock;

}  // namespace

std::unique_ptr<Environment> make_paced(const EnvironmentSettings& settings) {
  return make_paced_by(kClock, settings);
}

std::unique_ptr<Environment> make_paced_by(const Clock& clock,
                                           const EnvironmentSettings& settings) {
  return std::make_unique<Paced>(clock, settings);
}

}  // namespace tailrace::sandbox
