// Laminar (arXiv 2510.12633): each replica takes the newest weights when it is free, and none waits
// for the others. Its means over all settings: 2.56 times verl's throughput, 1.39 times AReaL's. No
// row of the list; order only.
//
// Published: models of 7B to 72B on up to 1024 H800; the 99th percentile of lengths is ten times
// the median.
//
// Fitted: nothing; order needs no cost model.
//
// Our choice: 7B on 64 GPUs, half of them training, 256 prompts x 16 responses, a cap of 16k;
// log-normal lengths with sigma 1, whose 99th percentile is ten times the median.
//
// How: verl is synchronous on all GPUs. AReaL stops every engine for new weights, with a second for
// them and KV computed again; its law is ahead = 2. Laminar has install = drained in the same law.
// Repacking of nearly idle replicas is not built: what Laminar gains over AReaL is that, and is
// shown for what the law comes to without it; 5.48 times on 1024 GPUs is not tried.
#include "bench/scheduler/simulate/experiment.h"
#include "bench/scheduler/simulate/harness.h"

namespace tailrace::simulate {
namespace {

double tokens_per_s(const scheduler::Mode& mode, int64_t sampling, int64_t training) {
  simulator::Cluster cluster;
  cluster.pools = {{.workers = sampling,
                    .slots = 128,
                    .hardware = engine_of(kH800, kQwen25_7B, 1),
                    .transfer = {.switch_over = 1}}};
  cluster.trainer.token = train_gpu_seconds(kH800, kQwen25_7B) / static_cast<double>(training);
  return measure(law_of(mode, 256, 16), cluster,
                 {.prompt_tokens = 300, .length = lengths_of(2500, 16384, 1.0)}, 6, 10)
      .tokens_per_s;
}

}  // namespace

std::vector<Cell> run_laminar() {
  scheduler::Mode at_once = ahead_by(2), drained = ahead_by(2);
  drained.install = scheduler::InstallWhen::kDrained;
  const double verl = tokens_per_s({}, 64, 64);
  const double areal = tokens_per_s(at_once, 32, 32), laminar = tokens_per_s(drained, 32, 32);
  return {{.row = "-",
           .what = "over verl (mean of all settings)",
           .unit = "x",
           .published = 2.56,
           .simulated = laminar / verl,
           .bound = Bound::kOrder},
          {.row = "-",
           .what = "over AReaL, without repacking",
           .unit = "x",
           .published = 1.39,
           .simulated = laminar / areal,
           .bound = Bound::kOrder,
           .use = Use::kShown}};
}

}  // namespace tailrace::simulate
