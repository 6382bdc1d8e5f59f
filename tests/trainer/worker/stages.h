// Stages for trainers under test.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/stage.h"

namespace tailrace::testing {

inline RowStage sft_stage(const std::string& data, int64_t batch_tokens = 2048) {
  SftOptions sft;
  sft.data = data;
  sft.batch_tokens = batch_tokens;
  return {.name = "sft", .work = sft};
}

}  // namespace tailrace::testing
