#include "sandbox/builtin/paced.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/random.h"

namespace tailrace::sandbox {

namespace {

constexpr std::array<const char*, 8> kWords = {"red",  "blue",  "green", "black",
                                               "four", "seven", "nine",  "ten"};

// By its first actions a member is told from its siblings.
constexpr int64_t kForks = 4;

constexpr double kEndlessMembers = 0.1;

template <class... Args>
std::invalid_argument mistake(fmt::format_string<Args...> format, Args&&... args) {
  return std::invalid_argument(fmt::format(format, std::forward<Args>(args)...));
}

const SteadyClock kClock;

class Paced final : public Env {
 public:
  explicit Paced(const Settings& settings, const Clock& clock = kClock)
      : clock_(clock),
        median_turns_(settings.number("turns")),
        turns_sigma_(settings.number("turns_sigma")),
        member_sigma_(settings.number("member_turns_sigma")),
        endless_prompts_(settings.number("endless_prompts")),
        endless_members_(settings.number("endless_members")),
        latency_ms_(settings.number("latency_ms")),
        latency_sigma_(settings.number("latency_sigma")),
        max_latency_ms_(settings.number("max_latency_ms")),
        demo_right_(settings.number("demo_right")) {
    info_.max_turns = settings.integer("max_turns");
    if (median_turns_ > static_cast<double>(info_.max_turns))
      throw mistake("turns is {:g}, above max_turns {}", median_turns_, info_.max_turns);
    if (endless_prompts_ == 0 && endless_members_ != kEndlessMembers) {
      throw mistake(
          "endless_members is {:g} without endless_prompts, the share of the prompts that have "
          "such members: set that as well, as in 0.1",
          endless_members_);
    }
    if (members_differ() && info_.max_turns < kForks) {
      throw mistake("max_turns is {}; where members differ an episode has at least {} turns",
                    info_.max_turns, kForks);
    }
    if (latency_ms_ > max_latency_ms_)
      throw mistake("latency_ms is {:g}, above max_latency_ms {:g}", latency_ms_, max_latency_ms_);
    info_.stop_strings = {"\n"};
    info_.max_action_tokens = 2;
    info_.vocabulary = {"\n", ">"};
    info_.vocabulary.insert(info_.vocabulary.end(), kWords.begin(), kWords.end());
  }

  Info info() const override { return info_; }

  tailrace::Observation reset(const tailrace::Task& task) override {
    seed_ = task.seed;
    // Where members differ their first actions decide how long each plays, so that the number is
    // drawn behind these. Until then 0 ends no turn.
    turns_ = members_differ() ? 0 : draw_turns();
    turn_ = right_ = invalid_ = 0;
    history_ = seed_;
    ready_.reset();
    is_demonstrated_ = false;
    return {view()};
  }

  Step step(std::string_view action) override {
    if (is_waiting(action)) return Step::pending();
    ready_.reset();
    is_demonstrated_ = false;
    history_ = history_after(action);
    const bool right = is_action(action, word());
    right_ += right;
    invalid_ += !right && !is_word(action);
    if (++turn_ == kForks && members_differ()) turns_ = draw_turns();
    const bool is_over = turn_ == turns_;
    return (is_over ? Step::terminated(static_cast<double>(right_) / static_cast<double>(turns_))
                    : Step::observe(view()))
        .metric("success", is_over && right_ == turns_ ? 1 : 0)
        .metric("invalid_actions", static_cast<double>(invalid_));
  }

  std::string demonstrate(Random& random) override {
    is_demonstrated_ = true;
    return random.chance(demo_right_) ? word() + "\n" : sample_action(random);
  }

  std::string sample_action(Random& random) override {
    return std::string(kWords[random.below(kWords.size())]) + "\n";
  }

 private:
  std::string word() const {
    Rng rng(mix({seed_, 0x776f'7264, static_cast<uint64_t>(turn_)}));  // "word"
    return kWords[rng.below(kWords.size())];
  }
  std::string view() const { return word() + " >"; }

  bool members_differ() const { return member_sigma_ > 0 || endless_prompts_ > 0; }

  // The prompt's part is drawn by its seed, the member's by what it has done so far.
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

  static bool is_action(std::string_view action, std::string_view word) {
    if (action.starts_with(' ')) action.remove_prefix(1);
    return action.ends_with('\n') && action.substr(0, action.size() - 1) == word;
  }
  static bool is_word(std::string_view action) {
    return std::ranges::any_of(kWords, [&](const char* word) { return is_action(action, word); });
  }

  // A hash that distinguishes an episode from others of its task.
  uint64_t history_after(std::string_view action) const {
    uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
    for (const char c : action) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100'0000'01b3;
    return mix({history_, hash});
  }

  // The latency of one answer.
  Time draw_latency(uint64_t history) const {
    Rng rng(mix({history, 0x7761'6974}));  // "wait"
    const double ms = latency_ms_ * std::exp(latency_sigma_ * rng.normal());
    return std::chrono::duration_cast<Time>(
        std::chrono::duration<double, std::milli>(std::min(ms, max_latency_ms_)));
  }

  bool is_waiting(std::string_view action) {
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
  Info info_;
  const double median_turns_, turns_sigma_, member_sigma_, endless_prompts_, endless_members_;
  const double latency_ms_, latency_sigma_, max_latency_ms_, demo_right_;
  uint64_t seed_ = 0;
  uint64_t history_ = 0;  // of the task and the actions so far
  int64_t turns_ = 0, turn_ = 0, right_ = 0, invalid_ = 0;
  std::optional<Time> ready_;  // when the answer to the running step may be given
  bool is_demonstrated_ = false;
};

}  // namespace

std::unique_ptr<Env> make_paced(const Settings& settings, const Clock& clock) {
  return std::make_unique<Paced>(settings, clock);
}

void declare_paced(Library& library) {
  library
      .environment<Paced>("paced", "repeat a word, over turns whose number and time are settings")
      .number("turns", "of an episode, the median", 8, 1, 1000)
      .number("turns_sigma", "of their logarithm, over prompts; 0: all prompts are equal", 0, 0, 3)
      .number("member_turns_sigma", "the same over the members of a prompt; 0: they are alike", 0,
              0, 3)
      .number("endless_prompts", "share of the prompts that have endless members", 0, 0, 1)
      .number("endless_members", "share of the members there that run to max_turns",
              kEndlessMembers, 0, 1)
      .integer("max_turns", "of an episode, the most", 64, 1, 1000)
      .number("latency_ms", "that a step takes, the median; 0: none", 0, 0, 1e6)
      .number("latency_sigma", "of its logarithm", 0, 0, 3)
      .number("max_latency_ms", "but it is never more; it stays below rollout.step_timeout_s",
              10'000, 0, 1e6)
      .number("demo_right",
              "share of its turns in which the demonstrator repeats the word; else any", 0.5, 0, 1);
}

}  // namespace tailrace::sandbox
