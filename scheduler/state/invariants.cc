#include "scheduler/state/invariants.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "scheduler/state/credit.h"
#include "scheduler/state/queues.h"
#include "scheduler/state/touch.h"

namespace tailrace::scheduler {
namespace {

using Found = std::optional<std::string>;

std::string print(const WorkId& work) {
  return (work.lane == Lane::kEval ? "eval " : "") + to_string(work.member);
}

// Every lease, waiting entry and worker load has its member, and the other way round.
Found check_members(const State& state, Lane lane, const TaskId& id, const Task& task,
                    bool active) {
  for (int32_t i = 0; i < std::ssize(task.members); ++i) {
    const Member& member = task.members[static_cast<size_t>(i)];
    const WorkId work{lane, member_id(id, task.launch, i)};
    const Lease* lease = state.leases.find(work);
    const bool leased = lease != nullptr;
    // Members keep their phases when their task leaves the running place: a batch that is given
    // again needs to know who was rewarded. Only an active task may have leases and entries in
    // lists.
    const bool generating = active && member.phase == Phase::kRunning;
    const bool verifying = active && member.phase == Phase::kVerifying;
    if (leased != (generating || verifying))
      return fmt::format("{}: lease and phase disagree", print(work));
    if (leased &&
        ((lease->kind == LeaseKind::kVerify) != verifying || lease->attempt != member.attempt ||
         (verifying && lease->verify_attempt != member.verify_attempt))) {
      return fmt::format("{}: the lease is of another attempt", print(work));
    }
    // Under the rank that its samples give it now: an entry under an older rank would never be
    // found again by drop_waiting() (law 15.3).
    const auto queue = state.waiting.find(need_of(state, lane, id, task));
    const bool waits = queue != state.waiting.end() &&
                       queue->second.contains({rank_of(state, lane, task, i), work});
    if (waits != (active && member.phase == Phase::kWaiting)) {
      return fmt::format("{}: waiting list and phase disagree", print(work));
    }
    if (state.to_verify.contains(work) != (active && member.phase == Phase::kToVerify)) {
      return fmt::format("{}: verification list and phase disagree", print(work));
    }
    for (const auto& [worker, until] : member.rests) {
      if (until > state.now && !state.rest_ends.contains(until))
        return fmt::format("{}: nobody knows when its rest ends", print(work));
    }
    const bool to_sample = member.phase == Phase::kWaiting || member.phase == Phase::kRunning;
    if (const auto& prefix = member.prefix;
        prefix && (!active || !to_sample || prefix->attempt > member.last_attempt ||
                   prefix->min_version < task.weight_floor ||
                   (member.phase == Phase::kRunning && lease->turns > prefix->turns))) {
      return fmt::format("{}: turns are kept that nobody goes on from", print(work));
    }
    if (member.reward.has_value() != (member.phase == Phase::kRewarded)) {
      return fmt::format("{}: reward and phase disagree", print(work));
    }
    if (member.judged && to_sample)
      return fmt::format("{}: judged, and there is no sample", print(work));
    // The order of Phase counts here: from kToVerify to kRewarded are those that have a result.
    if (active && member.phase >= Phase::kToVerify && member.phase <= Phase::kRewarded &&
        !member.has_body) {
      return fmt::format("{}: a result without a body", print(work));
    }
    if (member.has_body && task.longest < 0)
      return fmt::format("{}: a sample, and its task knows no length", print(work));
    if (member.attempt > member.last_attempt || member.verify_attempt < 0)
      return fmt::format("{}: an attempt beyond its last", print(work));
    // Law 15.5. Attempts up to `task.attempts` were given before the members of this launch were
    // made anew, and a member that was made anew has no grant yet.
    if (member.attempt > task.attempts && member.phase != Phase::kFailed &&
        member.granted_version < task.weight_floor) {
      return fmt::format("{}: granted at version {}, its launch needs {}", print(work),
                         member.granted_version, task.weight_floor);
    }
    if (member.has_body && member.min_version < task.weight_floor) {
      return fmt::format("{}: tokens of version {}, its launch needs {}", print(work),
                         member.min_version, task.weight_floor);
    }
  }
  return {};
}

// How often each task is in the lists that are sorted by arrival: counted once, and not searched
// for each task.
struct Listed {
  std::map<TaskId, int64_t> ready, parked;  // of its dataset
  std::map<TaskId, int64_t> batches, open_batches;
};

Listed list_tasks(const Policy& policy) {
  Listed listed;
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    for (const TaskId& id : dataset.ready) listed.ready[id] += id.dataset == i;
    for (const TaskId& id : dataset.parked) listed.parked[id] += id.dataset == i;
  }
  for (const auto& [step, batch] : policy.batches) {
    for (const TaskId& id : batch.tasks) {
      ++listed.batches[id];
      if (step > policy.frontier) ++listed.open_batches[id];
    }
  }
  return listed;
}

Found check_places(const State& state, const Policy& policy, const Listed& listed, const TaskId& id,
                   const Task& task) {
  const Dataset& dataset = policy.datasets[static_cast<size_t>(id.dataset)];
  const auto times = [&](const std::map<TaskId, int64_t>& list) {
    const auto found = list.find(id);
    return found == list.end() ? 0 : found->second;
  };
  const int64_t in_ready = times(listed.ready), in_parked = times(listed.parked);
  const bool in_queue = dataset.queued.contains(id), in_long = dataset.long_queue.contains(id);
  const int64_t in_batches = times(listed.batches), in_open_batches = times(listed.open_batches);
  const bool trained = task.place == Place::kDone && task.end == TaskEnd::kTrained;
  const bool held = task.place == Place::kHandedOver;
  if (in_ready != (task.place == Place::kReady))
    return to_string(id) + ": ready queue and place disagree";
  if (in_queue != (task.place == Place::kQueued))
    return to_string(id) + ": launch queue and place disagree";
  if (in_long != (task.place == Place::kLong))
    return to_string(id) + ": long queue and place disagree";
  if (in_parked != (task.place == Place::kParked))
    return to_string(id) + ": parked groups and place disagree";
  if (dataset.carried.contains(id) != (task.place == Place::kRunning && task.round == 0))
    return to_string(id) + ": runs without a round, and is not carried, or the reverse";
  if (in_batches != (trained || held)) return to_string(id) + ": batches and place disagree";
  if (held && !policy.batches.contains(task.step))
    return to_string(id) + ": handed over in another step's batch";
  // Batches up to the frontier were published, be it before a rollback: what is in them is done,
  // and holds no credit (law 3.3).
  if (in_open_batches != held)
    return to_string(id) + ": handed over, but its batch is published, or the reverse";
  if ((in_queue || in_long) && !task.members.empty())
    return to_string(id) + ": queued with members";
  if ((in_queue || in_long || task.place == Place::kRunning) && is_broken(state, Lane::kTrain, id))
    return to_string(id) + ": to be sampled, and its row is broken";
  if (task.place == Place::kReady || in_parked > 0 || held || trained) {
    const auto rewarded =
        std::count_if(task.members.begin(), task.members.end(),
                      [](const Member& member) { return member.reward && member.has_body; });
    if (rewarded < state.config.members_needed()) return to_string(id) + ": too few samples";
    if (rewarded > state.config.group_size) return to_string(id) + ": more samples than are kept";
  }
  const Mode& mode = state.config.mode;
  // Law 4.2: at a publication `drop` ends what is too old for the next step. During a replay
  // nothing is dropped, because the versions that are published then are old ones.
  const bool waits_for_a_step =
      task.place == Place::kRunning || task.place == Place::kReady || in_parked > 0;
  if (const auto oldest = oldest_version(task);
      waits_for_a_step && oldest && mode.on_stale == OnStale::kDrop && at_frontier(policy) &&
      policy.frontier - *oldest > mode.max_staleness) {
    return fmt::format("{}: tokens of version {} are too old for version {}", to_string(id),
                       *oldest, policy.frontier);
  }
  return {};
}

Found check_rounds(const State& state, PolicyId policy_id, const Policy& policy) {
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    std::map<RoundId, int64_t> running;
    for (const auto& [id, task] : policy.tasks) {
      if (id.dataset == i && task.place == Place::kRunning && task.round != 0)
        ++running[task.round];
    }
    for (const Round& round : policy.rounds) {
      const Share& share = round.shares[static_cast<size_t>(i)];
      const auto found = running.extract(round.id);
      const int64_t counted = found.empty() ? 0 : found.mapped();
      if (share.running != counted) {
        return fmt::format("policy {} dataset {}: {} groups run in round {}, it counts {}",
                           policy_id, i, counted, round.id, share.running);
      }
      // The last of these keeps a run alive: a share that neither runs nor holds what it keeps
      // would wait for groups that nobody starts.
      if (share.accepted < 0 || share.accepted > share.target ||
          share.target > share.launch_target || share.running + share.accepted < share.target ||
          (share.accepted == share.target && share.running > 0)) {
        return fmt::format(
            "policy {} dataset {}: share accepted {} running {} target {} launch target {}",
            policy_id, i, share.accepted, share.running, share.target, share.launch_target);
      }
    }
    if (!running.empty()) {
      return fmt::format("policy {} dataset {}: {} groups run in round {}, which is closed",
                         policy_id, i, running.begin()->second, running.begin()->first);
    }
    // Counted from the tasks, not with credit_held(): that is what opened the rounds.
    int64_t held = 0;
    for (const auto& [id, task] : policy.tasks) {
      held += id.dataset == i && (task.place == Place::kReady || task.place == Place::kHandedOver);
    }
    for (const Round& round : policy.rounds) {
      held += round.shares[static_cast<size_t>(i)].target -
              round.shares[static_cast<size_t>(i)].accepted;
    }
    const int64_t allowed = credit(state.config, i);
    if (held > allowed) {
      return fmt::format("policy {} dataset {}: credit law broken: {} held, {} allowed", policy_id,
                         i, held, allowed);
    }
  }
  return {};
}

