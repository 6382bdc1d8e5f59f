// The public names of the ops: each runs on the backend of its stream's device.
//
// A second backend becomes a second function pointer of run(), so that an op that lacks it does not
// compile; sizes become the larger of the two.
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/isa.h"
#include "kernels/cpu/isa_paths.h"
#include "kernels/ops/all.h"

namespace tailrace {
namespace {

// type_identity keeps the arguments out of the deduction: the op's own signature decides.
template <class R, class... Parameters>
R run(R (*const (&cpu)[3])(const Stream&, Parameters...), const Stream& stream,
      std::type_identity_t<Parameters>... arguments) {
  TR_CHECK(stream.device.kind == DeviceKind::kCpu, "this build has no ops for a GPU");
  return cpu[static_cast<size_t>(isa())](stream, arguments...);
}

// What needs no stream: sizes.
template <class R, class... Parameters>
R ask(R (*const (&cpu)[3])(Parameters...), std::type_identity_t<Parameters>... arguments) {
  return cpu[static_cast<size_t>(isa())](arguments...);
}

// An op in the order of Isa.
#if defined(__x86_64__)
#define TR_PATHS(op) \
  { cpu::portable::op, cpu::avx2::op, cpu::avx512::op }
#else
#define TR_PATHS(op) \
  { cpu::portable::op, cpu::portable::op, cpu::portable::op }
#endif

}  // namespace

#define TR_OP(op, Args) \
  void op(const Stream& stream, const Args& args) { run(TR_PATHS(op), stream, args); }
#define TR_OP_SCRATCH(op, Args)                                           \
  void op(const Stream& stream, Workspace& workspace, const Args& args) { \
    run(TR_PATHS(op), stream, workspace, args);                           \
  }
#include "kernels/ops/ops.inc"
#undef TR_OP
#undef TR_OP_SCRATCH

Weight pack_weight(const Stream& stream, ConstMatrix master, Dtype dtype,
                   std::span<std::byte> memory) {
  return run(TR_PATHS(pack_weight), stream, master, dtype, memory);
}
size_t weight_bytes(Dtype dtype, int64_t out, int64_t in) {
  return ask(TR_PATHS(weight_bytes), dtype, out, in);
}
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in) {
  return ask(TR_PATHS(linear_grad_workspace_bytes), tokens, out, in);
}
size_t attention_workspace_bytes(int num_threads, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context) {
  return ask(TR_PATHS(attention_workspace_bytes), num_threads, num_heads, num_kv_heads, head_dim,
             max_context);
}
size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim) {
  return ask(TR_PATHS(linear_logprob_workspace_bytes), rows, vocab, dim);
}

}  // namespace tailrace
