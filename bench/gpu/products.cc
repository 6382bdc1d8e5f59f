// The limits, and the products of a layer.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/geometries.h"
#include "bench/gpu/parts.h"
#include "bench/report/program.h"

namespace tailrace::gpu_bench {
namespace {

// Up to here a product reads more bytes than tensor cores have work for.
constexpr int64_t kFewRows = 64;

struct Product {
  const char* name;
  int64_t out, in;
  Dtype y;
};

std::array<Product, 5> products_of(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, ffn = config.intermediate_size;
  return {{{"qkv", config.qkv_size(), hidden, Dtype::kBF16},
           {"o", hidden, config.q_size(), Dtype::kBF16},
           {"gate_up", 2 * ffn, hidden, Dtype::kBF16},
           {"down", hidden, ffn, Dtype::kBF16},
           {"head", config.num_ids(), hidden, Dtype::kF32}}};
}

std::vector<double> scaled(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

// One weight of a few, so that none is still in a cache when its turn comes again.
class WeightsInTurn {
 public:
  WeightsInTurn(Buffer& memory, const Product& product)
      : memory_(memory.bytes()),
        product_(product),
        size_(weight_bytes(Dtype::kBF16, product.out, product.in, memory_.device)),
        count_(std::max<size_t>(1, memory_.size / size_)) {}

  Weight at(size_t index) const {
    return weight_at(memory_.part(index % count_ * size_, size_), product_.out, product_.in);
  }
  Weight next() { return at(next_++); }

 private:
  DeviceBytes memory_;
  Product product_;
  size_t size_, count_, next_ = 0;
};

// What one shape needs at every number of rows.
struct Arrays {
  Buffer weights, x, y;

  Arrays(const Harness& harness, const Product& product, int64_t rows)
      : weights(random_memory(harness.stream(), std::max(harness.sizes().weights_mib << 20,
                                                         static_cast<int64_t>(weight_bytes(
                                                             Dtype::kBF16, product.out, product.in,
                                                             harness.stream().device))))),
        x(random_memory(harness.stream(),
                        operand_bytes(harness.stream().device, rows, product.in, Dtype::kBF16))),
        y(static_cast<size_t>(operand_bytes(harness.stream().device, rows, product.out, product.y)),
          harness.stream().device) {}
};

void measure_product(Harness& harness, const std::string& geometry, const Product& product,
                     const std::vector<int64_t>& row_counts, Report& report) {
  const Stream& stream = harness.stream();
  Arrays arrays(harness, product, std::ranges::max(row_counts));
  WeightsInTurn weights(arrays.weights, product);
  std::vector<std::byte> first_row;
  for (const int64_t rows : row_counts) {
    const Tensor x = operand_at(arrays.x.bytes(), rows, product.in, Dtype::kBF16);
    const Tensor y = operand_at(arrays.y.bytes(), rows, product.out, product.y);
    linear(stream, {.x = x, .weight = weights.at(0), .y = y});
    const std::vector<std::byte> found = fetch(stream, y.slice_rows(0, 1));
    if (first_row.empty()) first_row = found;
    require(is_sane(found, product.y), "{} of {}: the product is not finite, or constant",
            product.name, geometry);
    harness.expect_bits(found == first_row,
                        fmt::format("{} of {}: the first row of {} has other bits than that of {}",
                                    product.name, geometry, rows, row_counts.front()));

    const auto seconds =
        harness.seconds_of([&] { linear(stream, {.x = x, .weight = weights.next(), .y = y}); });
    const double bytes = static_cast<double>(product.out * product.in * size_of(Dtype::kBF16)) +
                         static_cast<double>(rows * (product.in * size_of(Dtype::kBF16) +
                                                     product.out * size_of(product.y)));
    const double flops =
        2.0 * static_cast<double>(rows * product.out) * static_cast<double>(product.in);
    const bool few = rows <= kFewRows;
    std::vector<double> rates;
    for (const double s : seconds) rates.push_back((few ? bytes * 1e-9 : flops * 1e-12) / s);
    report.add(fmt::format("{}, {} rows", geometry, rows), product.name, few ? "GB/s" : "TFLOP/s",
               rates, few ? 1e-9 * harness.copy_rate() : 1e-12 * harness.product_rate());
  }
}

}  // namespace

void measure_limits(Harness& harness, Report& report) {
  report.add("limits", fmt::format("copy of {} MiB", harness.sizes().copy_mib), "GB/s",
             scaled(harness.copy_rates(), 1e-9));
  report.add("limits", fmt::format("bf16 product of {}^3", harness.sizes().product), "TFLOP/s",
             scaled(harness.product_rates(), 1e-12));
}

void measure_products(Harness& harness, const Options& options, Report& report) {
  for (const std::string& name : options.geometries)
    for (const Product& product : products_of(geometry(name, /*max_positions=*/1)))
      measure_product(harness, name, product, options.rows, report);
}

}  // namespace tailrace::gpu_bench
