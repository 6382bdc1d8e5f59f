// The version of the weights that a trainer holds, and what it last said of it.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/digest.h"
#include "core/base/metric_list.h"

namespace tailrace {

struct HeldVersion {
  int64_t version = -1;   // -1: none yet
  Digest digest, master;  // as published, as trained
  std::string manifest;   // the file below RUN/weights
  MetricList metrics;     // of the step that made it; Published may be lost
};

}  // namespace tailrace
