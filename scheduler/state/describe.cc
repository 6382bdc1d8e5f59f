#include "scheduler/state/describe.h"

#include <fmt/format.h>

#include "core/base/time.h"

namespace tailrace::scheduler {
namespace {

std::string lane_mark(Lane lane) { return lane == Lane::kEval ? "eval " : ""; }
std::string reward_text(const std::optional<double>& reward) {
  return reward ? fmt::format("{}", *reward) : "none";
}
// A trainer without a checkpoint has version -1 and no digest.
std::string version_text(int64_t version, const Digest& digest) {
  return digest.empty() ? fmt::format("v{}", version) : fmt::format("v{} {}", version, digest);
}
std::string because(const std::string& reason) { return reason.empty() ? "" : ": " + reason; }

// Sessions and incarnations are left out: they differ from run to run, and nothing is decided on
// what number they are.
struct DescribeEvent {
  // For a message that has no words of its own.
  template <class Message>
  std::string operator()(const From<Message>& e) const {
    return fmt::format("{}: {}", e.worker, wire::describe(static_cast<const Message&>(e)));
  }
  std::string operator()(const WorkerUp& e) const {
    return fmt::format("worker_up {} {} slots={}{}{}{}", e.worker, name_of(e.role), e.slots,
                       e.site.pool.empty() ? "" : " pool=" + e.site.pool,
                       e.rank == 0 ? "" : fmt::format(" rank={}", e.rank),
                       e.joined ? " joined" : "");
  }
  std::string operator()(const WorkerDown& e) const {
    return "worker_down " + e.worker + (e.silent ? " silent" : "");
  }
  std::string operator()(const WorkerFailed& e) const {
    return fmt::format("worker_failed {}{}", e.worker, because(e.reason));
  }
  std::string operator()(const Stalled& e) const {
    return (e.stalled ? "stands_still " : "moves_again ") + e.worker;
  }
  std::string operator()(const TurnsStored& e) const {
    return fmt::format("turns_stored {} {}{} turns={} versions={}..{}", e.worker, lane_mark(e.lane),
                       to_string(e.lease), e.turns, e.min_version, e.max_version);
  }
  std::string operator()(const Tick&) const { return "tick"; }
  std::string operator()(const AttemptResult& e) const {
    return fmt::format("result {} {}{} {} versions={}..{} reward={}{}", e.worker, lane_mark(e.lane),
                       to_string(e.lease), name_of(e.outcome), e.min_version, e.max_version,
                       reward_text(e.reward), because(e.reason));
  }
  std::string operator()(const Reward& e) const {
    return fmt::format("reward {} {}{} verify={} reward={}{}{}", e.worker, lane_mark(e.lane),
                       to_string(e.lease), e.verify_attempt, reward_text(e.reward),
                       e.task_broken ? " task_broken" : "", because(e.reason));
  }
  std::string operator()(const Staged& e) const {
    return fmt::format("staged {} v{}", e.worker, e.version);
  }
  std::string operator()(const Installed& e) const {
    return fmt::format("installed {} v{}", e.worker, e.version);
  }
  std::string operator()(const InstallFailed& e) const {
    return fmt::format("install_failed {} v{}{}{}", e.worker, e.version,
                       e.cause == InstallCause::kOther ? "" : fmt::format(" {}", name_of(e.cause)),
                       because(e.reason));
  }
  std::string operator()(const StageProgress& e) const {
    return fmt::format("stage_progress {} v{} {}/{}", e.worker, e.version, e.bytes, e.total);
  }
  std::string operator()(const TrainingStage& e) const {
    return fmt::format("training_stage {} {}/{} {}", e.worker, e.number, e.of, e.name);
  }
  std::string operator()(const RolledBack& e) const {
    return fmt::format("rolled_back {} {}", e.worker, version_text(e.version, e.digest));
  }
  std::string operator()(const TrainerWants& e) const {
    return fmt::format("trainer_wants {} step={}", e.worker, e.step);
  }
  std::string operator()(const Published& e) const {
    return fmt::format("published {} {}", e.worker, version_text(e.version, e.digest));
  }
  std::string operator()(const Durable& e) const {
    return fmt::format("durable {} v{}{}", e.worker, e.version,
                       e.oldest < e.version ? fmt::format(", back to v{}", e.oldest) : "");
  }
  std::string operator()(const EvalReported& e) const {
    return fmt::format("eval_reported v{}", e.version);
  }
  std::string operator()(const Restarted&) const { return "restarted"; }
  std::string operator()(const StopRequested&) const { return "stop_requested"; }
  std::string operator()(const BodiesLost& e) const {
    return fmt::format("bodies_lost {}", e.bodies.size());
  }
};

struct DescribeAction {
  template <class Message>
  std::string operator()(const To<Message>& a) const {
    return fmt::format("to {}: {}", a.worker, wire::describe(static_cast<const Message&>(a)));
  }
  std::string operator()(const Hold& a) const {
    return fmt::format("hold {} leases={}", a.worker, a.leases.size());
  }
  std::string operator()(const Grant& a) const {
    return fmt::format(
        "grant {} {}{} v{}{}", a.worker, lane_mark(a.lane), to_string(a.lease), a.version,
        a.prefix
            ? fmt::format(" from turn {} of attempt {}", a.prefix->turns, a.prefix->lease.attempt)
            : "");
  }
  std::string operator()(const Abort& a) const {
    return fmt::format("abort {} {}{}", a.worker, lane_mark(a.lane), to_string(a.lease));
  }
  std::string operator()(const Verify& a) const {
    return fmt::format("verify {} {}{} verify={}", a.worker, lane_mark(a.lane), to_string(a.lease),
                       a.verify_attempt);
  }
  std::string operator()(const Stage& a) const {
    return fmt::format("stage {} {}", a.worker, version_text(a.version, a.digest));
  }
  std::string operator()(const Switch& a) const {
    return fmt::format("switch {} v{}", a.worker, a.version);
  }
  std::string operator()(const HandOver& a) const {
    std::string text =
        fmt::format("hand_over {} step={} members={}", a.worker, a.step, a.items.size());
    if (a.first > 0) text += fmt::format(" after={}", a.first);
    if (a.copy) text += " copy";
    return text + (a.last ? "" : " more");
  }
  std::string operator()(const Save& a) const {
    return fmt::format("save {} v{}", a.worker, a.version);
  }
  std::string operator()(const Release& a) const {
    return fmt::format("release {} bodies", a.bodies.size());
  }
  std::string operator()(const TaskDone& a) const {
    return fmt::format("done {} {} step={}", to_string(a.task), name_of(a.end), a.step);
  }
  std::string operator()(const TaskWithdrawn& a) const { return "withdrawn " + to_string(a.task); }
  std::string operator()(const EvalDone& a) const {
    return fmt::format("eval_done v{} members={}", a.version, a.items.size());
  }
  std::string operator()(const Forked& a) const { return fmt::format("forked from=v{}", a.from); }
  std::string operator()(const RunDone& a) const {
    // In the order of RunEnd::Reason.
    constexpr std::string_view kReasons[] = {"steps", "data end", "stopped"};
    return fmt::format("run_done {} unreached={}", kReasons[static_cast<size_t>(a.end.reason)],
                       a.end.unreached);
  }
  std::string operator()(const Quarantine& a) const {
    if (a.until == Time{}) return fmt::format("quarantine {} is over", a.worker);
    return fmt::format("quarantine {} until {:.3f}{}", a.worker, seconds_of(a.until),
                       because(a.reason));
  }
  std::string operator()(const FormRanks& a) const {
    return fmt::format("form_ranks {} rank={}/{}", a.worker, a.rank, a.size);
  }
  std::string operator()(const ReleaseWeights& a) const {
    return fmt::format("release_weights {} below=v{} fetched_from=v{}{}", a.worker, a.below,
                       a.fetched_from,
                       a.evaluated < 0 ? "" : fmt::format(" evaluated=v{}", a.evaluated));
  }
  std::string operator()(const TaskBroken& a) const {
    return fmt::format("task_broken {}{} row={}{}", lane_mark(a.lane), to_string(a.task), a.row,
                       because(a.reason));
  }
  std::string operator()(const Halt& a) const { return "halt" + because(a.reason); }
};

}  // namespace

std::string describe(const Event& event) { return std::visit(DescribeEvent{}, event); }
std::string describe(const Action& action) { return std::visit(DescribeAction{}, action); }

}  // namespace tailrace::scheduler
