#include "core/base/digest_of.h"

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/base/file.h"
#include "core/base/progress.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

constexpr size_t kPiece = size_t{1} << 20;

// The canonical form of an XXH128 has its high half first, so other tools give the same text.
Digest to_hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

Digest digest_of(std::string_view text) { return to_hex(XXH3_128bits(text.data(), text.size())); }

uint64_t short_digest_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

struct RunningDigest::State {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

RunningDigest::RunningDigest() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->xxh.get());
}
RunningDigest::~RunningDigest() = default;

void RunningDigest::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
}

Digest RunningDigest::value() const { return to_hex(XXH3_128bits_digest(state_->xxh.get())); }

Result<Digest> digest_of_file(const std::filesystem::path& path) {
  const Result<FileDescriptor> opened = open_to_read(path);
  if (!opened) return opened.failure();
  const int file = opened.value().get();
  std::error_code unknown;
  const uintmax_t size = std::filesystem::file_size(path, unknown);
  Progress progress("hashing " + path.string(), unknown ? 0 : static_cast<int64_t>(size));
  RunningDigest digest;
  std::vector<std::byte> piece(kPiece);
  while (true) {
    beat();
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got == 0) return digest.value();
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failure{describe_errno("read", path, errno)};
    digest.add(std::span(piece).first(static_cast<size_t>(got)));
    progress.add(got);
  }
}

}  // namespace tailrace
