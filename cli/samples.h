// A few episodes of a run as text, for the report: RUN/samples.jsonl holds rows
//   {"step": 0, "version": 0, "reward": 0.5, "success": 1, "segments": [{"tokens": [...], "roles":
//   [...]}]}
// with roles as in TokenRole (0 prompt, 1 sampled, 2 observation); reward and success may be absent
// or null.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/text/tokenizer.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

struct SampleText {
  TokenRole role = TokenRole::kPrompt;
  std::string text;
};

struct Sample {
  int64_t step = 0, version = 0;
  std::optional<double> reward, success;
  std::vector<std::vector<SampleText>> segments;
};

// Rows in the order of the file. A last line that is cut is ignored; another fault is a Failure
// with its line.
Result<std::vector<Sample>> read_samples(const std::filesystem::path& path,
                                         const Tokenizer& tokenizer);

// One row, for the writer (no newline).
std::string format_sample(const Trajectory& trajectory, int64_t step, int64_t version);

}  // namespace tailrace
