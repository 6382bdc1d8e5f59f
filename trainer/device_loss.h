// The losses of a trainer whose model is on a GPU: their gradients are made where the
// log-probabilities are, and their sums come back once an update, when somebody asks for them.
// Ranks exchange memory of the host, and so wait for them at each end().
//
// Thread: one at a time; asks the stream, and waits for it where a function says so.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/ops/policy_gradient.h"
#include "trainer/update_loss.h"

namespace tailrace {

class DeviceLoss : public UpdateLoss {
 public:
  // Room for micro-batches of so many tokens and sequences, and for an update in `slots` parts.
  struct Room {
    int64_t tokens = 0, sequences = 0, slots = 0;
  };
  DeviceLoss(const Stream& stream, const Room& room);
  DeviceLoss(const DeviceLoss&) = delete;  // copies to the host may be under way
  ~DeviceLoss() override { wait(stream_); }
  static int64_t bytes(const Room& room);  // of host and device

  Wants wants() const override;
  void begin(const PolicyPass& pass) override;
  void begin(const SupervisedPass& pass) override;
  // Waits at most until the columns of the micro-batch before have been copied.
  void add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
           std::span<float> dlogprob, std::span<float> dentropy) override;
  // Alone it waits for nothing, but that it takes in the sums of kPending updates that nobody asked
  // for.
  void end(const GradientTree& tree) override;
  // Waits for the stream where there is one to report.
  std::vector<UpdateReport> take() override;

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
  void begin(const PolicyLossConfig& config);
  void settle();
  void add_policy(size_t slot, std::span<const TrainSequence> sequences,
                  const PackedForward::Output& output, std::span<float> dlogprob,
                  std::span<float> dentropy);
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
  std::optional<PolicyPass> policy_;      // nothing: the supervised pass
  SupervisedPass supervised_;
  std::vector<Update> pending_;  // whose sums are coming
  std::vector<std::vector<UpdateReport>> settled_;
};

}  // namespace tailrace
