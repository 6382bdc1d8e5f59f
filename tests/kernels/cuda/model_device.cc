// Linked to tests of the model (tests/core/model), which then run on the GPU of this program.
#include "kernels/cuda/provide.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

const bool g_on_gpu = [] {
  provide_cuda();
  set_rig_device({DeviceKind::kCuda, 0});
  return true;
}();

}  // namespace
}  // namespace tailrace
