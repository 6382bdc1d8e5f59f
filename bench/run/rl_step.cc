#include "bench/run/rl_step.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "core/trajectory/trajectory.h"
#include "kernels/base/thread_pool.h"
#include "rollout/engine/engine.h"
#include "trainer/loss/options.h"
#include "trainer/policy_trainer.h"

namespace tailrace {
namespace {

class StopWatch {
 public:
  double seconds() {
    auto now = std::chrono::steady_clock::now();
    double passed = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return passed;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size()) / 2,
                   values.end());
  return values[values.size() / 2];
}

ModelConfig model_config(const RlStepCase& setup) {
  ModelConfig config;
  config.hidden_size = setup.hidden;
  config.intermediate_size = setup.intermediate;
  config.num_layers = setup.layers;
  config.num_heads = setup.heads;
  config.num_kv_heads = setup.kv_heads;
  config.head_dim = setup.hidden / setup.heads;
  config.vocab_size = setup.vocab;
  config.max_positions = 256;
  config.tie_embeddings = true;
  validate(config, "bench rl-step");
  return config;
}

// A rollout worker as `launch` runs it: one engine, one thread.
struct Worker {
  Worker(const Model& model, const EngineOptions& options, const Clock& clock)
      : engine(model, nullptr, options, Stream{}, clock) {}
  Engine engine;
  std::vector<Generation> done;
};

class Bench {
 public:
  explicit Bench(const RlStepCase& setup)
      : setup_(setup),
        pool_(setup.threads),
        trainer_(Stream{.device = {}, .pool = &pool_, .native = nullptr}, model_config(setup),
                 TrainOptions{.threads = setup.threads},
                 setup.prompt_tokens + setup.max_new_tokens) {
    init_parameters(trainer_.model().config(), 0, trainer_.parameters());
    trainer_.weights_changed();
    OptimOptions optim;
    optim.lr = 1e-6;  // the work of a step must not drift while it is measured
    trainer_.reset_optimizer(optim, 1000);
    EngineOptions options;
    options.max_context_tokens = setup.prompt_tokens + setup.max_new_tokens;
    options.max_sequences = setup.prompts * setup.group_size;
    for (int i = 0; i < setup.threads; ++i)
      workers_.push_back(std::make_unique<Worker>(trainer_.model(), options, clock_));
  }

  RlStepReport run() {
    RlStepReport report;
    report.parameters = trainer_.model().layout().num_parameters();
    std::vector<double> gflops, decode;
    double new_tokens = 0;
    for (int step = 0; step < setup_.warmup + setup_.steps; ++step) {
      StopWatch total, watch;
      install(step);
      double install_s = watch.seconds();
      std::vector<Trajectory> trajectories = generate(step);
      double generate_s = watch.seconds();
      reward(trajectories);
      double reward_s = watch.seconds();
      Trained trained = train(trajectories, step);
      double train_s = watch.seconds();
      if (step < setup_.warmup) continue;
      report.install_s.push_back(install_s);
      report.generate_s.push_back(generate_s);
      report.reward_s.push_back(reward_s);
      report.train_s.push_back(train_s);
      report.total_s.push_back(total.seconds());
      int64_t sampled = 0;
      for (const auto& trajectory : trajectories) sampled += trajectory.num_sampled();
      new_tokens += static_cast<double>(sampled) / static_cast<double>(trajectories.size());
      decode.push_back(static_cast<double>(sampled) / generate_s);
      gflops.push_back(6.0 * static_cast<double>(report.parameters) *
                       static_cast<double>(trained.tokens) / train_s / 1e9);
      report.mismatch_abs_max = std::max(report.mismatch_abs_max, trained.mismatch_abs_max);
    }
    report.mean_new_tokens = new_tokens / setup_.steps;
    report.train_gflops = median(gflops);
    report.decode_tokens_per_s = median(decode);
    return report;
  }

 private:
  struct Trained {
    int64_t tokens = 0;
    double mismatch_abs_max = 0;
  };

