// A trainer and a rollout worker of one process on one device (run.colocate): they take turns, the
// weights that products read are one copy, and what only a turn needs is one piece of memory.
//
// The device belongs to the trainer first. It gives the device away with each version that it has
// published, and asks for it again when it has a batch; the rollout worker gives it back between
// two steps of its engine, and finds new weights and another's bytes in its KV cache when it has it
// again.
//
// Thread: any; each of the two roles is one thread. Waits beat, and have no deadline of their own:
// the scheduler has one for each of the two.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/digest.h"
#include "core/model/packed_weights.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"

namespace tailrace {

class Colocation {
 public:
  // `turn_bytes`: of the memory that both have in turn; `planned_bytes`: with it, all that both
  // will hold of the device. Throws OutOfDeviceMemory.
  Colocation(Device device, int64_t turn_bytes, int64_t planned_bytes = 0);
  Colocation(const Colocation&) = delete;

  Device device() const { return arena_.bytes().device; }
  int64_t planned_bytes() const { return planned_bytes_; }
  // For the ArenaScope under which a role makes what its turns need.
  DeviceBytes turn_memory() { return arena_.bytes(); }

  // For the trainer. The weights, which it alone changes, and in its turns alone.
  void share(std::shared_ptr<PackedWeights> weights);
  // Waits until the rollout worker has given the device back; at once where the trainer has it.
  void begin_training();
  // All that the trainer has asked of the device is done; the weights are those of this root.
  void end_training(Digest root);

  // For the rollout worker. The weights: waits for share(); null: the trainer is gone.
  std::shared_ptr<PackedWeights> weights();
  bool is_wanted() const;  // the trainer waits
  // Whether the weights are those of this root: a trainer that begins again behind the newest
  // version comes back to it step by step.
  bool holds(const Digest& root) const;
  bool try_sample();    // the device is the rollout worker's now, or was
  void end_sampling();  // all that it has asked of the device is done

  // A role has ended, however: the other waits for it no more.
  void leave();

 private:
  enum class Holder { kTrainer, kRollout, kNobody };

  Buffer arena_;
  int64_t planned_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Holder holder_ = Holder::kTrainer;
  bool wanted_ = false, left_ = false;
  Digest root_;
  std::shared_ptr<PackedWeights> weights_;
};

}  // namespace tailrace
