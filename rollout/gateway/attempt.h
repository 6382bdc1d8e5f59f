// An attempt at an episode, from begin() to end() of the gateway: what its calls may do, where each
// goes on, and what they have come to. A call without a key is an attempt of its own.
//
// Thread: any, but for what is the engine's thread's.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "core/chat/prompt_format.h"
#include "core/generate.h"
#include "core/trajectory/trajectory.h"
#include "kernels/base/mutex.h"
#include "rollout/gateway/capture.h"
#include "rollout/gateway/chat_answer.h"
#include "rollout/gateway/chat_api.h"

namespace tailrace::gateway {

// The limits of an attempt, and how its tokens are drawn.
struct AttemptSpec {
  SampleKey key = {};
  SamplingParams sampling = {};     // max_new_tokens: of a call, at most
  int64_t max_context_tokens = 0;   // of a conversation
  int64_t max_response_tokens = 0;  // of it, behind its first prompt
  int64_t max_calls = 0;
  bool keeps_sets = false;
  int64_t max_request_bytes = std::numeric_limits<int64_t>::max();  // of the body of a call
  std::string name = {};  // whose calls they are, for the log: "episode 17"
};

// The outcome of an attempt.
struct CapturedAttempt {
  std::vector<Segment> segments;
  int64_t num_answers = 0;
  bool over_limit = false;  // of its calls, or its context: the policy's doing
  double generate_seconds = 0;
  std::string conversation = {};    // of the last answer: JSON, a list of messages
  std::string first_messages = {};  // what was said first: the same
  int64_t num_begun_anew = 0, num_malformed_calls = 0;
  // Answers that nobody was there to read, and are not captured; calls that ask for another answer
  // to the same where nobody has gone on behind the one that was given.
  int64_t num_unheard = 0, num_asked_again = 0;
  int64_t num_refused = 0;             // calls
  std::string last_refusal = {};       // why; empty: none
  std::vector<uint64_t> anchors = {};  // of each answer: Trajectory::turn_anchors
};

// The answers to a call, as they were captured.
struct CapturedCall {
  std::vector<int32_t> answers;
  std::vector<Capture::Place> places;
};

// An answer that was given whole.
struct Answered {
  AnswerHead head;
  Usage usage;
  std::vector<Choice> choices;
  CapturedCall captured = {};
};

class Attempt {
 public:
  // The format outlives it.
  Attempt(const AttemptSpec& spec, const chat::PromptFormat& format, bool is_anonymous)
      : spec_(spec), format_(format), is_anonymous_(is_anonymous), capture_(format) {}

  const AttemptSpec& spec() const { return spec_; }
  bool is_anonymous() const { return is_anonymous_; }
  bool has_ended();

  // Where the answers of a call go on, the n of one prompt behind those of another. The call counts
  // from now on; lengths, and of an attempt that has a key the distribution, are set in the
  // request, whose messages are taken. `call` is its digest. `unused` is a session of the generator
  // that nobody needs any more; 0: there is none.
  //
  // One call is placed at a time, in the order in which they came. It may take long (the template,
  // the tokenizer), but the other members never wait for that.
  std::variant<std::vector<Capture::Place>, ApiError> place(ChatRequest& request,
                                                            const Digest& call, SessionId& unused);
  // The answer to a call has come, or will not.
  void commit(const Capture::Place& place, const Choice& choice,
              const nlohmann::ordered_json& message, SessionId session, const Digest& call,
              CapturedCall& captured);
  void discard(const Capture::Place& place, bool is_full);
  // Whether its client was there for the whole of what was written to it.
  void set_heard(const CapturedCall& captured, bool is_heard);
  // There is an answer of which nobody has said yet whether it was read. At the end it counts as
  // one that was not.
  bool has_unknown();
  void note_refusal(const std::string& why);

  // Answers that a client may ask for again if it has not heard them, by the digest of its call.
  void remember(const Digest& call, Answered answered);
  std::optional<Answered> remembered(const Digest& call);

  // On the engine's thread: measures how long calls are open.
  void call_began(Time now);
  void call_ended(Time now);

  // Sessions of the generator that wait for who goes on.
  std::vector<SessionId> sessions();
  // Nothing is placed behind it.
  CapturedAttempt end();

 private:
  // The same of one conversation, as it begins.
  std::variant<std::vector<Capture::Place>, ApiError> place(Result<Capture::Opening> begun,
                                                            ChatRequest& request,
                                                            const Digest& call, SessionId& unused);
  std::optional<ApiError> fault_of(const ChatRequest& request) const;
  std::optional<ApiError> refusal(int64_t num_answers) TR_REQUIRES(mutex_);
  ApiError too_long(int64_t num_bytes, int64_t least_tokens) TR_REQUIRES(mutex_);
  void keep_distribution(SamplingParams& sampling) const;

  const AttemptSpec spec_;
  const chat::PromptFormat& format_;
  const bool is_anonymous_;

  Mutex mutex_;
  Capture capture_ TR_GUARDED_BY(mutex_);
  int64_t num_calls_ TR_GUARDED_BY(mutex_) = 0;  // answers, also of open calls
  int64_t num_malformed_ TR_GUARDED_BY(mutex_) = 0;
  bool over_limit_ TR_GUARDED_BY(mutex_) = false;
  bool has_ended_ TR_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<Digest, Answered>> answered_ TR_GUARDED_BY(mutex_);  // the oldest first
  std::unordered_map<Digest, std::vector<int32_t>> answers_of_ TR_GUARDED_BY(mutex_);  // by call
  int64_t num_asked_again_ TR_GUARDED_BY(mutex_) = 0, num_refused_ TR_GUARDED_BY(mutex_) = 0;
  std::string last_refusal_ TR_GUARDED_BY(mutex_);

  int64_t num_open_ = 0;
  Time open_since_{};
  double generate_seconds_ = 0;
};

}  // namespace tailrace::gateway
