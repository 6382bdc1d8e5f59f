#include "core/wire/message.h"

#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "core/base/options.h"

namespace tailrace::wire {
namespace {

constexpr size_t kMaxSiteName = 64;

std::string short_name(const LeaseId& id) {
  const MemberId& m = id.member;
  return fmt::format("p{}/d{}/e{}/q{}/l{}/m{}#{}", m.policy, m.domain, m.epoch, m.prompt, m.launch,
                     m.member, id.attempt);
}

std::string_view lane_mark(Lane lane) { return lane == Lane::kEval ? " eval" : ""; }

struct Describe {
  std::string operator()(const Hello& m) const {
    return fmt::format("Hello {} {} pid={} slots={}", name_of(m.role), m.worker, m.pid, m.slots);
  }
  std::string operator()(const Heartbeat&) const { return "Heartbeat"; }
  std::string operator()(const TrajectoryResult& m) const {
    return fmt::format("TrajectoryResult bytes={}{}", m.body.size(), m.goes_on ? " goes on" : "");
  }
  std::string operator()(const Verdict& m) const {
    const std::string result =
        m.reward ? fmt::format("reward={}", *m.reward)
                 : fmt::format("{}: {}", m.task_broken ? "task broken" : "failed", m.failure);
    return fmt::format("Verdict {}{} {}", short_name(m.lease), lane_mark(m.lane), result);
  }
  std::string operator()(const Staged& m) const {
    return fmt::format("Staged policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const Installed& m) const {
    return fmt::format("Installed policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const InstallFailed& m) const {
    return fmt::format("InstallFailed policy={} version={} {}: {}", m.policy, m.version,
                       name_of(m.cause), m.reason);
  }
  std::string operator()(const StageProgress& m) const {
    return fmt::format("StageProgress policy={} version={} {}/{}", m.policy, m.version, m.bytes,
                       m.total);
  }
  std::string operator()(const ReleaseWeights& m) const {
    return fmt::format("ReleaseWeights policy={} below={} fetched_from={} evaluated={}", m.policy,
                       m.below, m.fetched_from, m.evaluated);
  }
  std::string operator()(const TrainerReady& m) const {
    return fmt::format("TrainerReady policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const TrainerWants& m) const {
    return fmt::format("TrainerWants policy={} step={}", m.policy, m.step);
  }
  std::string operator()(const Published& m) const {
    return fmt::format("Published policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const Durable& m) const {
    return fmt::format("Durable policy={} version={} oldest={} {}", m.policy, m.version, m.oldest,
                       m.path);
  }
  std::string operator()(const Progress& m) const {
    return fmt::format("Progress {} {}/{}", m.phase, m.done, m.total);
  }
  std::string operator()(const WorkerFailed& m) const {
    return fmt::format("WorkerFailed: {}", m.reason);
  }
  std::string operator()(const Fetch& m) const {
    return fmt::format("Fetch {} bodies={} offset={} max_bytes={}", m.request, m.bodies.size(),
                       m.offset, m.max_bytes);
  }
  std::string operator()(const Hold& m) const {
    return fmt::format("Hold leases={}", m.leases.size());
  }
  std::string operator()(const Welcome& m) const {
    return fmt::format("Welcome session={:x}", m.session);
  }
  std::string operator()(const Grant& m) const {
    return fmt::format("Grant {}{} version={}{}", short_name(m.lease), lane_mark(m.lane), m.version,
                       m.prefix.empty() ? "" : fmt::format(" prefix={}", m.prefix.size()));
  }
  std::string operator()(const Abort& m) const {
    return fmt::format("Abort {}{}", short_name(m.lease), lane_mark(m.lane));
  }
  std::string operator()(const Verify& m) const {
    return fmt::format("Verify {}{} by {}", short_name(m.lease), lane_mark(m.lane), m.verifier);
  }
  std::string operator()(const Stage& m) const {
    return fmt::format("Stage policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const Switch& m) const {
    return fmt::format("Switch policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const Batch& m) const {
    return fmt::format("Batch policy={} step={} first={} items={}{}", m.policy, m.step, m.first,
                       m.items.size(), m.last ? "" : " more");
  }
  std::string operator()(const Payload& m) const {
    return fmt::format("Payload {} bytes={}", m.request, m.bytes.size());
  }
  std::string operator()(const Save& m) const {
    return fmt::format("Save policy={} version={}", m.policy, m.version);
  }
  std::string operator()(const FormRanks& m) const {
    return fmt::format("FormRanks policy={} {:x} rank={}/{}", m.policy, m.formation, m.rank,
                       m.size);
  }
  std::string operator()(const Shutdown& m) const { return fmt::format("Shutdown: {}", m.reason); }
};

}  // namespace

bool is_site_name(std::string_view name) {
  return is_item_name(name) && name.size() <= kMaxSiteName;
}

bool is_host_name(std::string_view name) {
  std::string dashed(name.substr(0, kMaxSiteName + 1));
  std::ranges::replace(dashed, '.', '-');
  return !name.starts_with('.') && is_site_name(dashed);
}

std::string describe(const Message& message) { return std::visit(Describe{}, message); }

bool is_said_by(Role role, const Message& message) {
  const auto is_any = [&]<class... Types>(std::type_identity<Types>...) {
    return (std::holds_alternative<Types>(message) || ...);
  };
  using std::type_identity;
  if (is_any(type_identity<Hello>{}, type_identity<Heartbeat>{}, type_identity<WorkerFailed>{}))
    return true;
  switch (role) {
    case Role::kRollout:
      return is_any(type_identity<TrajectoryResult>{}, type_identity<Staged>{},
                    type_identity<StageProgress>{}, type_identity<Installed>{},
                    type_identity<InstallFailed>{});
    case Role::kReward:
      return is_any(type_identity<Verdict>{});
    case Role::kTrainer:
      return is_any(type_identity<TrainerReady>{}, type_identity<TrainerWants>{},
                    type_identity<Published>{}, type_identity<Durable>{}, type_identity<Progress>{},
                    type_identity<Fetch>{});
  }
  return false;
}

bool is_from_worker(const Message& message) {
  return is_said_by(Role::kRollout, message) || is_said_by(Role::kReward, message) ||
         is_said_by(Role::kTrainer, message);
}

}  // namespace tailrace::wire
