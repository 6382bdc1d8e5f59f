// How the cost of exactness is measured: an op as design rule 3 has it, and the same op with a
// liberty that the rule forbids, in pairs that alternate within one process. Whoever else is on
// the machine slows both.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/cases.h"
#include "bench/report/report.h"
#include "kernels/base/dtype.h"
#include "kernels/base/thread_pool.h"
#include "kernels/base/view.h"

namespace tailrace {

// One call, on the weights or the cache of number `copy`: a pass over a model meets those of other
// layers between two calls of the same op, and so do the pairs.
using Call = std::function<void(int64_t copy)>;

// A way to sum that the rule forbids.
struct Liberty {
  std::string name;
  Call call;
};

class ExactnessHarness {
 public:
  struct Options {
    int pairs = 9;
    double milliseconds = 2;  // of one side of a pair, at least; then as many calls as that takes
    // Seconds that a case may look for pairs in which nobody else had the cores of its threads.
    double patience = 1;
    std::string only;
  };
  ExactnessHarness(Report report, int threads, Options options);

  bool wants(const std::string& name) const;
  const Stream& stream() const { return stream_; }
  int num_threads() const { return tailrace::num_threads(stream_); }
  bool has_measured() const { return !times_.empty(); }

  // A few pairs with each liberty, a row each; then all pairs with the one that did best, anew, so
  // that what is reported was not chosen for its luck.
  void measure(const std::string& name, int64_t copies, const Call& exact,
               const std::vector<Liberty>& liberties);
  // For what the rule binds and where no liberty is known: it counts, at a ratio of 1.
  void measure_exact_only(const std::string& name, const Call& exact);

  // What a whole pass costs that makes so many calls of the cases with these names. Where no
  // liberty is faster the free pass sums as the exact one does.
  using Calls = std::vector<std::pair<std::string, double>>;
  void sum_up(const std::string& name, const Calls& calls);

 private:
  // Seconds a call, pair by pair.
  struct Times {
    std::vector<double> exact, free;
  };
  void meet() const;
  double seconds_of(const Call& call, int64_t rounds, int64_t copies) const;
  int64_t rounds_of(const Call& call, int64_t copies) const;
  Times pairs_of(const Call& exact, const Call& free, int64_t rounds, int64_t copies,
                 int pairs) const;
  void report_times(const std::string& name, const Times& times);

  Report report_;
  ThreadPool pool_;
  Stream stream_;
  Options options_;
  std::map<std::string, Times> times_;
};

// As many copies of `bytes` as fit in a budget above any cache, `layers` at most.
int64_t num_copies(int64_t layers, int64_t bytes);
// Throws WrongResult unless both have the same bits.
void require_same_bits(ConstMatrix a, ConstMatrix b, const std::string& what);

// The cases. Each checks that the exact op has the same bits on one thread as on all and for one
// row as among many, and that both ways are as near to the reference as float sums can be.

// y = x W^T with W [out, in] of `dtype`, for each number of rows in `rows`; and the gradients to x
// and W, for each in `gradient_rows`. Weights of bfloat16 need a machine that multiplies in pairs
// (gemm::Form::kPairs).
struct ProductShape {
  std::string op;  // "qkv"
  int64_t in = 0, out = 0;
  int64_t layers = 1;
};
std::string product_name(const ProductShape& shape, int64_t rows, const std::string& what);
void exactness_products(ExactnessHarness& bench, const ProductShape& shape, Dtype dtype,
                        std::span<const int64_t> rows, std::span<const int64_t> gradient_rows);

std::string attention_name(const AttentionShape& shape, const std::string& what);
// `queries` of 1: decoding; as many as `context`: training, with gradients.
void exactness_attention(ExactnessHarness& bench, const AttentionShape& shape, int64_t layers);

std::string log_sum_exp_name(int64_t rows, int64_t vocab);
void exactness_log_sum_exp(ExactnessHarness& bench, int64_t rows, int64_t vocab);

std::string norm_name(int64_t rows, int64_t dim, const std::string& what);
void exactness_norm(ExactnessHarness& bench, int64_t rows, int64_t dim, bool gradients);

}  // namespace tailrace
