// Speed of the products, of attention and of the row-wise ops at the shapes of tiny models, as a
// share of what this machine can do at best, measured in the same run.
#include <initializer_list>
#include <string>
#include <utility>

#include "bench/kernels/cases.h"
#include "bench/report/program.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

struct Options {
  double milliseconds = 150;
  std::string only;
};

void measure(const Options& options, const Program& program) {
  KernelHarness bench(program.report({{"dtype", "fp32"}, {"milliseconds", options.milliseconds}}),
                      program.threads(), 1e-3 * options.milliseconds, options.only);
  bench.limits();
  // The products of "tiny": ffn up and down, q and o, k or v, the head. 1024 x 1024 shows the
  // kernel where edges hardly count.
  for (auto [in, out] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {128, 384}, {384, 128}, {128, 128}, {128, 64}, {128, 512}, {1024, 1024}}) {
    bench_linear(bench, 2048, in, out, /*gradients=*/true);
  }
  // Decoding: a step has one row for each sequence.
  for (int64_t tokens : {1, 2, 4, 8, 64, 128})
    bench_linear(bench, tokens, 128, 384, /*gradients=*/false);
  bench_linear(bench, 64, 64, 64, /*gradients=*/false);
  // A decode step of a head that no cache holds: the bytes of the weights are what it waits for.
  for (int64_t tokens : {1, 8}) bench_linear(bench, tokens, 2048, 40960, /*gradients=*/false);
  // SmolLM2-135M: q, k and v, o, gate and up, down, the head. Decoding, and a micro-batch of
  // training.
  for (auto [in, out] : std::initializer_list<std::pair<int64_t, int64_t>>{
           {576, 960}, {576, 576}, {576, 3072}, {1536, 576}, {576, 49152}}) {
    for (int64_t tokens : {1, 8, 64}) bench_linear(bench, tokens, in, out, /*gradients=*/false);
    if (out < 49152) bench_linear(bench, 1024, in, out, /*gradients=*/true);
  }
  for (const AttentionShape& shape :
       std::initializer_list<AttentionShape>{{16, 128, 128, 4, 2, 32},
                                             {2, 1024, 1024, 4, 2, 32},
                                             {2, 1024, 1024, 4, 2, 32, /*window=*/128},
                                             {16, 128, 128, 8, 4, 64},
                                             {64, 128, 1, 4, 2, 32},
                                             {64, 1024, 1, 9, 3, 64},
                                             {64, 1024, 1, 9, 3, 64, 0, 0, Dtype::kBF16},
                                             {64, 1024, 1, 9, 3, 64, 0, 960},
                                             {16, 128, 128, 9, 3, 64},
                                             {16, 128, 128, 9, 3, 64, 0, 0, Dtype::kBF16},
                                             {64, 160, 1, 9, 3, 64},
                                             {64, 160, 1, 9, 3, 64, 0, 0, Dtype::kBF16},
                                             {1, 4096, 1, 9, 3, 64},
                                             {64, 100, 1, 8, 4, 8}}) {
    bench_attention(bench, shape);
  }
  bench_rows(bench, 2048, 128, 384);
  bench_head(bench, 2048, 128, 512);
  if (!bench.has_measured())
    throw UserError("no case has '{}' in its name; try --only linear", options.only);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("kernels", TAILRACE_MEASURES, "kernels --only attention --threads 1");
  program.flags().option("--milliseconds", options.milliseconds,
                         {.help = "how long each kernel is run", .max = 1e6});
  program.flags().option("--only", options.only,
                         {.help = "only cases with this text in their name"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
