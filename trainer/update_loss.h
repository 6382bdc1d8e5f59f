// The losses that updates are made of, and what they measured: HostLoss on the CPU, DeviceLoss
// (device_loss.h) where the model is on a GPU.
//
// Order: begin(), the passes of the gradient tree, end(); and take() once a step or once an update.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "trainer/loss_pass.h"
#include "trainer/step_report.h"

namespace tailrace {

class UpdateLoss : public LossPass {
 public:
  // Forgets a pass that did not end. Of the supervised one, policy_term is the sum of -logprob.
  virtual void begin(const PolicyPass& pass) = 0;
  virtual void begin(const SupervisedPass& pass) = 0;

  // A report for each pass since the last call or forget(): what all of its slots measured.
  virtual std::vector<UpdateReport> take();
  void forget() { reports_.clear(); }  // of a step that lost a rank

 protected:
  // [slots], of which those of other ranks are still to come.
  void report(const GradientTree& tree, std::vector<UpdateReport> slots);
  void report(std::span<const UpdateReport> slots);  // of all ranks

 private:
  std::vector<UpdateReport> reports_;
};

class HostLoss : public UpdateLoss {
 public:
  explicit HostLoss(int64_t slots) : num_slots_(static_cast<size_t>(slots)) {}

  Wants wants() const override;
  void begin(const PolicyPass& pass) override;
  void begin(const SupervisedPass& pass) override;
  void add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
           std::span<float> dlogprob, std::span<float> dentropy) override;
  void end(const GradientTree& tree) override;

 private:
  size_t num_slots_;
  std::vector<UpdateReport> slots_;
  std::optional<PolicyPass> policy_;  // nothing: the supervised pass
  SupervisedPass supervised_;
};

}  // namespace tailrace
