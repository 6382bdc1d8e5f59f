// Everything that a run can be told: the root of a config file. Sections of other folders are
// theirs; what belongs to no folder is here.
//
// A key exists only when something reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/config/device_choice.h"
#include "cli/config/simulate_options.h"
#include "core/base/enum_names.h"
#include "core/chat/options.h"
#include "core/config/config_printer.h"
#include "core/config/options.h"
#include "core/model/compute.h"
#include "core/model/model_config.h"
#include "core/run/log.h"
#include "core/text/dataset.h"
#include "rollout/episode/options.h"
#include "sandbox/environment.h"
#include "scheduler/state/options.h"
#include "trainer/loss/options.h"
#include "trainer/options.h"

namespace tailrace {

struct RunSection {
  std::string name = "run";
  std::string dir;  // empty: runs/NAME-TIME
  int64_t seed = 0;
  int64_t steps = 100;
  int64_t epochs = 0;
  int64_t stall_seconds = 45;
  bool colocate = false;
  std::string listen;  // "tcp://HOST:PORT" (listen.h); empty: only workers of this machine
  std::string keys;

  void visit(OptionVisitor& v);
};

// A policy from random weights; 0 for a size means that no policy is made.
struct ModelCreateSection {
  int64_t hidden_size = 0, intermediate_size = 0;
  int64_t layers = 0, heads = 0, kv_heads = 0;
  int64_t experts = 0, experts_per_token = 2;
  int64_t max_positions = 256;
  double rope_theta = 10000;
  bool tie_embeddings = false;

  void visit(OptionVisitor& v);
};

struct ModelSection {
  std::string path;
  Compute compute = Compute::kAuto;
  Compute kv_cache_dtype = Compute::kAuto;
  DeviceChoice device = DeviceChoice::kAuto;
  ModelCreateSection create;

  void visit(OptionVisitor& v);
  bool creates() const { return create.hidden_size > 0; }
};

// An adapter that is trained beside frozen weights (Lora).
struct LoraSection {
  int64_t rank = 0;
  double alpha = 32;
  std::vector<std::string> targets;  // empty: all
  std::string adapter;               // a folder to begin with, which has the three above
  // Copy of its adapter_config.json in the run's folder, where `adapter` is gone; empty: it is
  // there. Not a key: find_kept_adapter() sets it.
  std::filesystem::path kept = {};

  void visit(OptionVisitor& v);
  // Where adapter_config.json is read.
  std::filesystem::path shape_folder() const {
    return kept.empty() ? std::filesystem::path(adapter) : kept;
  }
  bool trains() const { return rank > 0 || !adapter.empty(); }
};

// A model beside the one that is trained; its weights never change.
struct PolicySection {
  std::string name = {};
  std::string model = {};  // its folder; or a server has it:
  std::string url = {}, served_as = {}, key_env = {};
  int64_t at_once = 4;

  void visit(OptionVisitor& v);
};

// Where an environment or a reward of somebody's own runs.
enum class Isolation : uint8_t {
  kNone,     // in our processes, on their threads; of a library alone
  kProcess,  // in processes of its own
  kSandbox,  // in processes that see nothing of this machine (sandbox/launcher); of a program alone
};
constexpr auto enum_names(Isolation) {
  using enum Isolation;
  return name_table<Isolation>({{kNone, "none"}, {kProcess, "process"}, {kSandbox, "sandbox"}});
}

// A program that plays the episodes of a dataset by itself (sandbox/agent_program.h).
struct AgentSection {
  std::vector<std::string> command = {};  // empty: there is none
  std::vector<std::string> setup = {}, score = {};
  double setup_seconds = 60, run_seconds = 600, score_seconds = 60;
  int64_t episodes = 1, at_once = 16, max_calls = 64, max_tokens = 1024, max_request_mb = 16;
  std::string verifier = {};
  std::vector<std::string> vocabulary = {};

  void visit(OptionVisitor& v);
  bool plays() const { return !command.empty(); }
};

// The one thing that a run learns, where `datasets` lists none.
struct EnvSection {
  std::string name;
  std::string plugin;  // the library that has it; empty: it is built in, or of the command
  std::vector<std::string> command;  // the program that plays it; empty: none
  Isolation isolation = Isolation::kProcess;
  std::string dataset, eval_dataset;
  text::ColumnMap columns;
  TooLong too_long = TooLong::kRefuse;
  sandbox::EnvironmentSettings settings;
  AgentSection agent;

  void visit(OptionVisitor& v);
};

// One of several that a run learns from: a dataset of the scheduler's law (1.1); MemberId::dataset
// is its place in the list.
// Behind the rules a run has ResolvedRun::datasets, whichever way they were written.
struct DatasetSection {
  std::string name = {};
  double ratio = 1;
  std::string env = {};
  std::string plugin = {};
  std::vector<std::string> command = {};
  Isolation isolation = Isolation::kProcess;
  sandbox::EnvironmentSettings settings = {};
  std::string dataset = {}, eval_dataset = {};
  text::ColumnMap columns = {};
  TooLong too_long = TooLong::kRefuse;
  AgentSection agent = {};
  int64_t epochs = 0;
  std::string pool = {};

  void visit(OptionVisitor& v);
};

// Hosts elsewhere, all behind one link.
struct ClusterSection {
  std::string name = {};
  int64_t link_mbit = 0;  // between the scheduler's host and there; 0: not known

