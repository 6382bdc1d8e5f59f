// How a run schedules. Every published mode is one point of credit x stop rule x tail policy
// (law 5): a value, so that a mode is data and not another scheduler.
//
// Papers: tail batching (RollPacker, 2509.21009), partial rollout (APRIL, 2509.18521), bounded
// staleness (AReaL, 2505.24298; ROLL Flash, 2510.11345), streaming and delayed weights (AsyncFlow,
// 2507.01663), a probe of each group and the longest first (Seer, 2511.14617).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/fields.h"

namespace tailrace {
class OptionVisitor;
}

namespace tailrace::scheduler {

// Credits are whole groups: fractions stay integers.
struct Ratio {
  int64_t numerator = 0, denominator = 1;
  // floor(ratio * n); n >= 0.
  int64_t of(int64_t n) const { return numerator * n / denominator; }
  int64_t rounded_up() const { return (numerator + denominator - 1) / denominator; }
  TR_FIELDS(Ratio, numerator, denominator);
};

// The ratio with the smallest denominator within 1/2000 of `value` >= 0, so that a person may write
// 0.333 for a third.
Ratio to_ratio(double value);
double to_double(const Ratio& ratio);

// The treatment of groups that still run when a round holds all that it keeps.
enum class TailPolicy : uint8_t {
  kWait,     // there are none: every group that is started is kept
  kDiscard,  // tokens are thrown away, and the prompt waits for a long round (tail batching)
  kKeep,     // they run on under new weights, and the next round takes them first (partial rollout)
};
constexpr auto enum_names(TailPolicy) {
  using enum TailPolicy;
  return name_table<TailPolicy>({{kWait, "wait"}, {kDiscard, "discard"}, {kKeep, "keep"}});
}

// The treatment of a group that is older than `max_staleness`.
enum class OnStale : uint8_t {
  kMask,  // its old tokens leave the loss; it stays in its group's statistics. The trainer does it
  kDrop,  // it ends as stale, and another one takes its place
  kWait,  // it cannot arise: a step waits for the groups that would be too old for the one after it
};
constexpr auto enum_names(OnStale) {
  using enum OnStale;
  return name_table<OnStale>({{kMask, "mask"}, {kDrop, "drop"}, {kWait, "wait"}});
}

// When a worker takes new weights.
enum class InstallWhen : uint8_t {
  kAtOnce,   // also under running work, whose next tokens are the new version's
  kDrained,  // when what it runs has ended: no sample mixes versions (delayed parameter update)
};
constexpr auto enum_names(InstallWhen) {
  using enum InstallWhen;
  return name_table<InstallWhen>({{kAtOnce, "at_once"}, {kDrained, "drained"}});
}

// In what pieces the trainer gets a step.
enum class HandOverBy : uint8_t {
  kStep,    // all of it, once every group that it trains is complete
  kGroups,  // each group as it becomes complete: gradients gather meanwhile (streaming)
};
constexpr auto enum_names(HandOverBy) {
  using enum HandOverBy;
  return name_table<HandOverBy>({{kStep, "step"}, {kGroups, "groups"}});
}

// Which worker a sample goes to, among those without faults.
enum class Dispatch : uint8_t {
  kPrefixAffine,  // where most of its siblings are: they share the prompt's KV
  kLeastLoaded,   // where most room is
};
constexpr auto enum_names(Dispatch) {
  using enum Dispatch;
  return name_table<Dispatch>({{kPrefixAffine, "prefix_affine"}, {kLeastLoaded, "least_loaded"}});
}

// Which of the training samples that wait for the same goes first (law 6.9).
enum class DispatchOrder : uint8_t {
  kLaunched,      // the one that was launched first
  kLongestFirst,  // one of each group, to see how long its answers are; then the longest
};
constexpr auto enum_names(DispatchOrder) {
  return name_table<DispatchOrder>(
      {{DispatchOrder::kLaunched, "launched"}, {DispatchOrder::kLongestFirst, "longest_first"}});
}

enum class ModeName : uint8_t { kSync, kTailBatching, kPartial, kAsync, kStreaming };
constexpr auto enum_names(ModeName) {
  using enum ModeName;
  return name_table<ModeName>({{kSync, "sync"},
                               {kTailBatching, "tail_batching"},
                               {kPartial, "partial"},
                               {kAsync, "async"},
                               {kStreaming, "streaming"}});
}

struct Mode {
  // Credit: how many steps' worth of groups may exist beyond the one being trained.
  Ratio ahead{0, 1};
  // Stop rule: a round starts so many times the prompts that it keeps, and a group so many times
  // its members; the first that are complete are kept. 1: all.
  Ratio launch_prompts{1, 1}, launch_members{1, 1};
  TailPolicy tail = TailPolicy::kWait;
  // In versions: that a sample's step starts from, minus the oldest that sampled a token of it.
  int64_t max_staleness = 0;
  OnStale on_stale = OnStale::kMask;
  InstallWhen install = InstallWhen::kAtOnce;
  HandOverBy hand_over = HandOverBy::kStep;
  Dispatch dispatch = Dispatch::kPrefixAffine;
  DispatchOrder dispatch_order = DispatchOrder::kLaunched;

  // How many groups a plain or short round starts that keeps `kept`, and how many members a group
  // of it starts that keeps `kept`.
  int64_t groups_to_launch(int64_t kept) const { return launch_prompts.of(kept); }
  int64_t members_to_launch(int64_t kept) const { return launch_members.of(kept); }
  bool launches_surplus() const { return launch_prompts.numerator > launch_prompts.denominator; }
  // Tokens of more than one version, or of an older one than the step's, can reach the trainer.
  bool off_policy() const { return ahead.numerator > 0 || tail == TailPolicy::kKeep; }

  // Throws UserError with the key: values that contradict each other, and modes that could stand
  // still (law 5.3).
  void validate() const;

  TR_FIELDS(Mode, ahead, launch_prompts, launch_members, tail, max_staleness, on_stale, install,
            hand_over, dispatch, dispatch_order);
};

// The steps of `prompts` x `group_size` under this mode, for a person: a sentence a line.
std::vector<std::string> describe(const Mode& mode, int64_t prompts, int64_t group_size);

// The keys of a mode in the section `scheduler`. `name` is a preset (OptionVisitor::preset): its
// paper's values, which keys of the same layer or of a later one override.
struct ModeOptions {
  ModeName name = ModeName::kSync;
  double ahead = 0;
  double launch_prompts = 1, launch_members = 1;
  TailPolicy tail = TailPolicy::kWait;
  int64_t max_staleness = -1;  // -1: from `ahead`, see mode()
  OnStale on_stale = OnStale::kMask;
  InstallWhen install = InstallWhen::kAtOnce;
  HandOverBy hand_over = HandOverBy::kStep;
  Dispatch dispatch = Dispatch::kPrefixAffine;
  DispatchOrder dispatch_order = DispatchOrder::kLaunched;

  static ModeOptions preset(ModeName name);
  static std::span<const std::string_view> preset_keys(ModeName name);
  Mode mode() const;

  void visit(OptionVisitor& v);
};

}  // namespace tailrace::scheduler
