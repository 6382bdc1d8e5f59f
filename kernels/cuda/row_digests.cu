// XXH3-128 of blocks of rows, one thread block each; the same bits as the host's library.
//
// XXH3 adds up what 64-byte stripes give to eight sums, and mixes these once every 16 stripes (a
// chunk of 1024 bytes). What a stripe gives does not depend on the sums before it: so the threads
// make the eight sums of kChunks chunks at once, and eight of them mix these in, chunk by chunk.
// All numbers are integers modulo 2^64.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/row_digests.h"

namespace tailrace::cuda {
namespace {

constexpr int kLanes = 8, kChunks = 32, kDigestThreads = kLanes * kChunks;
constexpr int kStripe = 64, kStripes = 16, kChunkBytes = kStripe * kStripes;
constexpr int kSecretBytes = 192;
// Where in the secret the keys begin: of mixing, of the last stripe, of both halves of the result.
constexpr int kMixKeys = kSecretBytes - 64, kLastKeys = kSecretBytes - 64 - 7;
constexpr int kLowKeys = 11, kHighKeys = kSecretBytes - 64 - 11;

// The primes of XXH.
constexpr uint64_t kPrime32A = 0x9E3779B1u, kPrime32B = 0x85EBCA77u, kPrime32C = 0xC2B2AE3Du;
constexpr uint64_t kPrime64A = 0x9E3779B185EBCA87u, kPrime64B = 0xC2B2AE3D27D4EB4Fu,
                   kPrime64C = 0x165667B19E3779F9u, kPrime64D = 0x85EBCA77C2B2AE63u,
                   kPrime64E = 0x27D4EB2F165667C5u;

// The library's own, which digests without a seed use; and the first value of each sum.
struct DigestConstants {
  unsigned char secret[kSecretBytes];
  uint64_t sums[kLanes];
};
constexpr DigestConstants kDigestConstants = {
    {0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad,
     0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3,
     0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc,
     0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
     0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65,
     0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
     0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9,
     0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
     0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb,
     0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0,
     0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d,
     0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
     0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e},
    {kPrime32C, kPrime64A, kPrime64B, kPrime64C, kPrime64D, kPrime32B, kPrime64E, kPrime32A}};

// Rows of elements of one width, which are read as one text without the gaps between them.
struct RowText {
  const unsigned char* first;
  int64_t stride, row_bytes;  // bytes
  int element;                // bytes of one: 2 or 4
};

__device__ __forceinline__ uint64_t element_at(const unsigned char* from, int element) {
  return element == 2 ? *reinterpret_cast<const uint16_t*>(from)
                      : *reinterpret_cast<const uint32_t*>(from);
}

// Eight bytes from `at` on, the first the lowest. They begin with an element.
__device__ __forceinline__ uint64_t word_at(const RowText& text, int64_t at) {
  int64_t row = at / text.row_bytes, within = at % text.row_bytes;
  const unsigned char* from = text.first + row * text.stride + within;
  if (within + 8 <= text.row_bytes && reinterpret_cast<uintptr_t>(from) % 8 == 0)
    return *reinterpret_cast<const uint64_t*>(from);
  uint64_t word = 0;
  for (int i = 0; i < 8; i += text.element) {
    word |= element_at(from, text.element) << (8 * i);
    within += text.element;
    from += text.element;
    if (within == text.row_bytes) {
      ++row;
      within = 0;
      from = text.first + row * text.stride;
    }
    // Behind the last element of the text there may be no row: nothing is read there, since the
    // word ends with it.
  }
  return word;
}

// Eight bytes of the secret from `at` on; `secret` holds it in words.
__device__ __forceinline__ uint64_t key_at(const uint64_t* secret, int at) {
  const uint64_t word = secret[at / 8];
  const int shift = at % 8 * 8;
  return shift == 0 ? word : word >> shift | secret[at / 8 + 1] << (64 - shift);
}

// The part of the stripe from `at` on in the sum of a lane.
__device__ __forceinline__ uint64_t stripe_sum(const RowText& text, int64_t at, int lane,
                                               uint64_t key) {
  const uint64_t keyed = word_at(text, at + 8 * lane) ^ key;
  return (keyed & 0xFFFFFFFFu) * (keyed >> 32) + word_at(text, at + 8 * (lane ^ 1));
}

// The halves of the product, one upon the other.
__device__ __forceinline__ uint64_t folded_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
__device__ __forceinline__ uint64_t joined_sums(const uint64_t* sums, const uint64_t* secret,
                                                int keys, uint64_t start) {
  uint64_t hash = start;
#pragma unroll
  for (int i = 0; i < kLanes; i += 2)
    hash += folded_product(sums[i] ^ key_at(secret, keys + 8 * i),
                           sums[i + 1] ^ key_at(secret, keys + 8 * i + 8));
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9u;
  return hash ^ (hash >> 32);
}

// Grid: blocks of rows.
__global__ void __launch_bounds__(kDigestThreads)
    digest_rows_kernel(RowText all, int64_t rows, int64_t rows_per_block, DigestConstants constants,
                       uint64_t* digests) {
  __shared__ uint64_t secret[kSecretBytes / 8];
  __shared__ uint64_t chunk_sums[kChunks][kLanes];
  __shared__ uint64_t sums[kLanes];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes, own = thread / kLanes;
  if (thread < kSecretBytes / 8) {
    uint64_t word = 0;
    for (int i = 0; i < 8; ++i) word |= uint64_t{constants.secret[8 * thread + i]} << (8 * i);
    secret[thread] = word;
  }
  uint64_t sum = constants.sums[lane];
  __syncthreads();

  const int64_t block = blockIdx.x, first_row = block * rows_per_block;
  RowText text = all;
  text.first += first_row * all.stride;
  const int64_t bytes = min(rows_per_block, rows - first_row) * all.row_bytes;
  // All chunks but the last are whole and mixed. The last has a byte at least; its stripes are
  // followed by the last 64 bytes of the text, some of them again.
  const int64_t last = (bytes - 1) / kChunkBytes;
  for (int64_t begin = 0; begin <= last; begin += kChunks) {
    const int64_t chunk = begin + own, at = chunk * kChunkBytes;
    if (chunk <= last) {
      const int stripes = chunk < last ? kStripes : static_cast<int>((bytes - 1 - at) / kStripe);
      uint64_t own_sum = 0;
      for (int stripe = 0; stripe < stripes; ++stripe)
        own_sum +=
            stripe_sum(text, at + stripe * kStripe, lane, key_at(secret, 8 * (stripe + lane)));
      if (chunk == last)
        own_sum += stripe_sum(text, bytes - kStripe, lane, key_at(secret, kLastKeys + 8 * lane));
      chunk_sums[own][lane] = own_sum;
    }
    __syncthreads();
    if (thread < kLanes) {
      const int64_t count = min(int64_t{kChunks}, last + 1 - begin);
      const uint64_t key = key_at(secret, kMixKeys + 8 * lane);
      for (int i = 0; i < static_cast<int>(count); ++i) {
        sum += chunk_sums[i][lane];
        if (begin + i < last) sum = (sum ^ (sum >> 47) ^ key) * kPrime32A;
      }
    }
    __syncthreads();
  }
  if (thread < kLanes) sums[lane] = sum;
  __syncthreads();
  const auto length = static_cast<uint64_t>(bytes);
  if (thread == 0) digests[2 * block] = joined_sums(sums, secret, kLowKeys, length * kPrime64A);
  if (thread == 1)
    digests[2 * block + 1] = joined_sums(sums, secret, kHighKeys, ~(length * kPrime64B));
}

}  // namespace

void digest_rows(const Stream& stream, const RowDigests& args) {
  const auto& [weight, first_row, rows, rows_per_block, digests] = args;
  TR_CHECK(first_row >= 0 && first_row + rows <= weight.out && rows_per_block > 0,
           "rows [{}, {}) of {}, {} a block", first_row, first_row + rows, weight.out,
           rows_per_block);
  const int64_t blocks = (rows + rows_per_block - 1) / rows_per_block;
  if (blocks == 0) return;
  const int64_t element = size_of(weight.dtype), row_bytes = weight.in * element;
  const int64_t last_rows = rows - (blocks - 1) * rows_per_block;
  TR_CHECK(last_rows * row_bytes > kMostUndigestedBytes, "a block of {} bytes",
           last_rows * row_bytes);
  TR_CHECK(std::ssize(digests) == 2 * blocks && weight.device == stream.device,
           "{} halves of the digests of {} blocks", digests.size(), blocks);
  const int64_t stride = rows_of<Bf16>(weight).stride * element;
  const RowText text = {
      .first = reinterpret_cast<const unsigned char*>(weight.data) + first_row * stride,
      .stride = stride,
      .row_bytes = row_bytes,
      .element = static_cast<int>(element)};
  launch(digest_rows_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kDigestThreads), 0, stream,
         text, rows, rows_per_block, kDigestConstants, digests.data());
}

}  // namespace tailrace::cuda
