// Sums the gradient of one update in fixed parts, so that it has the same bits for any number of
// threads and of ranks.
//
// The sequences of an update are cut into `slots` by their share of the tokens. Each slot adds its
// micro-batches in the order of the batch, and the slots are joined in a fixed binary tree. A rank
// computes the slots of its own, which are a subtree, and the ranks are joined further up.
//
// What is minimised is a GradientPass: the tree knows no loss.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/collective/collective.h"
#include "core/model/expert_loads.h"
#include "core/model/parameters.h"
#include "kernels/base/check.h"
#include "kernels/base/device.h"
#include "trainer/loss_pass.h"
#include "trainer/packed_forward.h"

namespace tailrace {

struct GradientPass {
  LossPass* loss = nullptr;  // null: forward passes alone, for who listens
  std::span<PassListener* const> listeners = {};
  BalancePass balance = {};
  // So many sequences, one behind the other, are in one slot and in one micro-batch: a loss that
  // compares them has them all in one add().
  size_t together = 1;
};

class GradientTree {
 public:
  // Borrows all that it is given but the numbers.
  GradientTree(const Stream& stream, PackedForward& forward, const PackedWeights& weights,
               const ParameterLayout& layout, int64_t slots);
  // Buffers of the layout's size that it allocates. A tree over n slots needs one a level: the left
  // half of a node is finished in the node's own before the right half starts in the next one.
  static int64_t num_buffers(int64_t slots);

  // Null: this is alone. Else a power of two that divides the slots.
  void join(Collective* ranks);
  Collective* ranks() const { return ranks_; }
  size_t num_slots() const { return slots_; }

  // The gradient of these sequences on all ranks, in result().
  void run(std::span<const PackedSequence> sequences, const GradientPass& pass);
  // Adds it to `sum`; with a single slot without a pass over the gradients.
  void add_to(Parameters& sum, std::span<const PackedSequence> sequences, const GradientPass& pass);
  // A pass over all of these in one slot of this rank alone, of a loss whose gradient is 1
  // everywhere; it is thrown away.
  void rehearse(std::span<const PackedSequence> sequences, const BalancePass& balance);
  Parameters& result() { return *buffers_.front(); }
  const Parameters& result() const { return *buffers_.front(); }

  // Gathers each slot's results, equal parts of `slots` in their order: sets other ranks' parts.
  template <class T>
  void gather_slots(std::span<T> slots) const;
  // Values of all ranks, one behind the other.
  template <class T>
  std::vector<T> gather_values(std::vector<T> own) const;
  // [begin, end) of the sequences that this rank measures where no gradient is wanted.
  std::pair<size_t, size_t> own_share(std::span<const PackedSequence> sequences) const;

 private:
  size_t num_ranks() const { return ranks_ == nullptr ? 1 : static_cast<size_t>(ranks_->size()); }
  size_t rank() const { return ranks_ == nullptr ? 0 : static_cast<size_t>(ranks_->rank()); }
  void sum_ranks();
  void run_slots(std::span<const PackedSequence> sequences, std::span<const size_t> offsets,
                 size_t begin, size_t end, size_t depth, const GradientPass& pass);
  void run_slot(std::span<const PackedSequence> sequences, size_t slot, size_t begin, size_t end,
                Parameters& gradients, const GradientPass& pass);
  PackedForward::GradientOut host_gradient(size_t targets);

  Stream stream_;
  PackedForward& forward_;
  const PackedWeights& weights_;
  size_t slots_;
  Collective* ranks_ = nullptr;
  std::vector<std::unique_ptr<Parameters>> buffers_;  // one a level; [0] is the result
  std::vector<float> dlogprob_,
      dentropy_;  // [targets of a micro-batch] where the loss is the host's
};

template <class T>
void GradientTree::gather_slots(std::span<T> slots) const {
  static_assert(std::is_trivially_copyable_v<T>);
  if (ranks_ == nullptr) return;
  TR_CHECK(slots.size() % slots_ == 0, "{} of {} slots", slots.size(), slots_);
  const size_t each = slots.size() / num_ranks();
  const auto all = ranks_->gather(std::as_bytes(slots.subspan(rank() * each, each)));
  for (size_t r = 0; r < all.size(); ++r) {
    TR_CHECK(all[r].size() == each * sizeof(T));
    std::memcpy(&slots[r * each], all[r].data(), all[r].size());
  }
}

template <class T>
std::vector<T> GradientTree::gather_values(std::vector<T> own) const {
  static_assert(std::is_trivially_copyable_v<T>);
  if (ranks_ == nullptr) return own;
  std::vector<T> values;
  for (const std::vector<std::byte>& part : ranks_->gather(std::as_bytes(std::span(own)))) {
    if (part.empty()) continue;  // memcpy() wants an address also of nothing
    const size_t begin = values.size();
    values.resize(begin + part.size() / sizeof(T));
    std::memcpy(values.data() + begin, part.data(), part.size());
  }
  return values;
}

}  // namespace tailrace
