#include "bench/gpu/harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/report/report.h"
#include "core/base/random.h"
#include "core/model/placement.h"
#include "kernels/cuda/cuda.h"

namespace tailrace::gpu_bench {
namespace {

// No power of two: rows of a matrix do not repeat the row before them.
constexpr int64_t kBlockElements = (int64_t{2} << 20) + 8 * 131;
constexpr float kScale = 0.02f;

}  // namespace

Harness::Harness(Device device, const Sizes& sizes) : sizes_(sizes), stream_(device) {}

std::vector<double> Harness::seconds_of(const std::function<void()>& call, int64_t calls) const {
  call();
  wait(stream());
  if (calls == 0) {
    const Stopwatch watch;
    call();
    wait(stream());
    calls = std::clamp<int64_t>(static_cast<int64_t>(1e-3 * sizes_.milliseconds / watch.seconds()),
                                1, 1000);
  }
  std::vector<double> seconds;
  for (int run = 0; run < sizes_.runs; ++run) {
    const Stopwatch watch;
    for (int64_t i = 0; i < calls; ++i) call();
    wait(stream());
    seconds.push_back(watch.seconds() / static_cast<double>(calls));
  }
  return seconds;
}

const std::vector<double>& Harness::copy_rates() {
  if (!copy_rates_.empty()) return copy_rates_;
  const int64_t bytes = sizes_.copy_mib << 20;
  const Buffer from = random_memory(stream(), bytes);
  Buffer to(static_cast<size_t>(bytes), stream().device);
  for (const double seconds : seconds_of([&] { copy(stream(), to.bytes(), from.bytes()); }))
    copy_rates_.push_back(2.0 * static_cast<double>(bytes) / seconds);
  return copy_rates_;
}

const std::vector<double>& Harness::product_rates() {
  if (!product_rates_.empty()) return product_rates_;
  const int64_t n = sizes_.product;
  const Device device = stream().device;
  Buffer x = random_memory(stream(), operand_bytes(device, n, n, Dtype::kBF16));
  Buffer w =
      random_memory(stream(), static_cast<int64_t>(weight_bytes(Dtype::kBF16, n, n, device)));
  Buffer y(x.size(), device);
  const Linear product{.x = operand_at(x.bytes(), n, n, Dtype::kBF16),
                       .weight = weight_at(w.bytes(), n, n),
                       .y = operand_at(y.bytes(), n, n, Dtype::kBF16)};
  const auto size = static_cast<double>(n);
  for (const double seconds : seconds_of([&] { linear(stream(), product); }))
    product_rates_.push_back(2.0 * size * size * size / seconds);
  return product_rates_;
}

double Harness::copy_rate() { return std::ranges::max(copy_rates()); }
double Harness::product_rate() { return std::ranges::max(product_rates()); }

Buffer random_memory(const Stream& stream, int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  const size_t block = std::min(size, kBlockElements * sizeof(Bf16));
  Rng rng(1);
  std::vector<Bf16> values(block / sizeof(Bf16) + 1);
  for (Bf16& value : values) value = to_bf16(kScale * static_cast<float>(rng.normal()));
  Buffer memory(size, stream.device);
  const DeviceBytes all = memory.bytes();
  copy(stream, all.part(0, block), bytes_of(std::span<const Bf16>(values)).part(0, block));
  for (size_t at = block; at < size; at += block) {
    const size_t count = std::min(block, size - at);
    copy(stream, all.part(at, count), all.part(0, count));
  }
  wait(stream);  // before `values` dies
  return memory;
}

Weight weight_at(DeviceBytes memory, int64_t out, int64_t in) {
  TR_CHECK(in % cuda::kWeightAlignment == 0, "rows of {} have padding, which would be random", in);
  TR_CHECK(memory.size >= weight_bytes(Dtype::kBF16, out, in, memory.device));
  return {
      .dtype = Dtype::kBF16, .data = memory.data, .out = out, .in = in, .device = memory.device};
}

Tensor operand_at(DeviceBytes memory, int64_t rows, int64_t cols, Dtype dtype) {
  TR_CHECK(static_cast<int64_t>(memory.size) >= operand_bytes(memory.device, rows, cols, dtype));
  return tensor_at({memory.device, dtype}, memory.data, rows, cols, dtype);
}

int64_t operand_bytes(Device device, int64_t rows, int64_t cols, Dtype dtype) {
  return rows * row_stride({device, dtype}, cols, dtype) * size_of(dtype);
}

std::vector<std::byte> fetch(const Stream& stream, const Tensor& rows) {
  const auto pitch = static_cast<size_t>(rows.stride * size_of(rows.dtype));
  const auto width = static_cast<size_t>(rows.cols * size_of(rows.dtype));
  const auto count = static_cast<size_t>(rows.rows);
  std::vector<std::byte> all(count * pitch), values(count * width);
  copy(stream, bytes_of(std::span(all)), {rows.device, rows.data, all.size()});
  wait(stream);
  for (size_t r = 0; r < count; ++r)
    std::memcpy(values.data() + r * width, all.data() + r * pitch, width);
  return values;
}

bool is_sane(std::span<const std::byte> values, Dtype dtype) {
  const auto width = static_cast<size_t>(size_of(dtype));
  bool differ = false;
  for (size_t at = 0; at < values.size(); at += width) {
    float value = 0;
    if (dtype == Dtype::kBF16) {
      Bf16 half;
      std::memcpy(static_cast<void*>(&half), values.data() + at, width);
      value = to_float(half);
    } else {
      std::memcpy(&value, values.data() + at, width);
    }
    if (!std::isfinite(value)) return false;
    differ = differ || std::memcmp(values.data(), values.data() + at, width) != 0;
  }
  return differ;
}

}  // namespace tailrace::gpu_bench
