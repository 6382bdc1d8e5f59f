// Skips the tests of an instruction set that this machine lacks. Compiled for any machine, unlike
// those tests.
#include <cstdio>

#include <gtest/gtest.h>

#include "kernels/base/isa.h"

// simd_test.cc says which.
extern const char* const tested_isa;

namespace tailrace {
namespace {

class NeedsIsa : public testing::Environment {
 public:
  void SetUp() override {
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16})
      if (name_of(isa) == tested_isa && !is_available(isa)) {
        std::puts("[  SKIPPED ]");  // for ctest: googletest says it of single tests only
        GTEST_SKIP() << "this machine has no " << tested_isa;
      }
  }
};

[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new NeedsIsa);

}  // namespace
}  // namespace tailrace
