// A file of curves that a bench leaves beside its figures.
//
// Thread: any.
#pragma once

#include <string>
#include <vector>

#include "cli/view/chart.h"

namespace tailrace {

// Throws UserError where `file` could not be written: before runs that take hours. Leaves nothing
// behind. An empty name is no plot.
void check_plot(const std::string& file);

// Charts of one size side by side, at most four in a row, as one SVG file. At least one chart.
// Throws UserError.
void write_plot(const std::string& file, std::vector<Chart> charts);

}  // namespace tailrace
