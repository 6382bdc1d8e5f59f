#include "core/gguf/blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "core/model/rounding.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

using Bytes = const uint8_t*;

constexpr int64_t kSuperBlock = 256;

float half(Bytes at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return from_f16_bits(bits);
}

// The low nibbles of `num_bytes` bytes, then their high ones.
void nibbles(Bytes at, int num_bytes, uint8_t* out) {
  for (int i = 0; i < num_bytes; ++i) {
    out[i] = at[i] & 0xF;
    out[num_bytes + i] = at[i] >> 4;
  }
}

// Pairs of bits of 32 bytes: the lowest pair of each, then the next, four times.
void pairs(Bytes at, uint8_t* out) {
  for (int part = 0; part < 4; ++part)
    for (int i = 0; i < 32; ++i) out[32 * part + i] = at[i] >> (2 * part) & 3;
}

// Bit `i` of 32 bits in four bytes, as 0 or 16.
uint8_t fifth_bit(Bytes bits, int i) {
  return static_cast<uint8_t>((bits[i / 8] >> (i % 8) & 1) << 4);
}

void q4_0(Bytes block, float* out) {
  const float scale = half(block);
  std::array<uint8_t, 32> q{};
  nibbles(block + 2, 16, q.data());
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(q[i] - 8);
}

void q4_1(Bytes block, float* out) {
  const float scale = half(block), least = half(block + 2);
  std::array<uint8_t, 32> q{};
  nibbles(block + 4, 16, q.data());
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(q[i]) + least;
}

void q5_0(Bytes block, float* out) {
  const float scale = half(block);
  std::array<uint8_t, 32> q{};
  nibbles(block + 6, 16, q.data());
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>((q[i] | fifth_bit(block + 2, i)) - 16);
}

void q5_1(Bytes block, float* out) {
  const float scale = half(block), least = half(block + 2);
  std::array<uint8_t, 32> q{};
  nibbles(block + 8, 16, q.data());
  for (int i = 0; i < 32; ++i)
    out[i] = scale * static_cast<float>(q[i] | fifth_bit(block + 4, i)) + least;
}

void q8_0(Bytes block, float* out) {
  const float scale = half(block);
  for (int i = 0; i < 32; ++i)
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
}

// 16 scales of four bits with minima, 64 bytes of pairs, the two factors.
void q2_k(Bytes block, float* out) {
  const float scale = half(block + 80), least = half(block + 82);
  std::array<uint8_t, kSuperBlock> q{};
  pairs(block + 16, q.data());
  pairs(block + 48, q.data() + 128);
  for (int i = 0; i < kSuperBlock; ++i) {
    const uint8_t both = block[i / 16];
    const float factor = scale * static_cast<float>(both & 0xF);
    const float minimum = least * static_cast<float>(both >> 4);
    out[i] = factor * static_cast<float>(q[i]) - minimum;
  }
}

// 32 bytes of high bits, 64 of pairs, 16 scales of six bits in 12 bytes, the factor.
void q3_k(Bytes block, float* out) {
  const Bytes high = block, scales = block + 96;
  const float scale = half(block + 108);
  std::array<uint8_t, kSuperBlock> q{};
  pairs(block + 32, q.data());
  pairs(block + 64, q.data() + 128);
  for (int i = 0; i < kSuperBlock; ++i) {
    const int part = i / 16;
    const uint8_t low = part < 8 ? scales[part] & 0xF : scales[part - 8] >> 4;
    // As ggml lays them out: four low bits of 16 scales in eight bytes, then their two high bits,
    // four scales a byte.
    const int upper = scales[8 + part % 4] >> (2 * (part / 4)) & 3;
    const float factor = scale * static_cast<float>((low | upper << 4) - 32);
    // The offset is taken away where the bit is not set.
    const int offset = (high[i % 32] >> (i / 32) & 1) != 0 ? 0 : 4;
    out[i] = factor * static_cast<float>(q[i] - offset);
  }
}

// The eight scales and minima of six bits in 12 bytes.
struct ScaleAndLeast {
  std::array<uint8_t, 8> scale{}, least{};
  explicit ScaleAndLeast(Bytes at) {
    for (int i = 0; i < 4; ++i) {
      scale[i] = at[i] & 0x3F;
      least[i] = at[4 + i] & 0x3F;
      scale[4 + i] = static_cast<uint8_t>((at[8 + i] & 0xF) | (at[i] >> 2 & 0x30));
      least[4 + i] = static_cast<uint8_t>((at[8 + i] >> 4) | (at[4 + i] >> 2 & 0x30));
    }
  }
};

