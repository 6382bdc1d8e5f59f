#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/kernels/cases.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/swiglu.h"
#include "kernels/ref/ref.h"

namespace tailrace {
namespace {

// One row.
Matrix row_of(std::vector<float>& values) {
  return {values.data(), 1, static_cast<int64_t>(values.size())};
}

double bytes_of(int num_matrices, int64_t rows, int64_t cols) {
  return static_cast<double>(num_matrices * rows * cols) * sizeof(float);
}

void bench_norm(KernelHarness& bench, int64_t tokens, int64_t dim) {
  const std::string name = fmt::format("rms_norm [{}, {}]", tokens, dim);
  if (!bench.wants(name)) return;
  constexpr float kEps = 1e-5f;
  std::mt19937 rng(3);
  RandomMatrix x(tokens, dim, rng), y(tokens, dim, rng), dy(tokens, dim, rng), dx(tokens, dim, rng),
      expected(tokens, dim, rng);
  std::vector<float> weight(static_cast<size_t>(dim), 1.5f), dweight(weight.size()),
      expected_dweight(weight.size()), inv_rms(static_cast<size_t>(tokens)), expected_inv(inv_rms);

  const auto forward = [&] {
    rms_norm(bench.stream(),
             {.x = x.view, .weight = weight, .eps = kEps, .y = y.view, .inv_rms = inv_rms});
  };
  // As training does: added to the gradient of the residual stream.
  const auto backward = [&] {
    rms_norm_backward(bench.stream(), {.x = x.view,
                                       .weight = weight,
                                       .inv_rms = inv_rms,
                                       .dy = dy.view,
                                       .dx = dx.view,
                                       .accumulate = true,
                                       .dweight = dweight});
  };
  forward();
  ref::rms_norm(x.view, weight, kEps, expected.view, expected_inv);
  require_close(y.view, expected.view, dim, name);
  std::ranges::copy(dx.memory.as<float>(), expected.memory.as<float>().begin());
  backward();
  ref::rms_norm_backward(x.view, weight, inv_rms, dy.view, expected.view, true, expected_dweight);
  require_close(dx.view, expected.view, dim, name + ", dx");
  require_close(row_of(dweight), row_of(expected_dweight), tokens, name + ", dweight");
  // x is read, y written.
  bench.traffic(name, "forward", bytes_of(2, tokens, dim), forward);
  // x, dy and dx are read, dx is written.
  bench.traffic(name, "gradients", bytes_of(4, tokens, dim), backward);
}

void bench_activation(KernelHarness& bench, int64_t tokens, int64_t ffn) {
  const std::string name = fmt::format("swiglu [{}, {}]", tokens, ffn);
  if (!bench.wants(name)) return;
  std::mt19937 rng(4);
  RandomMatrix gate(tokens, ffn, rng), up(tokens, ffn, rng), y(tokens, ffn, rng),
      dgate(tokens, ffn, rng), dup(tokens, ffn, rng), expected(tokens, ffn, rng),
      expected_dup(tokens, ffn, rng);
  const auto forward = [&] {
    swiglu(bench.stream(), {.gate = gate.view, .up = up.view, .y = y.view});
  };
  const auto backward = [&] {
    swiglu_backward(
        bench.stream(),
        {.gate = gate.view, .up = up.view, .dy = y.view, .dgate = dgate.view, .dup = dup.view});
  };
  // An element is a handful of roundings and one exp.
  constexpr int64_t kTerms = 4;
  forward();
  ref::swiglu(gate.view, up.view, expected.view);
  require_close(y.view, expected.view, kTerms, name);
  backward();
  ref::swiglu_backward(gate.view, up.view, y.view, expected.view, expected_dup.view);
  require_close(dgate.view, expected.view, kTerms, name + ", dgate");
  require_close(dup.view, expected_dup.view, kTerms, name + ", dup");
  // Two are read, one is written.
  bench.traffic(name, "forward", bytes_of(3, tokens, ffn), forward);
  // Three are read, two are written.
  bench.traffic(name, "gradients", bytes_of(5, tokens, ffn), backward);
}

}  // namespace

void bench_rows(KernelHarness& bench, int64_t tokens, int64_t dim, int64_t ffn) {
  bench_norm(bench, tokens, dim);
  bench_activation(bench, tokens, ffn);
}

void bench_head(KernelHarness& bench, int64_t tokens, int64_t dim, int64_t vocab) {
  const std::string name = fmt::format("linear_logprob [{}, {}] -> {}", tokens, dim, vocab);
  if (!bench.wants(name)) return;
  std::mt19937 rng(5);
  const Stream& stream = bench.stream();
  RandomMatrix x(tokens, dim, rng), dx(tokens, dim, rng), expected_dx(tokens, dim, rng);
  RandomMatrix weight(vocab, dim, rng, 0.1f), dweight(vocab, dim, rng),
      expected_dweight(vocab, dim, rng);
  std::vector<float> logprob(static_cast<size_t>(tokens)), lse(logprob), entropy(logprob),
      expected(logprob), expected_lse(logprob), expected_entropy(logprob),
      dlogprob(logprob.size(), 0.5f);
  const PackedMatrix packed(stream, weight.view);
  Buffer scratch(linear_logprob_workspace_bytes(tokens, vocab, dim));
  Workspace workspace(scratch);
  std::vector<int32_t> targets(static_cast<size_t>(tokens));
  for (size_t i = 0; i < targets.size(); ++i)
    targets[i] = static_cast<int32_t>(i % static_cast<size_t>(vocab));

  const LogprobHead head{.hidden = x.view, .weight = packed.weight, .targets = targets};
  LogprobGradient gradient{.lse = lse,
                           .entropy = entropy,
                           .dlogprob = dlogprob,
                           .dentropy = {},
                           .dhidden = dx.view,
                           .dweight = dweight.view};
  const auto forward = [&] {
    linear_logprob(stream, workspace,
                   {.head = head, .out = {.logprob = logprob, .lse = lse, .entropy = entropy}});
  };
  const auto backward = [&] {
    linear_logprob_backward(stream, workspace, {.head = head, .gradient = gradient});
  };
  forward();
  ref::linear_logprob(head, weight.view,
                      {.logprob = expected, .lse = expected_lse, .entropy = expected_entropy});
  require_close(row_of(logprob), row_of(expected), dim, name);
  require_close(row_of(entropy), row_of(expected_entropy), vocab, name + ", entropy");
  std::ranges::fill(dweight.memory.as<float>(), 0.0f);
  std::ranges::fill(expected_dweight.memory.as<float>(), 0.0f);
  backward();
  gradient.dhidden = expected_dx.view;
  gradient.dweight = expected_dweight.view;
  ref::linear_logprob_backward(head, weight.view, gradient);
  gradient.dhidden = dx.view;
  gradient.dweight = dweight.view;
  require_close(dx.view, expected_dx.view, vocab, name + ", dx");
  require_close(dweight.view, expected_dweight.view, tokens, name + ", dweight");
  const double flops = 2.0 * static_cast<double>(tokens * vocab * dim);
  bench.products(name, "forward", flops, forward);
  // The logits again, dx and dW: forward has kept no [tokens, vocab].
  bench.products(name, "gradients", 3 * flops, backward);
}

}  // namespace tailrace
