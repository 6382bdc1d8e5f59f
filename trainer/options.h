// The sections `optim`, `train`, `sft`, `preference`, `reward_model`, `distill` and `checkpoint` of
// a run's configuration.
//
// A field is listed once, in visit(); rules over several fields are in validate(). A key exists
// only when something reads it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/enum_names.h"
#include "core/config/options.h"
#include "trainer/loss/distillation.h"
#include "trainer/loss/preference.h"

namespace tailrace {

// The course of the learning rate after its warm-up.
enum class LrSchedule : uint8_t { kConstant, kLinear, kCosine };
constexpr auto enum_names(LrSchedule) {
  using enum LrSchedule;
  return name_table<LrSchedule>(
      {{kConstant, "constant"}, {kLinear, "linear"}, {kCosine, "cosine"}});
}

// The rule that makes updates of gradients.
enum class OptimizerKind : uint8_t {
  kAdamW,
  kMuon,  // the matrices of the layers; AdamW all else
};
constexpr auto enum_names(OptimizerKind) {
  using enum OptimizerKind;
  return name_table<OptimizerKind>({{kAdamW, "adamw"}, {kMuon, "muon"}});
}

struct OptimOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-6;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double momentum = 0.95;
  double weight_decay = 0;
  bool decay_norms = false;
  int64_t warmup_updates = 0;
  LrSchedule schedule = LrSchedule::kConstant;
  double min_lr_ratio = 0.1;
  double max_grad_norm = 1;

  void visit(OptionVisitor& v);
};

// The critic of PPO (trainer/critic.h).
struct CriticOptions {
  double lr = 1e-3;
  double value_clip = 0.5;
  double max_grad_norm = 1;
  int64_t warmup_steps = 0;

  void visit(OptionVisitor& v);
};

struct TrainOptions {
  int64_t minibatches_per_step = 1;
  int64_t microbatch_tokens = 4096;
  bool recompute = false;
  bool share_prefixes = true;
  int64_t ppo_epochs = 1;
  int64_t gradient_slots = 1;
  int64_t ranks = 1;
  int64_t rank_seconds = 300;
  double balance_coef = 0;
  double balance_bias_rate = 0;
  int64_t threads = 0;
  int64_t trace_steps = 2;

  void visit(OptionVisitor& v);
};

// The treatment of a row that is too long: a supervised one, or a prompt.
enum class TooLong : uint8_t { kRefuse, kDrop, kCut };
constexpr auto enum_names(TooLong) {
  using enum TooLong;
  return name_table<TooLong>({{kRefuse, "refuse"}, {kDrop, "drop"}, {kCut, "cut"}});
}

// The rows that a training learns from, and how it goes through them: what supervised training,
// preferences and reward models share.
struct RowOptions {
  std::string data = {};
  std::vector<std::pair<std::string, std::string>> columns = {};
  TooLong too_long = TooLong::kRefuse;
  std::string eval_data = {};
  int64_t eval_updates = 0;
  int64_t checkpoint_updates = 500;
  int64_t epochs = 1;
  int64_t updates = 0;
  OptimOptions optim = {.lr = 1e-5};

 protected:
  void visit_rows(OptionVisitor& v, std::string_view data_help, const Idle& no_rows);
  void visit_passes(OptionVisitor& v);
};

// Supervised training: before RL, or by itself. Rows of a file, or demonstrations that the
// environment gives. Neither: none.
struct SftOptions : RowOptions {
  int64_t demonstrations = 0;
  int64_t batch_tokens = 2048;

  void visit(OptionVisitor& v);
};

// Training on preferences (trainer/preference.h).
struct PreferenceOptions : RowOptions {
  int64_t batch_rows = 32;
  PreferenceLossOptions loss = {};

  PreferenceOptions() { optim.lr = 1e-6; }
  void visit(OptionVisitor& v);
};

// Training of a reward model on preferences (trainer/reward_training.h).
struct RewardModelOptions : RowOptions {
  int64_t batch_rows = 32;
  double centering = 0;

  void visit(OptionVisitor& v);
};

// Distillation from rows that a teacher scores (trainer/distill_task.h).
struct DistillStageOptions : RowOptions {
  std::string policy = {};  // the teacher, one of `policies`
  int64_t batch_tokens = 2048;
  DistillLossOptions loss = {.kind = DistillLoss::kJsd};

  void visit(OptionVisitor& v);
};

struct CheckpointOptions {
  int64_t keep_last = 3;

  void visit(OptionVisitor& v);
};

// Rules over several fields. `section`: its full key ("sft.optim"). Each throws UserError with the
// key.
void validate(const OptimOptions& options, std::string_view section);
void validate(const SftOptions& options, std::string_view section);
void validate(const PreferenceOptions& options, std::string_view section);
void validate(const RewardModelOptions& options, std::string_view section);
void validate(const DistillStageOptions& options, std::string_view section);

}  // namespace tailrace
