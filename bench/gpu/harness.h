// A stream of a GPU, time on it, random memory of it, and the two limits that all parts are held
// against.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/backend.h"
#include "kernels/base/dtype.h"
#include "kernels/base/memory.h"
#include "kernels/base/view.h"
#include "kernels/ops/linear.h"

namespace tailrace::gpu_bench {

struct Sizes {
  int64_t copy_mib = 1024;    // of the copy that is the limit of memory
  int64_t product = 8192;     // rows, columns and depth of the product that is the limit of work
  int64_t weights_mib = 512;  // what products of few rows read in turn; no cache is as large
  double milliseconds = 20;   // how long calls are made between two waits
  int runs = 5;
};

class Harness {
 public:
  Harness(Device device, const Sizes& sizes);

  const Stream& stream() const { return stream_.get(); }
  const Sizes& sizes() const { return sizes_; }

  // Seconds that one call takes, of each run: calls follow each other, and the clock is read after
  // a wait. 0 calls: as many as take sizes().milliseconds. One call before them warms up.
  std::vector<double> seconds_of(const std::function<void()>& call, int64_t calls = 0) const;

  // Bits that differ where they may not. The rows are worth having all the same, since whoever
  // looks for the cause wants to know what it costs: the first such fault ends the program after
  // them.
  void expect_bits(bool equal, const std::string& fault) {
    if (!equal && fault_.empty()) fault_ = fault;
  }
  const std::string& fault() const { return fault_; }

  // Bytes a second, read and written ones together; flops a second of a bfloat16 product. The best
  // of the runs, measured when it is first asked for.
  double copy_rate();
  double product_rate();
  const std::vector<double>& copy_rates();
  const std::vector<double>& product_rates();

 private:
  Sizes sizes_;
  OwnedStream stream_;
  std::vector<double> copy_rates_, product_rates_;
  std::string fault_;
};

// Memory of the device, full of bfloat16 values of N(0, 0.02^2). Read as float32 they are of that
// size too. One block of a few MB is repeated.
Buffer random_memory(const Stream& stream, int64_t bytes);

// A bfloat16 weight [out, in] at `memory`, and one of operands [rows, cols].
Weight weight_at(DeviceBytes memory, int64_t out, int64_t in);
Tensor operand_at(DeviceBytes memory, int64_t rows, int64_t cols, Dtype dtype);
int64_t operand_bytes(Device device, int64_t rows, int64_t cols, Dtype dtype);

// Rows of the device without gaps, as bytes, once the stream has come so far.
std::vector<std::byte> fetch(const Stream& stream, const Tensor& rows);
// Of a matrix of bfloat16 or float32 values: all are finite, and not all the same.
bool is_sane(std::span<const std::byte> values, Dtype dtype);

}  // namespace tailrace::gpu_bench
