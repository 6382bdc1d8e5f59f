// The rollout workers of a world: what they do with an action, and what they say.
#include <algorithm>
#include <cmath>

#include "scheduler/simulator/world.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

void World::start_rollout(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  worker.alive = true;
  worker.hangs = false;
  worker.incarnation = ++incarnations_;
  worker.engine = Engine(worker.pool->hardware);
  std::vector<Engine::Id> none;
  worker.engine.advance(now(), none);
  connect_rollout(index);
  const FaultModel& faults = cluster_.faults;
  const auto later = [&](double mean, int64_t what) {
    if (mean > 0) wake(now() + exponential(mean), WakeKind::kFault, index, what);
  };
  later(faults.rollout_mean, 0);
  later(faults.hang_mean, 1);
}

void World::connect_rollout(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  worker.session = ++sessions_;
  tell(WorkerUp{.worker = worker.id,
                .session = worker.session,
                .role = Role::kRollout,
                .incarnation = worker.incarnation,
                .slots = worker.pool->slots,
                .site = {.pool = worker.pool->name, .hardware = worker.pool->hardware.name}});
}

void World::kill_rollout(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  if (!worker.alive || state_.ended) return;
  advance(index);
  ++totals_.deaths;
  const Engine::Totals& totals = worker.engine.totals();
  worker.before.tokens += totals.tokens;
  worker.before.prefilled += totals.prefilled;
  worker.before.busy += totals.busy;
  worker.before.sequence_s += totals.sequence_s;
  worker.before.preemptions += totals.preemptions;
  worker.engine = Engine(worker.pool->hardware);
  worker.alive = false;
  worker.version = -1;
  worker.staged.reset();
  worker.by_lease.clear();
  worker.plays.clear();
  worker.prompts.clear();
  ++worker.generation;
  ++worker.life;
  call(now() + cluster_.faults.noticed, [this, id = worker.id, session = worker.session] {
    tell(WorkerDown{id, session});
  });
  call(now() + cluster_.faults.noticed + cluster_.faults.restart,
       [this, index] { start_rollout(index); });
}

// It heartbeats, and does nothing; that is noticed, and ends.
void World::hang_rollout(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  if (!worker.alive || state_.ended) return;
  const FaultModel& faults = cluster_.faults;
  advance(index);
  worker.hangs = true;
  worker.engine.stall(faults.hang);
  arm_engine(index);
  const auto later = [&](double seconds, bool stalled) {
    call(now() + seconds, [this, index, life = worker.life, stalled] {
      Rollout& hung = rollouts_[static_cast<size_t>(index)];
      if (hung.life != life) return;
      if (!stalled) hung.hangs = false;
      const Stalled event{hung.id, hung.session, stalled};
      if (expects(state_, event)) tell(event);
    });
  };
  if (faults.hang_noticed < faults.hang) {
    later(faults.hang_noticed, true);
    later(faults.hang, false);
  }
  wake(now() + faults.hang + exponential(faults.hang_mean), WakeKind::kFault, index, 1);
}

void World::grant(int32_t index, const Grant& grant) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  const BodyId lease{grant.lane, grant.lease};
  if (worker.by_lease.contains(lease)) return;  // said again
  const int64_t id = ++last_id_;
  Play play;
  play.grant = grant;
  play.episode = episodes_.draw(grant.lane, grant.lease.member);
  play.context = play.episode.prompt_tokens;
  play.sample.lane = grant.lane;
  play.sample.member = grant.lease.member;
  play.sample.prompt_tokens = play.episode.prompt_tokens;
  play.sample.begun = now();
  play.fails = cluster_.faults.env > 0 && rng_.chance(cluster_.faults.env);
  if (grant.prefix) {
    const Sample& before = turns_.at(*grant.prefix);
    play.sample = before;
    play.sample.begun = now();
    play.turn = static_cast<size_t>(grant.prefix->turns);
    for (size_t i = 0; i < play.turn; ++i)
      play.context += play.episode.turns[i].tokens + play.episode.turns[i].env_tokens;
    play.stored = play.context;
  }
  worker.by_lease.emplace(lease, id);
  worker.plays.emplace(id, std::move(play));
  if (worker.version >= grant.version) start_play(index, id);
}

