// How a weight version leaves the trainer: a payload and its manifest below RUN/weights. Who takes
// it proves it first (proved_weights.h).
//
// Thread: any; one writer a policy.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/result.h"
#include "core/model/parameters.h"
#include "core/weights/manifest.h"

namespace tailrace {

// "p0-v3.safetensors" of "p0-v3.json": the payload of a version that publish_weights() has written.
std::string payload_name(const std::string& manifest_name);

// Writes the payload, then the manifest, each atomically; returns the manifest's file name. Then
// removes versions of this policy, keeping this one, the keep - 1 before it, and newer ones (of
// before a rollback: somebody may still read them). `manifest` must be of these parameters. A
// Failure gives the path and the system's reason.
Result<std::string> publish_weights(const std::filesystem::path& directory,
                                    const WeightManifest& manifest, const Parameters& parameters,
                                    int keep = 3);

}  // namespace tailrace
