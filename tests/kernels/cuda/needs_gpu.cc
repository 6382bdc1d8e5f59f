// Linked to test programs of a real GPU: without one all their tests are skipped, and the reason is
// printed.
#include <gtest/gtest.h>

#include "kernels/base/backend.h"
#include "kernels/cuda/provide.h"

namespace tailrace {
namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    provide_cuda();
    const BackendFacts& facts = backend_facts(DeviceKind::kCuda);
    if (facts.devices.empty()) GTEST_SKIP() << "there is no GPU to test: " << facts.fault;
  }
};

const ::testing::Environment* const g_needs_gpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu);  // GoogleTest owns it

}  // namespace
}  // namespace tailrace
