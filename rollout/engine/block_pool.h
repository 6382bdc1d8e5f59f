// Hands out ids of fixed-size KV-cache blocks. It knows nothing of the memory behind an id, so it
// is tested without a model.
//
// Thread: the decode engine's thread only.
// Invariant: every id is either free or inside at least one living Lease; its count is the number
// of leases that hold it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tailrace {

class BlockPool {
 public:
  // Some blocks in the order of the positions that they hold. Move-only; gives its blocks back when
  // it dies; the pool must outlive it. Several leases may share a block: it is free when the last
  // of them is gone.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { clear(); }

    std::span<const int32_t> ids() const { return ids_; }
    int size() const { return static_cast<int>(ids_.size()); }
    // Another lease on blocks [begin, begin + count) of this one.
    Lease share(int begin, int count) const;
    // Takes over the blocks of `other`, which continue this lease.
    void append(Lease other);
    void clear();  // gives all blocks back

   private:
    friend class BlockPool;
    BlockPool* pool_ = nullptr;
    std::vector<int32_t> ids_;
  };

  explicit BlockPool(int num_blocks);
  BlockPool(const BlockPool&) = delete;
  ~BlockPool();

  // All of `num_blocks` or none. A full pool is an ordinary outcome (the engine then evicts or
  // preempts), so it is in the return type and is not an error.
  [[nodiscard]] std::optional<Lease> try_take(int num_blocks);

  int num_blocks() const { return static_cast<int>(counts_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int peak_used() const { return peak_used_; }
  int num_leases(int32_t block) const { return counts_[static_cast<size_t>(block)]; }

 private:
  std::vector<int32_t> free_;
  std::vector<int32_t> counts_;  // leases that hold a block
  int peak_used_ = 0;
};

}  // namespace tailrace
