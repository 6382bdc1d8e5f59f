// The turns of an attempt that went no further, from which another attempt of the same member goes
// on (EpisodeSpec::prefix). They come from outside the process, so they prove themselves first:
// what does not fit is not used, and the episode begins at its beginning.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rollout/episode/episode.h"

namespace tailrace {

// The reason why the episode of `spec` in the environment `env` cannot go on behind a trajectory
// without a fault (find_fault). Nothing: it can. Whether the environment says the same again is not
// known yet.
std::optional<std::string> find_misfit(const Trajectory& prefix, const EpisodeSpec& spec,
                                       std::string_view env, int64_t vocab_size);

}  // namespace tailrace
