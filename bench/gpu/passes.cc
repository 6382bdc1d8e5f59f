// Decode steps and prefill: forward passes of a model whose weights are random and whose KV cache
// is on the device.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/gpu/geometries.h"
#include "bench/gpu/parts.h"
#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/ops/linear.h"

namespace tailrace::gpu_bench {
namespace {

constexpr int kBlockTokens = 16;
constexpr Dtype kWeights = Dtype::kBF16;

// What a pass may be.
struct Room {
  int64_t sequences = 1, context = 1, tokens = 1;  // tokens: rows of a pass

  int blocks_per_sequence() const {
    return static_cast<int>((context + kBlockTokens - 1) / kBlockTokens);
  }
  int64_t blocks() const { return sequences * blocks_per_sequence(); }
};

// A model with all that its passes need. Sequence s has the blocks from s * blocks_per_sequence().
class ModelUnderTest {
 public:
  ModelUnderTest(const Harness& harness, const std::string& name, const Room& room)
      : room_(room),
        stream_(harness.stream()),
        model_(geometry(name, room.context), 0, Placement::on(stream_.device, kWeights)),
        weights_(config(), kWeights, random_weights(name)),
        kv_(config(), static_cast<int>(room.blocks()), kBlockTokens, /*keeps_choices=*/false,
            model_.placement()),
        builder_({.tokens = room.tokens,
                  .sequences = room.sequences,
                  .blocks_per_sequence = room.blocks_per_sequence(),
                  .vocab = config().vocab_size,
                  .blocks = room.blocks()},
                 stream_.device),
        scratch_(model_.workspace_bytes(room.tokens, static_cast<int>(room.context), 1),
                 stream_.device),
        hidden_(static_cast<size_t>(
                    operand_bytes(stream_.device, room.sequences, config().hidden_size, kWeights)),
                stream_.device),
        logits_(static_cast<size_t>(
                    operand_bytes(stream_.device, room.sequences, config().num_ids(), Dtype::kF32)),
                stream_.device) {
    Rng rng(7);
    for (int64_t i = 0; i < room.context; ++i)
      tokens_.push_back(static_cast<int32_t>(rng.below(config().vocab_size)));
  }

  const ModelConfig& config() const { return model_.config(); }
  // Of the layers and the head, without the embeddings, of which a token reads one row.
  int64_t product_bytes() const {
    const int64_t all = PackedWeights::bytes(config(), kWeights, stream_.device);
    const auto embeddings = static_cast<int64_t>(
        weight_bytes(kWeights, config().vocab_size, config().hidden_size, stream_.device));
    return config().tie_embeddings ? all : all - embeddings;
  }
  int64_t kv_bytes_per_token() const {
    return KvCache::bytes_per_block(config(), kBlockTokens, false, model_.placement()) /
           kBlockTokens;
  }

  // The next passes have tokens begin, begin + 1, ... of `count` sequences, and want the hidden
  // state and logits of each one's last token. `members` sequences that follow each other share
  // the blocks of their first shared_tokens() tokens.
  void prepare(int64_t count, int64_t begin, int64_t end, int64_t members = 1) {
    wait(stream_);  // a pass may still read what changes now
    builder_.clear();
    const auto tokens =
        std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const std::vector<int32_t> wanted = {static_cast<int32_t>(end - begin - 1)};
    for (int64_t s = 0; s < count; ++s) {
      std::vector<int32_t> blocks(static_cast<size_t>(room_.blocks_per_sequence()));
      std::iota(blocks.begin(), blocks.end(), first_block(s));
      std::iota(blocks.begin(), blocks.begin() + shared_blocks(),
                first_block(s / members * members));
      builder_.add(tokens, static_cast<int32_t>(begin), blocks, wanted);
    }
    count_ = count;
  }
  void pass() {
    Workspace workspace(scratch_);
    model_.forward(stream_, workspace, weights_, builder_.batch(stream_), kv_, hidden(), nullptr);
    linear(stream_, {.x = hidden(), .weight = weights_.head(), .y = logits()});
  }
  std::vector<std::byte> fetch_hidden() { return fetch(stream_, hidden()); }
  std::vector<std::byte> fetch_logits() { return fetch(stream_, logits()); }

  int64_t shared_tokens() const { return int64_t{shared_blocks()} * kBlockTokens; }

  // All sequences have the KV of the first.
  void copy_first_sequence() {
    for (int64_t s = 1; s < room_.sequences; ++s)
      for (int b = 0; b < room_.blocks_per_sequence(); ++b)
        kv_.copy_block(stream_, b, first_block(s) + b, kBlockTokens);
  }

 private:
  // Three quarters of a context.
  int shared_blocks() const { return static_cast<int>(room_.context * 3 / 4 / kBlockTokens); }
  int32_t first_block(int64_t sequence) const {
    return static_cast<int32_t>(sequence * room_.blocks_per_sequence());
  }
  Tensor hidden() { return operand_at(hidden_.bytes(), count_, config().hidden_size, kWeights); }
  Tensor logits() { return operand_at(logits_.bytes(), count_, config().num_ids(), Dtype::kF32); }
  // Throws where the weights and what comes behind them do not fit.
  Buffer random_weights(const std::string& name) const {
    const int64_t weights = PackedWeights::bytes(config(), kWeights, stream_.device);
    const int64_t cache =
        KvCache::bytes(config(), room_.blocks(), kBlockTokens, false, model_.placement());
    const auto scratch = static_cast<int64_t>(
        model_.workspace_bytes(room_.tokens, static_cast<int>(room_.context), 1));
    const int64_t need =
        weights + cache + scratch +
        operand_bytes(stream_.device, room_.sequences, config().num_ids(), Dtype::kF32);
    const auto& devices = backend_facts(stream_.device.kind).devices;
    const int64_t total = devices.at(static_cast<size_t>(stream_.device.index)).total_bytes;
    if (need > total)
      throw UserError("{} needs {} MiB; the device has {} MiB. Try --geometry with smaller ones.",
                      name, need >> 20, total >> 20);
    return random_memory(stream_, weights);
  }

