// Runs work on several ranks of this process.
#pragma once

#include <future>
#include <memory>
#include <vector>

#include "core/collective/gloo.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::testing {

// Runs `work` on each of so many ranks; what each returns, in their order. One rank is alone.
template <class Work>
auto on_ranks(int size, const Work& work) {
  const TemporaryDirectory folder;
  std::vector<std::future<decltype(work(nullptr))>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      std::unique_ptr<Collective> group;
      if (size > 1) group = join_ranks({.folder = folder.path(), .rank = rank, .size = size});
      return work(group.get());
    }));
  }
  std::vector<decltype(work(nullptr))> results;
  for (auto& rank : ranks) results.push_back(rank.get());
  return results;
}

}  // namespace tailrace::testing
