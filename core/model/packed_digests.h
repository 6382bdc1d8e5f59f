// Digests of packed matrices that a GPU makes where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "core/base/digest.h"
#include "core/model/packed_weights.h"
#include "kernels/base/device.h"
#include "kernels/ops/row_digests.h"

namespace tailrace {

// Matrices are added, then all are digested with one copy to the host. They are named by numbers of
// the caller's.
//
// Thread: one at a time; nobody repacks meanwhile.
class PackedDigests {
 public:
  explicit PackedDigests(const Stream& stream) : stream_(stream) {}

  // The digests of blocks of `rows_per_block` rows of a tensor, of its packed bytes. False: the
  // device cannot make them (it is the CPU, or the tensor is a vector or tiny), and the host has to
  // read the rows.
  [[nodiscard]] bool add(size_t id, const PackedTensor& tensor, int64_t rows_per_block);
  // Makes the digests of all that was added; they are here when it returns.
  void run();
  std::vector<Digest> blocks_of(size_t id) const;  // of a tensor that was added

 private:
  struct Part {
    RowDigests args;
    size_t first = 0, count = 0;  // of halves_
  };

  const Stream& stream_;
  std::map<size_t, Part> parts_;
  size_t num_halves_ = 0;
  std::vector<uint64_t> halves_;
};

}  // namespace tailrace
