// The calls that are being answered: each is some sessions of the generator, whose answers are
// captured and written when all of them are there.
//
// Thread: the owner's thread only (the generator's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/base/clock.h"
#include "core/generator_driver.h"
#include "rollout/gateway/api_error.h"
#include "rollout/gateway/call.h"
#include "rollout/gateway/call_writer.h"
#include "rollout/gateway/token_scores.h"

namespace tailrace::gateway {

class OpenCalls : private AnswerSink {
 public:
  using NoteRefusal = std::function<void(const ApiError&, Attempt&)>;
  // Borrows the generator, the writer and the clock. `scores`: what scores given tokens; empty:
  // nobody asks for that.
  OpenCalls(GeneratorDriver& generator, const CallWriter& writer, std::string model,
            ScoreTokens scores, NoteRefusal note_refusal, const Clock& clock);
  ~OpenCalls() override;
  OpenCalls(const OpenCalls&) = delete;

  bool empty() const { return calls_.empty(); }
  void begin(Call call);
  // Releases the sessions that a call took when it was placed, where it is not begun.
  void release_unbegun(const Call& call);
  // Nobody hears its answers: they leave nothing. One that is not open changes nothing.
  void drop(int64_t id);
  void drop_all(const Attempt& attempt);
  // To clients that want it: what was sampled so far.
  void stream();
  // Scores one answer of a call that wants scores, and answers the call behind its last one. One at
  // a time, so that the generator goes on in between.
  void score_next();
  bool has_to_score() const { return !to_score_.empty(); }

 private:
  using Calls = std::map<int64_t, Call>;

  void answered(Generation generation) override;
  void submit(Call& call, Branch& branch, size_t index);
  // All its answers are sampled.
  void complete(Calls::iterator at);
  CapturedCall capture_answers(Call& call);
  void finish(Calls::iterator at);
  void refuse_full(Call& call);
  Calls::iterator drop(Calls::iterator at);
  void close(const Call& call);

  GeneratorDriver& generator_;
  const CallWriter& writer_;
  const std::string model_;
  const ScoreTokens scores_;
  const NoteRefusal note_refusal_;
  const Clock& clock_;
  Calls calls_;
  std::unordered_map<SessionId, std::pair<int64_t, size_t>> branches_;  // that are being sampled
  // Calls that want scores, with the next of their answers. Some may be dropped by now.
  std::deque<std::pair<int64_t, size_t>> to_score_;
};

}  // namespace tailrace::gateway
