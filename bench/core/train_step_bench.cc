// Tokens/s and GFLOP/s (6 flops a parameter and token) of one training step: forward, fused head,
// backward, AdamW and packing the new weights, on packed sequences.
//
//   bench_train_step [--geometry tiny|small] [--threads 2] [--sequences 16] [--length 128] [--steps
//   15]

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

using Seconds = std::chrono::duration<double>;

ModelConfig geometry(const std::string& name) {
  ModelConfig config;
  config.max_positions = 512;
  config.tie_embeddings = true;
  if (name == "tiny") {
    config.num_layers = 4;
    config.hidden_size = 128;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.intermediate_size = 384;
    config.vocab_size = 512;
  } else if (name == "small") {
    config.num_layers = 8;
    config.hidden_size = 512;
    config.num_heads = 8;
    config.num_kv_heads = 2;
    config.intermediate_size = 1408;
    config.vocab_size = 8192;
  } else {
    fmt::print(stderr, "unknown geometry '{}'; accepted: tiny, small\n", name);
    std::exit(2);
  }
  config.head_dim = config.hidden_size / config.num_heads;
  return config;
}

struct Settings {
  std::string geometry = "tiny";
  int64_t threads = 2, sequences = 16, length = 128, steps = 15;
};

Settings parse(int argc, char** argv) {
  Settings settings;
  const std::map<std::string, int64_t*> numbers = {{"--threads", &settings.threads},
                                                   {"--sequences", &settings.sequences},
                                                   {"--length", &settings.length},
                                                   {"--steps", &settings.steps}};
  for (int i = 1; i < argc; i += 2) {
    const std::string key = argv[i];
    const auto number = numbers.find(key);
    if (i + 1 == argc || (key != "--geometry" && number == numbers.end())) {
      fmt::print(stderr, "unknown or incomplete option '{}'\n", key);
      std::exit(2);
    }
    if (number != numbers.end()) {
      *number->second = std::max<int64_t>(1, std::atoll(argv[i + 1]));
    } else {
      settings.geometry = argv[i + 1];
    }
  }
  return settings;
}

// The seconds of each phase of each step.
class Phases {
 public:
  template <class Work>
  void time(const char* name, const Work& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const double seconds = Seconds(std::chrono::steady_clock::now() - start).count();
    if (std::find(order_.begin(), order_.end(), name) == order_.end()) order_.push_back(name);
    samples_[name].push_back(seconds);
  }
  static double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                     values.end());
    return values[values.size() / 2];
  }
  void clear() { samples_.clear(); }
  void print(double step) const {
    for (const std::string& name : order_) {
      const double seconds = median(samples_.at(name));
      fmt::print("  {:<14} {:8.3f} ms  {:4.1f} %\n", name, 1e3 * seconds, 100 * seconds / step);
    }
  }

 private:
  std::vector<std::string> order_;
  std::map<std::string, std::vector<double>> samples_;
};

// A model that trains on one fixed random batch.
class TrainStep {
 public:
  explicit TrainStep(const Settings& settings)
      : model_(geometry(settings.geometry)),
        pool_(static_cast<int>(settings.threads)),
        stream_{.device = {}, .pool = &pool_, .native = nullptr},
        parameters_(model_.layout()),
        gradients_(model_.layout()),
        m_(model_.layout()),
        v_(model_.layout()),
        kv_(model_.config(), static_cast<int>(settings.sequences * blocks_of(settings.length)),
            kBlockTokens),
        builder_(static_cast<int>(blocks_of(settings.length))) {
    const ModelConfig& c = model_.config();
    init_parameters(c, /*seed=*/1, parameters_);
    weights_ = std::make_unique<PackedWeights>(stream_, c, parameters_);
    add_sequences(settings);
    const int64_t tokens = builder_.num_tokens(), rows = builder_.batch().num_logit_rows();
    activations_ = model_.make_activations(tokens);
    scratch_ = Buffer(std::max(model_.workspace_bytes(tokens, builder_.batch().max_context,
                                                      static_cast<int>(settings.threads)),
                               linear_logprob_workspace_bytes(rows, c.vocab_size, c.hidden_size)));
    hidden_ = Buffer(static_cast<size_t>(rows * c.hidden_size) * sizeof(float));
    dhidden_ = Buffer(static_cast<size_t>(rows * c.hidden_size) * sizeof(float));
    logprob_.resize(static_cast<size_t>(rows));
    lse_ = logprob_;
    dlogprob_.assign(static_cast<size_t>(rows), -1.0f / static_cast<float>(rows));
  }

