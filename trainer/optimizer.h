// AdamW with a learning-rate schedule and clipping by global norm, over the flat parameters of a
// model.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "core/collective/collective.h"
#include "core/model/parameters.h"
#include "kernels/base/device.h"
#include "trainer/options.h"

namespace tailrace {

// Rate of update number `update` (from 0): lr * update / warmup_updates below warmup_updates, then
// constant, or linear or cosine from lr to lr * min_lr_ratio, which it reaches at total_updates and
// keeps.
double learning_rate(const OptimOptions& options, int64_t update, int64_t total_updates);

class Optimizer {
 public:
  // `total_updates` ends the schedule. Borrows the layout. `options` must be valid.
  Optimizer(const ParameterLayout& layout, const OptimOptions& options, int64_t total_updates);
  static int64_t bytes(const ParameterLayout& layout) { return 2 * Parameters::bytes(layout); }

  struct Report {
    double grad_norm = 0;  // global L2 norm before clipping
    double lr = 0;
    bool skipped = false;  // a gradient was NaN or infinite: nothing was changed
  };
  // Update number t = updates() + 1 uses learning_rate(t). Norms and biases decay only with
  // decay_norms, all else always.
  Report apply(const Stream& stream, const Parameters& gradients, Parameters& parameters);

  int64_t updates() const { return updates_; }  // applied
  int64_t skipped() const { return skipped_; }  // refused for NaN or infinity

  // The moments and counts of rank 0, to all ranks.
  void share(Collective& ranks);

  // Moments by parameter name, and the counts. load() throws UserError when the file does not fit.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

 private:
  struct Range {
    int64_t begin, end;  // in floats
    bool decays;
  };

  OptimOptions options_;
  int64_t total_updates_;
  std::vector<Range> ranges_;  // cover the layout, neighbours differ in `decays`
  Parameters m_, v_;
  int64_t updates_ = 0, skipped_ = 0;
};

}  // namespace tailrace