  Room room_;
  Stream stream_;
  Model model_;
  PackedWeights weights_;
  KvCache kv_;
  BatchBuilder builder_;
  Buffer scratch_, hidden_, logits_;
  std::vector<int32_t> tokens_;
  int64_t count_ = 0;
};

void expect_alike(Harness& harness, const std::vector<std::byte>& rows,
                  const std::vector<std::byte>& row, const std::string& name) {
  for (size_t at = 0; at < rows.size(); at += row.size())
    harness.expect_bits(
        std::equal(row.begin(), row.end(), rows.begin() + static_cast<int64_t>(at)),
        fmt::format("{}: sequence {} has other bits than the same tokens in one prefill", name,
                    at / row.size()));
}

void decode(Harness& harness, const std::string& name, const Options& options, Report& report) {
  const int64_t context = options.context;
  ModelUnderTest model(harness, name,
                       {.sequences = std::ranges::max(options.batches),
                        .context = context,
                        .tokens = std::max(context, std::ranges::max(options.batches))});
  model.prepare(1, 0, context);
  model.pass();
  const std::vector<std::byte> row = model.fetch_hidden();
  require(is_sane(row, kWeights), "{}: the hidden state is not finite, or constant", name);
  model.copy_first_sequence();

  for (const int64_t batch : options.batches) {
    const std::string title = fmt::format("{}, {} sequences", name, batch);
    const auto weights = static_cast<double>(model.product_bytes());
    const double limit = harness.copy_rate();
    // Steps of sequences of which `members` share a prompt.
    const auto measure = [&](int64_t members) {
      model.prepare(batch, context - 1, context, members);
      model.pass();
      expect_alike(harness, model.fetch_hidden(), row, title);
      require(is_sane(model.fetch_logits(), Dtype::kF32), "{}: logits", title);
      return harness.seconds_of([&] { model.pass(); }, options.steps);
    };
    const double all = weights + static_cast<double>(batch * context * model.kv_bytes_per_token());
    std::vector<double> tokens, weights_read, all_read;
    for (const double s : measure(1)) {
      tokens.push_back(static_cast<double>(batch) / s);
      weights_read.push_back(1e-9 * weights / s);
      all_read.push_back(1e-9 * all / s);
    }
    report.add(title, "decode", "tokens/s", tokens, static_cast<double>(batch) * limit / all);
    report.add(title, "weights read", "GB/s", weights_read, 1e-9 * limit);
    report.add(title, "weights and KV read", "GB/s", all_read, 1e-9 * limit);
    const int64_t members = std::min(batch, options.members);
    if (members < 2) continue;
    // Each group reads its prompt once.
    const int64_t read_again = batch - (batch + members - 1) / members;
    const double once =
        all - static_cast<double>(read_again * model.shared_tokens() * model.kv_bytes_per_token());
    std::vector<double> shared;
    for (const double s : measure(members)) shared.push_back(static_cast<double>(batch) / s);
    report.add(title, fmt::format("decode, prompts of {}", members), "tokens/s", shared,
               static_cast<double>(batch) * limit / once);
  }
}

void prefill(Harness& harness, const std::string& name, const Options& options, Report& report) {
  const int64_t prompt = options.prompt;
  ModelUnderTest model(harness, name, {.sequences = 1, .context = prompt, .tokens = prompt});
  model.prepare(1, 0, prompt);
  model.pass();
  require(is_sane(model.fetch_hidden(), kWeights), "{}: the hidden state", name);
  const auto seconds = harness.seconds_of([&] { model.pass(); });
  const ModelConfig& config = model.config();
  // Two flops a weight of the layers and a token; the head has one row. Of attention, by causal
  // halves: 2 products of head_dim for each query, key and head.
  const double layer_weights =
      static_cast<double>(config.num_layers) *
      static_cast<double>((config.qkv_size() + config.q_size() + 3 * config.intermediate_size) *
                          config.hidden_size);
  const auto tokens = static_cast<double>(prompt);
  const double attention =
      2.0 * tokens * tokens * static_cast<double>(config.num_layers * config.q_size());
  const double flops = 2 * layer_weights * tokens + attention;
  std::vector<double> rates, work;
  for (const double s : seconds) {
    rates.push_back(tokens / s);
    work.push_back(1e-12 * flops / s);
  }
  const double limit = harness.product_rate();
  const std::string title = fmt::format("{}, prompt of {}", name, prompt);
  report.add(title, "prefill", "tokens/s", rates, tokens * limit / flops);
  report.add(title, "work", "TFLOP/s", work, 1e-12 * limit);
}

}  // namespace

void measure_decode(Harness& harness, const Options& options, Report& report) {
  harness.copy_rate();  // before weights take the memory
  for (const std::string& name : options.geometries) decode(harness, name, options, report);
}

void measure_prefill(Harness& harness, const Options& options, Report& report) {
  harness.product_rate();
  for (const std::string& name : options.geometries) prefill(harness, name, options, report);
}

}  // namespace tailrace::gpu_bench
