// The proofs that a library's algorithm must pass before products go through it. The proofs run on
// the device, when a process starts: they take memory and wait for the stream.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/base/device.h"
#include "kernels/cuda/library_products.h"

namespace tailrace::cuda {

// The least and the most rows that a product by the library has. Row counts between them that are
// proved are kLeastLibraryRows times a power of two.
constexpr int64_t kLeastLibraryRows = 128, kMostLibraryRows = 8192;

struct ForwardWay {
  LibraryAlgorithm algorithm;
  int64_t most_rows = 0;  // the largest row count that is proved; all smaller ones are too
};

// An algorithm for y = x W^T, W [out, in], that gives each row the bits that our product gives it
// in a batch of 61 rows, for every proved row count: rows of random values, at many places of a
// batch, are compared. Row counts whose operands are too large to prove are left out.
std::optional<ForwardWay> prove_forward(const Stream& stream, LibraryProducts& library, int64_t out,
                                        int64_t in, bool y_is_float,
                                        int64_t most_rows = kMostLibraryRows);

// An algorithm for a gradient (kGradInput or kGradWeight) of W [out, in] that repeats itself, and
// is exact on small integers, whose sums are the same in any order: then the operands lie as we
// say. Its order of a sum is its own.
std::optional<LibraryAlgorithm> prove_gradient(const Stream& stream, LibraryProducts& library,
                                               ProductKind kind, int64_t out, int64_t in,
                                               int64_t most_rows = kMostLibraryRows);

}  // namespace tailrace::cuda
