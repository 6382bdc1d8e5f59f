#include "scheduler/service/outbox.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/wire/frame.h"
#include "scheduler/service/lost_bodies.h"

namespace tailrace::scheduler {

Outbox::Outbox(const State& state, Feed feed, StoreActor& store, wire::WorkerServer& server,
               RunMetrics& metrics, const std::vector<std::string>& datasets, Log& log)
    : state_(state),
      feed_(std::move(feed)),
      store_(store),
      server_(server),
      metrics_(metrics),
      datasets_(datasets),
      log_(log) {}

void Outbox::perform(const Action& action) {
  std::visit([this](const auto& a) { act(a); }, action);
}

// "prompt 12 of epoch 0", with its dataset where there are several.
std::string Outbox::prompt_text(const TaskId& task) const {
  const std::string text = fmt::format("prompt {} of epoch {}", task.prompt, task.epoch);
  if (datasets_.empty()) return text;
  return fmt::format("{} of {}", text, datasets_.at(static_cast<size_t>(task.dataset)));
}

void Outbox::warn_of_unread(const StoreActor::Described& body) const {
  if (!body.unread.empty())
    log_.warning("what the verifier of {} measured is missing from the metrics: {}",
                 to_string(body.header.lease), body.unread);
}

// With the turns that it goes on from. Of what cannot be read back there is nothing to go on from;
// of what was taken back meanwhile, nobody.
void Outbox::act(const Grant& a) {
  if (!a.prefix) return send(a, wire::Grant{a.lease, a.lane, a.version});
  store_.read({*a.prefix}, 0, wire::kMaxMessageBytes,
              [this, a](std::vector<std::byte> turns, const auto& lost) {
                const auto* lease = state_.leases.find({a.lane, a.lease.member});
                if (lease == nullptr || lease->attempt != a.lease.attempt) return;
                // The grant stands: without its turns the attempt begins anew.
                if (!lost.empty()) lose_bodies(lost, feed_, log_), turns.clear();
                send(a, wire::Grant{a.lease, a.lane, a.version, std::move(turns)});
              });
}

void Outbox::act(const Verify& a) {
  // The verifier and its evidence stand in the body, which decide() never saw.
  store_.describe({{a.lane, a.lease}}, [this, a](const auto& found, const auto& lost) {
    if (!lost.empty()) return lose_bodies(lost, feed_, log_);
    const TrajectoryHeader& header = found.front().header;
    send(a, wire::Verify{a.lease, a.lane, a.verify_attempt, header.verifier, header.evidence});
  });
}

namespace {

wire::Batch::Item item_of(const HandOver::Item& item, const TrajectoryStore::Entry& entry) {
  return {item.lease, item.reward, entry.bytes, entry.checksum, item.judged};
}

}  // namespace

// The list goes out with what the trainer needs to fetch the bodies and to prove them.
void Outbox::act(const HandOver& a) {
  std::vector<BodyId> ids;
  for (const HandOver::Item& item : a.items) ids.push_back({Lane::kTrain, item.lease});
  store_.describe(ids, [this, a](const auto& found, const auto& lost) {
    if (!lost.empty()) return lose_bodies(lost, feed_, log_);
    wire::Batch batch{.policy = a.policy,
                      .step = a.step,
                      .first = a.first,
                      .last = a.last,
                      .items = {},
                      .share_begin = a.share_begin,
                      .share_end = a.share_end};
    // The list of another rank (law 8.7). Metrics and samples are told of the trainer's list alone.
    if (a.copy) {
      for (size_t i = 0; i < found.size(); ++i)
        batch.items.push_back(item_of(a.items[i], found[i].entry));
      return send(a, batch);
    }
    // The list begins anew: another trainer has asked, or a body of it was lost (law 3.8).
    if (a.first == 0) {
      handed_.items.clear();
      handed_headers_.clear();
    }
    for (size_t i = 0; i < found.size(); ++i) {
      batch.items.push_back(item_of(a.items[i], found[i].entry));
      handed_headers_.push_back(found[i].header);
      handed_headers_.back().reward = a.items[i].reward;
      handed_headers_.back().judged = a.items[i].judged;
      warn_of_unread(found[i]);
    }
    handed_.step = a.step;
    handed_.items.insert(handed_.items.end(), a.items.begin(), a.items.end());
    if (a.last) tell_of_batch();
    send(a, batch);
  });
}

// Before the trainer has all of it, and publishes.
void Outbox::tell_of_batch() {
  HandOver batch = std::exchange(handed_, {});
  metrics_.on_batch(batch.step, std::exchange(handed_headers_, {}));
  // People are shown the first prompts, not those that were complete first.
  std::ranges::sort(batch.items, {},
                    [](const HandOver::Item& item) { return batch_order(item.lease.member); });
  std::map<BodyId, double> rewards;
  for (const HandOver::Item& item : batch.items) rewards[{Lane::kTrain, item.lease}] = item.reward;
  show_samples(batch.step, batch.step - 1, metrics_.samples_of_batch(batch), std::move(rewards),
               [] {});
}

void Outbox::show_samples(int64_t step, int64_t version, std::vector<BodyId> ids,
                          std::map<BodyId, double> rewards, std::function<void()> then) {
  if (ids.empty()) return then();
  store_.decode(std::move(ids),
                [this, step, version, rewards = std::move(rewards), then = std::move(then)](
                    std::vector<Trajectory> found, const auto&) {
                  for (Trajectory& trajectory : found)
                    trajectory.reward = rewards.at({trajectory.lane, trajectory.lease});
                  metrics_.write_samples(step, version, found);
                  then();
                });
}

// Reported when its rows are written: then its bodies can go. An episode that cannot be read back
// is missing from the means, and nobody trains on it.
void Outbox::act(const EvalDone& a) {
  std::vector<BodyId> ids;
  std::map<BodyId, double> rewards;
  for (const EvalDone::Item& item : a.items) {
    if (!item.reward) continue;
    ids.push_back({Lane::kEval, item.lease});
    rewards[ids.back()] = *item.reward;
  }
  store_.describe(ids, [this, a, rewards](const auto& found, const auto& lost) {
    // Not lose_bodies(): their members would be sampled again, and with a disk that is broken again
    // and again.
    for (const StoreActor::Lost& body : lost)
      log_.warning("{}: {}", to_string(body.body.lease), body.reason);
    std::vector<TrajectoryHeader> headers;
    for (const StoreActor::Described& body : found) {
      headers.push_back(body.header);
      warn_of_unread(body);
    }
    // Chosen before the row is written: a version that has its row shows nothing more.
    const std::vector<BodyId> shown = metrics_.samples_of_evaluation(a);
    metrics_.on_evaluation(a, headers);
    show_samples(a.version, a.version, shown, rewards, [this, a] {
      feed_(EvalReported{a.policy, a.version});
    });
  });
}

void Outbox::act(const Release& a) { store_.release(a.bodies); }

void Outbox::act(const TaskDone& a) {
  if (a.end == TaskEnd::kFailed) log_.warning("{} failed for good", prompt_text(a.task));
}

void Outbox::act(const TaskWithdrawn& a) { log_.info("{} is sampled again", prompt_text(a.task)); }

void Outbox::act(const Forked& a) {
  log_.warning("version {} has other weights than before: what rests on it is sampled again",
               a.from);
}

void Outbox::act(const RunDone& a) {
  log_.info("nothing more to do; {} prompts unreached", a.end.unreached);
  run_done_ = true;
}

void Outbox::act(const Quarantine& a) {
  if (a.until == Time{}) {
    log_.info("{} is fit for work again", a.worker);
  } else {
    log_.warning("{} gets no work until it had a rest: {}", a.worker, a.reason);
  }
}

void Outbox::act(const TaskBroken& a) {
  const DatasetConfig& dataset = state_.config.datasets.at(static_cast<size_t>(a.task.dataset));
  const bool held_out = a.lane == Lane::kEval;
  log_.warning("{} {}{} is broken and is not asked for again: {}",
               held_out                        ? "held-out prompt"
               : dataset.prompts_per_epoch > 0 ? "row"
                                               : "prompt",
               a.row, dataset.name.empty() ? "" : fmt::format(" of dataset '{}'", dataset.name),
               a.reason);
}

void Outbox::act(const Halt& a) {
  // The service ends by it; workers are told why.
  if (failure_.empty()) failure_ = a.reason;
}

}  // namespace tailrace::scheduler
