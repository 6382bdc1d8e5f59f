// The routers of a sparse model: `chosen` of `experts` in each of its sparse layers. All 0: none.
#pragma once

#include <cstdint>

namespace tailrace {

struct ExpertShape {
  int32_t sparse_layers = 0, chosen = 0, experts = 0;

  int64_t per_token() const { return int64_t{sparse_layers} * chosen; }
  friend bool operator==(const ExpertShape&, const ExpertShape&) = default;
};

}  // namespace tailrace