// The two factors, scales with minima, nibbles; `high`: 32 bytes of fifth bits, or null.
void q4_or_q5_k(Bytes block, Bytes high, Bytes low, float* out) {
  const float scale = half(block), least = half(block + 2);
  const ScaleAndLeast parts(block + 4);
  for (int part = 0; part < 8; ++part) {
    const float factor = scale * static_cast<float>(parts.scale[part]);
    const float minimum = least * static_cast<float>(parts.least[part]);
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = low[32 * (part / 2) + i];
      // 32 bytes hold two parts of 32 values, one in the low nibbles and one in the high ones.
      uint8_t q = part % 2 == 0 ? byte & 0xF : byte >> 4;
      if (high != nullptr) q |= static_cast<uint8_t>((high[i] >> part & 1) << 4);
      out[32 * part + i] = factor * static_cast<float>(q) - minimum;
    }
  }
}
void q4_k(Bytes block, float* out) { q4_or_q5_k(block, nullptr, block + 16, out); }
void q5_k(Bytes block, float* out) { q4_or_q5_k(block, block + 16, block + 48, out); }

// 128 bytes of nibbles, 64 of pairs, 16 scales of eight bits, the factor.
void q6_k(Bytes block, float* out) {
  const float scale = half(block + 208);
  std::array<uint8_t, kSuperBlock> low{}, high{};
  nibbles(block, 64, low.data());
  nibbles(block + 64, 64, low.data() + 128);
  pairs(block + 128, high.data());
  pairs(block + 160, high.data() + 128);
  for (int i = 0; i < kSuperBlock; ++i) {
    const float factor = scale * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    out[i] = factor * static_cast<float>((low[i] | high[i] << 4) - 32);
  }
}

void f32(Bytes block, float* out) { std::memcpy(out, block, sizeof *out); }
void f16(Bytes block, float* out) { *out = half(block); }
void bf16(Bytes block, float* out) {
  uint16_t bits = 0;
  std::memcpy(&bits, block, sizeof bits);
  *out = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

struct Format {
  uint32_t number;  // in files
  std::string_view name;
  BlockShape shape;
  void (*values)(Bytes, float*);
};
// By GgmlType.
constexpr Format kFormats[] = {
    {0, "F32", {1, 4}, f32},        {1, "F16", {1, 2}, f16},        {30, "BF16", {1, 2}, bf16},
    {2, "Q4_0", {32, 18}, q4_0},    {3, "Q4_1", {32, 20}, q4_1},    {6, "Q5_0", {32, 22}, q5_0},
    {7, "Q5_1", {32, 24}, q5_1},    {8, "Q8_0", {32, 34}, q8_0},    {10, "Q2_K", {256, 84}, q2_k},
    {11, "Q3_K", {256, 110}, q3_k}, {12, "Q4_K", {256, 144}, q4_k}, {13, "Q5_K", {256, 176}, q5_k},
    {14, "Q6_K", {256, 210}, q6_k},
};

// Types that files may have and that are not read.
constexpr std::pair<uint32_t, std::string_view> kOtherTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},
    {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},  {23, "IQ4_XS"},
    {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},    {28, "F64"},
    {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"}};

const Format& format_of(GgmlType type) { return kFormats[static_cast<size_t>(type)]; }

}  // namespace

std::string_view name_of(GgmlType type) { return format_of(type).name; }

std::optional<GgmlType> ggml_type_of(uint32_t number) {
  const auto* found = std::ranges::find(kFormats, number, &Format::number);
  if (found == std::end(kFormats)) return std::nullopt;
  return static_cast<GgmlType>(found - kFormats);
}

std::string name_of_ggml_number(uint32_t number) {
  if (const auto type = ggml_type_of(number)) return std::string(name_of(*type));
  const auto* found =
      std::ranges::find(kOtherTypes, number, [](const auto& row) { return row.first; });
  if (found != std::end(kOtherTypes)) return std::string(found->second);
  return fmt::format("type {}", number);
}

std::string all_ggml_types() {
  std::string names;
  for (const Format& format : kFormats)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", format.name);
  return names;
}

BlockShape block_shape(GgmlType type) { return format_of(type).shape; }

void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values) {
  const Format& format = format_of(type);
  const auto num_blocks = static_cast<size_t>(std::ssize(values) / format.shape.values);
  TR_CHECK(std::ssize(values) % format.shape.values == 0 &&
               std::ssize(blocks) == static_cast<int64_t>(num_blocks) * format.shape.bytes,
           "{} values of {} in {} bytes", values.size(), format.name, blocks.size());
  const auto* at = reinterpret_cast<Bytes>(blocks.data());
  float* out = values.data();
  for (size_t i = 0; i < num_blocks; ++i, at += format.shape.bytes, out += format.shape.values)
    format.values(at, out);
}

}  // namespace tailrace
