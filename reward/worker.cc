#include "reward/worker.h"

#include <cmath>
#include <exception>

#include <unistd.h>

namespace tailrace {

namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

// Waits are cut into pieces of this, so that a stop is noticed.
constexpr milliseconds kPoll{100};

}  // namespace

RewardWorker::RewardWorker(const VerifierRegistry& verifiers, const Clock& clock,
                           RewardWorkerOptions options)
    : verifiers_(verifiers), clock_(clock), options_(std::move(options)) {}

std::string RewardWorker::run() {
  Hello hello{.role = Role::kReward,
              .worker = options_.worker,
              .incarnation = 0,
              .pid = static_cast<int32_t>(getpid()),
              .slots = options_.slots,
              .numerics_class = ""};
  WorkerClient client(hello, options_.endpoint, options_.link);
  while (!stop_) {
    std::optional<Message> message = client.receive(kPoll);
    if (message) {
      if (const auto* request = std::get_if<Verify>(&*message)) client.send(judge(*request));
      if (const auto* shutdown = std::get_if<Shutdown>(&*message))
        return "shutdown: " + shutdown->reason;
      // Nothing else concerns it: a new Welcome voids work in hand, and there is none between
      // messages.
    } else if (client.silence() > options_.patience) {
      return fmt::format("the scheduler has been silent for {} s", client.silence().count() / 1000);
    }
  }
  return "stopped";
}

Verdict RewardWorker::judge(const Verify& request) const {
  Verdict verdict{.lease = request.lease,
                  .lane = request.lane,
                  .verify_attempt = request.verify_attempt,
                  .reward = std::nullopt,
                  .metrics = {},
                  .failure = ""};
  const Verifier* verifier = verifiers_.find(request.verifier);
  if (verifier == nullptr) {
    std::vector<std::string> names;
    for (const auto& [name, help] : verifiers_.list()) names.push_back(name);
    verdict.failure = fmt::format("there is no verifier '{}'; verifiers: {}", request.verifier,
                                  fmt::join(names, ", "));
    return verdict;
  }
  Time start = clock_.now();
  Result<Score> score = Failure{"not scored"};
  try {
    score = verifier->score(request.evidence);
  } catch (const std::exception& e) {
    score = Failure{e.what()};
  }
  auto took = duration_cast<milliseconds>(clock_.now() - start);
  if (!score) {
    verdict.failure = fmt::format("verifier {}: {}", request.verifier, score.failure().message);
  } else if (!std::isfinite(score.value().reward)) {
    verdict.failure = fmt::format("verifier {}: its reward is not finite", request.verifier);
  } else if (took > options_.deadline) {
    verdict.failure = fmt::format("verifier {}: it took {} ms; the deadline is {} ms",
                                  request.verifier, took.count(), options_.deadline.count());
  } else {
    verdict.reward = score.value().reward;
    verdict.metrics = score.value().metrics;
  }
  return verdict;
}

}  // namespace tailrace
