#include "trainer/loss/imitation.h"

#include <iterator>

#include "kernels/base/check.h"

namespace tailrace {

void ImitationOptions::visit(OptionVisitor& v) {
  v.field("coef", coef,
          {.help = "weight of a term that imitates the turns of successes (rewards above 0), each "
                   "as much as it is likely and its return is above 0; 0: off",
           .min = 0,
           .max = 1000});
  v.field("level", level,
          {.help = "how likely a turn is. token_mean: the geometric mean over its tokens; turn: "
                   "their product, as the paper has it, which is nearly 0 for long turns",
           .idle = idle_if(coef == 0, "{coef} is 0", {"coef"})});
}

double turn_probability(ImitationLevel level, std::span<const double> logprob) {
  TR_CHECK(!logprob.empty());
  double sum = 0;
  for (double l : logprob) sum += l;
  return turn_probability(level, sum, std::ssize(logprob));
}

}  // namespace tailrace
