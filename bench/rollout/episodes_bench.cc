// Whole episodes: 16 groups of 8 on the frozen grid, as one step of the quickstart plays them, with
// a policy of random weights (3 x 64). Shows what environments, tokenizer and executor cost beside
// the engine, which is timed by itself in the same run.
//
//   bench_episodes
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/model/model.h"
#include "core/text/tokenizer.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/sampler.h"
#include "rollout/episode/episode_runner.h"
#include "rollout/episode/task_source.h"
#include "sandbox/builtin/built_in.h"

namespace tailrace {
namespace {

constexpr int kSteps = 20;

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void run() {
  sandbox::EnvironmentRegistry environments = sandbox::built_in_environments();
  const sandbox::EnvironmentInfo info = environments.make("frozen_grid", {})->info();
  std::string folder = (std::filesystem::temp_directory_path() / "tailrace_bench_XXXXXX").string();
  TR_CHECK(::mkdtemp(folder.data()) != nullptr, "{}", folder);
  text::write_word_tokenizer(folder, info.vocabulary);
  auto tokenizer = text::load_tokenizer(folder);
  std::filesystem::remove_all(folder);

  ModelConfig config;
  config.num_layers = 3;
  config.hidden_size = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 192;
  config.vocab_size = tokenizer->vocab_size();
  config.max_positions = 256;
  Model model(config);
  Parameters parameters(model.layout());
  init_parameters(config, 1, parameters);

  RolloutOptions options;
  options.engine.max_context_tokens = 256;
  SteadyClock clock;
  Engine engine(model, tokenizer.get(), options.engine, Stream{}, clock);
  EpisodeRunner runner(engine, *tokenizer, {}, clock);
  auto weights = std::make_shared<PackedWeights>(Stream{}, config, parameters);

  std::vector<double> wall, cpu;
  double engine_before = 0;
  int64_t sampled = 0, tokens = 0;
  for (int64_t step = 0; step <= kSteps; ++step) {  // the first one warms up
    if (step == 1) {
      engine_before = engine.stats().busy_seconds;
      sampled = tokens = 0;
    }
    auto start = std::chrono::steady_clock::now();
    double cpu_start = cpu_seconds();
    engine.install(weights, step);
    for (int64_t prompt = 0; prompt < 16; ++prompt) {
      for (int32_t member = 0; member < 8; ++member) {
        EpisodeSpec spec;
        spec.lease.member = {.prompt = step * 16 + prompt, .member = member};
        spec.task.seed = sandbox::task_seed(1, false, spec.lease.member.prompt);
        spec.key = member_key(1, Lane::kTrain, spec.lease.member);
        spec.sampling = episode_sampling(options.sampling, info, config, *tokenizer);
        spec.limits = episode_limits(options, info);
        runner.start(std::move(spec), environments.make("frozen_grid", {}));
      }
    }
    while (runner.num_running() > 0) {
      for (const FinishedEpisode& episode : runner.poll(std::chrono::milliseconds(1))) {
        sampled += episode.trajectory.num_sampled();
        tokens += episode.trajectory.num_tokens();
      }
    }
    if (step == 0) continue;
    wall.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    cpu.push_back(cpu_seconds() - cpu_start);
  }
  double engine_s = (engine.stats().busy_seconds - engine_before) / kSteps;
  std::ranges::sort(wall);
  std::ranges::sort(cpu);
  fmt::print(
      "128 episodes a step: {:.1f} ms wall (median; {:.1f} .. {:.1f}), {:.1f} ms CPU, engine "
      "{:.1f} ms "
      "wall\n{} tokens, {} sampled a step; {:.0f} sampled tokens per CPU second, {:.0f} passes\n",
      1e3 * wall[wall.size() / 2], 1e3 * wall.front(), 1e3 * wall.back(), 1e3 * cpu[cpu.size() / 2],
      1e3 * engine_s, tokens / kSteps, sampled / kSteps,
      static_cast<double>(sampled) / kSteps / cpu[cpu.size() / 2],
      static_cast<double>(engine.stats().steps) / (kSteps + 1));
}

}  // namespace
}  // namespace tailrace

int main() { tailrace::run(); }
