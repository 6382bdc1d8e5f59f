// Exact differences between two states of one tensor, whose elements have 2 bytes (bf16, f16) or 4
// (f32): bits are compared, so -0.0 and the payloads of NaNs count. The bytes of a delta are
// described in delta_codec.cc.
//
// Thread: one at a time for each object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/enum_names.h"
#include "core/base/result.h"
#include "kernels/base/dtype.h"
#include "kernels/base/isa.h"

namespace tailrace {

// How a tensor reaches its next state.
enum class TensorPayload : uint8_t {
  kFull,   // its bytes
  kDelta,  // what has changed against the base
  kSame,   // nothing: it is the base
};
constexpr auto enum_names(TensorPayload) {
  return name_table<TensorPayload>({{TensorPayload::kFull, "full"},
                                    {TensorPayload::kDelta, "delta"},
                                    {TensorPayload::kSame, "same"}});
}

// The cost of a payload. With a rate, it is the time of a tensor: its bytes over that link, behind
// each other with what it takes to encode and to apply them, as measured on the tensor's first
// chunk. So over a fast link a tensor goes whole. 0: bytes alone count.
struct DeltaCost {
  double link_bytes_per_s = 0;
};

struct TensorDelta {
  TensorPayload kind = TensorPayload::kSame;
  std::vector<std::byte> bytes = {};  // of kDelta; kFull: none, for they are those of the target
  int64_t changed = 0;                // elements that differ
};

// Whether deltas of this dtype exist.
constexpr bool has_delta(Dtype dtype) { return size_of(dtype) == 2 || size_of(dtype) == 4; }

class DeltaEncoder {
 public:
  // `isa`: of the loops; the bytes are the same for all.
  explicit DeltaEncoder(DeltaCost cost = {}, Isa isa = tailrace::isa());
  ~DeltaEncoder();
  DeltaEncoder(DeltaEncoder&&) noexcept;

  // `base` and `target`: equally many bytes, whole elements, at any address; none is allowed.
  // Equal bytes give equal deltas where bytes alone count. Beats once a chunk. `memory` becomes
  // that of the result: with that of the last one no pages are asked for again, which takes half
  // of the time of a large f32 tensor.
  TensorDelta encode(Dtype dtype, std::span<const std::byte> base,
                     std::span<const std::byte> target, std::vector<std::byte> memory = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class DeltaDecoder {
 public:
  explicit DeltaDecoder(Isa isa = tailrace::isa());
  ~DeltaDecoder();
  DeltaDecoder(DeltaDecoder&&) noexcept;

  // Writes the target to `out`, which overlaps nothing else: applied twice is applied once. `delta`
  // comes from outside: a Failure says which chunk is damaged, and then `out` holds anything. What
  // is damaged within its bounds gives other values, as another base does: digests find that.
  // `base`: as many bytes as `out`; none for kFull.
  Result<void> apply(Dtype dtype, TensorPayload kind, std::span<const std::byte> delta,
                     std::span<const std::byte> base, std::span<std::byte> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tailrace
