// One training step on packed sequences: forward, fused head, backward, AdamW and packing the new
// weights. Tokens/s, GFLOP/s (6 flops a parameter that a token goes through), and the milliseconds
// of each phase.
//
// Checked first: the gradient against a central difference of the loss along itself; and last, that
// the loss of the one fixed batch fell.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bench/core/measured_model.h"
#include "bench/kernels/multiply_add_rate.h"
#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/base/isa.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

struct Options {
  ModelChoice model;
  int64_t sequences = 16, length = 128;
  int steps = 15;
};

// The milliseconds of each phase of each step, in the order in which they come.
class Phases {
 public:
  template <class Work>
  void time(const std::string& name, const Work& work) {
    const Stopwatch watch;
    work();
    const double passed = 1e3 * watch.seconds();
    auto phase = std::ranges::find(phases_, name, &Phase::first);
    if (phase == phases_.end()) phase = phases_.insert(phase, {name, {}});
    phase->second.push_back(passed);
  }
  void clear() { phases_.clear(); }
  void report(const std::string& name, Report& report) const {
    for (const auto& [phase, times] : phases_) report.add(name, phase, "ms", times);
  }

 private:
  using Phase = std::pair<std::string, std::vector<double>>;
  std::vector<Phase> phases_;
};

// A model that trains on one fixed random batch.
class TrainStep {
 public:
  TrainStep(const Options& options, const MeasuredModel& measured, int threads)
      : model_(measured.config),
        pool_(threads),
        stream_{.device = {}, .pool = &pool_, .native = nullptr},
        parameters_(model_.layout()),
        gradients_(model_.layout()),
        m_(model_.layout()),
        v_(model_.layout()),
        kv_(model_.config(), static_cast<int>(options.sequences * blocks_of(options.length)),
            kBlockTokens),
        builder_({.tokens = options.sequences * options.length,
                  .sequences = options.sequences,
                  .blocks_per_sequence = static_cast<int>(blocks_of(options.length)),
                  .vocab = model_.config().vocab_size,
                  .blocks = kv_.num_blocks()}) {
    const ModelConfig& c = model_.config();
    measured.fill(/*seed=*/1, parameters_);
    compute_in({});
    add_sequences(options);
    const int64_t tokens = builder_.num_tokens(), rows = builder_.batch().num_logit_rows();
    activations_ = model_.make_activations(tokens);
    scratch_ =
        Buffer(std::max(model_.workspace_bytes(tokens, builder_.batch().max_context, threads),
                        linear_logprob_workspace_bytes(rows, c.vocab_size, c.hidden_size)));
    hidden_ = Buffer(static_cast<size_t>(rows * c.hidden_size) * sizeof(float));
    dhidden_ = Buffer(static_cast<size_t>(rows * c.hidden_size) * sizeof(float));
    logprob_.resize(static_cast<size_t>(rows));
    lse_ = logprob_;
    // Of the mean loss, by each log-probability.
    dlogprob_.assign(static_cast<size_t>(rows), -1.0f / static_cast<float>(rows));
  }

  // Returns the loss before the update.
  double step(Phases& phases) {
    const double loss = forward(phases);
    backward(phases);
    phases.time("adamw", [&] {
      ++state_.updates;
      adamw(stream_, {.state = {&state_, 1},
                      .constants = {},
                      .parameters = parameters_.flat(),
                      .gradients = gradients_.flat(),
                      .m = m_.flat(),
                      .v = v_.flat()});
    });
    phases.time("pack", [&] { weights_->repack(stream_, parameters_); });
    return loss;
  }

  // From here on.
  void compute_in(const Elements& elements) {
    weights_ =
        std::make_unique<PackedWeights>(stream_, model_.config(), parameters_, elements.weights);
    kv_ = KvCache(model_.config(), kv_.num_blocks(), kBlockTokens, /*keeps_choices=*/false,
                  Placement::on(Device{}, elements));
  }

