// The public names of the ops: each runs on the backend of its stream's device. The CPU is always
// there; another backend is a table that whoever starts the process has provided.
#include <array>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/base/isa.h"
#include "kernels/cpu/isa_paths.h"
#include "kernels/ops/all.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/prove_products.h"

namespace tailrace {
namespace {

constinit std::array<OpTable, 2> g_tables = {};  // by kind; that of the CPU stays empty

const OpTable& table_of(Device device) {
  const OpTable& table = g_tables[static_cast<size_t>(device.kind)];
  TR_CHECK(table.linear != nullptr, "this process has no ops for a GPU");
  return table;
}
bool is_cpu(Device device) { return device.kind == DeviceKind::kCpu; }

// type_identity keeps the arguments out of the deduction: the op's own signature decides.
template <class R, class... Parameters>
R on_cpu(R (*const (&paths)[4])(Parameters...), std::type_identity_t<Parameters>... arguments) {
  return paths[static_cast<size_t>(isa())](arguments...);
}

// An op in the order of Isa. What a build leaves out is never chosen (is_available).
#if defined(TR_ONLY_ISA)
#define TR_PATHS(op) \
  { cpu::TR_ONLY_ISA::op, cpu::TR_ONLY_ISA::op, cpu::TR_ONLY_ISA::op, cpu::TR_ONLY_ISA::op }
#elif defined(__x86_64__)
#define TR_PATHS(op) \
  { cpu::portable::op, cpu::avx2::op, cpu::avx512::op, cpu::avx512::op }
#else
#define TR_PATHS(op) \
  { cpu::portable::op, cpu::portable::op, cpu::portable::op, cpu::portable::op }
#endif

}  // namespace

void provide_ops(DeviceKind kind, const OpTable& table) {
  TR_CHECK(kind != DeviceKind::kCpu, "the ops of the CPU are chosen by its instruction set");
  g_tables[static_cast<size_t>(kind)] = table;
}

#define TR_OP(op, Args)                                                          \
  void op(const Stream& stream, const Args& args) {                              \
    if (!is_cpu(stream.device)) return table_of(stream.device).op(stream, args); \
    on_cpu(TR_PATHS(op), stream, args);                                          \
  }
#define TR_OP_SCRATCH(op, Args)                                                             \
  void op(const Stream& stream, Workspace& workspace, const Args& args) {                   \
    if (!is_cpu(stream.device)) return table_of(stream.device).op(stream, workspace, args); \
    on_cpu(TR_PATHS(op), stream, workspace, args);                                          \
  }
#include "kernels/ops/common.inc"
#undef TR_OP
#undef TR_OP_SCRATCH

#define TR_OP(op, Args)                                            \
  void op(const Stream& stream, const Args& args) {                \
    TR_CHECK(is_cpu(stream.device), #op " runs on the CPU alone"); \
    on_cpu(TR_PATHS(op), stream, args);                            \
  }
#define TR_OP_SCRATCH(op, Args)                                           \
  void op(const Stream& stream, Workspace& workspace, const Args& args) { \
    TR_CHECK(is_cpu(stream.device), #op " runs on the CPU alone");        \
    on_cpu(TR_PATHS(op), stream, workspace, args);                        \
  }
#include "kernels/ops/cpu.inc"
#undef TR_OP
#undef TR_OP_SCRATCH

#define TR_OP(op, Args)                                           \
  void op(const Stream& stream, const Args& args) {               \
    TR_CHECK(!is_cpu(stream.device), #op " runs on a GPU alone"); \
    table_of(stream.device).op(stream, args);                     \
  }
#include "kernels/ops/gpu.inc"
#undef TR_OP

Weight pack_weight(const Stream& stream, ConstTensor master, Dtype dtype,
                   std::span<std::byte> memory) {
  Weight weight = is_cpu(stream.device)
                      ? on_cpu(TR_PATHS(pack_weight), stream, master.host(), dtype, memory)
                      : table_of(stream.device).pack_weight(stream, master, dtype, memory);
  weight.device = stream.device;
  return weight;
}
void unpack_rows(const Stream& stream, const Weight& weight, int64_t first, Matrix rows) {
  TR_CHECK(weight.device == stream.device, "a weight of device {}", weight.device.index);
  TR_CHECK(first >= 0 && first + rows.rows <= weight.out && rows.cols == weight.in,
           "rows [{}, {}) of {} values of W [{}, {}]", first, first + rows.rows, rows.cols,
           weight.out, weight.in);
  if (!is_cpu(stream.device))
    return table_of(stream.device).unpack_rows(stream, weight, first, rows);
  on_cpu(TR_PATHS(unpack_rows), stream, weight, first, rows);
}
size_t weight_bytes(Dtype dtype, int64_t out, int64_t in, Device device) {
  if (!is_cpu(device)) return table_of(device).weight_bytes(dtype, out, in);
  return on_cpu(TR_PATHS(weight_bytes), dtype, out, in);
}
void prove_products(const Stream& stream, Dtype dtype, int64_t out, int64_t in) {
  if (!is_cpu(stream.device)) table_of(stream.device).prove_products(stream, dtype, out, in);
}
void digest_rows(const Stream& stream, const RowDigests& args) {
  TR_CHECK(!is_cpu(stream.device), "the host digests its own memory");
  table_of(stream.device).digest_rows(stream, args);
}
size_t linear_grad_workspace_bytes(int64_t tokens, int64_t out, int64_t in, Device device) {
  if (!is_cpu(device)) return table_of(device).linear_grad_workspace_bytes(tokens, out, in);
  return on_cpu(TR_PATHS(linear_grad_workspace_bytes), tokens, out, in);
}
size_t attention_workspace_bytes(int num_threads, int num_heads, int num_kv_heads, int head_dim,
                                 int max_context, int64_t rows, Device device) {
  if (!is_cpu(device))
    return table_of(device).attention_workspace_bytes(rows, num_heads, num_kv_heads, head_dim,
                                                      max_context);
  return on_cpu(TR_PATHS(attention_workspace_bytes), num_threads, num_heads, num_kv_heads, head_dim,
                max_context);
}
size_t linear_logprob_workspace_bytes(int64_t rows, int64_t vocab, int64_t dim, Device device) {
  if (!is_cpu(device)) return table_of(device).linear_logprob_workspace_bytes(rows, vocab, dim);
  return on_cpu(TR_PATHS(linear_logprob_workspace_bytes), rows, vocab, dim);
}
size_t muon_workspace_bytes(int64_t rows, int64_t cols) {
  return on_cpu(TR_PATHS(muon_workspace_bytes), rows, cols);
}
size_t sample_workspace_bytes(int64_t rows, int64_t vocab, Device device) {
  if (!is_cpu(device)) return table_of(device).sample_workspace_bytes(rows, vocab);
  return on_cpu(TR_PATHS(sample_workspace_bytes), rows, vocab);
}

}  // namespace tailrace
