// The conversations and samples of one attempt's calls, as a tree of segments (design rule 2). It
// calls nobody, so it is tested without an engine or a socket.
//
// An agent sends its whole conversation with each call. Where the beginning of it is what an
// earlier call sent, with the answer that call got, its tokens are those that were captured then:
// what was sampled is never encoded again, and only what stands behind the last such answer is. So
//
//   - a conversation that only grows is one segment;
//   - a history that was edited, shortened or summarised goes on behind the last answer that is
//     still as it was, or begins anew: another segment;
//   - calls that go on behind the same answer, or ask the same again (parallel calls, `n`), are
//     branches of one segment;
//   - sub-agents have roots of their own.
//
// Two messages are the same if their roles, texts and tool calls are. The blanks around the text of
// an answer, its thinking and the ids of its calls may be left out, as clients do; where they are
// sent they tell two answers apart that are the same otherwise, of which else the newest is meant.
// The arguments of a call are compared as JSON.
//
// A call counts when its answer is whole: one that was cut off, since its client hung up, leaves no
// token. Neither does a whole answer that its client was not there to read, or of which that is not
// known at the end, unless it was asked for again, or a later call goes on behind it.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/chat/prompt_format.h"
#include "core/generate.h"
#include "core/trajectory/trajectory.h"

namespace tailrace::gateway {

class Capture {
 public:
  // The format outlives it.
  explicit Capture(const chat::PromptFormat& format) : format_(format) {}

  // Where a call goes on.
  struct Place {
    std::vector<TokenId> context;  // all in front of the answer
    size_t num_known = 0;          // of them in front of what this call has said
    int32_t behind = -1;           // the captured answer that it goes on behind; -1: it begins anew
    // The generator's session, with `num_known` tokens; 0: a new one has to be given all. It is
    // this call's alone.
    SessionId session = 0;
    size_t num_prompt = 0;  // of the context: what was said before the first answer
    Digest path = {};       // of all that was said
    uint64_t anchor = 0;    // of what was said behind the last answer (Trajectory::turn_anchors)
    int64_t ordinal = 0;    // among the calls that have asked the same
    std::shared_ptr<const nlohmann::ordered_json> said = nullptr;  // the messages
  };

  // A call on its way to its place: begin...(), find(), write(), settle(). Only find() and settle()
  // look at what was captured, and they are short: whoever shares a Capture between threads locks
  // these two alone. Calls are opened one at a time; answers may be committed in between.
  struct Opening {
    nlohmann::ordered_json said;  // the messages; of a text or tokens, a message of the user's
    std::string tools;
    std::optional<std::string> prompt;             // of a text
    std::optional<std::vector<TokenId>> ids = {};  // of tokens
    std::vector<Digest> paths = {};                // behind each message, or of the whole
    // Found: the answer that it goes on behind (-1: none), and the messages, bytes or tokens of it
    // that are captured.
    int32_t behind = -1;
    size_t num_captured = 0;
    TokenId last = -1;  // token of that answer
    // Written: what is new.
    std::vector<TokenId> tokens = {};
    uint64_t anchor = 0;
    // Least number of tokens of a text that was not encoded, as it has more than `max_tokens` of
    // write(); 0: it was.
    int64_t least_tokens = 0;
    int64_t text_bytes = 0;  // of that text
  };
  // Messages that transformers would take, and tools as they were sent. A Failure: it is no
  // conversation that can be answered, in words for whoever sent it.
  static Result<Opening> begin(nlohmann::ordered_json messages, std::string tools);
  // A text, or its tokens, to be continued: it goes on behind the longest beginning of it that is a
  // prompt with its answer.
  static Result<Opening> begin_text(std::string prompt);
  static Result<Opening> begin_tokens(std::vector<TokenId> prompt);
  void find(Opening& opening) const;
  // Takes long. A text that must be more than `max_tokens` is not encoded (Opening::least_tokens).
  static Result<void> write(Opening& opening, const chat::PromptFormat& format, int64_t max_tokens);
  Place settle(Opening opening);

