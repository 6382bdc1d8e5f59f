#include "trainer/device_loss.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"
#include "trainer/gradient_tree.h"
#include "trainer/loss/gradient_columns.h"
#include "trainer/loss_columns.h"

namespace tailrace {
namespace {

size_t sums_bytes(int64_t count) {
  return Workspace::aligned(static_cast<size_t>(count) * sizeof(PolicySums));
}

DeviceBytes loss_bytes(Device device, std::span<PolicySums> sums) {
  DeviceBytes bytes = bytes_of(sums);
  bytes.device = device;
  return bytes;
}

}  // namespace

DeviceLoss::Columns::Columns(Workspace& memory, int64_t tokens, int64_t sequences,
                             int64_t num_turns, bool has_kl)
    : weight(memory.take<double>(tokens)),
      correction(memory.take<double>(tokens)),
      old_logprob(memory.take<float>(tokens)),
      behaviour(memory.take<float>(tokens)),
      kl(memory.take<float>(has_kl ? tokens : 0)),
      recorded(memory.take<float>(tokens)),
      advantage(memory.take<float>(tokens)),
      turns(memory.take<int32_t>(num_turns + 1)),
      sequence_turns(memory.take<int32_t>(sequences + 1)),
      flags(memory.take<uint8_t>(tokens)) {}

// A turn has at least a token.
size_t DeviceLoss::column_bytes(const Room& room) {
  Workspace memory = Workspace::measuring();
  Columns(memory, room.tokens, room.sequences, room.tokens, /*has_kl=*/true);
  return memory.peak();
}

DeviceLoss::DeviceLoss(const Stream& stream, const Room& room)
    : stream_(stream),
      room_(room),
      device_columns_(column_bytes(room), stream.device),
      host_columns_(Buffer::pinned(column_bytes(room), stream.device)),
      device_sums_(sums_bytes(room.slots) + sums_bytes(room.sequences), stream.device),
      host_sums_(Buffer::pinned(sums_bytes(room.slots) + sums_bytes(kPending * room.slots),
                                stream.device)) {
  Workspace device(device_sums_), host(host_sums_);
  sums_ = device.take<PolicySums>(room.slots);
  scratch_ = device.take<PolicySums>(room.sequences);
  zeros_ = host.take<PolicySums>(room.slots);
  pending_sums_ = host.take<PolicySums>(kPending * room.slots);
  std::ranges::fill(zeros_, PolicySums{});
}

int64_t DeviceLoss::bytes(const Room& room) {
  return static_cast<int64_t>(2 * column_bytes(room) + 2 * sums_bytes(room.slots) +
                              sums_bytes(room.sequences) + sums_bytes(kPending * room.slots));
}

LossPass::Wants DeviceLoss::wants() const {
  return {.entropy = policy_.has_value(),
          .entropy_gradient = policy_ && policy_->loss.entropy_coef != 0,
          .on_device = true};
}

void DeviceLoss::begin(const PolicyPass& pass) {
  policy_ = pass;
  begin(pass.loss);
}

void DeviceLoss::begin(const SupervisedPass& pass) {
  policy_.reset();
  supervised_ = pass;
  begin(PolicyLossConfig{});
}

void DeviceLoss::begin(const PolicyLossConfig& config) {
  update_ = {config, std::vector<UpdateReport>(static_cast<size_t>(room_.slots))};
  copy(stream_, loss_bytes(stream_.device, sums_), loss_bytes({}, zeros_));
}

void DeviceLoss::add(size_t slot, size_t begin, size_t end, const PackedForward::Output& output,
                     std::span<float> dlogprob, std::span<float> dentropy) {
  if (policy_)
    return add_policy(slot, policy_->sequences.subspan(begin, end - begin), output, dlogprob,
                      dentropy);
  cross_entropy(stream_, {.logprob = output.device_logprob,
                          .weight = supervised_.weight,
                          .dlogprob = dlogprob,
                          .sum = {&sums_of(slot).data()->policy_term, 1}});
}

void DeviceLoss::add_policy(size_t slot, std::span<const TrainSequence> sequences,
                            const PackedForward::Output& output, std::span<float> dlogprob,
                            std::span<float> dentropy) {
  const PolicyLossConfig& config = update_.config;
  const LossColumns host(sequences);
  const PolicyLossInput input = host.input({});
  const GradientColumns made = gradient_columns(config, input, policy_->counts);
  update_.slots[slot].loss.stats.add(made.stats);
  const std::span<const float> kl = kl_logprob(config, input);
  const auto columns_in = [&](Workspace& memory) {
    return Columns(memory, std::ssize(made.flags), std::ssize(made.sequence_turns) - 1,
                   std::ssize(made.turns) - 1, !kl.empty());
  };

  // The columns in pinned memory may still be on their way from the micro-batch before.
  sent_.wait();
  Workspace host_memory(host_columns_), device_memory(device_columns_);
  const Columns to = columns_in(host_memory), on_device = columns_in(device_memory);
  std::ranges::copy(made.weight, to.weight.begin());
  std::ranges::copy(made.correction, to.correction.begin());
  std::ranges::copy(input.old_logprob, to.old_logprob.begin());
  std::ranges::copy(input.behaviour_logprob, to.behaviour.begin());
  std::ranges::copy(kl, to.kl.begin());
  std::ranges::copy(input.advantage, to.advantage.begin());
  std::ranges::copy(made.turns, to.turns.begin());
  std::ranges::copy(made.sequence_turns, to.sequence_turns.begin());
  std::ranges::copy(made.flags, to.flags.begin());
  size_t row = 0;
  for (const TrainSequence& sequence : sequences) {
    std::ranges::copy(sequence.recorded_logprobs, to.recorded.begin() + static_cast<int64_t>(row));
    for (const int64_t sampled_by : sequence.versions)
      to.flags[row++] |= sampled_by == policy_->version ? kCurrentToken : uint8_t{0};
  }
  copy(stream_, device_columns_.bytes().part(0, device_memory.used()),
       host_columns_.bytes().part(0, host_memory.used()));
  sent_.set(stream_);
  policy_gradient(stream_, {.tokens = {.logprob = output.device_logprob,
                                       .entropy = output.device_entropy,
                                       .old_logprob = on_device.old_logprob,
                                       .behaviour_logprob = on_device.behaviour,
                                       .kl_logprob = on_device.kl,
                                       .recorded = on_device.recorded,
                                       .advantage = on_device.advantage,
                                       .weight = on_device.weight,
                                       .correction = on_device.correction,
                                       .flags = on_device.flags,
                                       .turns = on_device.turns,
                                       .sequence_turns = on_device.sequence_turns},
                            .rule = policy_rule(config),
                            .dlogprob = dlogprob,
                            .dentropy = dentropy,
                            .scratch = scratch_,
                            .sums = sums_of(slot)});
}

void DeviceLoss::end(const GradientTree& tree) {
  // Sums of several updates may be under way, so that the host need not wait for the device at
  // each.
  if (std::ssize(pending_) == kPending) settle();
  const auto slots = static_cast<size_t>(room_.slots);
  copy(stream_, loss_bytes({}, pending_sums_.subspan(pending_.size() * slots, slots)),
       loss_bytes(stream_.device, sums_));
  pending_.push_back(std::move(update_));
  // Ranks add up their reports over the network, for which the sums must be here.
  if (tree.ranks() == nullptr) return;
  settle();
  report(tree, std::exchange(settled_, {}).back());
}

// Waits for the sums that are coming.
void DeviceLoss::settle() {
  if (pending_.empty()) return;
  wait(stream_);
  size_t at = 0;
  for (Update& update : pending_) {
    for (UpdateReport& slot : update.slots) {
      const PolicySums& sums = pending_sums_[at++];
      slot.loss.add(policy_result(update.config, sums));
      slot.current_tokens = static_cast<int64_t>(sums.current_tokens);
      slot.mismatch_abs_sum = sums.mismatch_abs;
      slot.mismatch_abs_max = sums.mismatch_abs_max;
    }
    settled_.push_back(std::move(update.slots));
  }
  pending_.clear();
}

std::vector<UpdateReport> DeviceLoss::take() {
  settle();
  for (const std::vector<UpdateReport>& slots : std::exchange(settled_, {})) report(slots);
  return UpdateLoss::take();
}

}  // namespace tailrace
