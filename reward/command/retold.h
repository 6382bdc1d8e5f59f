// An episode retold for a program: the environment as it is, but that whoever scores its episodes
// is another, and is given the conversation as evidence:
//
//   {"prompt": TEXT, "messages": [{"role": ..., "content": ...}, ...], "response": TEXT,
//    "row": OBJECT or null, "turns": N}
//
// prompt: the text of the first observation, of messages that of the last one. messages: what was
// said, with the answers of the policy as "assistant". response: the last answer. row: of the
// dataset. turns: how many answers there are. Of an environment that rewards by itself
// "environment_reward" is the sum of its rewards, which count no more. Where `keeps_evidence`,
// "evidence" is what its own verifier would have been given.
//
// Thread: any; each environment as its own.
#pragma once

#include <memory>
#include <string>

#include "sandbox/environment_source.h"

namespace tailrace {

// `verifier`: the name of who scores its episodes instead.
std::shared_ptr<const sandbox::EnvironmentSource> retold(
    std::shared_ptr<const sandbox::EnvironmentSource> source, std::string verifier,
    bool keeps_evidence);

}  // namespace tailrace
