// Keeps what the last steps trained on, token by token, in RUN/traces: for `tailrace status
// --sample`.
//
// One file a step, whole or not there at all, of at most kMaxTraceBytes: of a larger step the first
// samples of its batch. A step that is trained again writes its file anew, and a file of a step
// that is ahead of it goes: another lineage made it.
//
// Cost: 4 bytes of memory a trained token, and some 60 bytes of disk a token, which lie in memory
// while they are written. It is written when
// the step is published, so that nobody waits for it but the trainer itself.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/trajectory/trajectory.h"
#include "trainer/batch.h"

namespace tailrace {

inline constexpr int64_t kMaxTraceBytes = int64_t{64} << 20;
inline constexpr int64_t kTraceBytesPerToken = 64;  // about

class StepTraces {
 public:
  // `steps`: that are kept; 0: nothing is written, and what is there stays.
  StepTraces(std::filesystem::path folder, int64_t steps, int64_t max_bytes = kMaxTraceBytes)
      : folder_(std::move(folder)), steps_(steps), max_bytes_(max_bytes) {}

  bool enabled() const { return steps_ > 0; }
  // Log-probabilities that the loss saw of a sequence's targets, in a pass; the last pass counts.
  void saw(const TrainSequence& sequence, std::span<const float> logprobs);
  // Writes the traces of the step that saw them: samples with rewards, and the batch after its
  // updates. A Failure leaves the files of the steps before.
  Result<void> write(int64_t step, std::span<const Trajectory> samples, const TrainBatch& batch);

 private:
  using SegmentId = std::pair<LeaseId, int32_t>;

  void prune(int64_t step) const;

  std::filesystem::path folder_;
  int64_t steps_, max_bytes_;
  std::map<SegmentId, std::vector<float>> seen_;
};

}  // namespace tailrace
