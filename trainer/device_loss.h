// The losses of a trainer whose model is on a GPU: their gradients are made where the
// log-probabilities are, and their sums come back once an update, when somebody asks for them.
//
// Order: begin(), the micro-batches of an update, end(); and take() once a step or once an update.
//
// Thread: one at a time; asks the stream, and waits for it where a function says so.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/ops/policy_gradient.h"
#include "trainer/batch.h"
#include "trainer/loss/policy_loss.h"
#include "trainer/packed_forward.h"
#include "trainer/step_report.h"

namespace tailrace {

class DeviceLoss {
 public:
  // Of micro-batches of so many tokens and sequences; of an update in `slots` parts.
  struct Room {
    int64_t tokens = 0, sequences = 0, slots = 0;
  };
  DeviceLoss(const Stream& stream, const Room& room);
  DeviceLoss(const DeviceLoss&) = delete;  // copies to the host may be under way
  ~DeviceLoss() { wait(stream_); }
  static int64_t bytes(const Room& room);  // of host and device

  // Forgets an update that did not end. `config`: of the policy's loss.
  void begin(const PolicyLossConfig& config = {});
  // Of a micro-batch, whose pass `output` is of. Waits at most until the columns of the one before
  // have been copied. `version`: of the weights.
  void policy(size_t slot, std::span<const TrainSequence> sequences, const LossCounts& counts,
              int64_t version, const PackedForward::Output& output, std::span<float> dlogprob,
              std::span<float> dentropy);
  // -weight * (sum of the log-probabilities); the sum of -logprob is the slot's policy_term.
  void cross_entropy(size_t slot, double weight, const PackedForward::Output& output,
                     std::span<float> dlogprob);
  // Waits for nothing, but that it takes in the sums of kPending updates that nobody asked for.
  void end();

  // [slots] of each update since the last call. Waits for the stream where there is one.
  std::vector<std::vector<UpdateReport>> take();

 private:
  static constexpr int64_t kPending = 16;  // updates that may be under way

  // The columns of a micro-batch, one behind the other: once on the host, once on the device.
  struct Columns {
    std::span<double> weight, correction;
    std::span<float> old_logprob, behaviour, kl, recorded, advantage;
    std::span<int32_t> turns, sequence_turns;
    std::span<uint8_t> flags;

    Columns(Workspace& memory, int64_t tokens, int64_t sequences, int64_t turns, bool has_kl);
  };
  static size_t column_bytes(const Room& room);
  struct Update {
    PolicyLossConfig config;
    std::vector<UpdateReport> slots;  // what the host knows
  };
  void settle();
  std::span<PolicySums> sums_of(size_t slot) { return sums_.subspan(slot, 1); }

  Stream stream_;
  Room room_;
  Buffer device_columns_, host_columns_;  // the second pinned
  StreamMark sent_;                       // behind the copy of the last columns
  Buffer device_sums_, host_sums_;        // likewise
  std::span<PolicySums> sums_, scratch_;  // of the device: [slots], [sequences]
  std::span<PolicySums> zeros_;           // of the host: [slots]
  std::span<PolicySums> pending_sums_;    // [kPending * slots]
  Update update_;                         // since begin()
  std::vector<Update> pending_;           // whose sums are coming
  std::vector<std::vector<UpdateReport>> settled_;
};

}  // namespace tailrace
