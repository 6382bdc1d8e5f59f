// The tokens of a sample as a step trained them: the rows of RUN/traces/step_000012.jsonl.
//
//   {"step": 12, "samples": 64, "proof": "9f.."}
//   {"sample": "policy=0 dataset=0 epoch=0 prompt=12 launch=0 member=3 attempt=1", "step": 12,
//    "outcome": "finished", "reward": 1, "advantage": 0.70710677, "temperature": 1,
//    "segments": [{"tokens": [5, 9], "roles": [0, 1], "versions": [-1, 11],
//                  "logprobs": [0, -0.69], "mask": [0, 1], "old": [-0.69], "new": [-0.69]}],
//    "proof": "9f.."}
//
// The first row says how many samples the step had; rows that its bound left out are missing.
// Floats come back with the same bits. Roles as in TokenRole.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

// Natural logs at the sampling temperature.
struct TraceSegment {
  int32_t parent = -1, parent_tokens = 0;  // as in Segment
  std::vector<TokenId> tokens;
  std::vector<TokenRole> roles;   // same length
  std::vector<int64_t> versions;  // same length; -1 where not sampled
  std::vector<float> logprobs;    // same length; as they were recorded at sampling
  std::vector<float> log_masses;  // same length or empty: what truncated sampling kept
  std::vector<uint8_t> mask;      // same length; 1: the loss is made of it
  // One for each that the loss is made of: under the weights that the step started from, under
  // those of the last pass over it (before the update that it led to), and of the reference if
  // there is one.
  std::vector<float> old_logprobs, new_logprobs, ref_logprobs;
  friend bool operator==(const TraceSegment&, const TraceSegment&) = default;
};

struct TraceRow {
  LeaseId lease;
  int64_t step = 0;
  Outcome outcome = Outcome::kFinished;
  double reward = 0;
  std::optional<float> advantage;  // absent: nothing of it was trained on
  double temperature = 1;
  std::vector<TraceSegment> segments;
  friend bool operator==(const TraceRow&, const TraceRow&) = default;
};

// One line without its newline, and back. A Failure says what is wrong with the line.
std::string format_trace_row(const TraceRow& row);
Result<TraceRow> parse_trace_row(std::string_view line);
// The sample that a line begins with, without reading the rest; nothing: it begins otherwise.
std::optional<std::string_view> sample_of_trace_line(std::string_view line);

std::string format_trace_head(int64_t step, int64_t samples);
// How many samples the step had; nothing: it is no such row.
std::optional<int64_t> parse_trace_head(std::string_view line);

// "step_000012.jsonl", and back.
std::string trace_file_name(int64_t step);
std::optional<int64_t> trace_file_step(const std::filesystem::path& file);

}  // namespace tailrace
