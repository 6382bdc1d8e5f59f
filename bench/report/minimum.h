// Where a function of several numbers is least.
//
// Thread: any; `f` is called in the caller's thread.
#pragma once

#include <functional>
#include <vector>

namespace tailrace {

// The best point that the simplex method (Nelder and Mead, 1965) finds in about `evaluations` calls
// of f. It begins with `start` and that point moved by `size` along each axis. Numbers that must
// stay above 0 are handed in as logarithms. `start` is not empty.
std::vector<double> minimise(std::vector<double> start, double size, int evaluations,
                             const std::function<double(const std::vector<double>&)>& f);

}  // namespace tailrace
