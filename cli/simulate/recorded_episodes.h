// The episodes that a run has played, as lengths and times without their tokens: read from
// RUN/trajectories, or from a file of them, one JSON object a line:
//
//   {"dataset": 0, "prompt": 12, "epoch": 0, "launch": 0, "member": 3, "outcome": "finished",
//    "prompt_tokens": 2, "reset_seconds": 0.0001, "verify_seconds": 0, "reward": 0.5,
//    "digest": "9f..", "turns": [{"tokens": 2, "env_tokens": 2, "env_seconds": 0.0091}, ...]}
//
// Tokens of a turn are those that were sampled; env_tokens follow as the environment's answer,
// which took env_seconds to hear. `reward` is null where nobody gave one. `digest` is one of all
// token ids and of the log-probabilities that they were sampled with: two samples of equal digests
// say the same, by equal weights. An object may leave out all but prompt_tokens and turns.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"
#include "core/base/result.h"
#include "core/trajectory/outcome.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

struct RecordedTurn {
  int64_t tokens = 0, env_tokens = 0;
  double env_seconds = 0;
  friend bool operator==(const RecordedTurn&, const RecordedTurn&) = default;
};

struct RecordedEpisode {
  MemberId member = {};
  Outcome outcome = Outcome::kFinished;
  int64_t prompt_tokens = 0;
  double reset_seconds = 0;
  double verify_seconds = 0;  // 0: the environment gave the reward itself
  std::optional<double> reward = {};
  std::string digest = {};
  std::vector<RecordedTurn> turns = {};

  int64_t num_sampled() const;
  friend bool operator==(const RecordedEpisode&, const RecordedEpisode&) = default;
};

// The answers of all segments, one behind the other.
RecordedEpisode recorded_episode(const Trajectory& trajectory);

// One line without its newline, and back. A Failure says what is wrong with the line.
std::string format_recorded_episode(const RecordedEpisode& episode);
Result<RecordedEpisode> parse_recorded_episode(std::string_view line);

// The last attempt of each sample for training that came to an end, by sample. `source` is a run
// directory or a file of lines. A run keeps what its checkpoints have taken in only until a file of
// it is full (scheduler.store_segment_bytes), so a long run gives its latest episodes. Throws
// UserError for a source that cannot be read, has a damaged line, or has no episode. Damaged parts
// of a run are left out: `notes` says what is missing.
std::map<MemberId, RecordedEpisode> read_recorded_episodes(
    const std::filesystem::path& source, std::vector<std::string>* notes = nullptr);

}  // namespace tailrace
