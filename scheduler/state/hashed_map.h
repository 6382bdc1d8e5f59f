// A std::map that finds by hash: in order for whoever goes through it, and a search costs two lines
// of memory instead of one for each level of the tree.
//
// References and iterators live as long as those of a std::map. A copy has its own.
//
// Thread: caller locks.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

#include "kernels/base/check.h"
#include "scheduler/state/hash_table.h"

namespace tailrace::scheduler {

template <class Key, class Value>
class HashedMap {
  using Map = std::map<Key, Value>;

 public:
  using key_type = Key;
  using mapped_type = Value;
  using value_type = typename Map::value_type;
  using iterator = typename Map::iterator;
  using const_iterator = typename Map::const_iterator;

  HashedMap() = default;
  HashedMap(const HashedMap& other) : map_(other.map_) {
    for (auto it = map_.begin(); it != map_.end(); ++it) table_.insert(hash_of(it->first), it);
  }
  HashedMap(HashedMap&& other) noexcept { swap(other); }
  HashedMap& operator=(HashedMap other) noexcept {
    swap(other);
    return *this;
  }

  iterator begin() { return map_.begin(); }
  iterator end() { return map_.end(); }
  const_iterator begin() const { return map_.begin(); }
  const_iterator end() const { return map_.end(); }
  size_t size() const { return map_.size(); }
  bool empty() const { return map_.empty(); }

  iterator find(const Key& key) {
    const iterator* found = search(key);
    return found == nullptr ? map_.end() : *found;
  }
  const_iterator find(const Key& key) const {
    const iterator* found = search(key);
    return found == nullptr ? map_.end() : const_iterator(*found);
  }
  bool contains(const Key& key) const { return search(key) != nullptr; }

  Value& at(const Key& key) { return const_cast<Value&>(std::as_const(*this).at(key)); }
  const Value& at(const Key& key) const {
    const iterator* found = search(key);
    TR_CHECK(found != nullptr, "a map of {} has no such key", map_.size());
    return (*found)->second;
  }

  // A new one, if there is none.
  Value& operator[](const Key& key) {
    if (const iterator* found = search(key)) return (*found)->second;
    // A new key is mostly the last.
    const iterator it = map_.emplace_hint(map_.end(), key, Value());
    table_.insert(hash_of(key), it);
    return it->second;
  }

  // Returns the next one.
  iterator erase(iterator it) {
    table_.erase(hash_of(it->first), [&](const iterator& other) { return other == it; });
    return map_.erase(it);
  }

  void clear() {
    table_.clear();
    map_.clear();
  }

  void swap(HashedMap& other) noexcept {
    map_.swap(other.map_);
    std::swap(table_, other.table_);
  }

  // For tests: the table has what the map has, no less and no more.
  bool consistent() const {
    if (!table_.consistent() || table_.size() != map_.size()) return false;
    for (auto it = map_.begin(); it != map_.end(); ++it) {
      const iterator* found = search(it->first);
      if (found == nullptr || const_iterator(*found) != it) return false;
    }
    return true;
  }

  friend bool operator==(const HashedMap& a, const HashedMap& b) { return a.map_ == b.map_; }

 private:
  const iterator* search(const Key& key) const {
    return table_.find(hash_of(key), [&](const iterator& it) { return it->first == key; });
  }

  Map map_;
  HashTable<iterator> table_;
};

}  // namespace tailrace::scheduler
