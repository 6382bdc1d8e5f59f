#include "cli/prepare/disk_plan.h"

#include <algorithm>
#include <limits>
#include <system_error>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/prepare/worker_configs.h"
#include "core/model/compute.h"
#include "core/model/parameters.h"
#include "core/weights/manifest.h"
#include "trainer/optimizer.h"
#include "trainer/worker/step_traces.h"

namespace tailrace {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kFloat = sizeof(float);
// Bytes of a body per token: its id, its log-probability and its role.
constexpr int64_t kStoredBytesPerToken = 9;
constexpr int64_t kBodyBytes = 1024;  // besides: lease, turns, evidence, metrics, about
constexpr int64_t kRowBytes = 300;    // of timeline.jsonl

int64_t at_most_times(int64_t count, int64_t bytes) {
  int64_t product = 0;
  return __builtin_mul_overflow(count, bytes, &product) ? std::numeric_limits<int64_t>::max()
                                                        : product;
}

int64_t sum_of(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

// Stored bytes of a sampled token, with what the config has recorded besides.
int64_t stored_bytes_per_token(const RunOptions& o, const ModelConfig& config) {
  int64_t bytes = kStoredBytesPerToken;
  if (o.algo.sampling_mask == SamplingMask::kKeep)
    bytes += std::min(o.rollout.sampling.top_k, config.num_ids()) * int64_t{sizeof(TokenId)};
  if (o.algo.router_replay == RouterReplay::kReplay)
    bytes += config.expert_shape().per_token() * int64_t{sizeof(uint16_t)};
  return bytes;
}

int64_t bytes_below(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(folder, error);
       !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const uintmax_t size = entry->is_regular_file(gone) ? entry->file_size(gone) : 0;
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

fs::path nearest_existing(fs::path path) {
  std::error_code error;
  path = fs::absolute(path, error);
  while (!fs::exists(path, error) && path.has_relative_path()) path = path.parent_path();
  return path;
}

// The versions that stored samples may name, without those of weights.keep.
int64_t older_of_samples(const DiskPlan& plan) {
  return std::max<int64_t>(0, plan.stored_steps + 1 - plan.versions);
}

}  // namespace

int64_t DiskPlan::certain_bytes() const {
  return sum_of(
      sum_of(at_most_times(versions, version), at_most_times(checkpoints, checkpoint_bytes())),
      reference);
}

int64_t DiskPlan::most_bytes() const {
  return sum_of(sum_of(certain_bytes(), older_bytes),
                sum_of(at_most_times(stored_steps, tokens), others));
}

DiskPlan plan_disk(const PlacedRun& placed, int64_t steps, int64_t tokens_per_step, bool lags) {
  const ResolvedRun& run = placed.run;
  const ModelConfig& config = placed.model;
  const RunOptions& o = run.options;
  const ParameterLayout trained = ParameterLayout::trained(config);
  const Dtype compute = placed.compute.weights;
  const bool rl = !run.supervised_only;
  const int64_t all_floats = trained.num_parameters() * kFloat;
  DiskPlan plan;
  plan.version = published_bytes(trained, compute);
  // A checkpoint has the dtypes in which the model came, and what that rounds besides. An adapter
  // is saved as it is trained.
  const bool came_narrow = config.dtype != Dtype::kF32;
  plan.model = config.lora ? all_floats : came_narrow ? all_floats / 2 : plan.version;
  plan.master = !config.lora && (came_narrow || compute == Dtype::kBF16) ? all_floats : 0;
  const OptimizerKind optimizer =
      rl || run.stages.empty() ? o.optim.kind : run.stages.back().rows().optim.kind;
  plan.moments =
      optimizer == OptimizerKind::kMuon ? Optimizer::bytes(trained, optimizer) : 2 * all_floats;
  plan.interval = o.save.interval_steps;
  // Before the first step there is version 0, with a checkpoint of its own.
  const auto of_run = [&](int64_t count) {
    return steps > 0 ? std::min(count, steps + 1) : rl ? count : 1;
  };
  const int64_t all_saved = steps > 0 ? 1 + (steps + plan.interval - 1) / plan.interval
                            : rl      ? std::numeric_limits<int64_t>::max()
                                      : 1;
  // One more than are kept: the oldest goes when the newest is whole.
  plan.checkpoints = std::min(o.checkpoint.keep_last, all_saved - 1) + 1;
  // Each stage but the last keeps one behind its end until version 0 is there.
  plan.checkpoints = std::max(plan.checkpoints, std::ssize(run.stages) + 1);
  plan.versions = of_run(o.weights.keep);
  if (!rl) {
    // One of each stage, and one more while it is written.
    plan.checkpoints = std::ssize(run.stages) + 1;
    return plan;
  }
  plan.tokens = sum_of(at_most_times(tokens_per_step, stored_bytes_per_token(o, config)),
                       at_most_times(o.step.prompts_per_step * o.step.group_size, kBodyBytes));
  // Steps that the oldest checkpoint does not cover.
  plan.stored_steps = at_most_times(o.checkpoint.keep_last, plan.interval);
  if (steps > 0) plan.stored_steps = std::min(plan.stored_steps, steps);
  if (o.weights.keep_sampled) plan.older_versions = older_of_samples(plan);
  // Until the next one is due. Of the first and the last version alone no interval tells how far.
  if (o.eval.prompts > 0 && lags) {
    const int64_t lag = of_run(std::max<int64_t>(1, o.eval.interval_steps) + 1);
    plan.older_versions = std::max(plan.older_versions, lag - plan.versions);
  }
  plan.older_bytes = at_most_times(plan.older_versions, plan.version);
  if (o.algo.kl.needs_reference() && !reference_is_base(trainer_config(placed, {})))
    plan.reference = all_floats;
  const int64_t traces =
      std::min(kMaxTraceBytes, at_most_times(tokens_per_step, kTraceBytesPerToken));
  plan.others =
      sum_of(at_most_times(of_run(o.train.trace_steps), traces),
             sum_of(o.scheduler.storage.journal_bytes * 2 + o.scheduler.storage.store_bytes,
                    at_most_times(steps, o.scheduler.storage.timeline_rows * kRowBytes)));
  return plan;
}

std::vector<std::string> describe(const DiskPlan& plan, const RunOptions& o) {
  std::vector<std::string> lines;
  const bool rl = plan.stored_steps > 0;
  std::string parts = format_bytes(plan.model) + " weights";
  if (plan.master > 0) parts += fmt::format(" + {} float32 master", format_bytes(plan.master));
  parts += fmt::format(" + {} moments", format_bytes(plan.moments));
  const std::string checkpoint =
      fmt::format("{} ({})", format_bytes(plan.checkpoint_bytes()), parts);
  if (rl) {
    lines.push_back(fmt::format("a step writes a version of {}, and at most {} of samples",
                                format_bytes(plan.version), format_bytes(plan.tokens)));
    lines.push_back(fmt::format("every {} a checkpoint of {} (checkpoint.interval_steps)",
                                plan.interval == 1 ? "step" : counted(plan.interval, "step"),
                                checkpoint));
  } else {
    lines.push_back(fmt::format("a checkpoint is of {}", checkpoint));
  }
  std::string kept =
      fmt::format("kept: {} (weights.keep), {} while one is written (checkpoint.keep_last)",
                  counted(plan.versions, "version"), counted(plan.checkpoints, "checkpoint"));
  if (plan.reference > 0) kept += fmt::format(", {} of algo.kl", format_bytes(plan.reference));
  lines.push_back(fmt::format("{}: {}", kept, format_bytes(plan.certain_bytes())));
  if (plan.older_versions > 0)
    lines.push_back(
        fmt::format("{} of {}, one in {} whole, others as deltas: at most {} ({})",
                    counted(plan.older_versions, "older version"),
                    o.weights.keep_sampled ? "stored samples" : "an evaluation that lags",
                    o.weights.anchor_interval, format_bytes(plan.older_bytes),
                    o.weights.keep_sampled ? "weights.keep_sampled" : "eval.interval_steps"));
  if (rl && !o.weights.keep_sampled)
    if (const int64_t older = older_of_samples(plan); older > 0)
      lines.push_back(fmt::format(
          "weights.keep_sampled is false; true would keep {} of stored samples besides: "
          "at most {}",
          counted(older, "older version"), format_bytes(at_most_times(older, plan.version))));
  if (rl)
    lines.push_back(fmt::format(
        "samples of {}: at most {} (interval_steps x keep_last of checkpoint); journal, traces, "
        "timeline: about {}",
        counted(plan.stored_steps, "step"),
        format_bytes(at_most_times(plan.stored_steps, plan.tokens)), format_bytes(plan.others)));
  lines.push_back(fmt::format("together at most {}", format_bytes(plan.most_bytes())));
  return lines;
}

std::string disk_shortage(const DiskPlan& plan, const fs::path& run_directory) {
  const fs::path place = nearest_existing(run_directory);
  const DiskFacts disk = disk_facts(place);
  if (disk.total_bytes == 0) return "";  // the system does not say
  const int64_t room = sum_of(disk.available_bytes, bytes_below(run_directory));
  const bool is_certain = plan.certain_bytes() > room;
  if (!is_certain && plan.most_bytes() <= room) return "";
  return fmt::format(
      "the run {} {} of disk and {} are free at {}. Try a smaller checkpoint.keep_last, {}or "
      "another --run-dir",
      is_certain ? "keeps" : "may keep",
      format_bytes(is_certain ? plan.certain_bytes() : plan.most_bytes()),
      format_bytes(disk.available_bytes), place.string(),
      plan.older_versions > 0 ? "checkpoint.interval_steps, weights.keep_sampled=false, " : "");
}

}  // namespace tailrace
