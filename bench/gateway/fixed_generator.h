// A Generator without a model: each answer has the same tokens, and comes after a fixed number of
// steps of a fixed length. It notes how long it had a call, so that the rest of what a client
// waited for is known.
//
// A call says which client's it is by its max_new_tokens: kFirst + client.
//
// Thread: as Generator; seconds() is any thread's, once the client has its answer.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <vector>

#include "core/generate.h"

namespace tailrace {

class FixedGenerator final : public Generator {
 public:
  static constexpr int64_t kFirst = 1000;

  FixedGenerator(std::vector<TokenId> answer, int64_t steps, std::chrono::microseconds step,
                 size_t clients)
      : answer_(std::move(answer)), steps_(steps), step_(step), seconds_(clients) {}

  void submit(GenerateRequest request) override;
  void release(SessionId session) override;
  std::vector<Generation> step() override;
  bool idle() const override { return open_.empty() && aborted_.empty(); }
  int64_t max_context_tokens() const override { return int64_t{1} << 20; }
  int64_t version() const override { return 0; }

  // Of the client's last call.
  double seconds(size_t client) const { return seconds_[client].load(); }
  int64_t num_sessions() const { return std::ssize(sessions_); }

 private:
  struct Open {
    int64_t steps = 0;
    size_t client = 0;
    double since = 0;
  };
  const std::vector<TokenId> answer_;
  const int64_t steps_;
  const std::chrono::microseconds step_;
  std::vector<std::atomic<double>> seconds_;
  std::map<SessionId, Open> open_;
  std::set<SessionId> sessions_;
  std::vector<SessionId> aborted_;
};

}  // namespace tailrace
