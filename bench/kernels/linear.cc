#include "kernels/ops/linear.h"

#include <algorithm>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "bench/kernels/cases.h"
#include "kernels/ref/ref.h"

namespace tailrace {

void bench_linear(KernelHarness& bench, int64_t tokens, int64_t in, int64_t out, bool gradients) {
  const std::string name = fmt::format("linear [{}, {}] -> {}", tokens, in, out);
  if (!bench.wants(name)) return;
  std::mt19937 rng(1);
  RandomMatrix x(tokens, in, rng), w(out, in, rng), y(tokens, out, rng), dx(tokens, in, rng),
      dw(out, in, rng);
  const PackedMatrix packed(bench.stream(), w.view), bf16(bench.stream(), w.view, Dtype::kBF16);
  Buffer scratch(linear_grad_workspace_bytes(tokens, out, in));
  Workspace workspace(scratch);
  const double flops = 2.0 * static_cast<double>(tokens * in * out);

  const auto forward = [&] {
    linear(bench.stream(), {.x = x.view, .weight = packed.weight, .y = y.view});
  };
  const auto grad_input = [&] {
    linear_grad_input(bench.stream(), workspace,
                      {.dy = y.view, .weight = packed.weight, .dx = dx.view, .accumulate = false});
  };
  const auto grad_weight = [&] {
    linear_grad_weight(bench.stream(), workspace, {.dy = y.view, .x = x.view, .dweight = dw.view});
  };

  // Rows depend on nothing but themselves: the plain loops compute a few of each result.
  const int64_t few_tokens = std::min<int64_t>(tokens, 9), few_outs = std::min<int64_t>(out, 9);
  RandomMatrix expected(few_tokens, out, rng);
  forward();
  ref::linear(x.view.slice_rows(0, few_tokens), w.view, {}, expected.view);
  require_close(y.view, expected.view, in, name);
  bench.products(name, "forward", flops, forward);
  const auto bf16_row = [&](const std::string& metric, const std::function<void()>& kernel) {
    bench.products(name, metric, flops, kernel, Dtype::kBF16);
  };
  bf16_row("forward, bf16",
           [&] { linear(bench.stream(), {.x = x.view, .weight = bf16.weight, .y = y.view}); });
  if (!gradients) return;

  RandomMatrix expected_dx(few_tokens, in, rng), expected_dw(few_outs, in, rng);
  grad_input();
  ref::linear_grad_input(y.view.slice_rows(0, few_tokens), w.view, expected_dx.view, false);
  require_close(dx.view, expected_dx.view, out, name + ", dx");
  std::ranges::fill(dw.memory.as<float>(), 0.0f);
  std::ranges::fill(expected_dw.memory.as<float>(), 0.0f);
  grad_weight();
  ref::linear_grad_weight(y.view.slice_cols(0, few_outs), x.view, expected_dw.view);
  require_close(dw.view, expected_dw.view, tokens, name + ", dW");
  bench.products(name, "dx", flops, grad_input);
  bench.products(name, "dW", flops, grad_weight);
  bf16_row("dx, bf16", [&] {
    linear_grad_input(bench.stream(), workspace,
                      {.dy = y.view, .weight = bf16.weight, .dx = dx.view, .accumulate = false});
  });
  bf16_row("dW, bf16", [&] {
    linear_grad_weight(bench.stream(), workspace,
                       {.dy = y.view, .x = x.view, .dweight = dw.view, .weight = Dtype::kBF16});
  });
}

}  // namespace tailrace
