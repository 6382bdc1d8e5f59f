// The policy's texts at the beginning of a run and at its end, side by side, for the report.
//
// Thread: any.
#pragma once

#include <span>
#include <string>

#include "cli/view/samples.h"

namespace tailrace {

// Up to four samples of the first and of the last step that have any; those of one prompt stand
// beside each other. Empty where there are none.
std::string samples_section(std::span<const Sample> samples);

}  // namespace tailrace
