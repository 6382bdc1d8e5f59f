// One line for each event and action.
#include <fmt/format.h>

#include "scheduler/state/action.h"
#include "scheduler/state/event.h"

namespace tailrace::scheduler {
namespace {

std::string lane_name(Lane lane) { return lane == Lane::kEval ? "eval " : ""; }
std::string reward_name(const std::optional<double>& reward) {
  return reward ? fmt::format("{}", *reward) : "none";
}

struct DescribeEvent {
  std::string operator()(const WorkerUp& e) const {
    constexpr std::string_view kRoles[] = {"rollout", "reward", "trainer"};
    return fmt::format("worker_up {} {} slots={}", e.worker, kRoles[static_cast<size_t>(e.role)],
                       e.slots);
  }
  std::string operator()(const WorkerDown& e) const { return "worker_down " + e.worker; }
  std::string operator()(const Tick&) const { return "tick"; }
  std::string operator()(const AttemptResult& e) const {
    return fmt::format("result {} {}{} {} versions={}..{} reward={}", e.worker, lane_name(e.lane),
                       to_string(e.lease), tailrace::name(e.outcome), e.min_version, e.max_version,
                       reward_name(e.reward));
  }
  std::string operator()(const Reward& e) const {
    return fmt::format("reward {} {}{} verify={} reward={}", e.worker, lane_name(e.lane),
                       to_string(e.lease), e.verify_attempt, reward_name(e.reward));
  }
  std::string operator()(const Installed& e) const {
    return fmt::format("installed {} v{}", e.worker, e.version);
  }
  std::string operator()(const TrainerWants& e) const {
    return fmt::format("trainer_wants step={}", e.step);
  }
  std::string operator()(const Published& e) const {
    return fmt::format("published v{} {}", e.version, e.digest);
  }
  std::string operator()(const Durable& e) const { return fmt::format("durable v{}", e.version); }
  std::string operator()(const TrainerLost&) const { return "trainer_lost"; }
  std::string operator()(const RolledBack& e) const {
    return fmt::format("rolled_back v{} {}", e.version, e.digest);
  }
  std::string operator()(const Restarted&) const { return "restarted"; }
  std::string operator()(const InstallFailed& e) const {
    return fmt::format("install_failed {} v{}: {}", e.worker, e.version, e.reason);
  }
  std::string operator()(const BodiesLost& e) const {
    return fmt::format("bodies_lost {}", e.bodies.size());
  }
  std::string operator()(const StopRequested&) const { return "stop_requested"; }
};

struct DescribeAction {
  std::string operator()(const Grant& a) const {
    return fmt::format("grant {} {}{} v{}", a.worker, lane_name(a.lane), to_string(a.lease),
                       a.version);
  }
  std::string operator()(const Abort& a) const {
    return fmt::format("abort {} {}{}", a.worker, lane_name(a.lane), to_string(a.lease));
  }
  std::string operator()(const Verify& a) const {
    return fmt::format("verify {} {}{} verify={}", a.worker, lane_name(a.lane), to_string(a.lease),
                       a.verify_attempt);
  }
  std::string operator()(const Install& a) const {
    return fmt::format("install {} v{} {}", a.worker, a.version, a.digest);
  }
  std::string operator()(const HandOver& a) const {
    return fmt::format("hand_over step={} members={}", a.step, a.items.size());
  }
  std::string operator()(const Release& a) const {
    return fmt::format("release {} bodies", a.bodies.size());
  }
  std::string operator()(const TaskDone& a) const {
    return fmt::format("done {} {} step={}", to_string(a.task), name(a.end), a.step);
  }
  std::string operator()(const TaskWithdrawn& a) const { return "withdrawn " + to_string(a.task); }
  std::string operator()(const EvalDone& a) const {
    return fmt::format("eval_done v{} members={}", a.version, a.items.size());
  }
  std::string operator()(const RunDone& a) const {
    constexpr std::string_view kReasons[] = {"steps", "data end", "stopped"};
    return fmt::format("run_done {} unreached={}", kReasons[static_cast<size_t>(a.end.reason)],
                       a.end.unreached);
  }
  std::string operator()(const Halt& a) const { return "halt: " + a.reason; }
};

}  // namespace

std::string describe(const Event& event) { return std::visit(DescribeEvent{}, event); }
std::string describe(const Action& action) { return std::visit(DescribeAction{}, action); }

}  // namespace tailrace::scheduler
