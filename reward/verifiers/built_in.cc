#include "reward/verifiers/built_in.h"

#include "reward/verifiers/countdown.h"
#include "reward/verifiers/math.h"
#include "reward/verifiers/number.h"
#include "reward/verifiers/program.h"
#include "reward/verifiers/text_rules.h"

namespace tailrace {

VerifierRegistry built_in_verifiers() {
  VerifierRegistry registry;
  registry.add("countdown", "a formula of the given numbers that reaches the target",
               make_countdown_verifier());
  registry.add("math", "the final answer of the response is right, however it is written",
               make_math_verifier());
  registry.add("number", "the final number of the response is right", make_number_verifier());
  registry.add("program", "a program that passes its tests, run isolated under deadlines",
               make_program_verifier());
  registry.add("text_rules", "required words, a full stop at the end, a bounded length",
               make_text_rules_verifier());
  return registry;
}

}  // namespace tailrace
