// The configuration with which a trainer begins.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "core/run/run_directory.h"
#include "core/weights/colocation.h"
#include "core/weights/frozen_scorer.h"
#include "core/wire/worker_client.h"
#include "kernels/base/device.h"
#include "trainer/loss/options.h"
#include "trainer/options.h"
#include "trainer/stage.h"

namespace tailrace {

struct TrainerWorkerConfig {
  std::string worker = "trainer-0";
  int rank = 0;  // of train.ranks; 0 speaks for all
  std::string endpoint;
  wire::LinkOptions link = {};
  // With a silent scheduler, before the worker gives up.
  std::chrono::milliseconds patience{60'000};

  RunPaths run;
  uint64_t seed = 0;
  // Steps of the run; 0: until the scheduler says Shutdown.
  int64_t steps = 0;
  // The steps that the run has at most, where `steps` does not say it. They tell a checkpoint of a
  // run of another length, whose schedule goes on by the new one; how far the run has come, each
  // batch says.
  int64_t schedule_steps = 0;

  ModelConfig model;
  Elements compute = {};
  Device device = {};  // which computes: a GPU has no critic, adapter or Muon
  // Weights to begin with, of an adapter its base; empty: random, from the seed.
  std::filesystem::path model_dir = {};
  std::filesystem::path adapter_dir = {};    // an adapter to begin with; empty: a fresh one
  std::filesystem::path tokenizer_dir = {};  // its files go into every checkpoint; empty: none
  int64_t max_sequence_tokens = 0;           // longest sequence that will come

  int64_t anchor_interval = 10;  // of versions of the weights, as files (Retention)
  AlgoOptions algo = {};
  // Tokens sampled by weights that are older than a step's start by more versions than this are not
  // trained on; BatchOptions has the same. nullopt: all is.
  std::optional<int64_t> max_staleness = {};
  // Batches come in parts, and gradients gather while the next one is sampled: `train` must ask for
  // one update a step, and advantages must be those of each group by itself.
  bool streams = false;
  OptimOptions optim = {};
  TrainOptions train = {};
  // Before the first step, in this order. `data` must name the file of each, of demonstrations too;
  // it and `eval_data` are of rows of token ids. A reward model has no adapter, and is trained on
  // the CPU.
  std::vector<RowStage> stages = {};
  std::vector<FrozenModel> teachers = {};  // that stages name
  int64_t num_stages =
      0;  // as a person counts them, with reinforcement learning where it is listed
  CheckpointOptions checkpoint = {};
  // Steps train a critic too, on whole batches (not with `streams`); nullopt: there is none.
  std::optional<CriticOptions> critic = {};
  // Borrowed: shares its device with a rollout worker of this process. Null: it has its own. Not
  // with `streams`, whose gradients gather over turns, and of one rank.
  Colocation* colocation = nullptr;
};

// Whether the policy at the start of RL, which algo.kl holds it to, is the base of an adapter: of a
// fresh one, which adds nothing yet, or where the config says so. Nobody keeps a copy then.
bool reference_is_base(const TrainerWorkerConfig& config);

}  // namespace tailrace
