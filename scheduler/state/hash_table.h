// Where things are, by the hash of their name: an open-addressing table of small values (a place in
// a list, an iterator). Names stand with the things alone: who asks says which of those under a
// hash is meant. One search is mostly one line of memory, where a tree takes one for each level.
//
// Its hashes have no seed. Whoever picks worker names that meet makes a search pass all of them:
// no more than kMaxWorkers (core/wire/admission.h), and tasks and members have numbers that no
// worker picks.
//
// It has no order, and nothing goes through it: no order of a hash can reach an action (law 14.1).
//
// Thread: caller locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/base/ids.h"

namespace tailrace::scheduler {

inline uint64_t mix_in(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

// The hash of all the words together; equal for equal ones.
inline uint32_t mix(std::initializer_list<uint64_t> words) {
  uint64_t hash = 0;
  for (const uint64_t word : words) hash = mix_in(hash, word);
  return static_cast<uint32_t>(hash);
}

// Some events search for a name six times: eight bytes at a time, without a call.
inline uint32_t hash_of(const WorkerId& id) {
  const auto word_at = [&](size_t at, size_t size) {
    uint64_t word = 0;
    std::memcpy(&word, id.data() + at, size);
    return word;
  };
  const size_t size = id.size();
  if (size < 8) return mix({word_at(0, size), size});
  uint64_t hash = 0;
  for (size_t at = 0; at + 8 < size; at += 8) hash = mix_in(hash, word_at(at, 8));
  // The last eight may overlap those before them. Names differ in their last bytes, which one round
  // brings into the upper half alone: the size is mixed in behind them.
  return static_cast<uint32_t>(mix_in(mix_in(hash, word_at(size - 8, 8)), size));
}
inline uint32_t hash_of(const TaskId& id) {
  const auto policy = static_cast<uint64_t>(id.policy), dataset = static_cast<uint64_t>(id.dataset);
  return mix(
      {policy << 32 ^ dataset, static_cast<uint64_t>(id.epoch), static_cast<uint64_t>(id.prompt)});
}

template <class Value>
class HashTable {
 public:
  HashTable() = default;
  HashTable(const HashTable&) = default;
  HashTable(HashTable&& other) noexcept { swap(other); }
  HashTable& operator=(HashTable other) noexcept {
    swap(other);
    return *this;
  }

  // The value under `hash` of which `is` holds; null: there is none. Until the next change.
  template <class Is>
  const Value* find(uint32_t hash, const Is& is) const {
    if (size_ == 0) return nullptr;
    const size_t at = search(hash, is);
    return cells_[at].used ? &cells_[at].value : nullptr;
  }

  // One that is not there yet.
  void insert(uint32_t hash, Value value) {
    // Never more than half full: a search that ends at a free cell is short.
    if (2 * ++size_ > cells_.size()) grow();
    put({hash, true, std::move(value)});
  }

  // False: it was not there.
  template <class Is>
  bool erase(uint32_t hash, const Is& is) {
    if (size_ == 0) return false;
    size_t hole = search(hash, is);
    if (!cells_[hole].used) return false;
    // Whoever stands behind it, and further from its own place than the hole is, moves up: no mark
    // stays behind that a search would have to pass.
    for (size_t at = next(hole); cells_[at].used; at = next(at)) {
      if (distance(place(cells_[at].hash), at) < distance(hole, at)) continue;
      cells_[hole] = std::move(cells_[at]);
      hole = at;
    }
    cells_[hole] = {};
    --size_;
    return true;
  }

  void clear() {
    cells_.clear();
    size_ = 0;
  }
  size_t size() const { return size_; }

  // For tests: as many are there as are counted, and a search from its own place comes to each.
  bool consistent() const {
    size_t used = 0;
    for (size_t at = 0; at < cells_.size(); ++at) {
      if (!cells_[at].used) continue;
      ++used;
      for (size_t way = place(cells_[at].hash); way != at; way = next(way))
        if (!cells_[way].used) return false;
    }
    return used == size_ && 2 * used <= cells_.size();
  }

 private:
  struct Cell {
    uint32_t hash = 0;
    bool used = false;
    Value value{};
  };

  void swap(HashTable& other) noexcept {
    cells_.swap(other.cells_);
    std::swap(size_, other.size_);
  }
  size_t place(uint32_t hash) const { return hash & (cells_.size() - 1); }
  size_t next(size_t at) const { return (at + 1) & (cells_.size() - 1); }
  size_t distance(size_t from, size_t to) const { return (to - from) & (cells_.size() - 1); }

  // Where it is, or the free cell where the search for it ends.
  template <class Is>
  size_t search(uint32_t hash, const Is& is) const {
    size_t at = place(hash);
    while (cells_[at].used && !(cells_[at].hash == hash && is(cells_[at].value))) at = next(at);
    return at;
  }

  void put(Cell cell) {
    size_t at = place(cell.hash);
    while (cells_[at].used) at = next(at);
    cells_[at] = std::move(cell);
  }

  void grow() {
    std::vector<Cell> before(cells_.empty() ? 16 : 2 * cells_.size());
    before.swap(cells_);
    for (Cell& cell : before)
      if (cell.used) put(std::move(cell));
  }

  std::vector<Cell> cells_;  // a power of two, or none
  size_t size_ = 0;
};

}  // namespace tailrace::scheduler
