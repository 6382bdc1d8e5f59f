#include "cli/prepare/rates.h"

#include <fmt/format.h>

#include "trainer/optimizer.h"

namespace tailrace {

std::string describe_rate(const OptimOptions& optim, int64_t updates) {
  if (optim.schedule == LrSchedule::kConstant && optim.warmup_updates == 0)
    return fmt::format("{}", optim.lr);
  std::string text = fmt::format("{}, {}: {:.3g} in the first update", optim.lr,
                                 name_of(optim.schedule), learning_rate(optim, 1, 0, 0));
  if (updates > 0) {
    const auto share = [&](int64_t before) {
      return static_cast<double>(before) / static_cast<double>(updates);
    };
    text += fmt::format(", {:.3g} in the last", learning_rate(optim, updates, share(updates - 1),
                                                              share(optim.warmup_updates)));
  }
  return text;
}

}  // namespace tailrace
