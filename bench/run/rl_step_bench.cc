// One RL step (install, generate, reward, train) by phase, in one process and without the
// scheduler: what the engine and the trainer cost, and the most memory that it took. The two take
// turns, as with run.colocate: engines sample with the weights that the trainer has packed, and
// what only a turn needs is one piece of memory.
//
// 64 samples of one turn: 8 prompts of 21 random tokens, 8 answers each of at most 32. 1 of 64 ids
// ends an answer, which under random weights gives a mean length of about 25; with --full-length
// none does.
//
// Checked in every step: the trainer computes, bit for bit, the log-probabilities that the engine
// sampled with.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/core/measured_model.h"
#include "bench/report/program.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "core/model/placement.h"
#include "core/run/memory_need.h"
#include "core/trajectory/trajectory.h"
#include "core/weights/manifest.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/options.h"
#include "trainer/loss/options.h"
#include "trainer/policy_trainer.h"

namespace tailrace {
namespace {

struct Options {
  ModelChoice model;
  int64_t prompts = 8, group_size = 8, prompt_tokens = 21, max_new_tokens = 32;
  bool full_length = false, recompute = false;
  int64_t microbatch_tokens = TrainOptions().microbatch_tokens;
  int steps = 20, warmup = 3;

  int64_t max_sequence_tokens() const { return prompt_tokens + max_new_tokens; }
  TrainOptions train(int threads) const {
    return {.microbatch_tokens = microbatch_tokens, .recompute = recompute, .threads = threads};
  }
  // Of one of `workers`.
  EngineOptions engine(int workers) const {
    EngineOptions engine;
    engine.max_context_tokens = max_sequence_tokens();
    // The groups of one worker, and memory for these alone.
    engine.max_sequences = (prompts + workers - 1) / workers * group_size;
    return engine;
  }
};

// Bytes of the memory that the trainer and the engines, one a thread, have in turn.
int64_t turn_bytes(const Options& options, const MeasuredModel& measured, int threads) {
  int64_t trains = 0;
  for (const MemoryItem& item :
       PolicyTrainer::memory(measured.config, options.train(threads), options.max_sequence_tokens(),
                             threads, {.compute = measured.elements}))
    if (item.of_turn) trains += item.bytes;
  const PlacedMemory engine =
      engine_memory(measured.config, options.engine(threads), /*num_threads=*/1,
                    Placement::on(Device{}, measured.elements));
  // What rounding up takes of each buffer.
  constexpr int64_t kSlack = 64 << 10;
  return std::max(trains, threads * total_bytes(engine.host)) + kSlack;
}

// A rollout worker as `launch` runs it: one engine, one thread.
struct Worker {
  Worker(const Model& model, const EngineOptions& options, const Clock& clock)
      : engine(model, nullptr, options, Stream{}, clock) {}
  Engine engine;
  std::vector<Generation> done;
};

class RlStep {
 public:
  RlStep(const Options& options, const MeasuredModel& measured, int threads)
      : options_(options),
        pool_(threads),
        turn_memory_(static_cast<size_t>(turn_bytes(options, measured, threads))),
        trainer_(Stream{.device = {}, .pool = &pool_, .native = nullptr}, measured.config,
                 options.train(threads), options.max_sequence_tokens(), measured.elements,
                 /*base=*/nullptr, turn_memory_.bytes()) {
    measured.fill(0, trainer_.parameters());
    trainer_.weights_changed();
    OptimOptions optim;
    optim.lr = 1e-6;  // the work of a step must not drift while it is measured
    trainer_.reset_optimizer(optim);
    const ArenaScope turn(turn_memory_.bytes());
    for (int i = 0; i < threads; ++i)
      workers_.push_back(std::make_unique<Worker>(model(), options.engine(threads), clock_));
  }

  const Model& model() const { return trainer_.model(); }

  // The update before has packed them.
  void install(int64_t version) {
    for (auto& worker : workers_) worker->engine.install(trainer_.packed(), version);
  }

