// What a teacher said of the targets of rows, as a file of the run: written row by row while it
// scores, and read from the disk while a student learns. Some hundred bytes a target are too many
// for memory where rows are many.
//
//   {"rows": DIGEST, "targets": N, "top_k": K} and a newline
//   N times: the log-probability of the target (float32); K ids (int32), the likeliest tokens of
//   the teacher; their log-probabilities (float32). Little-endian.
//   32 hex digits: the digest of all bytes before them
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "core/base/digest.h"
#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/base/mapped_file.h"
#include "core/base/result.h"
#include "trainer/distillation_pass.h"

namespace tailrace {

struct TeacherFileHead {
  Digest rows = {};  // of their tokens and targets
  int64_t targets = 0;
  int64_t top_k = 0;  // of a target; 0: the loss has no support

  int64_t bytes_per_target() const { return (1 + 2 * top_k) * int64_t{sizeof(float)}; }
};

// The bytes of some targets, each with `top_k` ids.
std::vector<std::byte> bytes_of(const TeacherScores& scores, int64_t top_k);

// Appears whole or not at all. Throws UserError where the disk refuses.
class TeacherFileWriter {
 public:
  TeacherFileWriter(const std::filesystem::path& path, const TeacherFileHead& head);
  // Of the next targets.
  void add(std::span<const std::byte> bytes);
  // Behind all targets.
  void commit();

 private:
  AtomicFile file_;
  RunningDigest digest_;
  int64_t missing_;  // bytes of targets
};

class TeacherFile {
 public:
  // A Failure says that it is gone, damaged, or of other rows.
  static Result<TeacherFile> open(const std::filesystem::path& path, const TeacherFileHead& head);

  // Of `count` targets from the one of this number on.
  TeacherScores scores(int64_t first, int64_t count) const;

 private:
  TeacherFile(MappedFile file, const TeacherFileHead& head, size_t begin)
      : file_(std::move(file)), head_(head), begin_(begin) {}

  MappedFile file_;
  TeacherFileHead head_;
  size_t begin_;  // of the first target
};

}  // namespace tailrace
