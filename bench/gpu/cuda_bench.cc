// What a GPU gives: tokens a second of decode steps, prefill and training at the sizes of Qwen2.5
// 0.5B, 1.5B and 7B in bfloat16, and the products that they are made of, each against a copy or a
// large product on the same device. There is no sampler and no scheduler here: bench/gpu.sh asks
// whether the backend is fast, before anything is built upon it.
//
// Checked first: products and passes have the same bits in every batch, and are finite. Values are
// held against the CPU's in the tests (test_cuda_gpu, test_cuda_model_gpu), which gpu.sh runs.
#include "bench/gpu/geometries.h"
#include "bench/gpu/parts.h"
#include "bench/report/program.h"
#include "kernels/cuda/provide.h"

int main(int argc, char** argv) {
  using namespace tailrace;
  provide_cuda();
  gpu_bench::Options options;
  Program program("cuda", TAILRACE_MEASURES, "cuda --parts limits,decode --geometry qwen2.5-0.5b");
  program.fix_threads(0);  // of the CPU none computes
  Command& flags = program.flags();
  flags.option("--parts", options.parts, {.help = "what to measure", .one_of = options.parts});
  flags.option("--geometry", options.geometries,
               {.help = "the models", .one_of = gpu_bench::geometry_names()});
  flags.option("--batch", options.batches,
               {.help = "sequences that are decoded together", .min = 1, .max = 1024});
  flags.option("--rows", options.rows, {.help = "rows of products", .min = 1, .max = 65536});
  flags.option("--context", options.context,
               {.help = "tokens of a sequence that is decoded", .min = 1, .max = 131072});
  flags.option("--members", options.members,
               {.help = "sequences that share a prompt", .min = 1, .max = 1024});
  flags.option("--prompt", options.prompt,
               {.help = "tokens of a prompt that is prefilled", .min = 1, .max = 131072});
  flags.option("--tokens", options.tokens,
               {.help = "tokens of an update", .min = 2, .max = 1 << 20});
  flags.option("--sequence", options.sequence,
               {.help = "tokens of a sequence in it", .min = 2, .max = 131072});
  flags.option("--steps", options.steps,
               {.help = "decode steps between two waits", .min = 1, .max = 100000});
  flags.option("--runs", options.sizes.runs, {.help = "runs of each", .min = 1, .max = 10000});
  flags.option("--milliseconds", options.sizes.milliseconds,
               {.help = "how long a product is repeated in a run", .max = 1e6});
  flags.option("--copy-mib", options.sizes.copy_mib,
               {.help = "size of the copy that is the limit", .min = 1, .max = 65536});
  flags.option("--weights-mib", options.sizes.weights_mib,
               {.help = "weights that a product reads in turn", .min = 1, .max = 65536});
  flags.option("--product", options.sizes.product,
               {.help = "size of the product that is the limit", .min = 8, .max = 65536});
  return program.run(argc, argv, [&] {
    const BackendFacts& facts = backend_facts(DeviceKind::kCuda);
    Report report = program.report(gpu_bench::describe(facts),
                                   facts.devices.empty() ? "none" : facts.devices.front().name);
    gpu_bench::measure(options, facts, report);
  });
}
