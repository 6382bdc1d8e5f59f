// A language model as a Verifier: it is asked, over OpenAI's chat API, what an episode is worth,
// and its answer holds a number. `tailrace serve` is such a server, as are vLLM, SGLang and others.
//
// The evidence is an episode retold (reward/command/retold.h). The question is a text of the
// caller's in which {prompt}, {response}, {conversation} and {row} stand for parts of the episode.
// The number that counts is the first one behind the last `answer` of what the judge says; divided
// by `best` it is the reward. Sampling is greedy.
//
// A judge that cannot be reached, one that answers without a number, and a number outside of
// [0, best] are Failures: no score is made up.
//
// Thread: any; each score is a request of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "reward/verifier.h"

namespace tailrace {

struct ChatJudgeOptions {
  std::string url = {};    // "http://host:port/v1"
  std::string model = {};  // as the server calls it; empty: none is named
  std::string prompt = {};
  std::string answer = "Score:";
  double best = 1;  // the number that is a reward of 1
  int64_t max_tokens = 256;
  std::string key = {};  // that the server wants; empty: none
};

// Asks nobody yet.
std::unique_ptr<Verifier> make_chat_judge(const ChatJudgeOptions& options);

// The question about an episode, whose parts are written as they are. A Failure: it is none.
Result<std::string> judge_question(const std::string& prompt, const std::string& evidence);

// The number of an answer. A Failure: there is none, or it is outside of [0, best].
Result<double> judge_number(const ChatJudgeOptions& options, const std::string& said);

}  // namespace tailrace
