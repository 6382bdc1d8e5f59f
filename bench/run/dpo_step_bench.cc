// One update of DPO on fresh pairs: 16 prompts of 128 random tokens, a chosen and a rejected
// completion of 64 each. The reference's log-probabilities are computed once, before the first
// update, and timed by themselves: milliseconds for the pairs of one update.
//
// The peer makes the same rows of the same formula, so that losses can be compared.
//
// Checked: the first loss is log 2, as the policy is its own reference then; at the end the pairs
// of the first update have a lower loss; and a pass with shared prefixes has the prompt of a pair
// once.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "bench/core/measured_model.h"
#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/metric_list.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/base/thread_pool.h"
#include "trainer/packed_forward.h"
#include "trainer/policy_trainer.h"
#include "trainer/preference.h"

namespace tailrace {
namespace {

struct Options {
  ModelChoice model;
  int64_t pairs = 16, prompt_tokens = 128, completion_tokens = 64;
  bool recompute = false;
  int64_t microbatch_tokens = TrainOptions().microbatch_tokens;
  int steps = 10, warmup = 2;

  int64_t updates() const { return steps + warmup; }
  int64_t sequence_tokens() const { return prompt_tokens + completion_tokens; }
  TrainOptions train(int threads) const {
    return {.microbatch_tokens = microbatch_tokens, .recompute = recompute, .threads = threads};
  }
  PreferenceOptions preference() const {
    PreferenceOptions preference;
    preference.batch_rows = pairs;
    // Enough for a fall of the loss that rounding does not hide; trl_dpo.py has the same.
    preference.optim.lr = 1e-5;
    return preference;
  }
};

double metric(const MetricList& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics)
    if (key == name) return value;
  TR_CHECK(false, "no metric {}", name);
}

// trl_dpo.py has the same formula. `part`: 0 the prompt, 1 the chosen, 2 the rejected completion.
std::vector<TokenId> random_ids(int64_t row, uint64_t part, int64_t tokens, int64_t vocab) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < tokens; ++i)
    ids.push_back(
        static_cast<TokenId>(mix({13, static_cast<uint64_t>(row), part, static_cast<uint64_t>(i)}) %
                             static_cast<uint64_t>(vocab)));
  return ids;
}

// In the order in which updates take them.
std::vector<PreferenceRow> ordered_rows(const Options& options, int64_t vocab) {
  std::vector<PreferenceRow> rows;
  for (int64_t row = 0; row < options.updates() * options.pairs; ++row)
    rows.push_back({.prompt = random_ids(row, 0, options.prompt_tokens, vocab),
                    .chosen = random_ids(row, 1, options.completion_tokens, vocab),
                    .rejected = random_ids(row, 2, options.completion_tokens, vocab)});
  return rows;
}

// A task shuffles its rows: where each must lie for the order to come out.
std::vector<PreferenceRow> unshuffled(const std::vector<PreferenceRow>& ordered, uint64_t seed) {
  std::vector<PreferenceRow> rows(ordered.size());
  const std::vector<size_t> order = shuffled_rows(rows.size(), seed, /*epoch=*/0);
  for (size_t i = 0; i < order.size(); ++i) rows[order[i]] = ordered[i];
  return rows;
}

class DpoStep {
 public:
  DpoStep(const Options& options, const MeasuredModel& measured, int threads)
      : pool_(threads),
        trainer_(Stream{.device = {}, .pool = &pool_, .native = nullptr}, measured.config,
                 options.train(threads), options.sequence_tokens(), measured.elements) {
    measured.fill(/*seed=*/0, trainer_.parameters());
    trainer_.weights_changed();
    constexpr uint64_t kSeed = 1;
    const auto rows = ordered_rows(options, measured.config.vocab_size);
    const std::vector<PreferenceRow> first(rows.begin(), rows.begin() + options.pairs);
    task_.emplace(trainer_, options.preference(), unshuffled(rows, kSeed), first, kSeed);
    const TrainOptions& train = trainer_.options();
    pass_rows_ = pass_tokens(PreferenceSequences(first, options.sequence_tokens()).views(),
                             pack_limits(train.microbatch_tokens, options.sequence_tokens(),
                                         train.share_prefixes && measured.config.num_experts == 0));
  }

  const Model& model() const { return trainer_.model(); }
  // Tokens that the model computes of the pairs of one update.
  int64_t pass_rows() const { return pass_rows_; }

