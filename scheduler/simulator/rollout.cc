// The rollout workers of a world: what they do with an action, and what they say.
#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "scheduler/simulator/world.h"

namespace tailrace::simulator {

using namespace scheduler;  // events and actions

bool World::is_broken(const Grant& grant) const {
  // Drawn from the row and not from the attempt: members, launches and epochs of a broken row all
  // find it broken, as law 6.10 has it. The number below is "broken", a stream of its own.
  const double share = cluster_.faults.broken_task;
  if (share <= 0) return false;
  const MemberId& member = grant.lease.member;
  const int64_t rows =
      state_.config.datasets[static_cast<size_t>(member.dataset)].prompts_per_epoch;
  const int64_t row =
      grant.lane == Lane::kTrain ? tailrace::row_of(member.prompt, rows) : member.prompt;
  return Rng(tailrace::mix({seed_, 0x62726f6b656e, static_cast<uint64_t>(grant.lane),
                            static_cast<uint64_t>(member.dataset), static_cast<uint64_t>(row)}))
      .chance(share);
}

// Its process is gone.
void World::clear(Rollout& worker) {
  advance(worker);
  const Engine::Totals& totals = worker.engine.totals();
  worker.before.tokens += totals.tokens;
  worker.before.prefilled += totals.prefilled;
  worker.before.busy += totals.busy;
  worker.before.sequence_s += totals.sequence_s;
  worker.before.preemptions += totals.preemptions;
  worker.engine = Engine(worker.pool->hardware);
  worker.version = -1;
  worker.staged.reset();
  worker.by_lease.clear();
  worker.plays.clear();
  ++worker.generation;
}

void World::hear(Process& process, const Grant& grant) {
  auto& worker = static_cast<Rollout&>(process);
  const BodyId lease{grant.lane, grant.lease};
  if (worker.by_lease.contains(lease)) return;  // said again
  const int64_t id = ++last_id_;
  Play play;
  play.grant = grant;
  play.episode = episodes_.draw(grant.lane, grant.lease.member, grant.lease.attempt);
  play.context = play.episode.prompt_tokens;
  play.sample.lane = grant.lane;
  play.sample.member = grant.lease.member;
  play.sample.prompt_tokens = play.episode.prompt_tokens;
  play.sample.begun = now();
  if (chance(cluster_.faults.env)) play.fails = Outcome::kEnvFailed;
  if (chance(cluster_.faults.lost)) play.fails = Outcome::kLost;
  if (grant.prefix) {
    const auto stored = turns_.find(*grant.prefix);
    if (stored == turns_.end()) {  // gone while the grant was under way
      play.fails = Outcome::kLost;
    } else {
      play.sample = stored->second;
      play.sample.begun = now();
      play.turn = static_cast<size_t>(grant.prefix->turns);
      for (size_t i = 0; i < play.turn; ++i)
        play.context += play.episode.turns[i].tokens + play.episode.turns[i].env_tokens;
      play.stored = play.context;
    }
  }
  worker.by_lease.emplace(lease, id);
  const auto begun = worker.plays.emplace(id, std::move(play)).first;
  // Else it is held until the switch to those weights, as a rollout worker holds its grants.
  if (worker.version >= begun->second.grant.version) start_play(worker, id);
}

void World::start_play(Rollout& worker, int64_t id) {
  Play& play = worker.plays.at(id);
  if (play.grant.lane == Lane::kEval && worker.version != play.grant.version)
    return finish(worker, id, Outcome::kStale);
  // A verifier's trouble is not the environment's.
  const bool is_played_in_vain = play.episode.broken && play.episode.verify_seconds <= 0;
  if (is_played_in_vain || is_broken(play.grant)) return finish(worker, id, Outcome::kTaskBroken);
  // One that goes on from stored turns takes its environment through them again.
  double reset = cluster_.episode_overhead + play.episode.reset_seconds;
  for (size_t i = 0; i < play.turn; ++i) reset += play.episode.turns[i].env_seconds;
  if (reset > 0) {
    play.phase = Phase::kReset;
    return wake(now() + reset, WakeKind::kPlay, worker.index, id);
  }
  begin_turn(worker, id);
}

// One that is played again from a record may have another prompt than its siblings.
Engine::Prompt World::prompt_of(const Play& play) {
  const TaskId task = task_of(play.grant.lease.member);
  const int64_t tokens = play.episode.prompt_tokens;
  return {tailrace::mix({static_cast<uint64_t>(play.grant.lane), static_cast<uint64_t>(task.policy),
                         static_cast<uint64_t>(task.dataset), static_cast<uint64_t>(task.epoch),
                         static_cast<uint64_t>(task.prompt), static_cast<uint64_t>(tokens)}),
          tokens};
}

void World::begin_turn(Rollout& worker, int64_t id) {
  advance(worker);
  const auto found = worker.plays.find(id);
  if (found == worker.plays.end()) return;
  Play& play = found->second;
  TR_CHECK(play.turn < play.episode.turns.size(), "an episode of {} turns has none left",
           play.episode.turns.size());
  play.phase = Phase::kDecoding;
  play.counted = 0;
  if (play.episode.turns[play.turn].tokens == 0) {
    end_decoding(worker, id);
    if (worker.pool->lockstep) lift_barrier(worker);
    return;
  }
  worker.engine.decode(id, play.context, play.episode.turns[play.turn].tokens, prompt_of(play));
  arm_engine(worker);
}

// Between this call and the one before it the worker's engine decoded by one version.
void World::count_tokens(Rollout& worker, int64_t id, Play& play) {
  // The engine counts fractions of a token. A whole one that rounding has left just below it
  // counts.
  const double decoded = std::floor(worker.engine.decoded(id) + 1e-3);
  const auto fresh = static_cast<int64_t>(decoded - play.counted);
  if (fresh <= 0) return;
  play.counted = decoded;
  play.sample.tokens += fresh;
  if (play.sample.min_version < 0) play.sample.min_version = worker.version;
  play.sample.max_version = worker.version;
  auto& versions = play.sample.versions;
  if (versions.empty() || versions.back().first != worker.version)
    versions.emplace_back(worker.version, 0);
  versions.back().second += fresh;
}

void World::end_decoding(Rollout& worker, int64_t id) {
  Play& play = worker.plays.at(id);
  if (play.episode.turns[play.turn].tokens > 0) count_tokens(worker, id, play);
  play.context += play.episode.turns[play.turn].tokens;
  ++play.sample.turns;
  worker.engine.stall(worker.pool->hardware.turn);
  if (worker.pool->lockstep) {
    play.phase = Phase::kAtBarrier;
    return;
  }
  const double seconds = play.episode.turns[play.turn].env_seconds;
  play.phase = Phase::kEnv;
  if (seconds > 0) return wake(now() + seconds, WakeKind::kPlay, worker.index, id);
  end_turn(worker, id);
}

// When nobody decodes any more and nobody resets, all environments answer, with the slowest.
void World::lift_barrier(Rollout& worker) {
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
    wake(now() + longest, WakeKind::kPlay, worker.index, id);
  }
}

