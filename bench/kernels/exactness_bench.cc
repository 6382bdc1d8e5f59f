// What design rule 3 costs: each sum's order is fixed by position, never by who computes it. Every
// op that the rule binds runs in pairs with itself under the liberties that the rule forbids
// (several accumulators over k, k or tokens or context or vocabulary divided among threads, one
// pass instead of two), on the same instructions, packed weights and blocks. The figure is
// exact / free: 1.05 says that exactness costs 5 %. Then the ops are summed up to a pass of
// decoding and a training step.
//
// Checked first: the exact op has the same bits on one thread as on all and for a row alone as
// among many; both are as near to the reference as sums of floats can be.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/core/measured_model.h"
#include "bench/kernels/exactness.h"
#include "bench/report/program.h"
#include "core/base/enum_names.h"
#include "core/base/error.h"
#include "core/model/parameters.h"
#include "kernels/base/isa.h"
#include "kernels/cpu/gemm.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

// Elements of the weights that products read.
enum class WeightDtype : uint8_t { kFp32, kBf16 };
constexpr auto enum_names(WeightDtype) {
  return name_table<WeightDtype>({{WeightDtype::kFp32, "fp32"}, {WeightDtype::kBf16, "bf16"}});
}

struct Options {
  ModelChoice model;
  std::optional<WeightDtype> dtype;  // none: the model's, fp32 of a geometry
  ExactnessHarness::Options harness;
  std::vector<int> contexts = {512, 4096, 32768};
  int context = 1024, sequences = 4, length = 128;
};

constexpr int64_t kBatches[] = {1, 8, 64};
// How kernels/cpu/log_softmax.cc cuts a head. Forward keeps the logits of one chunk of rows:
// kHeadRows where the vocabulary is large, else more. Backward takes up to kMaxHeadRows rows and,
// for these, a block of the vocabulary at a time. A head of at most a million weights has the
// chunks of forward in backward too, which is measured as if it were larger.
constexpr int64_t kHeadRows = 96, kMaxHeadRows = 2048;
int64_t head_block_ids(int64_t rows, int64_t vocab) {
  constexpr int64_t kBlockFloats = 4 << 20;
  return std::min(vocab, std::max<int64_t>(kBlockFloats / rows / kVocabBlock, 1) * kVocabBlock);
}

// The cases of one model.
class ModelOps {
 public:
  ModelOps(const ModelConfig& config, Dtype dtype, const Options& options)
      : config_(config),
        dtype_(dtype),
        options_(options),
        layer_({{"qkv", config.hidden_size, config.qkv_size(), config.num_layers},
                {"o", config.q_size(), config.hidden_size, config.num_layers},
                {"gate_up", config.hidden_size, 2 * config.intermediate_size, config.num_layers},
                {"down", config.intermediate_size, config.hidden_size, config.num_layers}}),
        head_{"head", config.hidden_size, config.vocab_size, 1},
        head_rows_(std::min(train_tokens(), kMaxHeadRows)) {
    const int64_t ids = head_block_ids(head_rows_, config.vocab_size);
    head_block_ = {"head block", config.hidden_size, ids, (config.vocab_size + ids - 1) / ids};
  }

  int64_t train_tokens() const { return int64_t{options_.sequences} * options_.length; }
  AttentionShape decode(int64_t batch, int context) const { return shape(batch, context, 1); }
  AttentionShape train() const {
    return shape(options_.sequences, options_.length, options_.length);
  }

  void measure(ExactnessHarness& bench) const {
    const std::vector<int64_t> rows = {1, 3, 8, 64, train_tokens()}, train_rows = {train_tokens()};
    for (const ProductShape& product : layer_)
      exactness_products(bench, product, dtype_, rows, train_rows);
    std::vector<int64_t> head_rows(std::begin(kBatches), std::end(kBatches));
    head_rows.push_back(kHeadRows);
    exactness_products(bench, head_, dtype_, head_rows, {});
    exactness_products(bench, head_block_, dtype_, {&head_rows_, 1}, {&head_rows_, 1});
    exactness_log_sum_exp(bench, kHeadRows, config_.vocab_size);
    for (const int64_t batch : kBatches) {
      exactness_attention(bench, decode(batch, options_.context), config_.num_layers);
      exactness_log_sum_exp(bench, batch, config_.vocab_size);
      exactness_norm(bench, batch, config_.hidden_size, /*gradients=*/false);
    }
    for (const int context : options_.contexts) {
      exactness_attention(bench, decode(1, context), config_.num_layers);
      // With fewer KV heads than threads a row is not divided: here a single one.
      AttentionShape one_head = decode(1, context);
      one_head.heads /= one_head.kv_heads;
      one_head.kv_heads = 1;
      exactness_attention(bench, one_head, config_.num_layers);
    }
    exactness_attention(bench, train(), config_.num_layers);
    exactness_norm(bench, train_tokens(), config_.hidden_size, /*gradients=*/true);
  }

  void sum_up(ExactnessHarness& bench) const {
    for (const int64_t batch : kBatches) {
      bench.sum_up(fmt::format("a decode pass, batch {}, context {}", batch, options_.context),
                   decode_calls(batch));
    }
    bench.sum_up(fmt::format("a training step, {} x {} tokens, without the optimizer",
                             options_.sequences, options_.length),
                 train_calls());
  }

 private:
  using Calls = ExactnessHarness::Calls;

