#include "trainer/update_loss.h"

#include <algorithm>
#include <utility>

#include "trainer/gradient_tree.h"
#include "trainer/loss_columns.h"

namespace tailrace {

void UpdateLoss::report(const GradientTree& tree, std::vector<UpdateReport> slots) {
  tree.gather_slots(std::span(slots));
  report(slots);
}

void UpdateLoss::report(std::span<const UpdateReport> slots) {
  UpdateReport sum;
  for (const UpdateReport& slot : slots) sum.add(slot);
  reports_.push_back(sum);
}

std::vector<UpdateReport> UpdateLoss::take() { return std::exchange(reports_, {}); }

// Entropy is wanted for the metrics even where no gradient goes through it.
LossPass::Wants HostLoss::wants() const {
  return {.entropy = policy_.has_value(),
          .entropy_gradient = policy_ && policy_->loss.entropy_coef != 0};
}

void HostLoss::begin(const PolicyPass& pass) {
  slots_.assign(num_slots_, {});
  policy_ = pass;
}

void HostLoss::begin(const SupervisedPass& pass) {
  slots_.assign(num_slots_, {});
  policy_.reset();
  supervised_ = pass;
}

void HostLoss::add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
                   std::span<float> dlogprob, std::span<float> dentropy) {
  UpdateReport& report = slots_[slot];
  if (!policy_) {
    for (float l : output.logprob) report.loss.policy_term -= l;
    std::ranges::fill(dlogprob, static_cast<float>(-supervised_.weight));
    return;
  }
  const auto sequences = policy_->sequences.subspan(begin, end - begin);
  const LossColumns columns(sequences);
  report.loss.add(
      policy_loss(policy_->loss, columns.input(output), policy_->counts, dlogprob, dentropy));
  report.add_mismatch(sequences, output.logprob, policy_->version);
}

void HostLoss::end(const GradientTree& tree) { report(tree, std::exchange(slots_, {})); }

}  // namespace tailrace