void World::start_play(int32_t index, int64_t id) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  Play& play = worker.plays.at(id);
  if (play.grant.lane == Lane::kEval && worker.version != play.grant.version)
    return finish(index, id, Outcome::kStale);
  if (is_broken(play.grant.lane, play.grant.lease.member))
    return finish(index, id, Outcome::kTaskBroken);
  const double reset =
      cluster_.episode_overhead + (play.turn == 0 ? play.episode.reset_seconds : 0);
  if (reset > 0) {
    play.phase = Phase::kReset;
    return wake(now() + reset, WakeKind::kPlay, index, id);
  }
  begin_turn(index, id);
}

void World::begin_turn(int32_t index, int64_t id) {
  advance(index);
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  const auto found = worker.plays.find(id);
  if (found == worker.plays.end()) return;
  Play& play = found->second;
  play.phase = Phase::kDecoding;
  play.counted = 0;
  if (play.sample.min_version < 0) play.sample.min_version = worker.version;
  // The prompt of a group is computed once for those that run side by side.
  int64_t shared = 0;
  if (!play.cached) {
    play.cached = true;
    if (worker.prompts[task_of(play.grant.lease.member)]++ > 0) shared = play.episode.prompt_tokens;
  }
  worker.engine.decode(id, play.context, play.episode.turns[play.turn].tokens, shared);
  arm_engine(index);
}

// Between this call and the one before it the worker's engine decoded by one version.
void World::count_tokens(Rollout& worker, int64_t id, Play& play) {
  const double decoded = std::floor(worker.engine.decoded(id) + 1e-3);
  const auto fresh = static_cast<int64_t>(decoded - play.counted);
  if (fresh <= 0) return;
  play.counted = decoded;
  play.sample.tokens += fresh;
  play.sample.max_version = worker.version;
  auto& versions = play.sample.versions;
  if (versions.empty() || versions.back().first != worker.version)
    versions.emplace_back(worker.version, 0);
  versions.back().second += fresh;
}

void World::end_decoding(int32_t index, int64_t id) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  Play& play = worker.plays.at(id);
  count_tokens(worker, id, play);
  play.context += play.episode.turns[play.turn].tokens;
  ++play.sample.turns;
  if (worker.pool->lockstep) {
    play.phase = Phase::kAtBarrier;
    return;
  }
  const double seconds = play.episode.turns[play.turn].env_seconds;
  play.phase = Phase::kEnv;
  if (seconds > 0) return wake(now() + seconds, WakeKind::kPlay, index, id);
  end_turn(index, id);
}

// When nobody decodes any more and nobody resets, all environments answer, with the slowest.
void World::lift_barrier(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  if (worker.engine.decoding() > 0 || worker.engine.queued() > 0) return;
  double longest = 0;
  std::vector<int64_t> waiting;
  for (auto& [id, play] : worker.plays) {
    if (play.phase == Phase::kEnv || play.phase == Phase::kReset) return;
    if (play.phase != Phase::kAtBarrier) continue;
    longest = std::max(longest, play.episode.turns[play.turn].env_seconds);
    waiting.push_back(id);
  }
  for (const int64_t id : waiting) {
    worker.plays.at(id).phase = Phase::kEnv;
    wake(now() + longest, WakeKind::kPlay, index, id);
  }
}

void World::end_turn(int32_t index, int64_t id) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  Play& play = worker.plays.at(id);
  play.context += play.episode.turns[play.turn].env_tokens;
  ++play.turn;
  if (play.fails) return finish(index, id, Outcome::kEnvFailed);
  if (play.turn == play.episode.turns.size())
    return finish(index, id, play.episode.truncated ? Outcome::kTruncated : Outcome::kFinished);
  store_turns(worker, play);
  begin_turn(index, id);
}

void World::store_turns(const Rollout& worker, Play& play) {
  const int64_t grown = play.context - std::max(play.stored, play.episode.prompt_tokens);
  const int64_t least = worker.pool->store_turns_tokens;
  if (least == 0 || grown < least || 2 * grown < play.stored) return;
  play.stored = play.context;
  const auto turns = static_cast<int32_t>(play.turn);
  const TurnsStored stored{.worker = worker.id,
                           .lease = play.grant.lease,
                           .lane = play.grant.lane,
                           .turns = turns,
                           .tokens = play.sample.tokens,
                           .min_version = play.sample.min_version,
                           .max_version = play.sample.max_version};
  turns_[{play.grant.lane, play.grant.lease, turns}] = play.sample;
  send(worker.id, stored);
}