  AttentionShape shape(int64_t sequences, int context, int queries) const {
    return {.sequences = sequences,
            .context = context,
            .queries = queries,
            .heads = static_cast<int>(config_.num_heads),
            .kv_heads = static_cast<int>(config_.num_kv_heads),
            .head_dim = static_cast<int>(config_.head_dim)};
  }

  Calls decode_calls(int64_t batch) const {
    const auto layers = static_cast<double>(config_.num_layers);
    Calls calls;
    for (const ProductShape& product : layer_)
      calls.emplace_back(product_name(product, batch, ""), layers);
    calls.emplace_back(attention_name(decode(batch, options_.context), ""), layers);
    calls.emplace_back(norm_name(batch, config_.hidden_size, ""), 2 * layers + 1);
    calls.emplace_back(product_name(head_, batch, ""), 1);
    calls.emplace_back(log_sum_exp_name(batch, config_.vocab_size), 1);
    return calls;
  }

  Calls train_calls() const {
    const auto layers = static_cast<double>(config_.num_layers);
    const int64_t tokens = train_tokens();
    const double chunks = static_cast<double>(tokens) / kHeadRows;
    const double blocks = static_cast<double>(tokens) / static_cast<double>(head_rows_) *
                          static_cast<double>(head_.out) / static_cast<double>(head_block_.out);
    Calls calls;
    for (const ProductShape& product : layer_) {
      for (const char* what : {"", ", dx", ", dW"})
        calls.emplace_back(product_name(product, tokens, what), layers);
    }
    calls.emplace_back(attention_name(train(), ""), layers);
    calls.emplace_back(attention_name(train(), ", gradients"), layers);
    // The two of a layer again in backward, which kept no normalised rows.
    calls.emplace_back(norm_name(tokens, config_.hidden_size, ""), 4 * layers + 1);
    calls.emplace_back(norm_name(tokens, config_.hidden_size, ", gradients"), 2 * layers + 1);
    calls.emplace_back(product_name(head_, kHeadRows, ""), chunks);
    calls.emplace_back(log_sum_exp_name(kHeadRows, config_.vocab_size), chunks);
    // Backward makes the logits again.
    for (const char* what : {"", ", dx", ", dW"})
      calls.emplace_back(product_name(head_block_, head_rows_, what), blocks);
    return calls;
  }

  ModelConfig config_;
  Dtype dtype_;
  const Options& options_;
  std::vector<ProductShape> layer_;
  ProductShape head_, head_block_;
  int64_t head_rows_;
};

// The elements of the weights. Only where products go in pairs do bfloat16 weights have free ones.
Dtype dtype_of(const Options& options, const MeasuredModel& measured) {
  Dtype dtype = measured.elements.weights;
  if (options.dtype) dtype = *options.dtype == WeightDtype::kBf16 ? Dtype::kBF16 : Dtype::kF32;
  if (dtype == Dtype::kBF16 && gemm::form_of(dtype) != gemm::Form::kPairs)
    throw UserError(
        "--dtype bf16 needs products in pairs (AVX512_BF16); with {} the products of bfloat16 "
        "weights are those of floats. Try --dtype fp32.",
        name_of(isa()));
  return dtype;
}

void measure(const Options& options, const Program& program) {
  // The sizes of a folder are all that is read: any number of positions will do.
  MeasuredModel measured(options.model, /*max_positions=*/1);
  measured.elements.weights = dtype_of(options, measured);
  if (options.model.kv_cache_dtype == Compute::kBf16)
    throw UserError(
        "--kv-cache-dtype bf16: sums without an order are made of a cache of f32 alone");
  const ModelConfig& config = measured.config;
  Settings settings;
  measured.describe(ParameterLayout(config).num_parameters(), settings);
  const ExactnessHarness::Options& harness = options.harness;
  settings.insert(settings.end(), {{"pairs", int64_t{harness.pairs}},
                                   {"milliseconds", harness.milliseconds},
                                   {"patience", harness.patience}});
  ExactnessHarness bench(program.report(std::move(settings), "cpu", measured.elements),
                         program.threads(), harness);
  const ModelOps ops(config, measured.elements.weights, options);
  ops.measure(bench);
  if (!bench.has_measured())
    throw UserError("no case has '{}' in its name; try --only gate_up", harness.only);
  ops.sum_up(bench);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("exactness", TAILRACE_MEASURES, "exactness --geometry small --threads 1");
  Command& flags = program.flags();
  add_model_flags(program, options.model);
  flags.option("--dtype", options.dtype,
               {.help = "of the weights that products read, in place of fp32 or a folder's"});
  flags.option("--pairs", options.harness.pairs,
               {.help = "how often each is run", .min = 1, .max = 10000});
  flags.option("--milliseconds", options.harness.milliseconds,
               {.help = "how long a side of a pair is, at least", .max = 1e6});
  flags.option(
      "--patience", options.harness.patience,
      {.help = "seconds that a case may wait for pairs undisturbed by others", .max = 1e6});
  flags.option("--contexts", options.contexts,
               {.help = "contexts of one sequence that is decoded", .min = 2, .max = 1 << 20});
  flags.option("--context", options.context,
               {.help = "context of the decode pass", .min = 2, .max = 1 << 20});
  flags.option("--sequences", options.sequences,
               {.help = "sequences of the training step", .min = 1, .max = 1024});
  flags.option("--length", options.length, {.help = "tokens of each", .min = 2, .max = 1 << 16});
  flags.option("--only", options.harness.only,
               {.help = "only cases with this text in their name; no sums"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
