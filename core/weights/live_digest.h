// The proof of weights in memory: what products will read is digested in its packed form and
// compared, block by block, with the version that it was packed from (design rule 4). A GPU digests
// matrices of the version's dtype where they lie; all else is read back.
//
// Thread: any; nobody repacks meanwhile.
#pragma once

#include <span>

#include "core/base/digest.h"
#include "core/base/result.h"
#include "core/model/packed_weights.h"
#include "core/weights/digest.h"
#include "core/weights/proved_weights.h"
#include "kernels/base/device.h"

namespace tailrace {

// The values that are read are digested in the dtype and the blocks of the manifest. Where nothing
// was changed they are compared with the digests of the manifest. Where values were rounded on the
// way (of a base, which is no version), or 1 was added to the factors of a norm, the proved values
// go through the same step and are digested too.
//
// The root digest of the version, over the digests of what was read wherever they are the
// manifest's. A Failure names the tensor and the block. Takes less than 1 MiB, or a few rows.
Result<Digest> prove_packed(const Stream& stream, const PackedWeights& packed,
                            const ProvedWeights& version);
// The same of weights that are no version: `tensors` in the order of the layout, and where their
// values are read.
Result<Digest> prove_packed(const Stream& stream, const PackedWeights& packed,
                            std::span<const TensorManifest> tensors, const WeightSource& values,
                            const Digest& base = {});

}  // namespace tailrace
