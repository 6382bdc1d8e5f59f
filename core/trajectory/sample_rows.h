// A few episodes of a run, for people: the rows of RUN/samples.jsonl.
//
//   {"step": 0, "version": 0, "sample": "policy=0 dataset=0 epoch=0 prompt=1 launch=0 member=0
//    attempt=1", "dataset": "grid", "reward": 0.5, "success": 1,
//    "segments": [{"tokens": [...], "roles": [...],
//                  "text": [{"role": "prompt", "text": "..."}, {"role": "sampled", ...}]},
//                 {"parent": 0, "parent_tokens": 20, "tokens": [...], ...}],
//    "proof": "9f.."}
//
// A segment without a parent begins anew; parents stand before their children.
// Roles as in TokenRole (0 prompt, 1 sampled, 2 observation); reward and success may be absent or
// null; dataset is absent where a run has one. The ids are the sample; the text is for people, and
// is absent where the writer had no tokenizer.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/trajectory/trajectory.h"

namespace tailrace {

// The text of tokens, as the run's tokenizer has it.
using TokenText = std::function<std::string(std::span<const TokenId>)>;

struct SampleText {
  TokenRole role = TokenRole::kPrompt;
  std::string text;
};

// Pieces of one role each, together the text of all tokens from `from` on.
std::vector<SampleText> text_by_role(std::span<const TokenId> ids, std::span<const TokenRole> roles,
                                     const TokenText& text, size_t from = 0);

struct SampleRow {
  struct Tokens {
    std::vector<TokenId> ids;
    std::vector<TokenRole> roles;            // same length
    std::vector<SampleText> text = {};       // written, never read back
    int32_t parent = -1, parent_tokens = 0;  // as in Segment
  };
  int64_t step = 0, version = 0;
  std::string sample = {};  // its name (sample_name.h); empty: of an older build
  std::optional<double> reward, success;
  std::vector<Tokens> segments;
  std::string dataset = {};  // its name; empty: the run has one
};

// `success` is the metric of that name.
SampleRow sample_row(const Trajectory& trajectory, int64_t step, int64_t version);

// The text of a segment's tokens behind those that it continues.
std::vector<SampleText> segment_text(const SampleRow& row, size_t segment, const TokenText& text);

// One line without its newline, and back. A Failure says what is wrong with the line.
std::string format_sample_row(const SampleRow& row);
Result<SampleRow> parse_sample_row(std::string_view line);

}  // namespace tailrace
