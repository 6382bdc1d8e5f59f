// How many tokens a second the decode engine samples and prefills, by batch size and threads.
//
//   bench_engine [--json]
//
// Geometries (random weights, context 128): `tiny` 4 x 128 (4/2 heads, ffn 384, vocab 512) and
// `grid` 3 x 64 (4/2 heads, ffn 192, vocab 44). Decode: prompts of 64 tokens are prefilled, then 64
// tokens a sequence are sampled; only the sampling steps are timed. The limit beside it is the same
// multiply-adds at the rate of one large product on the same threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "rollout/engine/engine.h"

namespace tailrace {
namespace {

constexpr int64_t kPrompt = 64, kNew = 64;
constexpr int kRepeats = 5;

struct Geometry {
  std::string name;
  int64_t layers, hidden, heads, kv_heads, ffn, vocab;

  ModelConfig config() const {
    ModelConfig config;
    config.num_layers = layers;
    config.hidden_size = hidden;
    config.num_heads = heads;
    config.num_kv_heads = kv_heads;
    config.head_dim = hidden / heads;
    config.intermediate_size = ffn;
    config.vocab_size = vocab;
    config.max_positions = kPrompt + kNew;
    return config;
  }
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of all threads of the process: what a shared machine cannot distort.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Spread {
  double median = 0, low = 0, high = 0;
};

Spread spread(std::vector<double> values) {
  std::ranges::sort(values);
  return {values[values.size() / 2], values.front(), values.back()};
}

struct Rates {
  Spread decode, prefill;       // tokens/s
  double decode_per_cpu_s = 0;  // tokens for each second of CPU time, median
};

Rates measure(const Model& model, const Parameters& parameters, int64_t batch, int threads) {
  ThreadPool pool(threads);
  Stream stream{.device = {}, .pool = &pool, .native = nullptr};
  SteadyClock clock;
  EngineOptions options;
  options.max_context_tokens = kPrompt + kNew;
  options.max_sequences = batch;
  options.max_batch_tokens = std::max<int64_t>(512, batch);
  Engine engine(model, nullptr, options, stream, clock);
  engine.install(std::make_shared<PackedWeights>(stream, model.config(), parameters), 0);
  std::vector<double> decode, prefill, decode_cpu;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {  // the first one warms up
    for (SessionId session = 0; session < batch; ++session) {
      Rng rng(mix({static_cast<uint64_t>(repeat), static_cast<uint64_t>(session)}));
      GenerateRequest request;
      request.session = session;
      for (int64_t i = 0; i < kPrompt; ++i)
        request.new_tokens.push_back(static_cast<TokenId>(rng.below(model.config().vocab_size)));
      request.sampling.max_new_tokens = kNew - 1;
      request.key = {rng.next_u32()};
      engine.submit(std::move(request));
    }
    auto start = std::chrono::steady_clock::now();
    int64_t wanted = engine.stats().prefill_tokens + batch * kPrompt;
    while (engine.stats().prefill_tokens < wanted) (void)engine.step();
    double prefill_s = seconds_since(start);
    int64_t before = engine.stats().sampled_tokens;
    start = std::chrono::steady_clock::now();
    double cpu_start = cpu_seconds();
    while (!engine.idle()) (void)engine.step();
    double decode_s = seconds_since(start), cpu_s = cpu_seconds() - cpu_start;
    for (SessionId session = 0; session < batch; ++session) engine.release(session);
    if (repeat == 0) continue;
    prefill.push_back(static_cast<double>(batch * kPrompt) / prefill_s);
    auto sampled = static_cast<double>(engine.stats().sampled_tokens - before);
    decode.push_back(sampled / decode_s);
    decode_cpu.push_back(sampled / cpu_s);
  }
  return {spread(decode), spread(prefill), spread(decode_cpu).median};
}

// FLOP/s of y = x W^T with 256 rows, 512 x 512.
double product_rate(int threads) {
  constexpr int64_t kRows = 256, kSize = 512;
  ThreadPool pool(threads);
  Stream stream{.device = {}, .pool = &pool, .native = nullptr};
  Buffer x(kRows * kSize * sizeof(float)), w(kSize * kSize * sizeof(float)),
      y(kRows * kSize * sizeof(float)),
      panels(static_cast<size_t>(packed_weight_size(kSize, kSize)) * sizeof(float));
  PackedWeight packed =
      pack_weight(stream, {w.as<float>().data(), kSize, kSize}, panels.as<float>());
  double best = 0;
  for (int repeat = 0; repeat < 20; ++repeat) {
    auto start = std::chrono::steady_clock::now();
    linear(stream, {x.as<float>().data(), kRows, kSize}, packed, {},
           {y.as<float>().data(), kRows, kSize});
    best = std::max(best, 2.0 * kRows * kSize * kSize / seconds_since(start));
  }
  return best;
}

int run(bool json) {
  const Geometry geometries[] = {{"tiny", 4, 128, 4, 2, 384, 512}, {"grid", 3, 64, 4, 2, 192, 44}};
  if (!json) {
    fmt::print("{:<6} {:>7} {:>6} {:>14} {:>23} {:>10} {:>14} {:>8}\n", "model", "threads", "batch",
               "decode tok/s", "(low .. high)", "per CPU s", "prefill tok/s", "of limit");
  }
  for (const Geometry& geometry : geometries) {
    Model model(geometry.config());
    Parameters parameters(model.layout());
    init_parameters(model.config(), 1, parameters);
    double flop_per_token = 2.0 * static_cast<double>(model.layout().num_parameters() -
                                                      geometry.vocab * geometry.hidden);
    for (int threads : {1, 2}) {
      double limit = product_rate(threads) / flop_per_token;
      for (int64_t batch : {1, 8, 64, 128}) {
        Rates rates = measure(model, parameters, batch, threads);
        if (json) {
          fmt::print(
              "{{\"model\":\"{}\",\"threads\":{},\"batch\":{},\"decode_tokens_per_s\":{:.0f},"
              "\"decode_low\":{:.0f},\"decode_high\":{:.0f},\"decode_tokens_per_cpu_s\":{:.0f},"
              "\"prefill_tokens_per_s\":{:.0f},\"limit_tokens_per_s\":{:.0f}}}\n",
              geometry.name, threads, batch, rates.decode.median, rates.decode.low,
              rates.decode.high, rates.decode_per_cpu_s, rates.prefill.median, limit);
        } else {
          fmt::print(
              "{:<6} {:>7} {:>6} {:>14.0f} {:>11.0f} ..{:>9.0f} {:>10.0f} {:>14.0f} {:>7.0f}%\n",
              geometry.name, threads, batch, rates.decode.median, rates.decode.low,
              rates.decode.high, rates.decode_per_cpu_s, rates.prefill.median,
              100 * rates.decode.median / limit);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  return tailrace::run(json);
}