// Law 6.10.
Found check_broken(const State& state, PolicyId policy_id, const Policy& policy) {
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const DatasetConfig& config = state.config.datasets[static_cast<size_t>(i)];
    const Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    const BrokenTasks& broken = dataset.broken;
    if (!broken.rows.empty() &&
        (*broken.rows.begin() < 0 || *broken.rows.rbegin() >= config.prompts_per_epoch))
      return fmt::format("policy {} dataset {}: a broken row that it has not", policy_id, i);
    if (std::ssize(broken.rows) + std::ssize(broken.held_out) > broken.found)
      return fmt::format("policy {} dataset {}: more broken tasks than were found", policy_id, i);
    const bool ended = config.epochs > 0 && dataset.epoch >= config.epochs;
    if (!ended && !all_broken(config, dataset) && broken.rows.contains(dataset.next))
      return fmt::format("policy {} dataset {}: the cursor is at a broken row", policy_id, i);
  }
  if (!policy.evaluation) return {};
  for (const auto& [id, task] : policy.evaluation->tasks) {
    if (is_broken(state, Lane::kEval, id) &&
        !std::ranges::all_of(task.members,
                             [](const Member& m) { return m.phase == Phase::kFailed; }))
      return to_string(id) + ": evaluated, and it is broken";
  }
  return {};
}

