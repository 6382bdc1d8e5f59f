#include "trainer/gradient_tree.h"

#include <algorithm>
#include <bit>

#include "kernels/base/pulse.h"
#include "kernels/ops/embedding.h"

namespace tailrace {
namespace {

// Where each slot begins: sequences in order, cut by their share of the tokens, and never within
// those that go together. Depends on the batch and on the number of slots only, never on
// micro-batches.
std::vector<size_t> slot_offsets(std::span<const PackedSequence> sequences, size_t slots,
                                 size_t together = 1) {
  int64_t total = 0, before = 0;
  for (const PackedSequence& s : sequences) total += static_cast<int64_t>(s.tokens.size());
  std::vector<size_t> offsets = {0};
  for (size_t i = 0; i < sequences.size(); ++i) {
    auto slot = static_cast<size_t>(before * static_cast<int64_t>(slots) / total);
    if (i % together == 0)
      while (offsets.size() <= slot) offsets.push_back(i);
    before += static_cast<int64_t>(sequences[i].tokens.size());
  }
  // Slots behind the last sequence are empty, and clear their buffer all the same.
  offsets.resize(slots + 1, sequences.size());
  return offsets;
}

void clear_gradients(const Stream& stream, Parameters& parameters) {
  fill(stream, {.x = parameters.values(), .value = 0});
}

void add_gradients(const Stream& stream, const Parameters& from, Parameters& to) {
  const auto size = static_cast<int64_t>(from.values().size());
  constexpr int64_t kWidth = 16;  // the layout is padded to it
  static_assert(kMemoryAlignment == kWidth * sizeof(float));
  // add() wants a matrix; the flat array is one of rows of 16.
  TR_CHECK(size % kWidth == 0);
  ConstTensor x = ConstMatrix(from.values().data(), size / kWidth, kWidth);
  Tensor y = Matrix(to.values().data(), size / kWidth, kWidth);
  x.device = y.device = stream.device;
  add(stream, {.x = x, .y = y});
}

// Rows without a gradient would be left out of the head's.
class Ones : public LossPass {
  Wants wants() const override { return {.entropy = true, .entropy_gradient = true}; }
  void add(size_t, size_t, size_t, const PackedForward::Output&, std::span<float> dlogprob,
           std::span<float> dentropy) override {
    std::ranges::fill(dlogprob, 1.0f);
    std::ranges::fill(dentropy, 1.0f);
  }
};

}  // namespace

GradientTree::GradientTree(const Stream& stream, PackedForward& forward,
                           const PackedWeights& weights, const ParameterLayout& layout,
                           int64_t slots)
    : stream_(stream), forward_(forward), weights_(weights), slots_(static_cast<size_t>(slots)) {
  for (int64_t i = 0; i < num_buffers(slots); ++i)
    buffers_.push_back(std::make_unique<Parameters>(layout, stream.device));
}

int64_t GradientTree::num_buffers(int64_t slots) {
  // ceil(log2(slots)) + 1.
  return std::bit_width(static_cast<uint64_t>(slots - 1)) + 1;
}

void GradientTree::join(Collective* ranks) {
  ranks_ = ranks;
  TR_CHECK(std::has_single_bit(num_ranks()) && slots_ % num_ranks() == 0, "{} ranks of {} slots",
           num_ranks(), slots_);
}

std::pair<size_t, size_t> GradientTree::own_share(std::span<const PackedSequence> sequences) const {
  const std::vector<size_t> shares = slot_offsets(sequences, num_ranks());
  return {shares[rank()], shares[rank() + 1]};
}

void GradientTree::run(std::span<const PackedSequence> sequences, const GradientPass& pass) {
  // A rank owns a whole subtree, since both numbers are such that halving the slots meets the
  // borders of ranks: the tree of sums is the same for any number of ranks, and so are the bits.
  const size_t each = slots_ / num_ranks(), begin = rank() * each;
  run_slots(sequences, slot_offsets(sequences, slots_, pass.together), begin, begin + each, 0,
            pass);
  // Further up the same tree.
  if (ranks_ != nullptr && pass.loss != nullptr) sum_ranks();
}

void GradientTree::sum_ranks() {
  if (result().device() == Device{}) return ranks_->sum(result().flat());
  // Ranks exchange memory of the host.
  std::vector<float> gradients(result().values().size());
  copy(stream_, bytes_of(std::span(gradients)),
       result().bytes().part(0, gradients.size() * sizeof(float)));
  wait(stream_);
  ranks_->sum(gradients);
  copy(stream_, result().bytes().part(0, gradients.size() * sizeof(float)),
       bytes_of(std::span<const float>(gradients)));
  wait(stream_);
}

void GradientTree::add_to(Parameters& sum, std::span<const PackedSequence> sequences,
                          const GradientPass& pass) {
  // With one slot the tree is that slot, and its buffer and one addition are saved.
  if (slots_ == 1) {
    run_slot(sequences, 0, 0, sequences.size(), sum, pass);
  } else {
    run(sequences, pass);
    add_gradients(stream_, result(), sum);
  }
}

void GradientTree::rehearse(std::span<const PackedSequence> sequences, const BalancePass& balance) {
  Ones ones;
  run_slot(sequences, 0, 0, sequences.size(), result(), {.loss = &ones, .balance = balance});
  clear_gradients(stream_, result());
}

void GradientTree::run_slots(std::span<const PackedSequence> sequences,
                             std::span<const size_t> offsets, size_t begin, size_t end,
                             size_t depth, const GradientPass& pass) {
  if (end - begin == 1) {
    clear_gradients(stream_, *buffers_[depth]);
    run_slot(sequences, begin, offsets[begin], offsets[end], *buffers_[depth], pass);
    return;
  }
  // The left half takes the larger part, so that the depth is ceil(log2(slots)).
  size_t middle = begin + (end - begin + 1) / 2;
  // The left half leaves its sum in buffers_[depth], which the right half does not touch.
  run_slots(sequences, offsets, begin, middle, depth, pass);
  run_slots(sequences, offsets, middle, end, depth + 1, pass);
  add_gradients(stream_, *buffers_[depth + 1], *buffers_[depth]);
}

void GradientTree::run_slot(std::span<const PackedSequence> sequences, size_t slot, size_t begin,
                            size_t end, Parameters& gradients, const GradientPass& pass) {
  const LossPass::Wants wants = pass.loss == nullptr ? LossPass::Wants{} : pass.loss->wants();
  const auto own = sequences.subspan(begin, end - begin);
  for (auto [first, last] : pack(own, forward_.limits(), pass.together)) {
    beat();  // where the host only asks, nobody else does
    const auto part = sequences.subspan(begin + first, last - first);
    const PackedForward::Output output =
        forward_.forward(stream_, weights_, part,
                         {.entropy = wants.entropy,
                          .backward = pass.loss != nullptr,
                          .host = !wants.on_device || !pass.listeners.empty(),
                          .head = !wants.states});
    if (wants.states) {
      pass.loss->add_states(begin + first, begin + last, output.hidden, forward_.state_gradient(),
                            gradients);
      forward_.backward_states(stream_, weights_, gradients, pass.balance);
      continue;
    }
    for (PassListener* listener : pass.listeners)
      listener->add(slot, begin + first, begin + last, output);
    if (pass.loss == nullptr) continue;
    auto [dlogprob, dentropy] =
        wants.on_device ? forward_.device_gradient() : host_gradient(output.logprob.size());
    if (!wants.entropy_gradient) dentropy = {};
    pass.loss->add(slot, begin + first, begin + last, output, dlogprob, dentropy);
    forward_.backward(stream_, weights_, dlogprob, dentropy, gradients, pass.balance);
  }
}

PackedForward::GradientOut GradientTree::host_gradient(size_t targets) {
  dlogprob_.resize(targets);
  dentropy_.resize(targets);
  return {dlogprob_, dentropy_};
}

}  // namespace tailrace
