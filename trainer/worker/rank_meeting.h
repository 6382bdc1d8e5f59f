// How the ranks of a trainer meet, agree on what they hold, and part. The scheduler says who meets
// where (FormRanks); rank 0 has the weights, and the others take them from it.
//
// Thread: one at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/digest.h"
#include "core/collective/gloo.h"
#include "core/messages/message.h"
#include "core/run/log.h"
#include "core/weights/manifest.h"
#include "trainer/policy_trainer.h"
#include "trainer/worker/held_version.h"
#include "trainer/worker/saved_state.h"
#include "trainer/worker/worker_config.h"

namespace tailrace {

class RankMeeting {
 public:
  // Borrows all; `base`: of an adapter, else empty.
  RankMeeting(const TrainerWorkerConfig& config, PolicyTrainer& trainer,
              ReferenceWeights& reference, HeldVersion& held, const Digest& base, Log& log,
              const Clock& clock)
      : config_(config),
        trainer_(trainer),
        reference_(reference),
        held_(held),
        base_(base),
        log_(log),
        clock_(clock) {}

  bool leads() const { return config_.rank == 0; }
  // It can train: alone, or all ranks have met.
  bool ready() const { return config_.train.ranks == 1 || ranks_ != nullptr; }
  bool is_meeting() const { return meeting_.has_value(); }
  Collective* ranks() const { return ranks_.get(); }  // null: alone, or they have not met

  // Leaves the others, and waits for the ranks of this formation.
  void form(const wire::FormRanks& message);
  // Waits for nobody, so that it hears when the meeting is off: of one that is gone the scheduler
  // knows, and one that still begins may take its time. True: they have met, and hold the same
  // weights; before version 0 a stage will give them what it trains. Throws RankLost, and UserError
  // where a rank computes otherwise.
  bool poll();
  void leave();

  // Equal weights are no promise but a proof, of what all ranks have made of a step: throws
  // UserError. Alone it is none.
  void compare(const WeightManifest& own);

 private:
  // Where it waits for the others, and when it last said so.
  struct Meeting {
    GlooOptions place;
    Time warned{};
  };
  std::vector<std::string> gather_text(const std::string& own);
  void agree_with_rank_0();

  const TrainerWorkerConfig& config_;
  PolicyTrainer& trainer_;
  ReferenceWeights& reference_;
  HeldVersion& held_;
  const Digest& base_;
  Log& log_;
  const Clock& clock_;
  std::optional<Meeting> meeting_;
  std::unique_ptr<Collective> ranks_;  // null: alone, or they have not met
};

}  // namespace tailrace