  // The slope of the loss along its gradient, by backward() and by a central difference.
  std::pair<double, double> slopes_along_gradient() {
    Phases unused;
    // Where a choice of experts changes the loss has no slope.
    set_choices(/*bias=*/2);
    forward(unused);
    backward(unused);
    // Along g itself the slope of the loss is g . g: one number that every parameter has a share
    // in, and the way on which the loss changes most for its length.
    double squares = 0;
    for (const float g : gradients_.flat()) squares += double{g} * g;
    const std::vector<float> before(parameters_.flat().begin(), parameters_.flat().end());
    const auto loss_at = [&](double distance) {
      for (size_t i = 0; i < before.size(); ++i)
        parameters_.flat()[i] = before[i] + static_cast<float>(distance) * gradients_.flat()[i];
      weights_->repack(stream_, parameters_);
      return forward(unused);
    };
    const double distance = kProbe / squares;
    const double difference = (loss_at(distance) - loss_at(-distance)) / (2 * distance);
    loss_at(0);
    // Packed anew from the weights as they were: the steps below start from them.
    set_choices(/*bias=*/0);
    return {squares, difference};
  }

  const Stream& stream() const { return stream_; }
  const Model& model() const { return model_; }
  int64_t num_tokens() const { return builder_.num_tokens(); }

 private:
  static constexpr int kBlockTokens = 16;
  // How far the probe of the gradient moves the loss each way. The losses are sums of floats, right
  // to about 1e-6; a way that changes them by 0.01 is short for a loss of several nats.
  static constexpr double kProbe = 0.01;
  static int64_t blocks_of(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  // The bias of the first experts of each layer, of as many as a token takes: above 1, for all
  // tokens the same; 0: what the router says.
  void set_choices(float bias) {
    const ModelConfig& c = model_.config();
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      const std::span<float> biases = layer_tensors(c, parameters_, layer).choice_bias;
      if (!biases.empty())
        std::ranges::fill(biases.first(static_cast<size_t>(c.experts_per_token)), bias);
    }
    weights_->repack(stream_, parameters_);
  }

  // Returns the mean loss.
  double forward(Phases& phases) {
    const ForwardBatch batch = builder_.batch();
    Workspace workspace(scratch_);
    phases.time("forward", [&] {
      model_.forward(stream_, workspace, *weights_, batch, kv_, rows_of(hidden_),
                     activations_.get());
    });
    phases.time("head", [&] {
      linear_logprob(
          stream_, workspace,
          {.head = head(),
           .out = {
               .logprob = logprob_, .lse = lse_, .entropy = {}, .logits = activations_->logits()}});
    });
    return -std::accumulate(logprob_.begin(), logprob_.end(), 0.0) /
           static_cast<double>(logprob_.size());
  }

  void backward(Phases& phases) {
    Workspace workspace(scratch_);
    phases.time("clear", [&] { std::ranges::fill(gradients_.flat(), 0.0f); });
    phases.time("head backward", [&] {
      linear_logprob_backward(stream_, workspace,
                              {.head = head(),
                               .gradient = {.lse = lse_,
                                            .entropy = {},
                                            .dlogprob = dlogprob_,
                                            .dentropy = {},
                                            .dhidden = rows_of(dhidden_),
                                            .dweight = gradients_.matrix(model_.head_name()),
                                            .logits = activations_->logits()}});
    });
    phases.time("backward", [&] {
      model_.backward(stream_, workspace, *weights_, builder_.batch(), kv_, *activations_,
                      rows_of(dhidden_), gradients_);
    });
  }

  LogprobHead head() {
    return {.hidden = rows_of(hidden_), .weight = weights_->head(), .targets = targets_};
  }

  // [logit rows, hidden]
  Matrix rows_of(Buffer& memory) const {
    return {memory.as<float>().data(), static_cast<int64_t>(logprob_.size()),
            model_.config().hidden_size};
  }

  void add_sequences(const Options& options) {
    Rng rng(2);
    for (int64_t s = 0; s < options.sequences; ++s) {
      std::vector<int32_t> tokens(static_cast<size_t>(options.length)), blocks, wanted;
      for (int32_t& id : tokens) id = static_cast<int32_t>(rng.below(model_.config().vocab_size));
      for (int64_t b = 0; b < blocks_of(options.length); ++b) {
        blocks.push_back(static_cast<int32_t>(s * blocks_of(options.length) + b));
      }
      for (int32_t i = 0; i + 1 < static_cast<int32_t>(tokens.size()); ++i) {
        wanted.push_back(i);
        targets_.push_back(tokens[static_cast<size_t>(i) + 1]);
      }
      builder_.add(tokens, 0, blocks, wanted);
    }
  }

