// How a kernel is timed and what it is held against: the multiply-add peak for products, a copy of
// as many bytes for what only moves memory, and the reference for its values.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "bench/report/report.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace {

class KernelHarness {
 public:
  // Each kernel runs for `seconds`, at least five times. Cases without `only` in their name are
  // left out.
  KernelHarness(Report report, int threads, double seconds, std::string only);

  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }
  bool has_measured() const { return peak_ > 0 || !copy_rates_.empty(); }
  const Stream& stream() const { return stream_; }

  // Rows of the case "machine": what the others are held against, and what bf16 and reading could
  // reach.
  void limits();
  // A row in GFLOP/s, of products with a weight of this dtype.
  void products(const std::string& name, const std::string& metric, double flops,
                const std::function<void()>& kernel, Dtype weight = Dtype::kF32);
  // A row in GB/s; `bytes` are those that must be read and written.
  void traffic(const std::string& name, const std::string& metric, double bytes,
               const std::function<void()>& kernel);

 private:
  double copy_rate(double bytes);  // bytes a second
  double read_rate(double bytes) const;

  Report report_;
  ThreadPool pool_;
  Stream stream_;
  double seconds_;
  std::string only_;
  double peak_ = 0, pairs_peak_ = 0;      // 0: not yet measured
  std::map<int64_t, double> copy_rates_;  // by bytes
};

// Random N(0, scale).
struct RandomMatrix {
  RandomMatrix(int64_t rows, int64_t cols, std::mt19937& rng, float scale = 1);
  Buffer memory;
  Matrix view;
};

// A weight in the form that ops read.
struct PackedMatrix {
  PackedMatrix(const Stream& stream, ConstMatrix master, Dtype dtype = Dtype::kF32)
      : memory(weight_bytes(dtype, master.rows, master.cols)),
        weight(pack_weight(stream, master, dtype, memory.as<std::byte>())) {}
  Buffer memory;
  Weight weight;
};

// Throws WrongResult when `actual` is further from `expected`, made with double sums, than float
// sums of `terms` terms can be: the roundings of such a sum add up to about eps * sqrt(terms) of
// the largest values; times 8, because the factors are rounded too.
void require_close(ConstMatrix actual, ConstMatrix expected, int64_t terms,
                   const std::string& what);

}  // namespace tailrace
