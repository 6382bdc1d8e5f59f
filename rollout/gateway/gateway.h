// The engine behind an OpenAI URL: agents that nobody has rewritten talk to the policy over HTTP,
// and what they say and hear is captured as tokens (capture.h).
//
//   client ==HTTP==> I/O thread: takes it, finds its attempt
//                       | reading_pool.h
//                       v
//   a thread that reads: parses it, lets the template write it, encodes what is new
//                       | inbox
//                       v
//   engine's thread, poll(): submits to the Generator, whose driver gives back what was sampled
//
// Limits are looked at before the work: the bytes of a body, the values of its JSON, its messages,
// and text that is more than the context can hold, by the longest token of the vocabulary.
//
// An attempt has a key that nobody guesses, which a client has in its URL,
// http://HOST:PORT/s/KEY/v1, or as its API key. Calls without one are answered where the gateway
// serves anonymous ones: each is an attempt of its own, which is forgotten.
//
// How tokens are drawn is the run's where an attempt is trained on: of the temperature, top_p,
// top_k and min_p that a client asks for nothing comes, for a trajectory has one distribution.
// Lengths, stop strings, `n` and tools are the client's.
//
// Thread: the owner's thread only (the generator's), but for base_url().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/chat/prompt_format.h"
#include "core/generator_driver.h"
#include "core/http/server.h"
#include "rollout/gateway/attempt.h"
#include "rollout/gateway/reading_pool.h"
#include "rollout/gateway/token_scores.h"

namespace tailrace::gateway {

struct GatewayOptions {
  http::ServerOptions http = {};
  std::string model = "policy";  // what it is called; a client may ask for any name
  SamplingParams sampling = {};  // of anonymous calls: what they do not ask for
  bool serves_anonymous = false;
  std::string api_key = {};  // of anonymous calls; empty: they need none
  // Scores tokens for anonymous calls, which poll() asks for between steps of the generator. Empty:
  // echo, several log-probabilities and several prompts are refused, as in an episode, where none
  // of that would be captured.
  ScoreTokens scores = {};
  ReadingLimits reading = {};
};

class Gateway {
 public:
  // Borrows all of them. Throws UserError where the address cannot be had.
  Gateway(GeneratorDriver& generator, const chat::PromptFormat& format,
          const GatewayOptions& options, const Clock& clock);
  ~Gateway();
  Gateway(const Gateway&) = delete;

  // Begins an attempt; its key, which is `key` of an attempt that has ended, or a new one. Until
  // end() what is called under it is captured.
  std::string begin(const AttemptSpec& spec, std::string key = {});
  // Calls that are still open are ended without an answer, and later ones are refused.
  CapturedAttempt end(const std::string& key);
  // "http://127.0.0.1:PORT/s/KEY/v1"; without a key that of anonymous calls. `sandbox_port`: where
  // one in a network namespace of its own finds the server, which has been given a socket there.
  std::string base_url(const std::string& key = {}, uint16_t sandbox_port = 0) const;
  http::Server& server();

  // Takes requests, gives out what was sampled of those that stream, and scores one sequence where
  // a request wants it.
  void poll();
  // Nothing is asked of the generator.
  bool idle() const;
  // The call that is being read for longest; nothing: none is, or since a moment ago. Any thread.
  std::optional<HeldCall> held() const;
  // Lines about what was refused since they were last taken: for the log of whoever owns this.
  // `is_end`: also how many there were in all.
  std::vector<std::string> take_refusals(bool is_end = false);
  // Until there is a request, or for so long. Not at all while there is something to score.
  void wait(std::chrono::milliseconds longest);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tailrace::gateway