  // All of that at once.
  Result<Place> open(const nlohmann::ordered_json& messages, const std::string& tools);
  Result<Place> open_text(const std::string& prompt);
  Result<Place> open_tokens(std::vector<TokenId> prompt);
  // The same place once more, for another answer.
  Place again(const Place& place);

  // The answer has come. `answer`: the message that the client is given. `session` holds the
  // context and the answer, for whoever goes on behind it; 0: none. Returns the number of the
  // answer.
  int32_t commit(const Place& place, const std::vector<GeneratedToken>& tokens,
                 const nlohmann::ordered_json& answer, SessionId session);
  // Nobody has read the answer, or somebody has after all. Until told otherwise it was read. False:
  // this changes nothing.
  bool set_heard(int32_t answer, const Place& place, bool is_heard);
  // There will be no word on any answer: nobody has read those of which there was none.
  bool has_unknown() const;
  void end_unknown();
  // Somebody has read it, and no call went on behind it so far.
  bool is_unused(int32_t answer) const;
  // There will be none.
  void discard(const Place& place);

  // Sessions of the generator that wait for who goes on behind their answers.
  std::vector<SessionId> sessions() const;

  int64_t num_answers() const { return std::ssize(answers_); }  // behind take(): that were read
  // Conversations that did not go on behind an answer although there was one.
  int64_t num_begun_anew() const { return num_begun_anew_; }
  // The messages of the first call, and the conversation of the last answer that was read, with it:
  // lists of messages. Null: there is none.
  const nlohmann::ordered_json& first_said() const { return first_said_; }
  nlohmann::ordered_json last_conversation() const;

  // The anchor of each answer, in the order in which they came.
  std::vector<uint64_t> anchors() const;

  // The tree, without what nobody has read. Nothing is captured behind this.
  std::vector<Segment> take();

 private:
  // A place in a segment: behind so many tokens of its context.
  struct Point {
    int32_t segment = -1;
    size_t num_tokens = 0;
  };
  struct Answer {
    Point end;
    TokenId last = -1;
    SessionId session = 0;
    size_t num_prompt = 0;
    uint64_t anchor = 0;
    std::string asides = {};  // its thinking and the ids of its calls
    // The text and its answer: as it was sampled, and as the client has it.
    std::string text = {}, shown = {};
    size_t begin = 0;  // of its tokens, in the segment
    bool is_heard = true, is_used = false;
    bool is_known_heard = false;  // it was told, or a call went on behind it
  };
  struct Conversation {
    int32_t answer = -1;
    std::shared_ptr<const nlohmann::ordered_json> said;  // before it
    nlohmann::ordered_json message;                      // the answer
  };

  std::vector<TokenId> context_of(const Point& point) const;
  size_t context_size(int32_t segment) const;
  Result<Place> open(Result<Opening> opening);
  Place behind(int32_t answer);
  int32_t meant(const std::vector<int32_t>& same, const nlohmann::ordered_json& message) const;
  void ask(Place& place, Digest path, nlohmann::ordered_json said);
  int32_t segment_for(const Place& place);
  void keep_conversation(Conversation conversation);
  void drop_unheard();
  void cut_unanswered();
  void join_unanswered();

  const chat::PromptFormat& format_;
  std::vector<Segment> segments_;
  std::vector<Answer> answers_;
  // By the path that ends with them, the oldest first.
  std::unordered_map<Digest, std::vector<int32_t>> answers_of_;
  // By what was said and the answer behind which it was: where its answers were sampled.
  std::unordered_map<Digest, Point> prompts_;
  std::unordered_map<Digest, int64_t> asked_;  // calls, by path
  nlohmann::ordered_json first_said_;
  // Conversations of the last answers, the oldest first: back to one that was read for certain.
  std::deque<Conversation> conversations_;
  int64_t num_begun_anew_ = 0;
};

}  // namespace tailrace::gateway
