#include "core/weights/frozen_base.h"

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/model/parameters.h"
#include "core/weights/digest.h"
#include "core/weights/live_digest.h"
#include "kernels/base/memory.h"

namespace tailrace {

FrozenBase load_frozen_base(const Stream& stream, const std::filesystem::path& directory,
                            const ModelConfig& config, Dtype dtype) {
  const ParameterLayout layout(config);
  StreamedParameters files(directory, config);
  std::map<std::string, TensorManifest, std::less<>> digests;
  auto packed = std::make_shared<PackedWeights>(
      config, dtype,
      Buffer(static_cast<size_t>(PackedWeights::bytes(config, dtype, stream.device)),
             stream.device));
  // Each tensor is digested as it passes, so that no second copy of the base is held in float32.
  packed->repack(stream, [&](std::string_view name) {
    const std::span<const float> values = files.read(name);
    const ParameterInfo& info = layout.at(name);
    digests[info.name] =
        digest_tensor(info.name, "F32", info.shape, sizeof(float), std::as_bytes(values));
    return values;
  });
  std::vector<TensorManifest> tensors;
  for (const ParameterInfo& info : layout.entries())
    tensors.push_back(std::move(digests.at(info.name)));
  // Read a second time: what products will read is compared with what the digests were made of.
  const auto proof = prove_packed(stream, *packed, tensors,
                                  [&](std::string_view name) { return files.read(name); });
  if (!proof) throw UserError("{}: {}", directory.string(), proof.failure().message);
  return {std::move(packed), root_digest(tensors)};
}

void require_base(const std::filesystem::path& adapter, const std::filesystem::path& base,
                  const Digest& root) {
  const std::string trained_beside = base_root_of(adapter);
  if (trained_beside.empty() || trained_beside == root) return;
  throw UserError(
      "{}: the adapter was trained beside weights of the root {}, and those in {} have {}. Put the "
      "base back that it was trained beside.",
      adapter.string(), trained_beside, base.string(), root);
}

}  // namespace tailrace
