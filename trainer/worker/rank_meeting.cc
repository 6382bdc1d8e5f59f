#include "trainer/worker/rank_meeting.h"

#include <filesystem>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "kernels/base/backend.h"

namespace tailrace {

void RankMeeting::leave() {
  trainer_.join(nullptr);
  ranks_.reset();
  meeting_.reset();
}

void RankMeeting::form(const wire::FormRanks& message) {
  leave();
  meeting_ =
      Meeting{.place = {.folder = config_.run.ranks() / fmt::format("{:016x}", message.formation),
                        .rank = message.rank,
                        .size = message.size,
                        .timeout = std::chrono::seconds(config_.train.rank_seconds)},
              .warned = clock_.now()};
  // Rank 0 comes last: a checkpoint may keep it.
  if (!leads()) arrive(meeting_->place);
}

bool RankMeeting::poll() {
  if (!meeting_) return false;
  if (const std::optional<int> missing = missing_rank(meeting_->place)) {
    if (clock_.now() - meeting_->warned < meeting_->place.timeout) return false;
    meeting_->warned = clock_.now();
    log_.warning("rank {} of {} has not come to {} yet", *missing, config_.train.ranks,
                 meeting_->place.folder.string());
    return false;
  }
  const GlooOptions place = std::exchange(meeting_, std::nullopt)->place;
  if (leads()) arrive(place);
  ranks_ = join_ranks(place);
  agree_with_rank_0();
  if (held_.version >= 0) trainer_.join(ranks_.get());
  // All have read it: they have spoken with each other.
  std::error_code ignored;
  if (leads()) std::filesystem::remove_all(place.folder, ignored);
  log_.info("rank {} of {} is ready version={}", place.rank, place.size, held_.version);
  return true;
}

std::vector<std::string> RankMeeting::gather_text(const std::string& own) {
  std::vector<std::string> all;
  for (const std::vector<std::byte>& bytes : ranks_->gather(std::as_bytes(std::span(own))))
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return all;
}

// Which version it holds, and what the policy is held to; the weights follow.
void RankMeeting::agree_with_rank_0() {
  std::string own = numerics_class(config_.compute, config_.device);
  if (!base_.empty()) own += fmt::format(" beside the base {}", base_);
  // Before any sum: another class would make other bits, and the ranks' weights would part.
  const std::vector<std::string> classes = gather_text(own);
  for (size_t rank = 0; rank < classes.size(); ++rank) {
    if (classes[rank] != classes.front())
      throw UserError(
          "train.ranks: rank {} computes as {} and rank 0 as {}; their sums would differ. Take "
          "machines of one kind, or TAILRACE_ISA.",
          rank, classes[rank], classes.front());
  }
  ranks_->broadcast(std::as_writable_bytes(std::span(&held_.version, 1)));
  const Digest reference = gather_text(reference_.digest()).front();
  if (!leads() && reference != reference_.digest()) reference_.load(reference);
}

void RankMeeting::compare(const WeightManifest& own) {
  if (ranks_ == nullptr) return;
  const std::string critic =
      trainer_.critic() ? " and the critic " + trainer_.critic()->digest() : "";
  const std::vector<std::string> digests = gather_text(own.master + critic);
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (digests[rank] != digests.front())
      throw UserError(
          "train.ranks: after step {} rank {} has the weights {}, and rank 0 {}. A machine "
          "computes wrongly, or another program runs there.",
          own.version, rank, digests[rank], digests.front());
  }
}

}  // namespace tailrace
