// Why a worker could not stage weights, or not switch to them (law 9.7). The numbers are on disk:
// new ones are added behind.
#pragma once

#include <cstdint>

#include "core/base/enum_names.h"

namespace tailrace {

enum class InstallCause : uint8_t {
  kOther,
  kSource,  // where the weights are to come from is dead, or has not got them
  kBase,    // they are a difference to weights that the worker does not hold
  kDigest,  // what came is not what was published
};
constexpr auto enum_names(InstallCause) {
  return name_table<InstallCause>({{InstallCause::kOther, "other"},
                                   {InstallCause::kSource, "source"},
                                   {InstallCause::kBase, "base"},
                                   {InstallCause::kDigest, "digest"}});
}

// The worker did nothing wrong: it is asked again, and nothing is held against it.
inline bool is_no_fault(InstallCause cause) {
  return cause == InstallCause::kSource || cause == InstallCause::kBase;
}

}  // namespace tailrace
