// How many tokens a second the decode engine prefills and samples, by batch size. Prompts (of 64
// tokens) are prefilled, then all but one of the new tokens (64) of each sequence are sampled; the
// two are timed apart. Nothing ends a sequence before. The limit is the same multiply-adds at the
// rate of one large product of the same dtype on the same threads.
//
// Checked first: the log-probabilities that were sampled are, bit for bit, those of one forward
// pass over the whole sequence.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/core/measured_model.h"
#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"
#include "rollout/engine/engine.h"

namespace tailrace {
namespace {

struct Options {
  ModelChoice model;
  std::vector<int64_t> batches = {1, 8, 64, 128};
  int64_t prompt_tokens = 64, new_tokens = 64;
  int runs = 5;
};

// An engine of `batch` sequences.
class EngineUnderTest {
 public:
  EngineUnderTest(const Model& model, const Parameters& parameters, Dtype dtype,
                  const Options& options, int64_t batch, int threads)
      : model_(model),
        batch_(batch),
        prompt_tokens_(options.prompt_tokens),
        new_tokens_(options.new_tokens),
        pool_(threads),
        engine_(model, nullptr, engine_options(), stream(), clock_),
        weights_(std::make_shared<PackedWeights>(stream(), model.config(), parameters, dtype)) {
    engine_.install(weights_, 0);
  }

  struct Seconds {
    double prefill = 0, decode = 0, decode_cpu = 0;
    int64_t sampled = 0;  // while `decode` passed
  };
  Seconds run(int number) {
    for (SessionId session = 0; session < batch_; ++session) {
      GenerateRequest request;
      request.session = session;
      request.new_tokens = prompt_of(session, number);
      request.sampling.max_new_tokens = new_tokens_ - 1;
      request.key = {mix({static_cast<uint64_t>(number), static_cast<uint64_t>(session), 1})};
      engine_.submit(std::move(request));
    }
    Seconds seconds;
    Stopwatch watch;
    // Sequences whose prompt is done are sampled while others are still prefilled; `sampled` leaves
    // those tokens out.
    const int64_t wanted = engine_.stats().prefill_tokens + batch_ * prompt_tokens_;
    while (engine_.stats().prefill_tokens < wanted) step();
    seconds.prefill = watch.lap();
    const int64_t before = engine_.stats().sampled_tokens;
    const Stopwatch cpu(CLOCK_PROCESS_CPUTIME_ID);
    while (!engine_.idle()) step();
    seconds.decode = watch.lap();
    seconds.decode_cpu = cpu.seconds();
    seconds.sampled = engine_.stats().sampled_tokens - before;
    for (SessionId session = 0; session < batch_; ++session) engine_.release(session);
    require(engine_.stats().planner.preemptions == 0, "batch {}: {} sequences gave way to others",
            batch_, engine_.stats().planner.preemptions);
    return seconds;
  }

  // Of the session that ended last.
  void check_logprobs(int number) {
    const Generation& sampled = done_.back();
    std::vector<TokenId> tokens = prompt_of(sampled.session, number);
    for (const GeneratedToken& token : sampled.tokens) tokens.push_back(token.id);
    const std::vector<float> expected = logprobs_of(tokens);
    const auto first = static_cast<size_t>(prompt_tokens_ - 1);
    // Equal, not close: a position's logits do not depend on the batch or on how its past was cut
    // (design rule 3).
    for (size_t i = 0; i < sampled.tokens.size(); ++i)
      require(sampled.tokens[i].logprob == expected[first + i],
              "batch {}: token {} of session {} was sampled with log-probability {}; one forward "
              "pass gives {}",
              batch_, i, sampled.session, sampled.tokens[i].logprob, expected[first + i]);
  }

 private:
  EngineOptions engine_options() const {
    EngineOptions options;
    options.max_context_tokens = prompt_tokens_ + new_tokens_;
    options.max_sequences = batch_;
    // As much as all of them need: one that gives way to others is prefilled again.
    options.kv_cache_mb = int64_t{1} << 20;
    // At least one token of each sequence, so that all are decoded in one pass.
    options.max_batch_tokens = std::max<int64_t>(512, batch_);
    return options;
  }

  std::vector<TokenId> prompt_of(int64_t session, int run) const {
    Rng rng(mix({static_cast<uint64_t>(run), static_cast<uint64_t>(session)}));
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < prompt_tokens_; ++i)
      tokens.push_back(static_cast<TokenId>(rng.below(model_.config().num_ids())));
    return tokens;
  }

  Stream stream() { return {.device = {}, .pool = &pool_, .native = nullptr}; }

  void step() {
    for (Generation& generation : engine_.step()) done_.push_back(std::move(generation));
  }

