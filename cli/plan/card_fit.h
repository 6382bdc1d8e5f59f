// Whether a run fits on a card that is not here: the memory of its trainer and of a rollout worker
// there, item by item, against that of the data sheet, and what would fit.
//
// Thread: any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cli/config/options.h"
#include "cli/inputs/resolved_run.h"
#include "cli/prepare/plan.h"
#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "kernels/base/device.h"

namespace tailrace {

// The kind of device that sizes are worked out for: a GPU, where this build knows any.
Device card_device();

// The KV cache on a GPU, which any build can size.
Placement cache_placement(const RunOptions& options, const ModelConfig& config);

// With rollout.max_context_tokens as a launch would work it out.
RunOptions with_context(const RunOptions& options, const ModelConfig& config);

struct CardFit {
  std::string trainer_card, rollout_card;
  int64_t trainer_has = 0, rollout_has = 0;  // bytes of a card, of all devices of a worker
  int64_t trainer_needs = 0, rollout_needs = 0;
  int64_t in_turn_needs = 0;            // both on one, by turns (run.colocate)
  int64_t kv_tokens = 0, kv_mb = 0;     // of a worker, as the run says
  int64_t kv_room_mb = 0;               // rollout.kv_cache_mb that the worker's card has room for
  std::vector<std::string> would = {};  // of what does not fit: what would, each with its size
  bool takes_turns = false;             // the run is one by turns
  bool is_of_gpu = true;                // false: this build knows none, and sizes are of the CPU

  // Both cards say how much memory they have.
  bool is_known() const {
    return std::max(trainer_has, rollout_has) < std::numeric_limits<int64_t>::max();
  }
  bool trainer_fits() const { return trainer_needs <= trainer_has; }
  bool rollout_fits() const { return rollout_needs <= rollout_has; }
  bool fits() const { return takes_turns ? fits_in_turn() : trainer_fits() && rollout_fits(); }
  bool fits_in_turn() const { return trainer_card == rollout_card && in_turn_needs <= trainer_has; }
  // Both on one card, as the processes of a machine share its first GPU.
  bool shares() const {
    return trainer_card == rollout_card && trainer_needs + rollout_needs <= trainer_has;
  }
};

// The plan of the run's processes on the cards of `run.options.simulate`; the sizes of a card that
// is none (no memory_gib) are not told. Throws as make_plan().
Plan plan_on_cards(const ResolvedRun& run, const ModelConfig& config);

// Of a plan_on_cards(). Without memory_gib of a card everything fits on it.
CardFit fit_on_cards(const ResolvedRun& run, const ModelConfig& config, const Plan& plan);

std::string fit_text(const CardFit& fit);

// Reasons why Tailrace cannot run the plan as it is today; empty: it can. `trainers` that are
// planned; `config`: where the policy is known.
std::vector<std::string> gaps_of(const ResolvedRun& run, const ModelConfig* config,
                                 int64_t trainers);
// As a line; `runnable`: what can be run instead, a plan in words; empty: none is known.
std::string gaps_text(const std::vector<std::string>& gaps, const std::string& runnable = "");

}  // namespace tailrace
