// The forms in which GGUF files hold numbers: floats, and blocks of quantised ones.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tailrace {

enum class GgmlType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};

std::string_view name_of(GgmlType type);
// By its number in files; none: a type that is not read.
std::optional<GgmlType> ggml_type_of(uint32_t number);
// "Q5_K" also for types that are not read; "type 77" for what nobody knows.
std::string name_of_ggml_number(uint32_t number);
std::string all_ggml_types();  // "F32, F16, ..."

// Values of a block, and its bytes.
struct BlockShape {
  int64_t values = 1, bytes = 0;
};
BlockShape block_shape(GgmlType type);

// The values of whole blocks, as the `gguf` package of llama.cpp computes them in float32, bit for
// bit: every product and sum is rounded by itself. blocks.size() must be that of values.size().
void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);

}  // namespace tailrace