// Every prompt that the cursor has passed is live or has ended once.
Found check_conservation(const State& state, PolicyId policy_id, const Policy& policy) {
  for (int32_t i = 0; i < std::ssize(policy.datasets); ++i) {
    const Dataset& dataset = policy.datasets[static_cast<size_t>(i)];
    const int64_t per_epoch = state.config.datasets[static_cast<size_t>(i)].prompts_per_epoch;
    // Ends are counted for the whole run, tasks are let go with the oldest checkpoint: two numbers.
    const int64_t launched = dataset.epoch * per_epoch + dataset.next;
    const int64_t ended = std::accumulate(dataset.ended.begin(), dataset.ended.end(), int64_t{0});
    int64_t live = 0, done = 0;
    for (const auto& [id, task] : policy.tasks) {
      if (id.dataset == i) ++(task.place == Place::kDone ? done : live);
    }
    if (launched != live + ended || done > ended) {
      return fmt::format(
          "policy {} dataset {}: {} prompts launched, {} live, {} ended ({} still kept)", policy_id,
          i, launched, live, ended, done);
    }
  }
  return {};
}

// Law 8.7.
Found check_ranks(const State& state, PolicyId policy_id, const Policy& policy) {
  for (const auto& [rank, id] : policy.ranks) {
    const auto worker = state.workers.find(id);
    if (rank < 1 || rank >= state.config.trainer_ranks || worker == state.workers.end() ||
        worker->second.role != Role::kTrainer || worker->second.policy != policy_id ||
        worker->second.rank != rank || !worker->second.connected)
      return fmt::format("policy {}: {} is not its rank {}", policy_id, id, rank);
  }
  if (policy.formation != 0 && (std::ssize(policy.ranks) != state.config.trainer_ranks - 1 ||
                                trainer_of(state, policy) == nullptr))
    return fmt::format("policy {}: ranks are to meet that are not there", policy_id);
  if (policy.told > 0 && state.config.trainer_ranks > 1 && policy.formation == 0)
    return fmt::format("policy {}: a batch is with ranks that have not met", policy_id);
  return {};
}

