#include "trainer/shared_prefix.h"

#include <algorithm>

namespace tailrace {

SharedPrefixes::Place SharedPrefixes::add(std::span<const TokenId> tokens, int64_t unscored) {
  Place place;
  const auto most = tokens.first(static_cast<size_t>(std::max<int64_t>(0, unscored)));
  for (size_t i = 0; i < sequences_.size() && place.tokens < unscored; ++i) {
    const auto common = std::ranges::mismatch(most, sequences_[i]).in1 - most.begin();
    if (common > place.tokens && 2 * common >= unscored)
      place = {.parent = static_cast<int32_t>(i), .tokens = common};
  }
  sequences_.push_back(tokens);
  return place;
}

}  // namespace tailrace
