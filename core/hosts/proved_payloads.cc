#include "core/hosts/proved_payloads.h"

#include <system_error>

#include <sys/stat.h>

#include "core/weights/version_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// More than a host keeps: those of versions that are gone are forgotten then.
constexpr size_t kMaxProofs = 64;

}  // namespace

// A file that cannot be read has no bytes: it equals no proof.
ProvedPayloads::Proof ProvedPayloads::proof_of(const fs::path& payload, const Digest& root) {
  struct stat facts {};
  if (::stat(payload.c_str(), &facts) != 0) return {};
  return {root, facts.st_dev, facts.st_ino, facts.st_size,
          facts.st_mtim.tv_sec * 1'000'000'000 + facts.st_mtim.tv_nsec};
}

bool ProvedPayloads::prove(const fs::path& payload, const WeightManifest& manifest) {
  // As it was before it was read: what is written meanwhile makes it another file.
  const Proof proof = proof_of(payload, manifest.root);
  const bool holds = prove_payload(payload, manifest).ok();
  MutexLock lock(mu_);
  if (!holds || proof.bytes < 0) {
    proofs_.erase(payload);
    return holds;
  }
  if (proofs_.size() >= kMaxProofs)
    std::erase_if(proofs_, [](const auto& entry) {
      std::error_code ignored;
      return !fs::exists(entry.first, ignored);
    });
  if (proofs_.size() >= kMaxProofs) proofs_.clear();
  proofs_.insert_or_assign(payload, proof);
  return true;
}

bool ProvedPayloads::prove_once(const fs::path& payload, const WeightManifest& manifest) {
  {
    const Proof now = proof_of(payload, manifest.root);
    MutexLock lock(mu_);
    const auto known = proofs_.find(payload);
    if (known != proofs_.end() && known->second == now) return true;
  }
  return prove(payload, manifest);
}

}  // namespace tailrace
