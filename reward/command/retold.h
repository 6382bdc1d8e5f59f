// An episode retold for a program: the environment as it is, but that whoever scores its episodes
// is another, and is given the conversation as evidence:
//
//   {"prompt": TEXT, "messages": [{"role": ..., "content": ...}, ...], "response": TEXT,
//    "row": OBJECT or null, "turns": N}
//
// prompt: the text of the first observation, of messages that of the last one. messages: what was
// said, with the answers of the policy as "assistant". response: the last answer. row: of the
// dataset. turns: how many answers there are. Of an environment that rewards by itself
// "environment_reward" is the sum of its rewards, which count no more.
//
// Thread: any; each environment as its own.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "sandbox/environment_source.h"

namespace tailrace {

// The evidence of an environment that is retold.
struct RetoldEpisode {
  std::string episode = {};  // the object above, as JSON on one line
  // The evidence for the environment's verifier; none where the environment rewards by itself.
  std::optional<std::string> evidence = {};

  std::string write() const;
  // A Failure: it was not written so.
  static Result<RetoldEpisode> read(const std::string& written);
};

// `verifier`: the name of who scores its episodes instead. Not `keeps_evidence`: nobody asks for
// the evidence beside the episode.
std::shared_ptr<const sandbox::EnvironmentSource> retold(
    std::shared_ptr<const sandbox::EnvironmentSource> source, std::string verifier,
    bool keeps_evidence);

}  // namespace tailrace
