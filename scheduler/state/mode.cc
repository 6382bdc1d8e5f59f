#include "scheduler/state/mode.h"

#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/config/options.h"

namespace tailrace::scheduler {
namespace {

constexpr double kTolerance = 1.0 / 2000;
// Versions that the default bound allows beyond `ahead`: an episode that is sampled while weights
// change is older than `ahead` by as many versions as it lasts. With 0 a seventh of the tokens of
// slow episodes left the loss, with 2 less than a hundredth (bench/results/reward-2026-11.md).
constexpr int64_t kSpannedVersions = 2;
constexpr int64_t kKeptStaleness = 5;  // of partial rollouts
constexpr double kMaxAhead = 1000, kMaxLaunch = 64;

}  // namespace

Ratio to_ratio(double value) {
  // The simplest ratio: with 0.3333 a person means a third, and credit in whole groups (law 3.1)
  // must not lose a group to the rest of 3333 / 10000.
  for (int64_t denominator = 1; denominator < 1000; ++denominator) {
    const auto numerator = std::llround(value * static_cast<double>(denominator));
    const Ratio ratio{numerator, denominator};
    if (std::abs(to_double(ratio) - value) < kTolerance) return ratio;
  }
  return {std::llround(value * 1000), 1000};
}

double to_double(const Ratio& ratio) {
  return static_cast<double>(ratio.numerator) / static_cast<double>(ratio.denominator);
}

// `on_stale` and the dispatch are nobody's paper: what a person has chosen for them stays.
std::span<const std::string_view> ModeOptions::preset_keys(ModeName) {
  static constexpr std::string_view kKeys[] = {
      "ahead",   "max_staleness", "launch_prompts_ratio", "launch_members_ratio", "tail",
      "install", "hand_over"};
  return kKeys;
}

ModeOptions ModeOptions::preset(ModeName name) {
  ModeOptions o;
  o.name = name;
  switch (name) {
    case ModeName::kSync:
      break;
    case ModeName::kTailBatching:
      // RollPacker's eta_P = eta_R = 1.25 (arXiv 2509.21009).
      o.launch_prompts = o.launch_members = 1.25;
      o.tail = TailPolicy::kDiscard;
      break;
    case ModeName::kPartial:
      o.launch_prompts = 2;
      o.tail = TailPolicy::kKeep;
      break;
    case ModeName::kAsync:
      o.ahead = 1;
      break;
    case ModeName::kStreaming:
      o.ahead = 1;
      o.install = InstallWhen::kDrained;
      o.hand_over = HandOverBy::kGroups;
      break;
  }
  return o;
}

void ModeOptions::visit(OptionVisitor& v) {
  const Idle never_stale =
      idle_if(!mode().off_policy(), "no sample is older than the weights that its step starts from",
              {"mode", "ahead", "tail"});
  v.preset("mode", *this, name,
           {.help = "sync, tail_batching (RollPacker), partial (APRIL), async (AReaL, ROLL "
                    "Flash) or streaming (AsyncFlow), each with its paper's values; the other keys "
                    "override them"});
  v.field("ahead", ahead,
          {.help = "how many steps' worth of groups may exist beyond the step that is trained; a "
                   "fraction is taken as the simplest ratio within 0.0005",
           .min = 0,
           .max = kMaxAhead});
  v.field(
      "max_staleness", max_staleness,
      {.help = "largest age that is allowed: versions from the oldest that sampled a token of a "
               "group to the one that its step starts from; -1: ahead, rounded up; 2 more if it is "
               "not 0, unless on_stale = wait; 5 more with tail = keep",
       .min = -1,
       .max = kMaxCount,
       .idle = never_stale});
  v.field("on_stale", on_stale,
          {.help = "what is done about older groups: mask: old tokens leave the loss; drop: the "
                   "group is replaced; wait: a step waits so that none can arise",
           .idle = never_stale});
  v.field("launch_prompts_ratio", launch_prompts,
          {.help = "a round starts so many times the prompts that it keeps, and keeps the first "
                   "that are complete",
           .min = 1,
           .max = kMaxLaunch});
  v.field("launch_members_ratio", launch_members,
          {.help = "a group starts so many times the samples that it keeps, and keeps the first",
           .min = 1,
           .max = kMaxLaunch});
  v.field(
      "tail", tail,
      {.help = "what becomes of prompts that still run when a round has enough: wait: there are "
               "none; discard: they are sampled again in a long round; keep: they run on under "
               "new weights, for the next step"});
  v.field("install", install,
          {.help = "when a worker takes new weights: at_once, under what it samples; drained, when "
                   "that has ended (no sample mixes versions)",
           .idle = never_stale});
  v.field("hand_over", hand_over,
          {.help = "what the trainer gets: step: a whole step at once; groups: each group as it is "
                   "complete, so that it computes gradients while the others are sampled (one "
                   "update a step, advantages within a group)"});
  v.field("dispatch", dispatch,
          {.help = "a sample goes to the worker that has its siblings (prefix_affine), or most "
                   "room (least_loaded)",
           .resume = Resume::kMayChange});
  v.field("dispatch_order", dispatch_order,
          {.help = "which of the samples that wait goes first: launched: the one that was launched "
                   "first; longest_first: one of each prompt, then those whose siblings' answers "
                   "were longest, so that a step does not end with a long one (where more samples "
                   "wait than there are places, and all are kept)",
           .resume = Resume::kMayChange});
}

Mode ModeOptions::mode() const {
  Mode mode{.ahead = to_ratio(ahead),
            .launch_prompts = to_ratio(launch_prompts),
            .launch_members = to_ratio(launch_members),
            .tail = tail,
            .max_staleness = max_staleness,
            .on_stale = on_stale,
            .install = install,
            .hand_over = hand_over,
            .dispatch = dispatch,
            .dispatch_order = dispatch_order};
  if (max_staleness < 0) {
    mode.max_staleness = mode.ahead.rounded_up();
    // A step that waits loses nothing by a tight bound.
    if (mode.ahead.numerator > 0 && on_stale != OnStale::kWait)
      mode.max_staleness += kSpannedVersions;
    if (tail == TailPolicy::kKeep) mode.max_staleness += kKeptStaleness;
  }
  return mode;
}

void Mode::validate() const {
  const bool surplus = launches_surplus();
  if (surplus && tail == TailPolicy::kWait) {
    throw UserError::at("scheduler.launch_prompts_ratio",
                        "is {}, but scheduler.tail is wait: nothing says what becomes of the "
                        "prompts that a round does not keep.\n       Try scheduler.tail=discard "
                        "(sample them again later) or keep (they run on).",
                        to_double(launch_prompts));
  }
  if (!surplus && tail != TailPolicy::kWait) {
    throw UserError::at("scheduler.tail",
                        "is {}, but scheduler.launch_prompts_ratio is 1: a round keeps every "
                        "prompt that it starts, and has no tail.\n       Try "
                        "scheduler.launch_prompts_ratio={}.",
                        name_of(tail), tail == TailPolicy::kDiscard ? "1.25" : "2");
  }
  if (on_stale == OnStale::kMask && max_staleness < ahead.rounded_up()) {
    throw UserError::at("scheduler.max_staleness",
                        "is {} with scheduler.on_stale = mask, but what runs ahead is {} versions "
                        "old when its turn comes: all of it would leave the loss.\n       Try "
                        "scheduler.max_staleness={}.",
                        max_staleness, ahead.rounded_up(), ahead.rounded_up());
  }
  if (on_stale == OnStale::kDrop && max_staleness == 0 && ahead.numerator > 0) {
    throw UserError::at("scheduler.max_staleness",
                        "is 0 with scheduler.on_stale = drop, but what runs ahead is at least one "
                        "version old when its turn comes: all of it would be thrown away.\n       "
                        "Try scheduler.max_staleness={}, or scheduler.ahead=0.",
                        ahead.rounded_up());
  }
  if (on_stale != OnStale::kWait) return;
  if (hand_over == HandOverBy::kGroups) {
    throw UserError::at("scheduler.on_stale",
                        "is wait with scheduler.hand_over = groups: a step is chosen so that no "
                        "group is left to become too old, which needs all that is complete, and "
                        "here the first groups have gone to the trainer.\n       Try "
                        "scheduler.on_stale=drop, or scheduler.hand_over=step.");
  }
  // Groups ahead have to find a place before they are too old, and those kept beyond as well
  // (law 5.3).
  if (tail == TailPolicy::kKeep && ahead.numerator > 0) {
    throw UserError::at("scheduler.on_stale",
                        "is wait with scheduler.tail = keep and scheduler.ahead = {}: steps would "
                        "wait for groups that have no place, and the run could stand still.\n      "
                        " Try scheduler.on_stale=mask, or scheduler.ahead=0.",
                        to_double(ahead));
  }
  int64_t needed = ahead.rounded_up();
  if (tail == TailPolicy::kKeep)
    needed =
        Ratio{launch_prompts.numerator - launch_prompts.denominator, launch_prompts.denominator}
            .rounded_up();
  if (max_staleness < needed) {
    throw UserError::at("scheduler.max_staleness",
                        "is {} with scheduler.on_stale = wait, but what runs ahead is up to {} "
                        "versions old when its turn comes: the run could stand still.\n       Try "
                        "scheduler.max_staleness={}.",
                        max_staleness, needed, needed);
  }
}

std::vector<std::string> describe(const Mode& mode, int64_t prompts, int64_t group_size) {
  std::vector<std::string> lines;
  const int64_t members = mode.members_to_launch(group_size);
  const std::string samples = members > group_size
                                  ? fmt::format("the first {} of {} samples", group_size, members)
                                  : fmt::format("{} samples", group_size);
  if (!mode.launches_surplus()) {
    lines.push_back(fmt::format("a step trains {} prompts x {}", prompts, samples));
  } else {
    const int64_t launched = mode.groups_to_launch(prompts);
    lines.push_back(
        fmt::format("{} starts {} prompts and trains the first {} that are complete, {}",
                    mode.tail == TailPolicy::kDiscard ? "a short round" : "a round", launched,
                    prompts, samples + " each"));
    lines.push_back(
        mode.tail == TailPolicy::kDiscard
            ? fmt::format("the others are sampled again, in a long round once {} wait", prompts)
            : "the others run on under new weights, and come first in the next step");
  }
  if (mode.ahead.numerator > 0)
    lines.push_back(fmt::format("{} more prompts are sampled ahead of the step that is trained",
                                mode.ahead.of(prompts)));
  if (mode.hand_over == HandOverBy::kGroups)
    lines.push_back("the trainer gets each prompt as its samples are complete");
  if (mode.install == InstallWhen::kDrained)
    lines.push_back("a worker takes new weights when what it samples has ended");
  if (mode.dispatch_order == DispatchOrder::kLongestFirst)
    lines.push_back(
        "one sample of each prompt goes first, then those of the prompts with the longest answers");
  if (!mode.off_policy()) {
    lines.push_back("every token is of the weights that its step starts from");
    return lines;
  }
  switch (mode.on_stale) {
    case OnStale::kMask:
      if (mode.max_staleness == 0) {
        lines.push_back("tokens of older weights leave the loss");
        break;
      }
      lines.push_back(
          fmt::format("tokens more than {} versions old leave the loss", mode.max_staleness));
      break;
    case OnStale::kDrop:
      lines.push_back(
          fmt::format("groups more than {} versions old are replaced", mode.max_staleness));
      break;
    case OnStale::kWait:
      lines.push_back(
          fmt::format("a step waits for groups that would become more than {} versions "
                      "old",
                      mode.max_staleness));
      break;
  }
  return lines;
}

}  // namespace tailrace::scheduler
