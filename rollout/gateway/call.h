// A call of a client, from what it asks to its answers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/digest.h"
#include "core/generate.h"
#include "core/http/reply.h"
#include "rollout/gateway/answer_stream.h"
#include "rollout/gateway/attempt.h"
#include "rollout/gateway/capture.h"
#include "rollout/gateway/chat_answer.h"
#include "rollout/gateway/chat_api.h"

namespace tailrace::gateway {

// One of the answers that it wants.
struct Branch {
  Capture::Place place;
  SessionId session = 0;
  Choice choice = {};
  bool is_done = false;
  std::unique_ptr<AnswerStream> stream = nullptr;  // where the client wants one
};

struct Call {
  int64_t id = 0;
  std::shared_ptr<Attempt> attempt;
  ChatRequest request;
  Digest digest = {};  // of what it asks
  Digest name = {};    // the same of a call that is sent again
  http::Reply reply;
  AnswerHead head = {};
  Usage usage = {};
  std::vector<Branch> branches = {};  // n of each prompt, in their order

  bool wants_scores() const {
    return request.wants_prompt_scores() || request.wants_answer_scores();
  }
  // Nothing is sampled.
  bool only_echoes() const { return request.echoes && request.sampling.max_new_tokens == 0; }
};

}  // namespace tailrace::gateway