  std::vector<Trajectory> generate(int64_t step) {
    std::vector<Trajectory> trajectories;
    const SamplingParams sampling = sampling_params();
    for (int64_t prompt = 0; prompt < options_.prompts; ++prompt) {
      const std::vector<TokenId> tokens = prompt_of(step, prompt);
      for (int64_t member = 0; member < options_.group_size; ++member) {
        const auto session = static_cast<SessionId>(trajectories.size());
        auto& trajectory = trajectories.emplace_back();
        trajectory.lease.member = {.prompt = step * options_.prompts + prompt,
                                   .member = static_cast<int32_t>(member)};
        trajectory.sampling = sampling;
        trajectory.numerics_classes = {numerics_class()};
        trajectory.segments.emplace_back().tokens = tokens;
        GenerateRequest request{
            .session = session, .new_tokens = tokens, .sampling = sampling, .key = {}};
        request.key.value = mix({11, static_cast<uint64_t>(step), static_cast<uint64_t>(session)});
        // Whole groups to one worker: there its members share the KV blocks of their prompt.
        workers_[static_cast<size_t>(prompt) % workers_.size()]->engine.submit(std::move(request));
      }
    }
    run_workers();
    for (auto& worker : workers_) {
      for (const Generation& generation : worker->done) {
        append(generation, trajectories[static_cast<size_t>(generation.session)].segments[0]);
        worker->engine.release(generation.session);
      }
      worker->done.clear();
    }
    return trajectories;
  }

  // Any verifiable property of the text will do: the share of even ids.
  static void reward(std::vector<Trajectory>& trajectories) {
    for (auto& trajectory : trajectories) {
      int64_t even = 0;
      const Segment& segment = trajectory.segments[0];
      for (size_t i = 0; i < segment.tokens.size(); ++i)
        even += segment.roles[i] == TokenRole::kSampled && segment.tokens[i] % 2 == 0;
      trajectory.reward = static_cast<double>(even) /
                          static_cast<double>(std::max<int64_t>(1, trajectory.num_sampled()));
    }
  }

  // Returns the tokens of the sequences, prompts included.
  int64_t train(const std::vector<Trajectory>& trajectories, int64_t version) {
    AlgoOptions algo = AlgoOptions::preset(AlgoPreset::kGrpo);
    algo.kl.coef = 0;  // as the peer: no reference policy
    auto batch = build_batch(trajectories, {.algo = algo,
                                            .numerics_class = numerics_class(),
                                            .vocab_size = model().config().vocab_size,
                                            .max_sequence_tokens = trainer_.max_sequence_tokens()});
    TR_CHECK(batch.ok(), "{}", batch.failure().message);
    const PolicyLossConfig loss = policy_loss_config(algo);
    trainer_.prepare_step(batch.value(), version, loss);
    for (const auto& minibatch : split_minibatches(batch.value(), 1)) {
      const auto update = trainer_.policy_update(batch.value(), minibatch, loss, version);
      // Equal, not close: engine and trainer run the same kernels in the same order (design rule
      // 3).
      require(update.mismatch_abs_max == 0,
              "step {}: a sampled and a recomputed log-probability differ by {}", version,
              update.mismatch_abs_max);
    }
    int64_t tokens = 0;
    for (const auto& sequence : batch.value().sequences)
      tokens += static_cast<int64_t>(sequence.tokens.size());
    return tokens;
  }

 private:
  int64_t num_stop_ids() const {
    return options_.full_length ? 0 : std::max<int64_t>(1, model().config().vocab_size / 64);
  }

  SamplingParams sampling_params() const {
    SamplingParams sampling;
    sampling.max_new_tokens = options_.max_new_tokens;
    for (int64_t id = 0; id < num_stop_ids(); ++id)
      sampling.stop_tokens.push_back(static_cast<TokenId>(id));
    return sampling;
  }

  std::vector<TokenId> prompt_of(int64_t step, int64_t prompt) const {
    Rng rng(mix({7, static_cast<uint64_t>(step), static_cast<uint64_t>(prompt)}));
    std::vector<TokenId> tokens;
    // No id that ends an answer.
    for (int64_t i = 0; i < options_.prompt_tokens; ++i)
      tokens.push_back(static_cast<TokenId>(
          num_stop_ids() + rng.below(model().config().num_ids() - num_stop_ids())));
    return tokens;
  }

  void run_workers() {
    auto drive = [](Worker& worker) {
      while (!worker.engine.idle())
        for (auto& generation : worker.engine.step()) worker.done.push_back(std::move(generation));
    };
    std::vector<std::jthread> threads;
    // The first worker runs on this thread: as many threads as workers.
    for (size_t i = 1; i < workers_.size(); ++i)
      threads.emplace_back([&, i] { drive(*workers_[i]); });
    drive(*workers_[0]);
  }