Found check_versions(PolicyId policy_id, const Policy& policy) {
  if (policy.published > policy.frontier || policy.durable > policy.published) {
    return fmt::format("policy {}: durable {}, published {}, frontier {}", policy_id,
                       policy.durable, policy.published, policy.frontier);
  }
  if (policy.frontier < 0) return {};
  // A trainer may come back at any version from the oldest checkpoint on (law 9.2), and its digest
  // decides between a replay and a fork: each of these versions has to be known.
  for (int64_t v = policy.lineage.begin()->first; v <= policy.frontier; ++v) {
    if (!policy.lineage.contains(v))
      return fmt::format("policy {}: lineage has no version {}", policy_id, v);
  }
  if (policy.lineage.rbegin()->first != policy.frontier) return "lineage goes beyond the frontier";
  for (const auto& [step, batch] : policy.batches) {
    std::vector<int64_t> datasets(policy.datasets.size());
    for (const TaskId& id : batch.tasks) ++datasets[static_cast<size_t>(id.dataset)];
    if (datasets != batch.datasets) return fmt::format("batch of step {} counts others", step);
  }
  for (const auto& [step, batch] : policy.batches) {
    // Law 3.8: only the step behind the frontier may have a list that still grows. It counts as
    // handed over once it is whole, and it exists from its first group on.
    const bool handed = policy.handed && step == policy.published + 1;
    if (!batch.whole && (step != policy.frontier + 1 || handed || batch.tasks.empty()))
      return fmt::format("batch of step {} is not whole", step);
  }
  if (const auto batch = policy.batches.find(policy.published + 1);
      policy.told > (batch == policy.batches.end() ? 0 : std::ssize(batch->second.tasks)))
    return fmt::format("policy {}: more groups told than there are", policy_id);
  if (policy.told_items != count_told_items(policy))
    return fmt::format("policy {}: {} items told, counted {}", policy_id, policy.told_items,
                       count_told_items(policy));
  // A replay hands batches over by number, one behind the other (law 9.3).
  int64_t expected = policy.batches.empty() ? 0 : policy.batches.begin()->first;
  for (const auto& [step, batch] : policy.batches) {
    if (step != expected++)
      return fmt::format("policy {}: batch of step {} out of order", policy_id, step);
  }
  if (!policy.batches.empty()) {
    const int64_t first = policy.batches.begin()->first, last = policy.batches.rbegin()->first;
    if (last > policy.frontier + 1)
      return fmt::format("policy {}: batch of step {} too early", policy_id, last);
    // A replay needs every batch from the trainer's version on: it would stop at the one that is
    // missing (law 9.3).
    if (policy.published < policy.frontier &&
        (first > policy.published + 1 || last < policy.frontier)) {
      return fmt::format("policy {}: version {} cannot be trained again from here", policy_id,
                         policy.frontier);
    }
  } else if (policy.published < policy.frontier) {
    return fmt::format("policy {}: no batches to replay", policy_id);
  }
  if (policy.evaluation && !policy.lineage.contains(policy.evaluation->version))
    return fmt::format("policy {}: version {} is evaluated and not known any more", policy_id,
                       policy.evaluation->version);
  if (policy.evaluation && policy.evaluation->version > policy.frontier)
    return fmt::format("policy {}: version {} is evaluated and not there", policy_id,
                       policy.evaluation->version);
  return {};
}