  // Returns the loss before the update.
  double run(Phases& phases) {
    const ModelConfig& c = model_.config();
    const ForwardBatch batch = builder_.batch();
    const int64_t rows = batch.num_logit_rows();
    const Matrix hidden(hidden_.as<float>().data(), rows, c.hidden_size);
    const Matrix dhidden(dhidden_.as<float>().data(), rows, c.hidden_size);
    Workspace workspace({scratch_.data(), scratch_.size()});
    const std::string_view head = model_.head_name();
    const Parameters& weights = parameters_;

    phases.time("clear",
                [&] { std::fill(gradients_.flat().begin(), gradients_.flat().end(), 0.0f); });
    phases.time("forward", [&] {
      model_.forward(stream_, workspace, *weights_, batch, kv_, hidden, activations_.get());
    });
    phases.time("head", [&] {
      linear_logprob(stream_, workspace, hidden, weights_->head(), targets_, 1, logprob_, lse_, {});
    });
    phases.time("head backward", [&] {
      linear_logprob_backward(stream_, workspace, hidden, weights_->head(), weights.matrix(head),
                              targets_, 1, lse_, {}, dlogprob_, {}, dhidden,
                              gradients_.matrix(head));
    });
    phases.time("backward", [&] {
      model_.backward(stream_, workspace, parameters_, batch, kv_, *activations_, dhidden,
                      gradients_);
    });
    phases.time("adamw", [&] {
      adamw(stream_, {.lr = 1e-3f, .step = ++step_}, parameters_.flat(), gradients_.flat(),
            m_.flat(), v_.flat());
    });
    phases.time("pack", [&] { weights_->repack(stream_, parameters_); });
    return -std::accumulate(logprob_.begin(), logprob_.end(), 0.0) / static_cast<double>(rows);
  }

  const Model& model() const { return model_; }
  int64_t num_tokens() const { return builder_.num_tokens(); }

 private:
  static constexpr int kBlockTokens = 16;
  static int64_t blocks_of(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  void add_sequences(const Settings& settings) {
    Rng rng(2);
    for (int64_t s = 0; s < settings.sequences; ++s) {
      std::vector<int32_t> tokens(static_cast<size_t>(settings.length)), blocks, wanted;
      for (int32_t& id : tokens) id = static_cast<int32_t>(rng.below(model_.config().vocab_size));
      for (int64_t b = 0; b < blocks_of(settings.length); ++b) {
        blocks.push_back(static_cast<int32_t>(s * blocks_of(settings.length) + b));
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
  int64_t step_ = 0;
};

int run(const Settings& settings) {
  TrainStep train(settings);
  Phases phases;
  const double first = train.run(phases);
  for (int i = 0; i < 3; ++i) train.run(phases);  // warm up
  phases.clear();
  std::vector<double> steps;
  double last = first;
  for (int64_t i = 0; i < settings.steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    last = train.run(phases);
    steps.push_back(Seconds(std::chrono::steady_clock::now() - start).count());
  }
  // A step that is fast and wrong is no result: one fixed batch must be learned.
  if (!(last < first)) {
    fmt::print(stderr, "the loss went from {} to {}\n", first, last);
    return 1;
  }
  const double step = Phases::median(steps);
  const auto tokens = static_cast<double>(train.num_tokens());
  const double flops = 6 * static_cast<double>(train.model().layout().num_parameters()) * tokens;
  const auto [fastest, slowest] = std::minmax_element(steps.begin(), steps.end());
  fmt::print(
      "{} fp32, {} x {} tokens, {} threads: {:.0f} tokens/s, {:.1f} GFLOP/s by 6N; step {:.2f} ms "
      "({:.2f} to "
      "{:.2f}, {} steps), loss {:.4f} -> {:.4f}\n",
      settings.geometry, settings.sequences, settings.length, settings.threads, tokens / step,
      flops / step / 1e9, 1e3 * step, 1e3 * *fastest, 1e3 * *slowest, steps.size(), first, last);
  phases.print(step);
  return 0;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) { return tailrace::run(tailrace::parse(argc, argv)); }
