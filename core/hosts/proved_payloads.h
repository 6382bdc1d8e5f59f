// Payloads that were proved by their manifest, so that a relay does not read gigabytes again at
// each request. A file of another inode, size or time of writing than the one that was proved
// counts as unproved.
//
// Thread: any; a payload is proved without a lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

#include <sys/types.h>

#include "core/base/digest.h"
#include "core/weights/manifest.h"
#include "kernels/base/mutex.h"

namespace tailrace {

class ProvedPayloads {
 public:
  // Whether the payload has what the manifest says. Reads all of it.
  bool prove(const std::filesystem::path& payload, const WeightManifest& manifest);
  // The same. Reads nothing where this file was proved before by a manifest of the same root.
  bool prove_once(const std::filesystem::path& payload, const WeightManifest& manifest);

 private:
  struct Proof {
    Digest root;
    dev_t device = 0;
    ino_t inode = 0;
    int64_t bytes = -1, nanoseconds = 0;
    friend bool operator==(const Proof&, const Proof&) = default;
  };
  static Proof proof_of(const std::filesystem::path& payload, const Digest& root);

  Mutex mu_;
  std::map<std::filesystem::path, Proof> proofs_ TR_GUARDED_BY(mu_);
};

}  // namespace tailrace
