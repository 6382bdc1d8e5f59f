#include "reward/worker/worker.h"

#include <algorithm>
#include <map>
#include <set>

#include <unistd.h>

#include "core/run/deadline_executor.h"
#include "kernels/base/pulse.h"
#include "reward/judge.h"
#include "reward/registry.h"

namespace tailrace {

namespace {

using namespace std::chrono_literals;

// Waits are cut into pieces of this, so that a stop, and while verifiers work a new request, is
// noticed.
constexpr std::chrono::milliseconds kPoll = 100ms;
constexpr std::chrono::milliseconds kScorePoll = 5ms;

wire::Verdict verdict_of(const wire::Verify& request, const Result<Score>& score) {
  wire::Verdict verdict{.lease = request.lease,
                        .lane = request.lane,
                        .verify_attempt = request.verify_attempt,
                        .reward = std::nullopt,
                        .metrics = {},
                        .failure = {},
                        .task_broken = false};
  if (score) {
    verdict.reward = score.value().reward;
    verdict.metrics = score.value().metrics;
  } else {
    verdict.failure = score.failure().message;
    verdict.task_broken = score.failure().is_final;
  }
  return verdict;
}

bool same_work(const wire::Verify& a, const wire::Verify& b) {
  return a.lease == b.lease && a.lane == b.lane && a.verify_attempt == b.verify_attempt;
}

}  // namespace

RewardWorker::RewardWorker(std::shared_ptr<const VerifierRegistry> verifiers, const Clock& clock,
                           RewardWorkerOptions options)
    : verifiers_(std::move(verifiers)), clock_(clock), options_(std::move(options)) {}

RewardWorker::Ending RewardWorker::run() {
  wire::Hello hello{.role = Role::kReward,
                    .worker = options_.worker,
                    .incarnation = options_.incarnation,
                    .pid = static_cast<int32_t>(getpid()),
                    .slots = options_.threads,
                    .numerics_class = "",
                    .joined = options_.joined,
                    .hardware = options_.hardware,
                    .cluster = options_.cluster,
                    .host = options_.host};
  wire::WorkerClient client(hello, options_.endpoint, options_.link);
  using Executor = DeadlineExecutor<wire::Verdict>;
  // Its Failures are put behind "verifier NAME: ".
  Executor executor("it", options_.threads, options_.deadline + options_.start, clock_);
  // By the executor's ids, which are ours alone: the same lease may be verified again after a
  // failure.
  std::map<int64_t, wire::Verify> in_hand;
  int64_t next_id = 0;
  // A verifier that minds the time says what took it, which is more than that it did not answer.
  const Time budget = a_little_less(options_.deadline);
  while (!stop_) {
    beat();
    std::vector<Executor::Call> calls;
    while (auto message = client.receive(in_hand.empty() ? kPoll : 0ms)) {
      if (auto* request = std::get_if<wire::Verify>(&*message)) {
        if (std::ranges::any_of(
                in_hand, [&](const auto& other) { return same_work(other.second, *request); })) {
          continue;  // said again in a new session
        }
        calls.push_back({next_id, [verifiers = verifiers_, request = *request, budget] {
                           return verdict_of(request, judge(*verifiers, request.verifier,
                                                            request.evidence, budget));
                         }});
        in_hand.emplace(next_id++, std::move(*request));
      }
      // Nobody waits for requests that a new session does not name.
      if (const auto* hold = std::get_if<wire::Hold>(&*message)) {
        const std::set<BodyId> held(hold->leases.begin(), hold->leases.end());
        std::erase_if(in_hand, [&](const auto& entry) {
          return !held.contains({entry.second.lane, entry.second.lease});
        });
      }
      if (const auto* shutdown = std::get_if<wire::Shutdown>(&*message))
        return {"shutdown: " + shutdown->reason, !client.displaced()};
    }
    executor.hand_over(std::move(calls));
    auto wait = in_hand.empty() ? 0ms : kScorePoll;
    for (auto& answer : executor.collect(wait, /*all=*/false)) {
      auto request = in_hand.find(answer.id);
      // A new session gave it up meanwhile.
      if (request == in_hand.end()) continue;
      // A Failure here is the executor's: the verifier did not come back.
      client.send(answer.result
                      ? std::move(answer.result).value()
                      : verdict_of(request->second,
                                   Failure{fmt::format("verifier {}: {}", request->second.verifier,
                                                       answer.result.failure().message)}));
      in_hand.erase(request);
    }
    if (client.silence() > options_.patience) {
      return {.reason = fmt::format("the scheduler has been silent for {} s",
                                    client.silence().count() / 1000),
              .clean = false};
    }
  }
  return {"stopped"};
}

}  // namespace tailrace
