// Checkpoints of the trainer: one folder each, which appears whole or not at all.
//
//   checkpoints/step_000010/
//     config.json, weights, tokenizer files    a Hugging Face folder in the form in which the model
//                                 came (core/model/model_form.h)
//     master.safetensors          where that rounds a tensor: the float32 weights that are trained
//     optimizer.safetensors       moments, counts, end of the warm-up
//     critic.safetensors          of a run that has one: the head, its moments and counts
//     state.json                  the numbers of CheckpointState, and a digest of each other file
//
// Of an adapter (Lora) the first line is adapter_config.json, adapter_model.safetensors (float32)
// and the tokenizer files, which is a folder of peft.
//
// A folder whose files do not prove is damaged: it is passed over and set aside as
// step_000010.damaged, and the one before it counts.
//
// It is written as step_000010.tmp, every file and the folder fsynced, then renamed. A .tmp folder
// is what a crash left behind and is deleted.
//
// Thread: one at a time for a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/model/model_config.h"
#include "core/model/model_form.h"
#include "core/model/parameters.h"
#include "trainer/critic.h"
#include "trainer/optimizer.h"

namespace tailrace {

struct CheckpointState {
  int64_t step = 0;            // steps done
  int64_t version = 0;         // weight version of the saved weights
  int64_t updates = 0;         // optimizer updates since RL began
  int64_t horizon = 0;         // updates of the run at most
  std::string digest = {};     // root digest of the weights
  std::string reference = {};  // root digest of the weights of algo.kl; empty: none
  std::string base = {};       // root digest of an adapter's base; empty: it is no adapter
  std::string extra = {};      // JSON of the caller, kept as it is; empty: none
};

// The finished checkpoints of a folder, oldest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& folder);

struct ProvedCheckpoint {
  std::filesystem::path path;
  CheckpointState state;
  std::vector<std::string> passed_over = {};  // newer ones: why each was
  // Checkpoints of `passed_over` that will never read back, unlike one that cannot be read now (no
  // descriptors left).
  std::vector<std::filesystem::path> damaged = {};
};
// The newest checkpoint of which each file is as it was saved. Nothing when the folder has none.
// Throws UserError when it has some and none proves itself. Changes nothing on the disk.
std::optional<ProvedCheckpoint> find_proved_checkpoint(const std::filesystem::path& folder);

class CheckpointFolder {
 public:
  // `tokenizer_dir`: its tokenizer files are copied into every checkpoint; empty: none. keep_last
  // >= 1.
  CheckpointFolder(std::filesystem::path root, std::filesystem::path tokenizer_dir,
                   int64_t keep_last);

  // Uses the form of the files in which the model came. A loaded checkpoint keeps its own form.
  void use_form(ModelForm form) { form_ = std::move(form); }

  // config.dtype: that samples (save_model). critic: null where the run has none. Durable
  // when it returns without a Failure;
  // then all but the last `keep_last` are deleted. On a Failure (a full disk) nothing has changed:
  // the older checkpoints are intact and no part of the new one is left.
  Result<std::filesystem::path> save(const CheckpointState& state, const ModelConfig& config,
                                     const Parameters& parameters, const Optimizer& optimizer,
                                     const Critic* critic = nullptr);

  // Steps of the oldest that is kept; nothing when there is none.
  std::optional<int64_t> oldest() const;

  // find_proved_checkpoint() into `parameters`, `optimizer` and `critic`, where that is not null;
  // newer ones that are damaged are set aside. Throws UserError also when it belongs to another
  // model, or has no critic where one is wanted.
  std::optional<ProvedCheckpoint> load_latest(const ModelConfig& config, Parameters& parameters,
                                              Optimizer& optimizer, Critic* critic = nullptr);

 private:
  void write(const std::filesystem::path& folder, const CheckpointState& state,
             const ModelConfig& config, const Parameters& parameters, const Optimizer& optimizer,
             const Critic* critic) const;
  void remove_unfinished() const;

  std::filesystem::path root_, tokenizer_dir_;
  int64_t keep_last_;
  ModelForm form_;
};

}  // namespace tailrace