void World::end_turn(Rollout& worker, int64_t id) {
  Play& play = worker.plays.at(id);
  const int64_t answer = play.episode.turns[play.turn].env_tokens;
  play.context += answer;
  play.sample.env_tokens += answer;
  ++play.turn;
  if (play.fails) return finish(worker, id, *play.fails);
  if (play.turn == play.episode.turns.size())
    return finish(worker, id, play.episode.truncated ? Outcome::kTruncated : Outcome::kFinished);
  store_turns(worker, play);
  begin_turn(worker, id);
}

void World::store_turns(Rollout& worker, Play& play) {
  // The rule of EpisodeRunner::take_turns(): turns are stored when the episode has grown by so many
  // tokens and by half of what was stored.
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
  // Turns without tokens are worth nothing.
  if (play.sample.tokens > 0) send(worker, stored, play.sample);
}

void World::finish(Rollout& worker, int64_t id, Outcome outcome) {
  Play& play = worker.plays.at(id);
  AttemptResult result;
  result.worker = worker.id;
  result.lease = play.grant.lease;
  result.lane = play.grant.lane;
  result.outcome = outcome;
  std::optional<Sample> body;
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
    body = std::move(play.sample);
  } else {
    result.reason = "on purpose";
  }
  drop_play(worker, id);
  arm_engine(worker);
  send(worker, std::move(result), std::move(body));
}

void World::drop_play(Rollout& worker, int64_t id) {
  const auto found = worker.plays.find(id);
  const Play& play = found->second;
  worker.engine.remove(id);
  worker.by_lease.erase({play.grant.lane, play.grant.lease});
  worker.plays.erase(found);
  // It may have been the last one that the others waited for.
  if (worker.pool->lockstep) lift_barrier(worker);
}

void World::advance(Rollout& worker) {
  if (!worker.alive || worker.engine.now() >= now()) return;
  std::vector<Engine::Id> ended;
  worker.engine.advance(now(), ended);
  for (const Engine::Id id : ended) {
    if (worker.plays.contains(id)) end_decoding(worker, id);
  }
  if (worker.pool->lockstep) lift_barrier(worker);
  arm_engine(worker);
}