// Law 9.7 and 9.8: what workers have of a version, it has come to; and nobody needs what was let
// go.
Found check_published(const State& state, PolicyId policy_id, const Policy& policy) {
  const auto reached = [&](int64_t version, const Digest& digest, VersionState least) {
    return !on_lineage(policy, version, digest) || policy.lineage.at(version).state >= least;
  };
  if (policy.told_released > policy.released || policy.told_fetched_from > policy.fetched_from)
    return fmt::format("policy {}: more weights are let go than may be", policy_id);
  for (const auto& [id, worker] : state.workers) {
    if (worker.role != Role::kRollout || worker.policy != policy_id) continue;
    if (worker.version >= 0 && worker.version != worker.held)
      return fmt::format("worker {} samples by {} and holds {}", id, worker.version, worker.held);
    if (worker.held >= 0 && worker.held < policy.released)
      return fmt::format("worker {} holds version {}, which is let go", id, worker.held);
    if (!reached(worker.version, worker.digest, VersionState::kCommitted))
      return fmt::format("worker {} samples by version {}, which is not committed", id,
                         worker.version);
    if (!worker.install) continue;
    const Install& install = *worker.install;
    // One of what was evaluated may find it gone: nobody's fault (law 9.6).
    if (install.version < policy.fetched_from && install.version > policy.evaluated)
      return fmt::format("worker {} installs version {}, which is let go", id, install.version);
    // In the order of Install::Phase: a worker stages what was offered, its word makes a version
    // staged, and the order to switch makes it committed (law 9.7).
    constexpr VersionState kLeast[] = {VersionState::kOffered, VersionState::kStaged,
                                       VersionState::kCommitted};
    if (!reached(install.version, install.digest, kLeast[static_cast<size_t>(install.phase)]))
      return fmt::format("worker {} is further than version {}", id, install.version);
    if (is_resting(state, worker)) return fmt::format("worker {} installs while it rests", id);
  }
  if (policy.fetched_from < policy.released)
    return fmt::format("policy {}: payloads below {} stay, and versions below {} do not", policy_id,
                       policy.fetched_from, policy.released);
  if (policy.evaluation && policy.evaluation->version < policy.released)
    return fmt::format("version {} is evaluated, and let go", policy.evaluation->version);
  if (!state.config.keep_sampled) return {};
  if (const auto oldest = oldest_sampled(policy); oldest && *oldest < policy.released)
    return fmt::format("samples name version {}, and those below {} are let go", *oldest,
                       policy.released);
  return {};
}

