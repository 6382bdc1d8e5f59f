// Draws a token from each row of logits: temperature, then top-k, then softmax, then top-p, then
// min-p. Gives the log-probabilities of the draw too, with the bits of log_softmax.h.
//
// A draw is a pure function of a row's logits and its SamplingRow: neither the batch nor the number
// of threads changes it. It inverts the cumulative distribution at SamplingRow::uniform, in an
// order of the tokens that is the backend's: the CPU goes by id, and through a truncated set from
// the likeliest token on; a GPU always goes by id. Ties go to the smaller id.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"

namespace tailrace {

// How one row is drawn. The same bytes in the memory of every device.
struct SamplingRow {
  double uniform = 0;           // in [0, 1)
  double top_p = 1, min_p = 0;  // 1 and 0: off
  float inv_temperature = 1;    // > 0; 1 in a greedy row
  int32_t top_k = 0;            // 0, or the vocabulary and more: off
  bool greedy = false;          // the largest logit; uniform, top_p, min_p and top_k say nothing
};

// Whether the row is drawn from a part of the vocabulary.
constexpr bool truncates(const SamplingRow& row, int64_t vocab) {
  return !row.greedy && (row.top_p < 1 || row.min_p > 0 || (row.top_k > 0 && row.top_k < vocab));
}

// Outputs have one element a row, in the memory of the device. Arguments do not overlap.
//
//   logits       [rows, vocab] float32, not yet divided by the temperature; vocab > 0
//   rows         [rows], in the memory of the device
//   drawn        the token; -1 where nothing was drawn: where lse is not finite (a NaN or +infinity
//                among the logits makes it so)
//   lse          of the whole vocabulary, as log_sum_exp() gives it; written in any case
//   logprobs     z' - lse of the token; left as it was where nothing was drawn
//   kept_counts  the size of the set that truncation left; 0: drawn from the whole vocabulary, or
//                nothing drawn
//   kept_lse     of that set, as kept_log_sum_exp() gives it; left as it was where there is none
//   kept_ids     [rows * vocab] the set of row r from r * vocab on, ascending; what lies behind it
//                is undefined
struct SampleTokens {
  ConstTensor logits;
  std::span<const SamplingRow> rows;
  std::span<int32_t> drawn;
  std::span<float> lse, logprobs, kept_lse;
  std::span<int32_t> kept_counts, kept_ids;
};
void sample(const Stream& stream, Workspace& workspace, const SampleTokens& args);

size_t sample_workspace_bytes(int64_t rows, int64_t vocab, Device device = {});

// The checks that every backend makes of its arguments.
inline void check_sample(const SampleTokens& args) {
  const auto rows = static_cast<size_t>(args.logits.rows);
  TR_CHECK(args.logits.cols > 0 && args.logits.cols < int64_t{1} << 31, "a vocabulary of {}",
           args.logits.cols);
  TR_CHECK(args.rows.size() == rows && args.drawn.size() == rows && args.lse.size() == rows &&
               args.logprobs.size() == rows && args.kept_lse.size() == rows &&
               args.kept_counts.size() == rows,
           "{} rows, rows [{}], drawn [{}], lse [{}], logprobs [{}], kept_lse [{}], counts [{}]",
           rows, args.rows.size(), args.drawn.size(), args.lse.size(), args.logprobs.size(),
           args.kept_lse.size(), args.kept_counts.size());
  TR_CHECK(args.kept_ids.size() >= rows * static_cast<size_t>(args.logits.cols), "kept_ids [{}]",
           args.kept_ids.size());
}

}  // namespace tailrace
