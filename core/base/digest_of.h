// Digests of bytes, texts and files (XXH3-128): against damage and mistakes, not against an enemy.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/digest.h"
#include "core/base/result.h"

namespace tailrace {

Digest digest_of(std::span<const std::byte> bytes);
Digest digest_of(std::string_view text);
// XXH3-64, where a number has to do.
uint64_t short_digest_of(std::string_view text);

// The digest of bytes that come in pieces: equal to that of all of them in one.
class RunningDigest {
 public:
  RunningDigest();
  ~RunningDigest();
  RunningDigest(const RunningDigest&) = delete;
  void add(std::span<const std::byte> bytes);
  Digest value() const;  // of what has been added

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The digest of all bytes of a file, read piece by piece. A Failure names the file.
Result<Digest> digest_of_file(const std::filesystem::path& path);

}  // namespace tailrace