  void score_reference() { task_->set_reference(*task_->score_reference()); }
  // The mean over the pairs of the first update.
  double first_pairs_loss() { return metric(task_->evaluate(), "preference/eval_loss"); }
  // Returns the loss before the update.
  double update() {
    const MetricList metrics = *task_->update();
    require(metric(metrics, "preference/update_skipped") == 0, "an update was skipped");
    return metric(metrics, "preference/loss");
  }

 private:
  ThreadPool pool_;
  PolicyTrainer trainer_;
  std::optional<PreferenceTask> task_;
  int64_t pass_rows_ = 0;
};

void check_room(const Options& options) {
  if (2 * options.sequence_tokens() > options.microbatch_tokens)
    throw UserError(
        "--microbatch is {}; both sequences of a pair go into one pass and have {} "
        "tokens",
        options.microbatch_tokens, 2 * options.sequence_tokens());
}

void measure(const Options& options, const Program& program) {
  check_room(options);
  const MeasuredModel measured(options.model, std::max<int64_t>(256, options.sequence_tokens()));
  DpoStep bench(options, measured, program.threads());
  const int64_t parameters = bench.model().layout().num_parameters();
  const int64_t active = bench.model().layout().num_active_parameters();
  Settings settings;
  measured.describe(parameters, settings);
  settings.insert(settings.end(), {{"pairs", options.pairs},
                                   {"prompt_tokens", options.prompt_tokens},
                                   {"completion_tokens", options.completion_tokens},
                                   {"microbatch_tokens", options.microbatch_tokens},
                                   {"recompute", options.recompute ? "true" : "false"}});
  Report report = program.report(settings, "cpu", measured.elements);
  // The last token of a prompt predicts the first one of each completion, and so is there twice.
  if (measured.config.num_experts == 0) {
    const int64_t once =
        options.pairs * (options.prompt_tokens + 2 * options.completion_tokens + 1);
    require(bench.pass_rows() == once,
            "{} rows of the model in place of {}: prompts are not shared", bench.pass_rows(), once);
  }

  Stopwatch watch;
  bench.score_reference();
  // With the pairs of the first update once more, which are also held out.
  const double reference = 1e3 * watch.lap() / static_cast<double>(options.updates() + 1);
  std::vector<double> losses, steps, tokens, gflops;
  for (int64_t update = 0; update < options.updates(); ++update) {
    watch.lap();
    losses.push_back(bench.update());
    const double seconds = watch.lap();
    if (update < options.warmup) continue;
    steps.push_back(1e3 * seconds);
    // Both sequences of each pair count whole, as without sharing.
    tokens.push_back(static_cast<double>(2 * options.pairs * options.sequence_tokens()) / seconds);
    gflops.push_back(6e-9 * static_cast<double>(active * bench.pass_rows()) / seconds);
  }
  require(std::abs(losses.front() - std::log(2)) < 1e-6, "the first loss is {} in place of log 2",
          losses.front());
  const double last = bench.first_pairs_loss();
  require(last < losses.front(), "the first pairs were not learned: their loss went from {} to {}",
          losses.front(), last);
  const std::string& name = measured.name;
  report.add(name, "reference", "ms", {reference});
  report.add(name, "step", "ms", steps);
  report.add(name, "tokens", "tokens/s", tokens);
  report.add(name, "arithmetic", "GFLOP/s", gflops);
  report.add(name, "rows of the model", "tokens", {static_cast<double>(bench.pass_rows())});
  report.add(name, "first loss", "nats", {losses[0]});
  if (losses.size() > 1) report.add(name, "second loss", "nats", {losses[1]});
  report.add(name, "first pairs at the end", "nats", {last});
  report.add(name, "peak memory", "MB", {peak_memory_mb()});
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("dpo-step", TAILRACE_MEASURES, "dpo-step --geometry small --json");
  add_model_flags(program, options.model);
  program.flags().option("--pairs", options.pairs,
                         {.help = "pairs of an update", .min = 1, .max = 4096});
  program.flags().option("--prompt", options.prompt_tokens,
                         {.help = "tokens of a prompt", .min = 1, .max = 65536});
  program.flags().option("--completion", options.completion_tokens,
                         {.help = "tokens of each completion", .min = 1, .max = 65536});
  program.flags().option("--microbatch", options.microbatch_tokens,
                         {.help = "train.microbatch_tokens", .min = 1, .max = 1 << 24});
  program.flags().option("--recompute", options.recompute, {.help = "train.recompute"});
  program.flags().option("--steps", options.steps,
                         {.help = "measured steps", .min = 1, .max = 100000});
  program.flags().option("--warmup", options.warmup,
                         {.help = "steps before them that are not measured", .max = 1000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