  static void append(const Generation& generation, Segment& segment) {
    segment.roles.assign(segment.tokens.size(), TokenRole::kPrompt);
    segment.logprobs.assign(segment.tokens.size(), 0);
    segment.versions.assign(segment.tokens.size(), -1);
    segment.classes.assign(segment.tokens.size(), -1);
    segment.turn_begins = {static_cast<int32_t>(segment.tokens.size())};
    for (const GeneratedToken& token : generation.tokens) {
      segment.tokens.push_back(token.id);
      segment.roles.push_back(TokenRole::kSampled);
      segment.logprobs.push_back(token.logprob);
      segment.versions.push_back(token.version);
      segment.classes.push_back(0);
    }
  }

  Options options_;
  SteadyClock clock_;
  ThreadPool pool_;
  Buffer turn_memory_;
  PolicyTrainer trainer_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

void measure(const Options& options, const Program& program) {
  const MeasuredModel measured(
      options.model, std::max<int64_t>(256, options.prompt_tokens + options.max_new_tokens));
  RlStep bench(options, measured, program.threads());
  const int64_t parameters = bench.model().layout().num_parameters();
  const int64_t active = bench.model().layout().num_active_parameters();
  const int64_t num_samples = options.prompts * options.group_size;
  Settings settings;
  measured.describe(parameters, settings);
  settings.insert(settings.end(), {{"prompts", options.prompts},
                                   {"group_size", options.group_size},
                                   {"prompt_tokens", options.prompt_tokens},
                                   {"max_new_tokens", options.max_new_tokens},
                                   {"microbatch_tokens", options.microbatch_tokens},
                                   {"recompute", options.recompute ? "true" : "false"}});
  Report report = program.report(settings, "cpu", measured.elements);

  std::vector<double> step_ms, install_ms, generate_ms, reward_ms, train_ms;
  std::vector<double> samples, new_tokens, decode, gflops;
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    const Stopwatch total;
    Stopwatch watch;
    bench.install(step);
    const double install = watch.lap();
    std::vector<Trajectory> trajectories = bench.generate(step);
    const double generate = watch.lap();
    RlStep::reward(trajectories);
    const double reward = watch.lap();
    const int64_t trained_tokens = bench.train(trajectories, step);
    const double train = watch.lap();
    const double all = total.seconds();
    if (step < options.warmup) continue;
    int64_t sampled = 0;
    for (const auto& trajectory : trajectories) sampled += trajectory.num_sampled();
    step_ms.push_back(1e3 * all);
    install_ms.push_back(1e3 * install);
    generate_ms.push_back(1e3 * generate);
    reward_ms.push_back(1e3 * reward);
    train_ms.push_back(1e3 * train);
    samples.push_back(static_cast<double>(num_samples) / all);
    new_tokens.push_back(static_cast<double>(sampled) / static_cast<double>(num_samples));
    decode.push_back(static_cast<double>(sampled) / generate);
    gflops.push_back(6e-9 * static_cast<double>(active * trained_tokens) / train);
  }
  const std::string& name = measured.name;
  report.add(name, "step", "ms", step_ms);
  report.add(name, "install", "ms", install_ms);
  report.add(name, "generate", "ms", generate_ms);
  report.add(name, "reward", "ms", reward_ms);
  report.add(name, "train", "ms", train_ms);
  report.add(name, "samples", "samples/s", samples);
  report.add(name, "new tokens a sample", "tokens", new_tokens);
  report.add(name, "sampled in generate", "tokens/s", decode);
  report.add(name, "arithmetic in train", "GFLOP/s", gflops);
  report.add(name, "peak memory", "MB", {peak_memory_mb()});
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("rl-step", TAILRACE_MEASURES, "rl-step --steps 30 --json");
  add_model_flags(program, options.model);
  program.flags().option("--prompt", options.prompt_tokens,
                         {.help = "tokens of a prompt", .min = 1, .max = 65536});
  program.flags().option("--new", options.max_new_tokens,
                         {.help = "most tokens of an answer", .min = 1, .max = 65536});
  program.flags().option("--full-length", options.full_length,
                         {.help = "no id ends an answer: each has as many tokens as it may"});
  program.flags().option("--microbatch", options.microbatch_tokens,
                         {.help = "train.microbatch_tokens", .min = 1, .max = 1 << 24});
  program.flags().option("--recompute", options.recompute, {.help = "train.recompute"});
  program.flags().option("--steps", options.steps,
                         {.help = "measured steps", .min = 1, .max = 100000});
  program.flags().option("--warmup", options.warmup,
                         {.help = "steps before them that are not measured", .max = 1000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
