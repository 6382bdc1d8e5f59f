// Where everything of a run lies on disk, and who may write there.
//
//   config.yaml    the resolved config, enough to start the same run again
//   machine.txt    the machine of the latest launch, in a line
//   inputs.json    digests of the files that a run reads and does not write
//   environments.json          what its libraries say about themselves (docs/plugins.md)
//   metrics.jsonl  one row a step; beside it TensorBoard event files
//   samples.jsonl  a few episodes as tokens and text, for people
//   timeline.jsonl what each worker did when
//   simulation.json            what a simulation of `tailrace plan` found: nothing here was run
//   hardware.yaml              the hardware of such a simulation
//   traces/        all tokens of the samples of the last steps, as they were trained
//   demonstrations.jsonl       rows of the supervised warm-up, when the environment shows them
//   sft.jsonl, sft_eval.jsonl  those of sft.data and sft.eval_data, as token ids; and so of each
//                              other training on rows, by the name of its stage (preference.jsonl)
//   preference_reference.json  log-probabilities of its rows by the policy that it began with
//   distill_teacher            what a teacher says of the rows of the stage of this name
//   reward_model/              the reward model that a stage of this name has trained
//   adapter/       the adapter_config.json of lora.adapter
//   prompts/       rows of the datasets as they are used, where env.too_long drops or cuts some
//   checkpoints/reference      the weights that algo.kl holds the policy to
//   checkpoints/sft/           checkpoints within the stage of this name, until version 0 is there
//   endpoint, begun            of the launch that is under way (cli/roles/endpoint.h)
//   roles/ROLE-N.lock          held by whoever plays the role
//   roles/ranks/               where the ranks of the trainer meet
//   bundle/ROLE.json           what a worker of another host gets of the run
//   agents/WORKER/             folders of the programs that play at a worker, while they do
//   guests.json                the workers of other hosts that have joined and may come back
//   trajectories/ checkpoints/ journal/ weights/ tokenizer/ logs/ROLE-N.log report.html
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "core/run/lock_file.h"

namespace tailrace {

// Names only: any process of the run may hold one. Creates nothing.
struct RunPaths {
  std::filesystem::path root;

  std::filesystem::path config() const { return root / "config.yaml"; }
  std::filesystem::path machine() const { return root / "machine.txt"; }
  std::filesystem::path inputs() const { return root / "inputs.json"; }
  std::filesystem::path environments() const { return root / "environments.json"; }
  std::filesystem::path metrics() const { return root / "metrics.jsonl"; }
  std::filesystem::path samples() const { return root / "samples.jsonl"; }
  std::filesystem::path timeline() const { return root / "timeline.jsonl"; }
  std::filesystem::path simulation() const { return root / "simulation.json"; }
  std::filesystem::path hardware() const { return root / "hardware.yaml"; }
  std::filesystem::path traces() const { return root / "traces"; }
  std::filesystem::path demonstrations() const { return root / "demonstrations.jsonl"; }
  // Of a training on rows, by the name of its stage ("sft").
  std::filesystem::path stage_rows(std::string_view name) const;
  std::filesystem::path stage_eval_rows(std::string_view name) const;
  std::filesystem::path stage_checkpoints(std::string_view name) const;
  std::filesystem::path stage_reference(std::string_view name) const;
  std::filesystem::path stage_teacher(std::string_view name) const;
  std::filesystem::path stage_model(std::string_view name) const;
  std::filesystem::path adapter() const { return root / "adapter"; }
  std::filesystem::path prompts() const { return root / "prompts"; }
  std::filesystem::path trajectories() const { return root / "trajectories"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
  std::filesystem::path journal() const { return root / "journal"; }
  std::filesystem::path reference() const { return checkpoints() / "reference"; }
  std::filesystem::path weights() const { return root / "weights"; }
  std::filesystem::path tokenizer() const { return root / "tokenizer"; }
  std::filesystem::path logs() const { return root / "logs"; }
  std::filesystem::path roles() const { return root / "roles"; }
  std::filesystem::path ranks() const { return roles() / "ranks"; }
  std::filesystem::path bundle() const { return root / "bundle"; }
  std::filesystem::path agents() const { return root / "agents"; }
  std::filesystem::path guests() const { return root / "guests.json"; }
  std::filesystem::path report() const { return root / "report.html"; }
  std::filesystem::path lock() const { return root / "lock"; }
  std::filesystem::path log(std::string_view role, int index) const;   // logs/ROLE-INDEX.log
  std::filesystem::path role(std::string_view role, int index) const;  // roles/ROLE-INDEX.lock
};

// The folder of a finished checkpoint in RunPaths::checkpoints(): "step_000010". While it is being
// written it has another name, which has no step.
std::string checkpoint_name(int64_t step);
std::optional<int64_t> checkpoint_step(const std::filesystem::path& folder);
// Step of the newest finished checkpoint, whether it is whole or not; nothing: there is none.
std::optional<int64_t> newest_checkpoint(const RunPaths& paths);

// In a line of a log about a file of the run that is not as it was written, and in whose place an
// older one is used. A launch shows such lines of its roles: work may be lost, and a disk may be
// failing.
inline constexpr std::string_view kPassedOver = " passed over: ";
// Ends a line of a worker's log about the programs whose start it waits for; a launch shows it too.
inline constexpr std::string_view kHaveStarted = " processes have started";

// For the processes of a launch that was killed: they die with it, but take a moment on a busy
// machine.
inline constexpr std::chrono::seconds kEarlierLaunchEnds{5};

// Throws UserError where `root` holds files but no config.yaml: it is somebody else's folder.
void refuse_foreign_folder(const std::filesystem::path& root);

// The launcher's hold on a run directory: creates the folders, keeps an exclusive lock while it
// lives, and removes half-written files of processes that were killed: at its begin those of an
// earlier launch, at its end, when all that it has started are gone, those of its own.
class RunDirectory {
 public:
  // Opens or creates `root`. Throws UserError: it is in use (with the owner's pid), cannot be
  // written, or holds files but no config.yaml (somebody else's folder).
  explicit RunDirectory(const std::filesystem::path& root);
  ~RunDirectory() { sweep(); }
  RunDirectory(const RunDirectory&) = delete;

  const RunPaths& paths() const { return paths_; }
  bool resumes() const { return resumes_; }  // config.yaml was there: a run to continue

 private:
  void sweep() const;

  RunPaths paths_;
  bool resumes_ = false;
  std::optional<LockFile> lock_;
};

}  // namespace tailrace
