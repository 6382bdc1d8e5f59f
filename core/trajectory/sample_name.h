// Names of samples as people write them: "prompt=12 member=3", or all that logs and rows print.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/ids.h"
#include "core/base/result.h"

namespace tailrace {

// to_string() of its lease; " lane=eval" behind it where it is a held-out one.
std::string sample_name(const BodyId& id);
// The whole of it, in any order.
Result<BodyId> parse_sample_name(std::string_view text);

// The given parts of a name; the rest may be anything.
struct SampleQuery {
  std::optional<Lane> lane;
  std::optional<int64_t> policy, dataset, epoch, prompt, launch, member, attempt;

  bool matches(const BodyId& id) const;
};

// Words "key=value", with blanks between them or each on its own. A Failure says which word is
// wrong, and what the keys are.
Result<SampleQuery> parse_sample_query(std::span<const std::string> words);

}  // namespace tailrace
