// The made-up workers and the trainer: what they do with an action, and what they say.
#include <algorithm>
#include <tuple>

#include "scheduler/state/credit.h"
#include "tests/scheduler/decide/world.h"

namespace tailrace::scheduler {

// ---- what decide() asks for

// Null: that session is over, and with it what was said in it.
World::Node* World::session_of(const WorkerId& id, uint64_t session) {
  Node& node = nodes_.at(id);
  if (node.connected && node.session != session) fail("said to another session of " + id);
  return node.alive && node.connected ? &node : nullptr;
}

void World::act(const Hold& hold) {
  Node* node = session_of(hold.worker, hold.session);
  if (node == nullptr) return;
  const auto held = [&](Lane lane, const LeaseId& lease) {
    return std::ranges::find(hold.leases, BodyId{lane, lease}) != hold.leases.end();
  };
  std::erase_if(node->grants, [&](const Grant& g) { return !held(g.lane, g.lease); });
  std::erase_if(node->verifies, [&](const Verify& v) { return !held(v.lane, v.lease); });
}

void World::act(const Grant& grant) {
  Node* node = session_of(grant.worker, grant.session);
  if (node == nullptr) return;
  for (const Grant& held : node->grants) {
    if (held.lease == grant.lease && held.lane == grant.lane) return;  // said again
  }
  if (grant.lane == Lane::kTrain && !leases_.insert(grant.lease).second && seen["restarted"] == 0 &&
      node->session == 0) {
    fail("a lease is given twice");
  }
  node->grants.push_back(grant);
  const BodyId played{grant.lane, grant.lease};
  node->begun[played] = std::max(node->version, grant.version);
  node->turns.erase(played);
  if (!grant.prefix) return;
  if (!bodies_.contains(*grant.prefix)) fail("granted from turns that are not there");
  node->turns[played] = turns_.at(*grant.prefix);
  ++seen["resumed"];
}

void World::act(const Abort& abort) {
  Node* node = session_of(abort.worker, abort.session);
  if (node == nullptr) return;
  std::erase_if(node->grants, [&](const Grant& g) {
    return g.lease == abort.lease && g.lane == abort.lane &&
           rng_.chance(0.7);  // or the abort comes late
  });
}

void World::act(const Verify& verify) {
  if (!bodies_.contains({verify.lane, verify.lease}))
    fail("verification of a body that is not there");
  Node* node = session_of(verify.worker, verify.session);
  if (node == nullptr) return;
  for (const Verify& held : node->verifies) {
    if (held.lease == verify.lease && held.lane == verify.lane &&
        held.verify_attempt == verify.verify_attempt)
      return;
  }
  node->verifies.push_back(verify);
}

void World::act(const Stage& stage) {
  Node* node = session_of(stage.worker, stage.session);
  if (node == nullptr) return;
  if (faults_ && (node->hangs || rng_.chance(0.05))) return;  // no answer
  if (faults_ && rng_.chance(0.05)) {
    wire_.push_back(
        InstallFailed{stage.worker, stage.policy, stage.version, stage.digest, "on purpose"});
    return;
  }
  node->staged = stage.digest;
  wire_.push_back(Staged{stage.worker, stage.policy, stage.version, stage.digest});
}

void World::act(const Switch& change) {
  Node* node = session_of(change.worker, change.session);
  if (node == nullptr) return;
  if (node->staged != change.digest) {
    // A word of it from when it had is taken for the answer (law 14.4); the worker knows.
    if (!late_staged_.contains({change.worker, change.digest}))
      fail(fmt::format("{} is to switch to {} and has staged {}", change.worker, change.digest,
                       node->staged));
    ++seen["switch refused"];
    wire_.push_back(InstallFailed{change.worker, change.policy, change.version, change.digest,
                                  "other weights are staged"});
    return;
  }
  if (faults_ && (node->hangs || rng_.chance(0.03))) return;  // no answer, and nothing is changed
  node->version = change.version;
  if (faults_ && rng_.chance(0.03)) return;  // no answer, although it has changed
  wire_.push_back(Installed{change.worker, change.policy, change.version, change.digest});
}

void World::act(const HandOver& batch) {
  if (batch.copy) return take_copy(batch);
  // Parts follow each other, and asked again the list begins as before.
  std::vector<HandOver::Item>& known = batches_[batch.step];
  const auto first = static_cast<size_t>(batch.first);
  if (first > known.size()) return void(fail("a part of a batch is missing"));
  const bool is_new = first == known.size();
  if (batch.last && first + batch.items.size() < known.size()) fail("a step's list has shrunk");
  for (size_t i = 0; i < batch.items.size(); ++i) {
    if (first + i == known.size()) known.push_back(batch.items[i]);
    if (!(known[first + i] == batch.items[i])) fail("a step's list has changed");
  }
  const bool in_parts = state_.config.mode.hand_over == HandOverBy::kGroups;
  if (!in_parts && (!batch.last || batch.first > 0)) fail("a batch in parts");
  if (batch.last && known.empty()) fail("an empty batch");
  if (batch.step > state_.policies.at(0).frontier) check_short(batch);
  seen["parts of a batch"] += !batch.last;
  // A list that is told once more may hold several parts.
  for (size_t i = 1; i < batch.items.size() && (is_new || !in_parts); ++i) {
    const MemberId &a = batch.items[i - 1].lease.member, &b = batch.items[i].lease.member;
    if (std::tie(a.epoch, a.prompt, a.domain, a.member) >=
        std::tie(b.epoch, b.prompt, b.domain, b.member)) {
      fail("a batch out of order");
    }
  }
  for (const HandOver::Item& item : batch.items) {
    if (!bodies_.contains({Lane::kTrain, item.lease})) fail("a batch without its bodies");
    if (unsynced_bodies_.contains({Lane::kTrain, item.lease})) fail("a batch before its bodies");
  }
  if (synced_ < journal_.size()) fail("a batch before its journal");
  check_staleness(batch);
  if (!trainer_alive_ || !trainer_connected_) return;
  if (batch.session != trainer_session_) fail("a batch for another session");
  if (trainer_version_ + 1 != batch.step) return;
  // In a session every part comes, in order.
  if (batch.first != 0 && batch.first != trainer_items_) fail("a gap between parts");
  trainer_items_ = batch.first + std::ssize(batch.items);
  trainer_batch_ = batch.last;
}

// All hear of it in one event, under one name, that they have not had before.
void World::check_ranks(const Actions& actions) {
  std::vector<const FormRanks*> told;
  std::set<std::pair<WorkerId, int32_t>> lists;  // of whom, copies or not
  for (const Action& action : actions) {
    if (const auto* ranks = std::get_if<FormRanks>(&action)) told.push_back(ranks);
    if (const auto* batch = std::get_if<HandOver>(&action)) {
      if (!lists.insert({batch->worker, batch->copy}).second) fail("a batch twice in one event");
    }
  }
  if (!lists.empty() && std::ssize(lists) != state_.config.trainer_ranks)
    fail("a batch that not all ranks have");
  if (told.empty()) return;
  if (std::ssize(told) != state_.config.trainer_ranks)
    return void(fail("not all ranks are to meet"));
  for (int32_t rank = 0; rank < std::ssize(told); ++rank) {
    const FormRanks& one = *told[static_cast<size_t>(rank)];
    if (one.rank != rank || one.size != std::ssize(told) || one.formation == 0 ||
        one.formation != told.front()->formation || one.formation == trainer_formation_)
      fail("ranks are to meet under other names");
  }
}

void World::act(const FormRanks& ranks) {
  if (ranks.rank == 0) {
    if (ranks.session != trainer_session_) fail("ranks: another session");
    if (!trainer_alive_ || !trainer_connected_) return;
    trainer_formation_ = ranks.formation;
    trainer_batch_ = false;
    return;
  }
  RankNode& node = ranks_.at(ranks.worker);
  if (node.rank != ranks.rank || node.session != ranks.session) fail("another rank");
  if (!node.alive || !node.connected) return;
  node.formation = ranks.formation;
  node.step = 0;
}

void World::take_copy(const HandOver& batch) {
  RankNode& node = ranks_.at(batch.worker);
  if (node.session != batch.session) fail("a copy for another session");
  if (!node.alive || !node.connected) return;
  if (node.formation != trainer_formation_ && trainer_alive_ && trainer_connected_)
    fail("a copy for a rank that has not met the trainer");
  if (batch.last) node.step = batch.step;
}

void World::connect_rank(const WorkerId& id, RankNode& rank) {
  rank.connected = true;
  rank.session = ++sessions_;
  tell(WorkerUp{.worker = id,
                .session = rank.session,
                .role = Role::kTrainer,
                .incarnation = rank.incarnation,
                .rank = rank.rank});
}

// It dies, and is noticed now or when it is back; or its connection breaks, and is made anew.
void World::lose_rank() {
  auto& [id, rank] = *std::next(ranks_.begin(), rng_.below(std::ssize(ranks_)));
  if (!rank.alive || !rank.connected) return;
  if (rng_.chance(0.3)) return connect_rank(id, rank);
  rank.alive = rank.connected = false;
  if (rng_.chance(0.5)) tell(WorkerDown{id, rank.session, rng_.chance(0.5)});
}

void World::revive_ranks() {
  for (auto& [id, rank] : ranks_) {
    if (!rank.alive) {
      rank = {.rank = rank.rank, .incarnation = ++incarnations_, .alive = true};
      connect_rank(id, rank);
    } else if (!rank.connected) {
      connect_rank(id, rank);
    }
  }
}

// A step ends short only when nothing more can come, and goes on otherwise (law 3.7, 3.8).
void World::check_short(const HandOver& batch) {
  const Policy& policy = state_.policies.at(0);
  const Batch& held = policy.batches.at(batch.step);
  bool complete = true;
  for (int32_t i = 0; i < std::ssize(policy.domains); ++i) {
    const int64_t q = state_.config.domains[static_cast<size_t>(i)].prompts_per_step;
    complete = complete && (held.domains[static_cast<size_t>(i)] == q || reserved(policy, i) == 0);
  }
  // One that was whole once stays so, whatever can come by now.
  const bool before = !batch.last || whole_.contains(batch.step);
  if (batch.last) whole_.insert(batch.step);
  if (!batch.last && complete) fail("the last part does not say so");
  if (!before && !complete) fail("a step ends short, and more could come");
}

// Exact, whatever has gone wrong before: synchronous modes are on-policy, and the bound holds where
// the mode promises it.
void World::check_staleness(const HandOver& batch) {
  const Mode& mode = state_.config.mode;
  const int64_t start = batch.step - 1;
  for (const HandOver::Item& item : batch.items) {
    const Task& task = state_.policies.at(0).tasks.at(task_of(item.lease.member));
    const Member& member = task.members.at(static_cast<size_t>(item.lease.member.member));
    const int64_t staleness = start - member.min_version;
    if (member.max_version > start) fail("trained on weights that came later");
    if (!mode.off_policy() && staleness != 0) fail("a synchronous step is not on-policy");
    if (mode.on_stale != OnStale::kMask && staleness > mode.max_staleness)
      fail(fmt::format("a sample is {} versions old", staleness));
    if (mode.install == InstallWhen::kDrained && member.min_version != member.max_version)
      fail("a sample mixes versions");
    seen["off-policy"] += staleness > 0;
  }
}

void World::act(const Save& request) {
  if (!trainer_alive_ || !trainer_connected_ || request.session != trainer_session_) return;
  if (request.version != trainer_version_) return;  // it has gone on, or back
  save(trainer_version_);
  trainer_queue_.push_back(durable(trainer_version_, checkpoints_.front()));
}

void World::act(const Release& release) {
  for (const BodyId& body : release.bodies) {
    unsynced_bodies_.erase(body);
    if (bodies_.erase(body) == 0 && !lost_.contains(body))
      fail("released what is not stored: " + to_string(body.lease));
  }
}

void World::act(const EvalDone& report) {
  const size_t expected =
      state_.config.domains.size() *
      static_cast<size_t>(state_.config.eval.prompts * state_.config.eval.group_size);
  // One that was opened under other rules keeps its size.
  if (seen["other evaluations"] == 0 && report.items.size() != expected)
    fail("an evaluation is incomplete");
  for (const EvalDone::Item& item : report.items) {
    if (item.reward && !bodies_.contains({Lane::kEval, item.lease}))
      fail("an evaluation without its bodies");
  }
  evaluated_[report.version] = state_.policies.at(0).lineage.at(report.version).digest;
  service_.push_back(EvalReported{report.policy, report.version});
}

// ---- what the world does

void World::start_worker(const WorkerId& id, Role role, const std::string& pool, bool joined) {
  Node fresh;
  fresh.role = role;
  fresh.pool = pool;  // which may be that of the node before it
  Node& node = nodes_[id] = std::move(fresh);
  node.joined = joined;
  node.incarnation = ++incarnations_;
  node.slots = 1 + rng_.below(5);
  connect(id, node);
}

void World::connect(const WorkerId& id, Node& node) {
  node.session = ++sessions_;
  node.connected = true;
  node.stalled = false;
  tell(WorkerUp{.worker = id,
                .session = node.session,
                .role = node.role,
                .incarnation = node.incarnation,
                .slots = node.slots,
                .joined = node.joined,
                .site = {.pool = node.pool}});
}

// Answers of an old session other than results are fenced by the connection.
void World::cut_session(const WorkerId& id) {
  std::erase_if(wire_, [&](const Event& event) {
    const auto by_it = [&](const auto* answer) {
      return answer != nullptr && answer->worker == id;
    };
    return by_it(std::get_if<Staged>(&event)) || by_it(std::get_if<Installed>(&event)) ||
           by_it(std::get_if<InstallFailed>(&event)) || by_it(std::get_if<WorkerFailed>(&event));
  });
}

void World::start_trainer() {
  trainer_alive_ = true;
  trainer_batch_ = false;
  trainer_formation_ = 0;
  // The newest may be damaged.
  if (checkpoints_.size() > 1 && rng_.chance(0.2)) {
    checkpoints_.pop_back();
    durable_ = checkpoints_.back();
    ++seen["damaged checkpoint"];
  }
  trainer_version_ = durable_;
  trainer_queue_.clear();
  unacknowledged_.clear();
  trainer_incarnation_ = ++incarnations_;
  if (durable_ >= 0) {
    // A checkpoint of other weights; or training that is not exact from here on.
    if (rng_.chance(0.25)) digests_[durable_] = new_digest(durable_);
    if (rng_.chance(0.5)) digests_.erase(digests_.upper_bound(durable_), digests_.end());
  }
  const bool fresh = durable_ < 0;
  connect_trainer();
  if (!fresh) return;
  trainer_queue_.pop_back();  // it asks when it has something to go on from
  publish(0);
  ask();
}

// A session begins; the trainer says what it holds, and asks.
void World::connect_trainer() {
  trainer_connected_ = true;
  trainer_session_ = ++sessions_;
  tell(WorkerUp{.worker = "t",
                .session = trainer_session_,
                .role = Role::kTrainer,
                .incarnation = trainer_incarnation_});
  trainer_queue_.push_back(RolledBack{
      "t", 0, trainer_version_, trainer_version_ < 0 ? "" : digests_.at(trainer_version_), ""});
  ask();
}

void World::ask() { trainer_queue_.push_back(wants(trainer_version_ + 1)); }

void World::publish(int64_t version) {
  trainer_version_ = version;
  if (!digests_.contains(version)) digests_[version] = new_digest(version);
  if (version == 0) save(version);  // its checkpoint comes before anybody hears of it
  trainer_queue_.push_back(Published{"t", 0, version, digests_.at(version), "m"});
  if (durable_ == version) trainer_queue_.push_back(durable(version, checkpoints_.front()));
}

void World::save(int64_t version) {
  durable_ = version;
  std::erase_if(checkpoints_, [&](int64_t kept) { return kept >= version; });
  checkpoints_.push_back(version);
  while (std::ssize(checkpoints_) > keep_last_) checkpoints_.pop_front();
}

void World::deliver() {
  if (!service_.empty() && rng_.chance(0.5)) {
    const Event event = service_.front();
    service_.erase(service_.begin());
    return tell(event);
  }
  if (trainer_connected_ && !trainer_queue_.empty() && (wire_.empty() || rng_.chance(0.3))) {
    const Event event = trainer_queue_.front();
    trainer_queue_.pop_front();
    unacknowledged_.push_back(event);
    if (rng_.chance(0.3)) unacknowledged_.clear();
    forget_abandoned(event);
    return tell(event);
  }
  if (wire_.empty()) return;
  const size_t index = faults_ ? static_cast<size_t>(rng_.below(std::ssize(wire_))) : 0;
  const Event event = wire_[index];
  // Doubled: the copy stays on the wire and comes later, perhaps much later.
  const bool doubled = faults_ && rng_.chance(0.1);
  if (const auto* staged = std::get_if<Staged>(&event); staged != nullptr && doubled)
    late_staged_.insert({staged->worker, staged->digest});
  if (!doubled) wire_.erase(wire_.begin() + static_cast<std::ptrdiff_t>(index));
  tell(event);
}

// The batches that a change of lineage withdraws may be other ones next time.
void World::forget_abandoned(const Event& event) {
  const Policy& policy = state_.policies.at(0);
  const auto differs = [&](int64_t version, const Digest& digest) {
    const auto known = policy.lineage.find(version);
    return known != policy.lineage.end() && known->second.digest != digest;
  };
  int64_t from = -1;
  if (const auto* p = std::get_if<Published>(&event); p && differs(p->version, p->digest))
    from = p->version;
  if (const auto* r = std::get_if<RolledBack>(&event); r && differs(r->version, r->digest))
    from = r->version;
  if (from < 0) return;
  batches_.erase(batches_.upper_bound(from), batches_.end());
  whole_.erase(whole_.upper_bound(from), whole_.end());
  evaluated_.erase(evaluated_.lower_bound(from), evaluated_.end());
}

void World::work(const WorkerId& id, Node& node) {
  if (!node.grants.empty()) {
    const size_t index = static_cast<size_t>(rng_.below(std::ssize(node.grants)));
    const Grant grant = node.grants[index];
    if (node.version < grant.version) return;  // its weights are on their way
    const bool may_play = grant.lane == Lane::kTrain || node.version == grant.version;
    if (may_play && rng_.chance(0.4)) return store_turns(id, node, grant);
    node.grants.erase(node.grants.begin() + static_cast<std::ptrdiff_t>(index));
    if (grant.lane == Lane::kEval && node.version != grant.version) {
      AttemptResult late;
      late.worker = id;
      late.lease = grant.lease;
      late.lane = grant.lane;
      late.outcome = Outcome::kStale;
      wire_.push_back(late);
      return;
    }
    wire_.push_back(answer(id, node, grant));
  } else if (!node.verifies.empty()) {
    const Verify v = node.verifies.back();
    node.verifies.pop_back();
    Reward reward{id, v.lease, v.lane, v.verify_attempt, static_cast<double>(rng_.below(2)), ""};
    if (faults_ && rng_.chance(0.15)) reward.reward.reset();
    if (broken_for_verifiers_ && calls_broken(v.lane, v.lease.member)) {
      reward.reward.reset();
      reward.task_broken = true;
    }
    wire_.push_back(reward);
  }
}

// Some turns more are played, and stored.
void World::store_turns(const WorkerId& id, Node& node, const Grant& grant) {
  const BodyId played{grant.lane, grant.lease};
  const auto before = node.turns.find(played);
  TurnsStored stored{.worker = id,
                     .lease = grant.lease,
                     .lane = grant.lane,
                     .turns = 1 + static_cast<int32_t>(rng_.below(2)),
                     .tokens = 5,
                     .min_version = std::min(node.version, node.begun.at(played)),
                     .max_version = node.version};
  if (grant.lane == Lane::kEval) stored.min_version = node.version;
  if (before != node.turns.end()) {
    stored.turns += before->second.turns;
    stored.tokens += before->second.tokens;
    stored.min_version = std::min(stored.min_version, before->second.min_version);
    stored.max_version = std::max(stored.max_version, before->second.max_version);
  }
  node.turns[played] = stored;
  wire_.push_back(stored);
}

// Not each time: a group may be complete before somebody says so.
bool World::calls_broken(Lane lane, const MemberId& member) {
  if (member.domain != 0 || broken_row_ < 0) return false;
  const int64_t rows = lane == Lane::kTrain ? state_.config.domains[0].prompts_per_epoch : 0;
  return tailrace::row_of(member.prompt, rows) == broken_row_ && rng_.chance(0.6);
}

AttemptResult World::answer(const WorkerId& id, const Node& node, const Grant& grant) {
  AttemptResult result;
  result.worker = id;
  result.lease = grant.lease;
  result.lane = grant.lane;
  result.tokens = rng_.below(20);
  if (result.tokens > 0) {
    result.max_version = node.version;
    // An install may have come between two of its tokens.
    result.min_version = std::min(node.version, node.begun.at({grant.lane, grant.lease}));
    if (result.min_version < grant.version || rng_.chance(0.5)) result.min_version = node.version;
    seen["mixed versions"] += result.min_version < result.max_version;
  }
  if (const auto played = node.turns.find({grant.lane, grant.lease}); played != node.turns.end()) {
    const TurnsStored& turns = played->second;
    const bool more = result.tokens > 0;
    result.tokens += turns.tokens;
    result.min_version = more ? std::min(result.min_version, turns.min_version) : turns.min_version;
    result.max_version = std::max(result.max_version, turns.max_version);
  }
  if (faults_ && rng_.chance(0.08)) {
    result.outcome = rng_.chance(0.5) ? Outcome::kEnvFailed : Outcome::kLost;
    return result;
  }
  if (!broken_for_verifiers_ && calls_broken(grant.lane, grant.lease.member)) {
    result.outcome = Outcome::kTaskBroken;
    return result;
  }
  if (rng_.chance(0.2)) result.outcome = Outcome::kTruncated;
  if (rng_.chance(0.3)) {
    result.needs_verifier = true;
  } else {
    result.reward = static_cast<double>(rng_.below(2));
  }
  return result;
}

void World::train() {
  if (!trainer_alive_ || !trainer_batch_) return;
  trainer_batch_ = false;
  if (faults_ && !ranks_.empty() && rng_.chance(0.1)) lose_rank();
  for (const auto& [id, rank] : ranks_) {
    // It hears nothing of it; the batch comes once more when the rank is back.
    if (!rank.alive || rank.formation != trainer_formation_ || rank.step != trainer_version_ + 1) {
      ++seen["a step without a rank"];
      return;
    }
  }
  publish(trainer_version_ + 1);
  ask();
}

}  // namespace tailrace::scheduler
