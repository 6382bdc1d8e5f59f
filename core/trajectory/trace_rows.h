// The tokens of a sample as a step trained them: the rows of RUN/traces/step_000012.jsonl.
//
//   {"step": 12, "samples": 64, "proof": "9f.."}
//   {"sample": "policy=0 dataset=0 epoch=0 prompt=12 launch=0 member=3 attempt=1", "step": 12,
//    "outcome": "finished", "reward": 1, "advantage": 0.70710677, "temperature": 1,
//    "turns": [{"turn": 0, "reward": 1, "anchor": "9f..", "tokens": 1, "trained": 1,
//               "advantage": 0.70710677, "first": 0.70710677, "last": 0.70710677}],
//    "segments": [{"tokens": [5, 9], "roles": [0, 1], "versions": [-1, 11],
//                  "turn_begins": [1], "turn_numbers": [0], "logprobs": [0, -0.69],
//                  "mask": [0, 1], "left_out": {"too_old": [2]}, "old": [-0.69], "new": [-0.69],
//                  "advantages": [0.70710677]}],
//    "proof": "9f.."}
//
// The first row says how many samples the step had; rows that its bound left out are missing.
// Floats come back with the same bits. Roles as in TokenRole. Rows of older builds know of no
// turns: they have none, and their advantage is that of the first trained token. Of what they left
// out of the loss they know only what was rejected.
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

#include "core/base/enum_names.h"
#include "core/base/result.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

// Why a sampled token is not in the loss. The first that holds is told: what leaves a group out,
// then what leaves a sample out, then what leaves a token out.
enum class LeftOut : uint8_t {
  kNoSignal,        // its group compares nothing: all its rewards are equal
  kTruncated,       // its sample was cut (algo.truncated: mask)
  kGreedyBaseline,  // its sample is what the others are compared with (algo.advantage: greedy)
  kTooOld,          // weights beyond scheduler.max_staleness sampled it
  kFirstToken,      // nothing stands in front of it that could predict it
  kRejected,        // algo.correction (or its sequence mask) took it out
  kCriticWarmUp,    // the step trained the critic alone (critic.warmup_steps)
};
constexpr auto enum_names(LeftOut) {
  using enum LeftOut;
  return name_table<LeftOut>({{kNoSignal, "no_signal"},
                              {kTruncated, "truncated"},
                              {kGreedyBaseline, "greedy_baseline"},
                              {kTooOld, "too_old"},
                              {kFirstToken, "first_token"},
                              {kRejected, "rejected"},
                              {kCriticWarmUp, "critic_warm_up"}});
}

// Natural logs at the sampling temperature.
struct TraceSegment {
  int32_t parent = -1, parent_tokens = 0;  // as in Segment
  std::vector<TokenId> tokens;
  std::vector<TokenRole> roles;   // same length
  std::vector<int64_t> versions;  // same length; -1 where not sampled
  std::vector<float> logprobs;    // same length; as they were recorded at sampling
  std::vector<float> log_masses;  // same length or empty: what truncated sampling kept
  std::vector<uint8_t> mask;      // same length; 1: the loss is made of it
  // For each reason the ascending places of the sampled tokens that it left out of the loss.
  std::map<LeftOut, std::vector<int32_t>> left_out = {};
  // Where each answer begins, and the turn of the trajectory that it is; as in Segment, but with
  // the numbers that credit went by where the segment itself knows none.
  std::vector<int32_t> turn_begins = {}, turn_numbers = {};
  // One for each that the loss is made of: under the weights that the step started from, under
  // those of the last pass over it (before the update that it led to), and of the reference if
  // there is one.
  std::vector<float> old_logprobs, new_logprobs, ref_logprobs;
  std::vector<float> advantages = {};  // same length as old_logprobs; empty in older rows
  friend bool operator==(const TraceSegment&, const TraceSegment&) = default;
};

// The reward of a turn, and the use that the loss made of it.
struct TraceTurn {
  int32_t number = 0;                        // in its trajectory, from 0
  std::optional<double> reward = {};         // of the environment's step; absent: not known
  uint64_t anchor = 0;                       // of the state that it answered: anchor_of(); 0: none
  int64_t tokens = 0;                        // sampled
  int64_t trained = 0;                       // of these, those that the loss is made of
  std::map<LeftOut, int64_t> left_out = {};  // and the others
  // The advantages of the trained tokens: mean, first and last; absent where there are none.
  std::optional<float> advantage = {}, first = {}, last = {};
  // With a critic: what it said in front of the first trained token, when the step began.
  std::optional<double> value = {};
  // The return from the turn on, discounted, as its advantage was made of it: a critic's of the
  // first trained token, or that of algo.credit.
  std::optional<double> turn_return = {};
  friend bool operator==(const TraceTurn&, const TraceTurn&) = default;
};

struct TraceRow {
  LeaseId lease;
  int64_t step = 0;
  Outcome outcome = Outcome::kFinished;
  double reward = 0;
  // The reward that advantages are made of, where the sample's length made it another one.
  std::optional<double> shaped_reward = {};
  // Mean of the trained tokens; absent: nothing of it was trained on.
  std::optional<float> advantage;
  double temperature = 1;
  std::vector<TraceTurn> turns = {};  // ascending numbers
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

// An anchor as 16 hex digits.
std::string anchor_text(uint64_t anchor);

// "step_000012.jsonl", and back.
std::string trace_file_name(int64_t step);
std::optional<int64_t> trace_file_step(const std::filesystem::path& file);

}  // namespace tailrace