  void install(int64_t version) {
    auto weights = std::make_shared<const PackedWeights>(
        Stream{.device = {}, .pool = &pool_, .native = nullptr}, trainer_.model().config(),
        trainer_.parameters());
    for (auto& worker : workers_) worker->engine.install(weights, version);
  }

  std::vector<Trajectory> generate(int64_t step) {
    std::vector<Trajectory> trajectories;
    SamplingParams sampling;
    sampling.max_new_tokens = setup_.max_new_tokens;
    for (int64_t id = 0; id < setup_.stop_ids; ++id)
      sampling.stop_tokens.push_back(static_cast<TokenId>(id));
    for (int64_t prompt = 0; prompt < setup_.prompts; ++prompt) {
      Rng rng(mix({7, static_cast<uint64_t>(step), static_cast<uint64_t>(prompt)}));
      std::vector<TokenId> tokens;
      for (int64_t i = 0; i < setup_.prompt_tokens; ++i)
        tokens.push_back(
            static_cast<TokenId>(setup_.stop_ids + rng.below(setup_.vocab - setup_.stop_ids)));
      for (int64_t member = 0; member < setup_.group_size; ++member) {
        auto session = static_cast<SessionId>(trajectories.size());
        auto& trajectory = trajectories.emplace_back();
        trajectory.lease.member = {.prompt = step * setup_.prompts + prompt,
                                   .member = static_cast<int32_t>(member)};
        trajectory.sampling = sampling;
        auto& segment = trajectory.segments.emplace_back();
        segment.tokens = tokens;
        GenerateRequest request{
            .session = session, .new_tokens = tokens, .sampling = sampling, .key = {}};
        request.key.value = mix({11, static_cast<uint64_t>(step), static_cast<uint64_t>(session)});
        workers_[static_cast<size_t>(prompt) % workers_.size()]->engine.submit(std::move(request));
      }
    }
    run_workers();
    for (auto& worker : workers_) {
      for (auto& generation : worker->done) {
        auto& segment = trajectories[static_cast<size_t>(generation.session)].segments[0];
        segment.roles.assign(segment.tokens.size(), TokenRole::kPrompt);
        segment.logprobs.assign(segment.tokens.size(), 0);
        segment.versions.assign(segment.tokens.size(), -1);
        for (const auto& token : generation.tokens) {
          segment.tokens.push_back(token.id);
          segment.roles.push_back(TokenRole::kSampled);
          segment.logprobs.push_back(token.logprob);
          segment.versions.push_back(token.version);
        }
        worker->engine.release(generation.session);
      }
      worker->done.clear();
    }
    return trajectories;
  }

  void run_workers() {
    auto drive = [](Worker& worker) {
      while (!worker.engine.idle())
        for (auto& generation : worker.engine.step()) worker.done.push_back(std::move(generation));
    };
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < workers_.size(); ++i)
      threads.emplace_back([&, i] { drive(*workers_[i]); });
    drive(*workers_[0]);
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

  Trained train(const std::vector<Trajectory>& trajectories, int64_t version) {
    AlgoOptions algo = AlgoOptions::preset(AlgoPreset::kGrpo);
    algo.kl.coef = 0;  // as the peer: no reference policy
    auto batch = build_batch(trajectories,
                             batch_options(algo, setup_.vocab, trainer_.max_sequence_tokens()));
    TR_CHECK(batch.ok(), "{}", batch.failure().message);
    PolicyLossConfig loss = policy_loss_config(algo);
    trainer_.prepare_step(batch.value(), version, loss);
    Trained trained;
    for (const auto& minibatch : split_minibatches(batch.value(), 1)) {
      auto update = trainer_.policy_update(batch.value(), minibatch, loss, version);
      trained.mismatch_abs_max = std::max(trained.mismatch_abs_max, update.mismatch_abs_max);
    }
    for (const auto& sequence : batch.value().sequences)
      trained.tokens += static_cast<int64_t>(sequence.tokens.size());
    return trained;
  }

  RlStepCase setup_;
  SteadyClock clock_;
  ThreadPool pool_;
  PolicyTrainer trainer_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace

RlStepReport bench_rl_step(const RlStepCase& setup) { return Bench(setup).run(); }

}  // namespace tailrace
