#include "rollout/engine/block_pool.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace tailrace {

BlockPool::Lease::Lease(Lease&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), ids_(std::move(other.ids_)) {
  other.ids_.clear();
}

BlockPool::Lease& BlockPool::Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    clear();
    pool_ = std::exchange(other.pool_, nullptr);
    ids_.swap(other.ids_);
  }
  return *this;
}

BlockPool::Lease BlockPool::Lease::share(int begin, int count) const {
  TR_CHECK(begin >= 0 && count >= 0 && begin + count <= size(), "blocks {}+{} of {}", begin, count,
           size());
  Lease shared;
  shared.pool_ = pool_;
  shared.ids_.assign(ids_.begin() + begin, ids_.begin() + begin + count);
  for (int32_t id : shared.ids_) ++pool_->counts_[static_cast<size_t>(id)];
  return shared;
}

void BlockPool::Lease::append(Lease other) {
  if (pool_ == nullptr) pool_ = other.pool_;
  TR_CHECK(other.pool_ == nullptr || other.pool_ == pool_, "leases of two pools");
  ids_.insert(ids_.end(), other.ids_.begin(), other.ids_.end());
  other.ids_.clear();
}

void BlockPool::Lease::clear() {
  // Backwards, so that blocks come out of the free stack in the order in which they were held.
  for (auto id = ids_.rbegin(); id != ids_.rend(); ++id) {
    int32_t& count = pool_->counts_[static_cast<size_t>(*id)];
    TR_CHECK(count > 0, "block {} given back twice", *id);
    if (--count == 0) pool_->free_.push_back(*id);
  }
  ids_.clear();
}

BlockPool::BlockPool(int num_blocks) {
  TR_CHECK(num_blocks >= 1, "num_blocks {}", num_blocks);
  counts_.resize(static_cast<size_t>(num_blocks));
  free_.reserve(static_cast<size_t>(num_blocks));
  // A stack with block 0 on top: a block that was just freed, and is likely still in a cache, is
  // the next one taken.
  for (int32_t id = num_blocks - 1; id >= 0; --id) free_.push_back(id);
}

BlockPool::~BlockPool() {
  // A lease that outlived the pool would count down in freed memory.
  TR_CHECK(num_free() == num_blocks(), "{} of {} blocks are still leased",
           num_blocks() - num_free(), num_blocks());
}

std::optional<BlockPool::Lease> BlockPool::try_take(int num_blocks) {
  TR_CHECK(num_blocks >= 0, "num_blocks {}", num_blocks);
  if (num_blocks > num_free()) return std::nullopt;
  Lease lease;
  lease.pool_ = this;
  lease.ids_.reserve(static_cast<size_t>(num_blocks));
  for (int i = 0; i < num_blocks; ++i) {
    int32_t id = free_.back();
    free_.pop_back();
    counts_[static_cast<size_t>(id)] = 1;
    lease.ids_.push_back(id);
  }
  peak_used_ = std::max(peak_used_, this->num_blocks() - num_free());
  return lease;
}

}  // namespace tailrace
