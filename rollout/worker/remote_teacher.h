// A teacher behind an URL: a server of OpenAI's completions API (`tailrace serve`, vLLM, ...)
// scores finished samples, while their worker goes on. It is asked to echo the very ids, without
// sampling, with their log-probabilities at temperature 1.
//
// Each answer is proved: the ids that come back are those that were sent, each number is the
// logarithm of a probability, and no likeliest token is missing. A sample that could not be scored
// is a failed attempt that says why; nothing is made up.
//
// Thread: one at a time, the worker's. Requests wait on threads of their own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/http/post.h"
#include "core/trajectory/trajectory.h"
#include "kernels/base/mutex.h"

namespace tailrace {

struct RemoteTeacherConfig {
  std::string name = {};       // in `policies`
  http::Url url = {};          // "http://host:port/v1"
  std::string served_as = {};  // as the server calls the model; empty: none is named
  std::string key = {};        // that the server wants; empty: none
  int64_t top_k = 0;           // of its likeliest tokens that go along; 0: none
  int64_t num_ids = 0;         // of the policy's vocabulary
  int64_t at_once = 4;         // samples that are asked about together
  int tries = 3;               // of a request
  std::chrono::milliseconds wait{20'000}, pause{500};  // of a try, and before another one
};

// Asks for the scores of all that was sampled, and sets them. A Failure: the sample has none.
Result<void> score_remotely(const RemoteTeacherConfig& config, Trajectory& trajectory);

class RemoteTeacher {
 public:
  explicit RemoteTeacher(const RemoteTeacherConfig& config);
  // Waits for requests that are under way, each for a try at most.
  ~RemoteTeacher();
  RemoteTeacher(const RemoteTeacher&) = delete;

  void submit(Trajectory trajectory);
  // Asked about, or to be.
  bool holds(const BodyId& id);
  // Nobody wants it any more. False: it is not here.
  bool drop(const BodyId& id);
  std::vector<BodyId> held();
  bool idle();

  struct Scored {
    Trajectory trajectory;
    std::string failure;  // empty: it has its scores
  };
  // Those that are done, each once.
  std::vector<Scored> take();

 private:
  void work(const std::stop_token& stop);

  const RemoteTeacherConfig config_;
  Mutex mutex_;
  std::condition_variable_any arrived_;
  std::set<BodyId> held_ TR_GUARDED_BY(mutex_);  // submitted, and neither taken nor dropped
  std::deque<Trajectory> waiting_ TR_GUARDED_BY(mutex_);
  std::vector<Scored> done_ TR_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;  // last: they use all that is above
};

}  // namespace tailrace
