// A fixed number of ranks that compute one thing together: each calls the same functions in the
// same order, and each call returns when the ranks that it needs have called it too.
//
// Results are the same, bit for bit, on every rank and in every run: sums are made in a tree that
// the number of ranks fixes, whoever comes first.
//
// A rank that dies or stands still is a RankLost in the others, within the backend's deadline. The
// collective is spent then: every later call throws too, and the ranks that are left form a new
// one.
//
// Thread: one at a time. Waits beat the caller's pulse.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

namespace tailrace {

struct RankLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;  // from 0
  virtual int size() const = 0;

  // values [n], n the same everywhere: on return the sum over ranks. Each element is joined in a
  // binary tree over the ranks, ((0 + 1) + (2 + 3)) + ...: with a power of two of them it goes on
  // where a tree over parts within each rank ends.
  virtual void sum(std::span<float> values) = 0;
  // Sets the bytes of every rank to those of rank 0.
  virtual void broadcast(std::span<std::byte> bytes) = 0;
  // The bytes of each rank, in the order of the ranks; sizes may differ.
  virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) = 0;
};

}  // namespace tailrace