void World::arm_engine(Rollout& worker) {
  // The wake of before is void: whatever called this may have changed when the engine's next event
  // is.
  ++worker.generation;
  if (const auto next = worker.engine.next())
    wake(*next, WakeKind::kEngine, worker.index, worker.generation);
}

void World::hear(Process& process, const Stage& stage) {
  auto& worker = static_cast<Rollout&>(process);
  const FaultModel& faults = cluster_.faults;
  const TransferModel& transfer = worker.pool->transfer;
  const auto seconds = [&](double rate) { return rate > 0 ? transfer.payload_bytes / rate : 0; };
  double begins = now(), taken = now();
  if (transfer.shared_bytes_per_s > 0) {
    double& free = shared_link_free_[worker.pool->name];
    // One payload after the other goes over the link that the workers of the pool share.
    begins = std::max(free, now());
    free = taken = begins + seconds(transfer.shared_bytes_per_s);
  }
  const double ready = std::max(taken, begins + seconds(transfer.bytes_per_s)) + transfer.fetch;
  const int64_t staging = ++worker.staging;  // what was staged before this is given up
  if (chance(faults.install_silent)) return;
  const bool fails = chance(faults.install);
  std::optional<InstallCause> cause;
  if (fails) cause = InstallCause::kDigest;
  if (!fails && chance(faults.source))
    cause = rng_.chance(0.5) ? InstallCause::kSource : InstallCause::kBase;
  tell_progress(worker, stage, begins, ready);
  call_on(worker, ready, [this, &worker, stage, staging, cause] {
    if (worker.staging != staging) return;
    std::optional<InstallCause> failed = cause;
    if (!failed && hands.stage) {
      const int64_t life = worker.life;
      failed = hands.stage(worker.id, stage);
      if (worker.life != life) return;
    }
    if (failed) {
      return send(worker, InstallFailed{worker.id, stage.policy, stage.version, stage.digest,
                                        "on purpose", *failed});
    }
    worker.staged = stage;
    send(worker, Staged{worker.id, stage.policy, stage.version, stage.digest});
  });
}

// As a worker does it: while the payload comes, now and then.
void World::tell_progress(Rollout& worker, const Stage& stage, double begins, double ready) {
  constexpr double kEvery = 5;
  const double next = std::max(now(), begins) + kEvery;
  const double total = worker.pool->transfer.payload_bytes;
  if (next >= ready || total <= 0) return;
  call_on(worker, next,
          [this, &worker, stage, begins, ready, total, next, staging = worker.staging] {
            if (worker.staging != staging) return;
            const double part = (next - begins) / (ready - begins);
            send(worker,
                 StageProgress{worker.id, stage.policy, stage.version, stage.digest,
                               static_cast<int64_t>(part * total), static_cast<int64_t>(total)});
            tell_progress(worker, stage, begins, ready);
          });
}

void World::hear(Process& process, const Switch& change) {
  auto& worker = static_cast<Rollout&>(process);
  advance(worker);
  const auto refuse = [&](const char* reason) {
    send(worker, InstallFailed{worker.id, change.policy, change.version, change.digest, reason});
  };
  if (!worker.staged || worker.staged->digest != change.digest)
    return refuse("other weights are staged");
  if (chance(cluster_.faults.install)) return refuse("on purpose");
  if (hands.switch_to) {
    const int64_t life = worker.life;
    const auto failed = hands.switch_to(worker.id, change);
    if (worker.life != life) return;
    if (failed) return refuse("its own weights are others");
  }
  // Tokens up to now were decoded by the version before: they are counted before the worker has
  // another.
  for (auto& [id, play] : worker.plays) {
    if (play.phase == Phase::kDecoding && play.episode.turns[play.turn].tokens > 0)
      count_tokens(worker, id, play);
  }
  worker.version = change.version;
  worker.engine.drop_cache();
  worker.engine.stall(worker.pool->transfer.switch_over);
  // Work that waited for these weights.
  std::vector<int64_t> held;
  for (const auto& [id, play] : worker.plays) {
    if (play.phase == Phase::kHeld && worker.version >= play.grant.version) held.push_back(id);
  }
  for (const int64_t id : held) start_play(worker, id);
  arm_engine(worker);
  if (chance(cluster_.faults.install_silent)) return;  // although it has switched
  call_on(worker, now() + worker.pool->transfer.switch_over, [this, &worker, change] {
    send(worker, Installed{worker.id, change.policy, change.version, change.digest});
  });
}

}  // namespace tailrace::simulator