  void visit(OptionVisitor& v);
};

// Rollout workers that are meant for the same datasets. Behind the rules a run has
// ResolvedRun::pools, whichever way they were written.
struct PoolSection {
  std::string name = {};
  int64_t workers = 1;
  int64_t max_sequences = 0;
  std::string cluster = {};  // where they run, and join from; empty: here, started by launch

  void visit(OptionVisitor& v);
};

// Processes of the section `rollout`.
struct RolloutProcesses {
  int64_t workers = 1;
  std::vector<PoolSection> pools;  // empty: `workers` of them, in no pool

  void visit(OptionVisitor& v);
};

// One of several rewards whose weighted sum is the reward.
struct RewardPart {
  std::string name = {};
  double weight = 1;
  std::vector<std::string> command = {};  // one of these two
  std::string verifier = {};

  void visit(OptionVisitor& v);
};

// A language model that is asked what an episode is worth.
struct JudgeSection {
  std::string url, model, prompt;
  std::string answer = "Score:";
  double best = 10;
  int64_t max_tokens = 256, at_once = 8;
  std::string key_env;

  void visit(OptionVisitor& v);
  bool is_given() const { return !url.empty(); }
};

struct RewardSection {
  int64_t workers = 1;
  std::string plugin;  // a library of rewards beside those of environments; empty: none
  Isolation isolation = Isolation::kProcess;
  sandbox::EnvironmentSettings settings;
  std::vector<std::string> command;  // a program that scores instead of any verifier; empty: none
  std::vector<RewardPart> parts;     // several that do; empty: none
  int64_t batch = 8;
  double start_timeout_s = 120;  // of a program
  std::string model;             // folder of a reward model that scores instead; empty: none
  int64_t model_tokens = 0;      // of a conversation that it reads, at most; 0: its positions
  std::string stage;             // that trains the model, in this run
  JudgeSection judge;
  // Where its model is, or will be. Not a key: find_trained_model() sets it.
  std::filesystem::path trained = {};
  chat::ChatOptions trained_chat = {};  // by which its rows were written; not a key either

  void visit(OptionVisitor& v);
  bool has_commands() const;
  bool has_model() const { return !model.empty() || !stage.empty(); }
  std::filesystem::path model_folder() const {
    return stage.empty() ? std::filesystem::path(model) : trained;
  }
};

// In MiB.
inline constexpr double kMaxRowMb = 4096, kMaxFileMb = 1 << 24, kMaxRequestMb = 1024;

// Reinforcement learning as a stage: its keys are those of the run.
struct RlStage {
  int64_t steps = 0;

  void visit(OptionVisitor& v);
};

// One of several trainings that follow each other (stages.h). Behind the rules a run has
// ResolvedRun::stages, whichever way they were written.
struct StageSection {
  std::string name = {};
  SftOptions sft = {};
  RewardModelOptions reward_model = {};
  PreferenceOptions preference = {};
  DistillStageOptions distill = {};
  RlStage rl = {};
  std::string until = {};

  void visit(OptionVisitor& v);
};

// The limits on files that a person brings.
struct FilesSection {
  int64_t max_row_mb = 64, max_file_mb = 16'384;

  void visit(OptionVisitor& v);
  // With the names of the keys, or of other options that say them.
  text::RowLimits limits(std::string row_key = "files.max_row_mb",
                         std::string text_key = "files.max_file_mb") const {
    return {.max_row_bytes = max_row_mb << 20,
            .max_text_bytes = max_file_mb << 20,
            .row_key = std::move(row_key),
            .text_key = std::move(text_key)};
  }
};

struct LogSection {
  LogLevel level = LogLevel::kInfo;

  void visit(OptionVisitor& v);
};

struct RunOptions {
  // Copies of so many members are long; they are compiled once.
  RunOptions();
  RunOptions(const RunOptions&);
  RunOptions(RunOptions&&) noexcept;
  RunOptions& operator=(const RunOptions&);
  RunOptions& operator=(RunOptions&&) noexcept;
  ~RunOptions();

  RunSection run;
  ModelSection model;
  LoraSection lora;
  std::vector<PolicySection> policies;
  chat::ChatOptions chat;
  std::vector<DatasetSection> datasets;  // empty: `env` is the only one
  EnvSection env;
  std::vector<ClusterSection> clusters;
  // The keys of these three stand in `rollout`: each is read by somebody else.
  scheduler::StepOptions step;
  RolloutProcesses rollout_processes;
  RolloutOptions rollout;
  RewardSection reward;
  std::vector<StageSection> stages;  // empty: the four below are all, in this order
  SftOptions sft;
  RewardModelOptions reward_model;
  PreferenceOptions preference;
  DistillStageOptions distill;
  TrainOptions train;
  AlgoOptions algo;
  CriticOptions critic;
  OptimOptions optim;
  scheduler::SchedulerOptions scheduler;
  scheduler::EvalOptions eval;
  scheduler::SaveOptions save;  // its key stands in `checkpoint`, beside those of the next
  CheckpointOptions checkpoint;
  scheduler::WeightsOptions weights;
  FilesSection files;
  LogSection log;
  // Not a key: of the hardware file that a plan is for (hardware_file.h).
  SimulateSection simulate;

  void visit(OptionVisitor& v);
};

// Every key with its value, by its full name.
std::map<std::string, OptionDoc> options_by_key(const RunOptions& options);

// The shape of the policy that model.create asks for.
ModelConfig model_config(const ModelCreateSection& create, int64_t vocab_size);

}  // namespace tailrace
