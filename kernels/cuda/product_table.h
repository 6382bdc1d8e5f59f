// Which products of linear layers a library makes: those that were proved (product_proof.h), each
// shape by one algorithm. All others are ours. A process without the library proves nothing.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/base/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/library_products.h"
#include "kernels/cuda/product_proof.h"

namespace tailrace::cuda {

// Where the library comes from: `load` is called once, when it is first needed, and gives null
// where there is none. It outlives all products. Forgets what was proved.
void provide_library(LibraryProducts* (*load)());
bool has_library();

// Proves the products with a bfloat16 weight [out, in] on the stream's device, unless that was done
// before.
void prove_shape(const Stream& stream, int64_t out, int64_t in,
                 int64_t most_rows = kMostLibraryRows);

// The same, as the table of ops has it: of another dtype there is nothing to prove.
void prove_products(const Stream& stream, Dtype dtype, int64_t out, int64_t in);

// A hash of the library's version and of the algorithms of the forward products that it makes on a
// device, 8 hex digits; empty: it makes none.
std::string proved_products(int device_index);

// Makes the first rows of a product by the library, as many as go in pieces of proved row counts,
// and says how many. 0: the product is not its.
int64_t multiply_first_rows(const Stream& stream, const Bf16Product& product);

// False: the gradient is not the library's, and nothing is done. `may_take_gradient` says that
// without operands, which must be rounded to bfloat16 first.
bool may_take_gradient(const Stream& stream, ProductKind kind, int64_t tokens, int64_t out,
                       int64_t in);
[[nodiscard]] bool multiply_gradient(const Stream& stream, const LibraryProduct& product);

}  // namespace tailrace::cuda