  Model model_;
  ThreadPool pool_;
  Stream stream_;
  Parameters parameters_, gradients_, m_, v_;
  KvCache kv_;
  BatchBuilder builder_;
  std::unique_ptr<PackedWeights> weights_;
  std::unique_ptr<Activations> activations_;
  Buffer scratch_, hidden_, dhidden_;
  std::vector<int32_t> targets_;
  std::vector<float> logprob_, lse_, dlogprob_;
  UpdateState state_{.lr = 1e-3f, .grad_scale = 1};
};

void measure(const Options& options, const Program& program) {
  constexpr int64_t kMaxTokens = 1 << 16;
  if (options.sequences * options.length > kMaxTokens)
    throw UserError("{} sequences of {} tokens; a batch holds at most {} tokens", options.sequences,
                    options.length, kMaxTokens);
  const MeasuredModel measured(options.model, std::max<int64_t>(512, options.length));
  TrainStep train(options, measured, program.threads());
  const int64_t parameters = train.model().layout().num_parameters();
  const int64_t active = train.model().layout().num_active_parameters();
  Settings settings;
  measured.describe(parameters, settings);
  settings.emplace_back("sequences", options.sequences);
  settings.emplace_back("length", options.length);
  const auto [backward, difference] = train.slopes_along_gradient();
  // The difference is right to about 1e-6 / kProbe and the curvature of the loss; a wrong op is off
  // by far more than 2 %.
  require(std::abs(backward - difference) < 0.02 * backward,
          "the gradient is wrong: its slope along itself is {}, that of the loss {}", backward,
          difference);
  Report report = program.report(settings, "cpu", measured.elements);

  // Not before: bf16 would round away what the difference moves.
  train.compute_in(measured.elements);
  Phases phases;
  const double first = train.step(phases);
  // `first` is of the step before the warm-up, so that all updates count for what was learned.
  for (int i = 0; i < 3; ++i) train.step(phases);  // warm up
  phases.clear();
  // What the machine can do beside each step: on a shared one that changes from minute to minute.
  constexpr double kRateSeconds = 0.02;
  const bool pairs = measured.elements.weights == Dtype::kBF16 && isa() == Isa::kAvx512Bf16;
  const auto rate = [&] {
    return 1e-9 *
           multiply_add_rate(train.stream(), pairs ? Dtype::kBF16 : Dtype::kF32, kRateSeconds);
  };
  std::vector<double> steps, tokens, gflops, rates, shares;
  double last = first;
  for (int i = 0; i < options.steps; ++i) {
    const double before = rate();
    const Stopwatch watch;
    last = train.step(phases);
    const double seconds = watch.seconds();
    steps.push_back(1e3 * seconds);
    tokens.push_back(static_cast<double>(train.num_tokens()) / seconds);
    // Two flops a multiply-add: one product forward, two backward for each weight. Attention's own
    // products are not counted.
    gflops.push_back(6e-9 * static_cast<double>(active) * tokens.back());
    // The better of the two that a step lies between.
    rates.push_back(std::max(before, rate()));
    shares.push_back(100 * gflops.back() / rates.back());
  }
  require(last < first, "one fixed batch was not learned: its loss went from {} to {}", first,
          last);
  report.add(measured.name, "step", "ms", steps);
  report.add(measured.name, "tokens", "tokens/s", tokens);
  report.add(measured.name, "arithmetic", "GFLOP/s", gflops);
  report.add(measured.name, "multiply-add beside it", "GFLOP/s", rates);
  report.add(measured.name, "arithmetic of that", "%", shares);
  phases.report(measured.name, report);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("train-step", TAILRACE_MEASURES, "train-step --geometry small --json");
  add_model_flags(program, options.model);
  program.flags().option("--sequences", options.sequences,
                         {.help = "sequences of the batch", .min = 1, .max = 4096});
  program.flags().option("--length", options.length,
                         {.help = "tokens of each", .min = 2, .max = 8192});
  program.flags().option("--steps", options.steps,
                         {.help = "measured steps", .min = 1, .max = 100000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
