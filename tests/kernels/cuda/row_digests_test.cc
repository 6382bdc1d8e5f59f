// Digests of rows of packed weights, against the library's over the same bytes on the host.
#include "kernels/cuda/row_digests.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <xxhash.h>

#include "kernels/cuda/cuda.h"
#include "tests/kernels/cuda/device_array.h"

namespace tailrace {
namespace {

using cuda_testing::DeviceArray;
using cuda_testing::expect_no_findings;
using cuda_testing::gpu_stream;
using cuda_testing::random_floats;

struct PackedRows {
  DeviceArray<std::byte> memory;
  Weight weight;
  PackedRows(int64_t out, int64_t in, Dtype dtype, std::mt19937& rng)
      : memory(cuda::weight_bytes(dtype, out, in)) {
    const auto master = random_floats(out * in, rng);
    weight =
        cuda::pack_weight(gpu_stream(), ConstMatrix(master.data(), out, in), dtype, memory.span());
  }
  // Bytes of rows without their padding.
  std::vector<std::byte> text(int64_t first, int64_t rows) const {
    const std::vector<std::byte> all = memory.get();
    const int64_t element = size_of(weight.dtype), width = weight.in * element;
    const int64_t stride = (weight.in + 63) / 64 * 64 * element;
    std::vector<std::byte> bytes;
    for (int64_t r = first; r < first + rows; ++r)
      bytes.insert(bytes.end(), all.begin() + r * stride, all.begin() + r * stride + width);
    return bytes;
  }
};

std::vector<uint64_t> device_digests(const Weight& weight, int64_t first, int64_t rows,
                                     int64_t rows_per_block) {
  const int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
  DeviceArray<uint64_t> digests(static_cast<size_t>(2 * blocks));
  cuda::digest_rows(gpu_stream(), {.weight = weight,
                                   .first_row = first,
                                   .rows = rows,
                                   .rows_per_block = rows_per_block,
                                   .digests = digests.span()});
  const auto found = digests.get();
  expect_no_findings();
  return found;
}

std::vector<uint64_t> host_digests(const PackedRows& packed, int64_t first, int64_t rows,
                                   int64_t rows_per_block) {
  std::vector<uint64_t> digests;
  for (int64_t begin = 0; begin < rows; begin += rows_per_block) {
    const auto text = packed.text(first + begin, std::min(rows_per_block, rows - begin));
    const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
    digests.push_back(hash.low64);
    digests.push_back(hash.high64);
  }
  return digests;
}

void expect_digests(int64_t out, int64_t in, Dtype dtype, int64_t first, int64_t rows,
                    int64_t rows_per_block, std::mt19937& rng) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(in) + " from " +
               std::to_string(first) + ", " + std::to_string(rows_per_block) + " a block");
  const PackedRows packed(out, in, dtype, rng);
  EXPECT_EQ(device_digests(packed.weight, first, rows, rows_per_block),
            host_digests(packed, first, rows, rows_per_block));
}

TEST(CudaRowDigests, AreTheLibrarysOverRandomSizesAndPlaces) {
  std::mt19937 rng(11);
  const auto from = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int i = 0; i < 40; ++i) {
    const Dtype dtype = i % 2 == 0 ? Dtype::kBF16 : Dtype::kF32;
    const int64_t in = from(1, 200), least = 241 / (in * size_of(dtype)) + 1;
    const int64_t per_block = from(least, least + 40), rows = per_block * from(1, 3) + least;
    const int64_t first = from(0, 5);
    expect_digests(first + rows + from(0, 3), in, dtype, first, rows, per_block, rng);
  }
}

// About the ends of stripes (64 bytes), of chunks (1024) and of a round of all threads (32 chunks).
TEST(CudaRowDigests, AreTheLibrarysAboutTheEndsOfItsParts) {
  std::mt19937 rng(12);
  for (const int64_t edge : {256, 1024, 2048, 32 * 1024, 64 * 1024})
    for (const int64_t off : {-2, 0, 2, 62, 64, 66})
      if (edge + off > kMostUndigestedBytes)
        expect_digests(1, (edge + off) / 2, Dtype::kBF16, 0, 1, 1, rng);
}

TEST(CudaRowDigests, AFlippedBitAnywhereChangesThatOfItsBlockAlone) {
  constexpr int64_t kOut = 24, kIn = 70, kPerBlock = 10;
  std::mt19937 rng(13);
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF32}) {
    PackedRows packed(kOut, kIn, dtype, rng);
    const auto before = device_digests(packed.weight, 0, kOut, kPerBlock);
    const std::vector<std::byte> bytes = packed.memory.get();
    const int64_t width = kIn * size_of(dtype), stride = 128 * size_of(dtype);
    for (int i = 0; i < 60; ++i) {
      const auto row = std::uniform_int_distribution<int64_t>(0, kOut - 1)(rng);
      const auto at = std::uniform_int_distribution<int64_t>(0, width - 1)(rng);
      std::vector<std::byte> changed = bytes;
      changed[static_cast<size_t>(row * stride + at)] ^= std::byte{1} << (i % 8);
      packed.memory.set(changed);
      const auto after = device_digests(packed.weight, 0, kOut, kPerBlock);
      for (int64_t block = 0; block < 3; ++block)
        for (int64_t half = 0; half < 2; ++half) {
          const auto index = static_cast<size_t>(2 * block + half);
          EXPECT_EQ(before[index] != after[index], block == row / kPerBlock) << row << ", " << at;
        }
    }
    // Padding is no part of it.
    std::vector<std::byte> padded = bytes;
    padded[static_cast<size_t>(width)] ^= std::byte{1};
    packed.memory.set(padded);
    EXPECT_EQ(device_digests(packed.weight, 0, kOut, kPerBlock), before);
  }
}

}  // namespace
}  // namespace tailrace