  // logprobs[i] is of tokens[i + 1].
  std::vector<float> logprobs_of(const std::vector<TokenId>& tokens) {
    constexpr int kBlockTokens = 16;
    const ModelConfig& config = model_.config();
    const auto rows = static_cast<int64_t>(tokens.size()) - 1;
    const int blocks = static_cast<int>(rows) / kBlockTokens + 1;
    std::vector<int32_t> block_ids(static_cast<size_t>(blocks)), wanted(static_cast<size_t>(rows));
    std::iota(block_ids.begin(), block_ids.end(), 0);
    std::iota(wanted.begin(), wanted.end(), 0);
    BatchBuilder builder({.tokens = rows,
                          .sequences = 1,
                          .blocks_per_sequence = blocks,
                          .vocab = config.vocab_size,
                          .blocks = blocks});
    builder.add(std::span(tokens).first(wanted.size()), 0, block_ids, wanted);
    KvCache kv(config, blocks, kBlockTokens, /*keeps_choices=*/false, model_.placement());
    Buffer scratch(
        std::max(model_.workspace_bytes(rows, builder.batch().max_context, pool_.num_threads()),
                 linear_logprob_workspace_bytes(rows, config.vocab_size, config.hidden_size)));
    Workspace workspace(scratch);
    Buffer memory(static_cast<size_t>(rows * config.hidden_size) * sizeof(float));
    const Matrix hidden(memory.as<float>().data(), rows, config.hidden_size);
    model_.forward(stream(), workspace, *weights_, builder.batch(), kv, hidden, nullptr);
    std::vector<float> logprobs(wanted.size()), lse(wanted.size());
    linear_logprob(stream(), workspace,
                   {.head = {.hidden = hidden,
                             .weight = weights_->head(),
                             .targets = std::span(tokens).subspan(1)},
                    .out = {.logprob = logprobs, .lse = lse, .entropy = {}}});
    return logprobs;
  }

  const Model& model_;
  int64_t batch_, prompt_tokens_, new_tokens_;
  ThreadPool pool_;
  SteadyClock clock_;
  Engine engine_;
  std::shared_ptr<const PackedWeights> weights_;
  std::vector<Generation> done_;
};

// FLOP/s of y = x W^T with 256 rows, 512 x 512.
double product_rate(int threads, Dtype dtype) {
  constexpr int64_t kRows = 256, kSize = 512;
  ThreadPool pool(threads);
  const Stream stream{.device = {}, .pool = &pool, .native = nullptr};
  Buffer x(kRows * kSize * sizeof(float)), w(kSize * kSize * sizeof(float)),
      y(kRows * kSize * sizeof(float)), memory(weight_bytes(dtype, kSize, kSize));
  const Weight packed = pack_weight(stream, ConstMatrix(w.as<float>().data(), kSize, kSize), dtype,
                                    memory.as<std::byte>());
  double best = 0;
  for (int run = 0; run < 20; ++run) {
    const Stopwatch watch;
    linear(stream, {.x = Matrix(x.as<float>().data(), kRows, kSize),
                    .weight = packed,
                    .y = Matrix(y.as<float>().data(), kRows, kSize)});
    // The best of twenty, as a limit has to be.
    best = std::max(best, 2.0 * kRows * kSize * kSize / watch.seconds());
  }
  return best;
}

void measure(const Options& options, const Program& program) {
  MeasuredModel measured(options.model, options.prompt_tokens + options.new_tokens);
  // A chat model would end many of its turns early, and then a batch is no longer as large as its
  // row says.
  measured.config.eos_tokens.clear();
  const Model model(measured.config, /*max_context=*/0, Placement::on(Device{}, measured.elements));
  Parameters parameters(model.layout());
  measured.fill(1, parameters);
  Settings settings;
  measured.describe(model.layout().num_parameters(), settings);
  settings.emplace_back("prompt_tokens", options.prompt_tokens);
  settings.emplace_back("new_tokens", options.new_tokens);
  Report report = program.report(settings, "cpu", measured.elements);
  // Two flops a parameter that a token goes through; attention is not counted, so 100 % is out of
  // reach.
  const double limit = product_rate(program.threads(), measured.elements.weights) /
                       (2.0 * static_cast<double>(model.layout().num_active_parameters()));

  for (const int64_t batch : options.batches) {
    EngineUnderTest engine(model, parameters, measured.elements.weights, options, batch,
                           program.threads());
    // A run before those that are measured: it fills the caches, and what it samples is checked.
    engine.run(0);
    engine.check_logprobs(0);
    std::vector<double> prefill, decode, decode_cpu;
    for (int run = 1; run <= options.runs; ++run) {
      const EngineUnderTest::Seconds seconds = engine.run(run);
      const auto sampled = static_cast<double>(seconds.sampled);
      prefill.push_back(static_cast<double>(batch * options.prompt_tokens) / seconds.prefill);
      decode.push_back(sampled / seconds.decode);
      decode_cpu.push_back(sampled / seconds.decode_cpu);
    }
    const std::string name = fmt::format("{}, batch {}", measured.name, batch);
    report.add(name, "decode", "tokens/s", decode, limit);
    report.add(name, "decode, CPU time", "tokens/s", decode_cpu);
    report.add(name, "prefill", "tokens/s", prefill, limit);
  }
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("engine", TAILRACE_MEASURES, "engine --geometry small --batch 1,64 --threads 1");
  add_model_flags(program, options.model);
  program.flags().option("--batch", options.batches,
                         {.help = "sequences that are decoded together", .min = 1, .max = 1024});
  program.flags().option("--prompt", options.prompt_tokens,
                         {.help = "tokens of a prompt", .min = 1, .max = 65536});
  program.flags().option(
      "--new", options.new_tokens,
      {.help = "tokens behind it; the last is not sampled", .min = 3, .max = 65536});
  program.flags().option("--runs", options.runs,
                         {.help = "measured runs of each batch size", .min = 1, .max = 10000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
