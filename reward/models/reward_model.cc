#include "reward/models/reward_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/model/compute.h"
#include "core/model/forward_batch.h"
#include "core/model/kv_cache.h"
#include "core/model/model.h"
#include "core/model/packed_weights.h"
#include "core/model/parameter_files.h"
#include "core/model/reward_head.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"

namespace tailrace {
namespace {

// The cut into pieces does not show in the score (design rule 3).
constexpr size_t kChunk = 512;
constexpr int kBlockTokens = 16;

Failure refusal(std::string message) { return {.message = std::move(message), .is_final = true}; }

ModelConfig checked_config(const std::filesystem::path& folder, int64_t max_tokens) {
  ModelConfig config = read_reward_config(folder);
  // Sizes that are not those of the files could ask for more memory than there is.
  check_headers(folder, config);
  if (max_tokens > config.max_positions)
    throw UserError("{}: a text may have {} tokens, and the model has {} positions",
                    folder.string(), max_tokens, config.max_positions);
  return config;
}

PackedWeights load_weights(const std::filesystem::path& folder, const Stream& stream,
                           const Model& model) {
  Parameters parameters(model.layout());
  load_parameters(folder, model.config(), parameters);
  return {stream, model.config(), parameters, compute_dtype(Compute::kAuto, model.config())};
}

}  // namespace

struct RewardModel::Parts {
  Parts(const std::filesystem::path& folder, int threads, int64_t max_tokens)
      : pool(threads),
        stream{.device = {}, .pool = &pool},
        model(checked_config(folder, max_tokens), max_tokens),
        padding(read_padding(folder)),
        weights(load_weights(folder, stream, model)),
        hidden(static_cast<size_t>(config().hidden_size)) {}

  const ModelConfig& config() const { return model.config(); }

  // Grown only: what served a longer text serves this one.
  void make_room(size_t tokens) {
    const size_t needed = (tokens + kBlockTokens - 1) / kBlockTokens;
    if (needed <= blocks.size()) return;
    blocks.resize(needed);
    std::iota(blocks.begin(), blocks.end(), 0);
    const auto num_blocks = static_cast<int>(needed);
    kv = std::make_unique<KvCache>(config(), num_blocks, kBlockTokens);
    builder = std::make_unique<BatchBuilder>(BatchRoom{.tokens = kChunk,
                                                       .sequences = 1,
                                                       .blocks_per_sequence = num_blocks,
                                                       .vocab = config().vocab_size,
                                                       .blocks = num_blocks});
    memory = Buffer(model.workspace_bytes(kChunk, num_blocks * kBlockTokens,
                                          static_cast<int>(num_threads(stream))));
  }

  // Computes ids [begin, end), behind those before them; the state of the last one is kept.
  void run(std::span<const int32_t> ids, size_t begin, size_t end) {
    const std::vector<int32_t> wanted(end == ids.size() ? 1 : 0,
                                      static_cast<int32_t>(end - begin - 1));
    builder->clear();
    builder->add(ids.subspan(begin, end - begin), static_cast<int32_t>(begin), blocks, wanted);
    Workspace workspace(memory);
    const auto rows = static_cast<int64_t>(wanted.size());
    model.forward(stream, workspace, weights, builder->batch(stream), *kv,
                  Matrix(hidden.data(), rows, config().hidden_size), nullptr);
  }

  ThreadPool pool;
  Stream stream;
  Model model;
  int64_t padding;
  PackedWeights weights;
  std::vector<float> hidden;  // of the token that is scored
  std::vector<int32_t> blocks = {};
  std::unique_ptr<KvCache> kv = nullptr;
  std::unique_ptr<BatchBuilder> builder = nullptr;
  Buffer memory = {};
};

RewardModel::RewardModel(const std::filesystem::path& folder, int threads, int64_t max_tokens)
    : parts_(std::make_unique<Parts>(folder, threads, max_tokens)) {}

RewardModel::~RewardModel() = default;

const ModelConfig& RewardModel::config() const { return parts_->config(); }

int64_t RewardModel::max_tokens() const { return parts_->model.max_context(); }

Result<double> RewardModel::score(std::span<const TokenId> ids) {
  if (ids.empty()) return refusal("a text of no tokens has no score");
  if (std::ssize(ids) > max_tokens())
    return refusal(fmt::format("a text of {} tokens, and the reward model takes {}", ids.size(),
                               max_tokens()));
  for (const TokenId id : ids)
    if (id < 0 || id >= config().num_ids())
      return refusal(fmt::format("the id {} is no token of the reward model, which has {}", id,
                                 config().num_ids()));
  // What stands behind the scored token does not reach it.
  ids = ids.first(scored_token(ids, parts_->padding) + 1);
  parts_->make_room(ids.size());
  for (size_t begin = 0; begin < ids.size(); begin += kChunk)
    parts_->run(ids, begin, std::min(ids.size(), begin + kChunk));
  const std::span<const float> head = parts_->weights.score();
  double score = 0;
  for (size_t i = 0; i < head.size(); ++i) score += double{parts_->hidden[i]} * head[i];
  if (!std::isfinite(score)) return refusal(fmt::format("the reward model's score is {}", score));
  return score;
}

}  // namespace tailrace