void World::finish(int32_t index, int64_t id, Outcome outcome) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  Play& play = worker.plays.at(id);
  AttemptResult result;
  result.worker = worker.id;
  result.lease = play.grant.lease;
  result.lane = play.grant.lane;
  result.outcome = outcome;
  play.sample.ended = now();
  if (has_sample(outcome)) {
    result.tokens = play.sample.tokens;
    result.min_version = play.sample.min_version;
    result.max_version = play.sample.max_version;
    if (play.episode.verify_seconds > 0) {
      result.needs_verifier = true;
    } else {
      result.reward = play.episode.reward;
    }
    totals_.tokens += play.sample.tokens;
    ++totals_.samples;
    if (on_sample) on_sample(play.sample);
    bodies_.emplace(BodyId{result.lane, result.lease}, std::move(play.sample));
  }
  drop_play(index, id);
  arm_engine(index);
  send(worker.id, std::move(result));
}

void World::drop_play(int32_t index, int64_t id) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  const auto found = worker.plays.find(id);
  const Play& play = found->second;
  worker.engine.remove(id);
  if (play.cached) {
    const auto siblings = worker.prompts.find(task_of(play.grant.lease.member));
    if (--siblings->second == 0) worker.prompts.erase(siblings);
  }
  worker.by_lease.erase({play.grant.lane, play.grant.lease});
  worker.plays.erase(found);
}

void World::advance(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  if (!worker.alive || worker.engine.now() >= now()) return;
  std::vector<Engine::Id> ended;
  worker.engine.advance(now(), ended);
  for (const Engine::Id id : ended) {
    if (worker.plays.contains(id)) end_decoding(index, id);
  }
  if (worker.pool->lockstep) lift_barrier(index);
  arm_engine(index);
}

void World::arm_engine(int32_t index) {
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  ++worker.generation;
  if (const auto next = worker.engine.next())
    wake(*next, WakeKind::kEngine, index, worker.generation);
}

void World::stage(int32_t index, const Stage& stage) {
  const Rollout& worker = rollouts_[static_cast<size_t>(index)];
  const TransferModel& transfer = worker.pool->transfer;
  double ready = now() + transfer.fetch;
  if (transfer.bytes_per_s > 0) ready += transfer.payload_bytes / transfer.bytes_per_s;
  if (transfer.shared_bytes_per_s > 0) {
    double& free = shared_link_free_[worker.pool->name];
    free = std::max(free, now()) + transfer.payload_bytes / transfer.shared_bytes_per_s;
    ready = std::max(ready, free + transfer.fetch);
  }
  const bool fails = cluster_.faults.install > 0 && rng_.chance(cluster_.faults.install);
  call(ready, [this, index, stage, fails, life = worker.life] {
    Rollout& there = rollouts_[static_cast<size_t>(index)];
    if (there.life != life || !there.alive) return;
    if (fails) {
      return send(there.id,
                  InstallFailed{there.id, stage.policy, stage.version, stage.digest, "on purpose"});
    }
    there.staged = stage;
    send(there.id, Staged{there.id, stage.policy, stage.version, stage.digest});
  });
}

void World::switch_over(int32_t index, const Switch& change) {
  advance(index);
  Rollout& worker = rollouts_[static_cast<size_t>(index)];
  if (!worker.staged || worker.staged->digest != change.digest) {
    return send(worker.id, InstallFailed{worker.id, change.policy, change.version, change.digest,
                                         "other weights are staged"});
  }
  for (auto& [id, play] : worker.plays) {
    if (play.phase == Phase::kDecoding) count_tokens(worker, id, play);
  }
  worker.version = change.version;
  worker.engine.drop_cache();
  worker.engine.stall(worker.pool->transfer.switch_over);
  // Work that waited for these weights.
  std::vector<int64_t> held;
  for (const auto& [id, play] : worker.plays) {
    if (play.phase == Phase::kHeld && worker.version >= play.grant.version) held.push_back(id);
  }
  for (const int64_t id : held) start_play(index, id);
  arm_engine(index);
  call(now() + worker.pool->transfer.switch_over, [this, index, change, life = worker.life] {
    const Rollout& there = rollouts_[static_cast<size_t>(index)];
    if (there.life != life) return;
    send(there.id, Installed{there.id, change.policy, change.version, change.digest});
  });
}

}  // namespace tailrace::simulator
