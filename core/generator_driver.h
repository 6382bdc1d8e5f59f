// The one who steps a Generator, for all who ask it: each of them opens sessions, and hears their
// answers in a sink of its own.
//
// Thread: the generator's.
#pragma once

#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/generate.h"
#include "kernels/base/check.h"

namespace tailrace {

class AnswerSink {
 public:
  virtual ~AnswerSink() = default;
  // May open, submit and release.
  virtual void answered(Generation generation) = 0;
};

class GeneratorDriver {
 public:
  explicit GeneratorDriver(Generator& generator) : generator_(generator) {}
  GeneratorDriver(const GeneratorDriver&) = delete;

  // A session until release() or close(), one of which comes before the sink ends.
  SessionId open(AnswerSink& sink) {
    sinks_.emplace(++last_, &sink);
    return last_;
  }
  void submit(GenerateRequest request) {
    // The answer to one that was released would be nobody's, and its asker would wait for ever.
    TR_CHECK(sinks_.contains(request.session), "session {} is not open", request.session);
    generator_.submit(std::move(request));
  }
  // Nobody hears tokens that are still sampled for it.
  void release(SessionId session) {
    sinks_.erase(session);
    generator_.release(session);
  }

  // All sessions of a sink, which hears nothing more.
  void close(const AnswerSink& sink) {
    for (auto at = sinks_.begin(); at != sinks_.end();) {
      if (at->second != &sink) {
        ++at;
        continue;
      }
      generator_.release(at->first);
      at = sinks_.erase(at);
    }
  }

  // One step, if there is anything to do; the sinks have heard what finished when it returns.
  void step() {
    if (!idle()) hear(generator_.step());
  }
  // Hands on the generations that a step of the generator gave.
  void hear(std::vector<Generation> generations) {
    for (Generation& generation : generations)
      if (const auto at = sinks_.find(generation.session); at != sinks_.end())
        at->second->answered(std::move(generation));
  }

  bool idle() const { return generator_.idle(); }
  std::span<const GeneratedToken> so_far(SessionId session) const {
    return generator_.so_far(session);
  }
  int64_t max_context_tokens() const { return generator_.max_context_tokens(); }

 private:
  Generator& generator_;
  std::unordered_map<SessionId, AnswerSink*> sinks_;
  SessionId last_ = 0;
};

}  // namespace tailrace
