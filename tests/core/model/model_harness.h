// What the tests of the model share: small models with weights and memory, losses, paths of test
// data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "kernels/base/backend.h"
#include "kernels/base/thread_pool.h"

namespace tailrace {

using Tokens = std::vector<int32_t>;

// A file or folder of tests/data.
std::filesystem::path test_data(const std::string& path);

// A folder that is removed when the object dies.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& path, const std::string& text);
std::string read_text(const std::filesystem::path& path);

// Sizes that are no multiples of a vector: hidden 40, 6 heads of 10 over 2 KV heads, ffn 52,
// vocab 67.
ModelConfig awkward_config(bool tie_embeddings);
// The same with all that some family has: biases, norms of queries and keys, windows with positions
// of their own, YaRN, norms of 1 + w behind the halves of a layer too, GELU, scaled embeddings.
ModelConfig rich_config();
// The same with experts: 7 of 21 in the layers 0 and 2, of which a token takes 3, with a bias.
ModelConfig sparse_config();

// Random ids, each sequence [1, longest] tokens.
std::vector<Tokens> random_sequences(int count, int longest, int64_t vocab_size, uint64_t seed);

// Where the rigs of this program are: on the CPU, or on the GPU of a program that says so before
// its tests (tests/kernels/cuda/model_device.cc).
Device rig_device();
void set_rig_device(Device device);

// What the head says of each row: log-probabilities of targets, log-sum-exps, entropies (nats).
struct HeadRows {
  std::vector<float> logprobs, lse, entropies;
};

// A model with weights, a KV cache and scratch memory on a number of threads.
class Rig {
 public:
  explicit Rig(const ModelConfig& config, int num_threads = 1, int block_tokens = 16,
               int max_tokens = 512, const Elements& elements = {});

  // Runs whole sequences as one training pass over freshly numbered blocks; keeps the activations
  // when `keep` is set. Wants the logits of all rows, or of all but each sequence's last.
  enum class Rows { kAll, kPredicting };
  void forward_whole(const std::vector<Tokens>& sequences, Rows rows, bool keep);
  // The experts of the last pass that kept activations: [tokens, sparse layers * k].
  std::vector<int32_t> choices() const;
  // From here on forward_whole() gives its tokens these; empty: they choose.
  std::vector<int32_t> given;
  // Runs what was put into `builder`.
  void forward(const BatchBuilder& batch, bool keep = false);

  // Of the last pass, for the host: [rows, hidden].
  Matrix hidden() { return {hidden_.data(), num_rows_, model.config().hidden_size}; }
  Tensor operand() const { return operand_.slice_rows(0, num_rows_); }  // where the model has them
  std::vector<float> logits();  // [rows, vocab] of the last pass
  // keep: with its logits where the activations hold them.
  HeadRows head_rows(std::span<const int32_t> targets, float inv_temperature = 1,
                     bool keep = false);

  Model model;
  Parameters parameters;
  KvCache kv;
  BatchBuilder builder;  // what the last forward_whole() ran

  const Stream& stream() const { return stream_; }
  void repack() { weights_->repack(stream_, parameters); }
  // From here on backward computes layers again.
  void recompute() { activations_ = model.make_activations(activations_->max_tokens(), true); }
  void pack(Dtype dtype) {
    weights_ = std::make_shared<PackedWeights>(stream_, model.config(), parameters, dtype);
  }
  void init(uint64_t seed);
  // From here on it computes with this adapter of config.lora beside what was packed last.
  void adapt(const Parameters& adapter);
  const PackedWeights& weights() const { return *weights_; }
  Workspace workspace() { return Workspace(scratch_); }
  const Activations& activations() const { return *activations_; }

 private:
  ThreadPool pool_;
  OwnedStream owned_stream_;
  Stream stream_;
  Dtype dtype_;
  std::shared_ptr<PackedWeights> weights_;
  std::shared_ptr<const PackedWeights> base_;  // of an adapter
  std::unique_ptr<Activations> activations_;
  Buffer scratch_, operand_memory_;
  Tensor operand_;  // [max_tokens, hidden], of the device
  std::vector<float> hidden_;
  int64_t num_rows_ = 0;
};

// The next-token loss of whole sequences.
struct CrossEntropy {
  double loss = 0;               // mean of -logprob over counted tokens
  std::vector<float> logprobs;   // of each token but the first, sequence by sequence
  std::vector<float> entropies;  // same order
};
// masks[i][j] says whether predicting sequences[i][j + 1] counts; empty: all do. Adds to
// `gradients` when it is not null, with what `balance` says.
CrossEntropy cross_entropy(Rig& rig, const std::vector<Tokens>& sequences,
                           const std::vector<std::vector<int>>& masks, Parameters* gradients,
                           const BalancePass& balance = {});

}  // namespace tailrace