Found check_workers(const State& state) {
  std::map<WorkerId, int64_t> load;
  for (const auto& [work, lease] : state.leases.in_order()) {
    if (!state.workers.contains(lease.worker)) return print(work) + ": leased to nobody";
    if (find_task(state, work.lane, work.member) == nullptr)
      return print(work) + ": lease without a member";
    ++load[lease.worker];
  }
  // A service would tick for it again and again (law 14.3).
  if (const auto next = next_deadline(state); next && *next <= state.now)
    return "the next deadline has passed already";
  for (const auto& [id, worker] : state.workers) {
    if (worker.leased != load[id] || worker.leased > worker.slots) {
      return fmt::format("worker {}: {} leases, counted {}, {} slots", id, load[id], worker.leased,
                         worker.slots);
    }
  }
  for (const auto& [need, members] : state.waiting) {
    if (members.empty()) return "an empty queue";
    for (const auto& [rank, work] : members) {
      const Task* task = find_task(state, work.lane, work.member);
      if (task == nullptr || need_of(state, work.lane, task_of(work.member), *task) != need)
        return print(work) + ": waits in another queue than its task's";
      if (rank != rank_of(state, work.lane, *task, work.member.member))
        return print(work) + ": waits at another rank than its task's";
    }
  }
  if (!index_is_right(state)) return "the index of workers does not say what they do";
  if (state.held_out != find_held_out(state))
    return "other pools wait for an evaluation than those whose held-out members wait";
  if (state.away != find_away(state)) return "others are away than those that health remembers";
  for (const WorkId& work : state.to_verify) {
    if (find_task(state, work.lane, work.member) == nullptr)
      return print(work) + ": waits without a task";
  }
  return {};
}

// Entries found by hash are those that are there.
Found check_tables(const State& state) {
  if (!state.leases.consistent()) return "leases: entries, members and deadlines disagree";
  if (!state.workers.consistent()) return "workers: map and hash table disagree";
  for (const auto& [pool, breaker] : state.breakers)
    if (!breaker.window.consistent()) return "breaker: attempts and what is counted disagree";
  for (const auto& [id, policy] : state.policies) {
    if (!policy.tasks.consistent() || (policy.evaluation && !policy.evaluation->tasks.consistent()))
      return fmt::format("policy {}: tasks: map and hash table disagree", id);
  }
  return {};
}

}  // namespace

Found find_violation(const State& state) {
  // First: all others search in these.
  if (Found found = check_tables(state)) return found;
  if (Found found = check_workers(state)) return found;
  for (const auto& [policy_id, policy] : state.policies) {
    if (Found found = check_ranks(state, policy_id, policy)) return found;
    if (Found found = check_versions(policy_id, policy)) return found;
    if (Found found = check_published(state, policy_id, policy)) return found;
    const Listed listed = list_tasks(policy);
    for (const auto& [id, task] : policy.tasks) {
      if (Found found = check_places(state, policy, listed, id, task)) return found;
      const bool active = task.place == Place::kRunning;
      if (Found found = check_members(state, Lane::kTrain, id, task, active)) return found;
    }
    if (policy.evaluation) {
      if (policy.evaluation->open != count_open(*policy.evaluation))
        return fmt::format("policy {}: the evaluation of version {} counts others as open",
                           policy_id, policy.evaluation->version);
      for (const auto& [id, task] : policy.evaluation->tasks) {
        if (Found found = check_members(state, Lane::kEval, id, task, evaluating(policy)))
          return found;
      }
    }
    if (Found found = check_rounds(state, policy_id, policy)) return found;
    if (Found found = check_conservation(state, policy_id, policy)) return found;
    if (Found found = check_broken(state, policy_id, policy)) return found;
    // check_places() walks the tasks, so it finds no entry of a list whose task is gone. This walk
    // is the other way round.
    for (const Dataset& dataset : policy.datasets) {
      for (const TaskId& id : dataset.queued) {
        if (!policy.tasks.contains(id)) return to_string(id) + ": queued, but unknown";
      }
      for (const TaskId& id : dataset.long_queue) {
        if (!policy.tasks.contains(id)) return to_string(id) + ": in the long queue, but unknown";
      }
      for (const TaskId& id : dataset.carried) {
        if (!policy.tasks.contains(id)) return to_string(id) + ": carried, but unknown";
      }
      for (const TaskId& id : dataset.parked) {
        if (!policy.tasks.contains(id)) return to_string(id) + ": parked, but unknown";
      }
      for (const TaskId& id : dataset.ready) {
        if (!policy.tasks.contains(id)) return to_string(id) + ": ready, but unknown";
      }
    }
  }
  return {};
}

}  // namespace tailrace::scheduler
