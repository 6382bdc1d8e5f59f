// How the experts of a model were used by what went through backward passes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/model/model_config.h"
#include "kernels/base/view.h"

namespace tailrace {

// Sums over passes, of which choices are whole numbers: their order does not matter.
struct ExpertLoads {
  explicit ExpertLoads(const ModelConfig& config);

  int64_t num_experts = 0;
  int64_t tokens = 0;
  // The number of choices that were given to passes (ForwardBatch::choices), and how many of them
  // the router would not have made.
  int64_t given = 0, moved = 0;
  std::vector<int64_t> choices;  // [sparse layers * experts] how often each was chosen
  std::vector<double> losses;    // the same: its terms of the balance loss (kernels/ops/router.h)

  int64_t num_layers() const;  // sparse ones
  std::span<int64_t> choices_of(int64_t sparse_layer);
  std::span<const int64_t> choices_of(int64_t sparse_layer) const;
  std::span<double> losses_of(int64_t sparse_layer);
  // Compares the choices of one layer. probabilities [tokens, experts], bias [experts] or empty,
  // and the layer's columns of ForwardBatch::choices.
  void compare(ConstMatrix probabilities, std::span<const float> bias,
               MatrixView<const int32_t> chosen);
  void clear();
  void add(const ExpertLoads& other);  // of the same model

  // Mean over layers and tokens: experts_per_token when all experts of each layer are used alike.
  double balance_loss() const;
  // The choices of a layer's busiest expert against the mean of the layer: in the mean over layers,
  // and in the worst.
  struct Peak {
    double mean = 0, worst = 0;
  };
  Peak peak() const;
  double idle_share() const;  // of the experts of all layers, those that nobody chose
};

// The balance of a backward pass: it adds to the loss
//   weight * (mean over sparse layers of the sum over sequences of tokens * balance loss)
// and the pass' choices to `loads`.
struct BalancePass {
  double weight = 0;
  ExpertLoads* loads = nullptr;  // null: neither
  // Counters on the pass' device, [sparse layers * experts], that are added to in place of
  // `loads`'s, so that no pass waits for them. Empty: each pass brings its own to `loads`.
  std::span<int64_t> device_choices = {};
  std::span<double> device_losses = {};
};

}  // namespace tailrace
