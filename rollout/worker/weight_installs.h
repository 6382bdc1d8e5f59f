// The versions that a worker is asked for, from the first byte to what samples (law 9.6), and what
// is said of them; and the turns on a device that a trainer shares.
//
// Thread: the owner's thread only (the engine's).
#pragma once

#include "core/messages/message.h"
#include "core/run/log.h"
#include "core/wire/worker_client.h"
#include "kernels/base/device.h"
#include "rollout/engine/engine.h"
#include "rollout/worker/weight_stage.h"
#include "rollout/worker/worker_config.h"

namespace tailrace {

inline constexpr PolicyId kPolicy = 0;  // the only one so far

class WeightInstalls {
 public:
  // Borrows all. Throws UserError where the trainer that has the device in turn has ended.
  WeightInstalls(const RolloutWorkerConfig& config, Engine& engine, const Stream& stream,
                 wire::WorkerClient& client, Log& log);

  void on(const wire::Stage& stage);
  void on(const wire::Switch& change);
  void forget() { stage_.forget(); }  // what was asked for in an earlier session
  bool is_staging() const { return stage_.is_staging(); }

  // Whether this worker may compute now: always, but on a shared device. What an evaluation has
  // begun, it ends: the scheduler gives no step to train before.
  bool take_turn();
  bool has_turn() const { return config_.colocation == nullptr || has_turn_; }

  // Stages the version that was asked for last while the engine goes on under its own weights.
  // `samples`: there are episodes. may_switch: it takes the place of what samples, between two
  // steps of the engine.
  void proceed(bool samples, bool may_switch);

 private:
  void say(const WeightStage::Staged& staged);
  void install(const WeightStage::Switched& switched);
  void refuse(const WeightVersion& asked, const std::string& reason, PolicyId policy = kPolicy,
              InstallCause cause = InstallCause::kOther);
  void tell_progress();
  void log_stats();
  template <class Asked>
  bool samples_policy_of(const Asked& message);

  const RolloutWorkerConfig& config_;
  Engine& engine_;
  const Stream stream_;
  wire::WorkerClient& client_;
  Log& log_;
  EngineStats logged_;
  bool has_turn_ = false;  // of a shared device
  Time told_progress_{};
  Digest told_root_;           // of what is staged
  int64_t told_bytes_ = 0;     // of it
  bool told_weights_ = false;  // that it has its first
  WeightStage stage_;          // last: it uses threads of what is above, and is awaited
};

}  // namespace tailrace
