// The configuration with which a rollout worker begins.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/chat/options.h"
#include "core/model/model_config.h"
#include "core/model/placement.h"
#include "core/run/run_directory.h"
#include "core/text/dataset.h"
#include "core/weights/colocation.h"
#include "core/weights/fetch_weights.h"
#include "core/wire/worker_client.h"
#include "kernels/base/device.h"
#include "rollout/episode/options.h"
#include "rollout/worker/remote_teacher.h"
#include "rollout/worker/teacher.h"
#include "sandbox/registry.h"

namespace tailrace {

// The environment that the episodes of a dataset play, and its tasks.
struct RolloutDataset {
  std::string env;
  sandbox::EnvironmentSettings settings = {};
  // JSONL files, of environments that need them; of either there may be none.
  std::filesystem::path rows = {}, held_out_rows = {};
  text::ColumnMap columns = {};  // of both files
  text::RowLimits limits = {};
};

struct RolloutWorkerConfig {
  std::string worker = "rollout-0";
  bool joined = false;  // these four as wire::Hello has them
  std::string pool = {}, cluster = {}, host = {};
  uint64_t incarnation = 0;  // 0: the WorkerClient chooses one
  wire::Endpoint endpoint;
  wire::LinkOptions link = {};
  std::chrono::milliseconds patience{60'000};  // with a silent scheduler, before it gives up

  RunPaths run;
  uint64_t seed = 0;  // of the run: tasks and random numbers follow from it and the lease
  int64_t slots = 0;  // leases at once; 0: rollout.max_sequences

  ModelConfig model;
  Elements compute = {};
  Device device = {};                   // which computes
  std::filesystem::path base_dir = {};  // of an adapter's base; else the weights come as versions
  std::filesystem::path tokenizer_dir;
  chat::ChatOptions chat;

  std::vector<RolloutDataset> datasets;  // at least one; MemberId::dataset is the place in it
  // Called before any of these is used: throws UserError when they are not what the run began with.
  std::function<void()> prove_inputs = [] {};

  // For a worker that does not see the files of the run; none: they lie in RUN/weights. It may take
  // minutes: the worker never waits for it, whether it plays or not.
  FetchWeights fetch_weights = {};

  RolloutOptions rollout;   // validated
  bool keeps_sets = false;  // what trains carries what each token was drawn from
  // Either scores what trains; none: nobody does.
  std::optional<TeacherConfig> teacher = {};
  std::optional<RemoteTeacherConfig> remote_teacher = {};
  // It has its device, and the weights, in turn with the trainer of this process.
  bool shares_device = false;
  Colocation* colocation = nullptr;  // borrowed; not null where it shares_device and plays
};

}  // namespace tailrace
