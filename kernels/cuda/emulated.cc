// The emulation in place of a GPU: device 0 of a process that runs the kernels' sources on the CPU.
// For tests; `tailrace` itself never links it.
#include "kernels/base/backend.h"
#include "kernels/cuda/host/emulation_control.h"
#include "kernels/cuda/op_table.h"
#include "kernels/cuda/product_table.h"
#include "kernels/cuda/provide.h"

namespace tailrace {
namespace {

BackendFacts emulated_facts() {
  BackendFacts facts;
  facts.built = true;
  facts.architectures = {"emulated"};
  facts.devices = {{.name = "emulated GPU",
                    .architecture = "emulated",
                    .multiprocessors = 1,
                    .total_bytes = int64_t{8} << 30}};
  return facts;
}

}  // namespace

void provide_cuda() {
  provide_backend(DeviceKind::kCuda, {.memory = cuda::emulation::emulated_memory(),
                                      .facts = emulated_facts,
                                      .libraries = nullptr,
                                      .library_products = cuda::proved_products,
                                      .free_bytes = [](int) { return int64_t{8} << 30; },
                                      .make_stream = cuda::emulation::make_stream,
                                      .free_stream = cuda::emulation::free_stream});
  provide_graphs(DeviceKind::kCuda, cuda::emulation::emulated_graphs());
  provide_ops(DeviceKind::kCuda, cuda::op_table());
}

}  // namespace tailrace
