// Whole episodes: 16 groups of 8 on the frozen grid, as one step of the quickstart plays them, with
// a policy of random weights. Shows what environments, tokenizer and executor cost beside the
// engine, which is timed by itself in the same run.
//
// Checked first: the first group plays the same episodes alone as among the others.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/core/geometry.h"
#include "bench/report/program.h"
#include "core/model/model.h"
#include "core/text/tokenizer.h"
#include "rollout/engine/engine.h"
#include "rollout/episode/task_source.h"
#include "rollout/player/player.h"
#include "sandbox/builtin/built_in.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

constexpr int64_t kGroups = 16, kMembers = 8, kContext = 256;

struct Options {
  int steps = 20;
};

std::unique_ptr<text::Tokenizer> make_tokenizer(const std::vector<std::string>& vocabulary) {
  const TemporaryDirectory folder;
  text::write_word_tokenizer(folder.path(), vocabulary);
  return text::load_tokenizer(folder.path());
}

ModelConfig grid_model(const text::Tokenizer& tokenizer) {
  ModelConfig config = geometry("grid", kContext);
  // The tokenizer decides: the table's number is the same as long as the environment's words are.
  config.vocab_size = tokenizer.vocab_size();
  return config;
}

// One rollout worker of one thread.
class GridPlayer {
 public:
  GridPlayer()
      : info_(environments_.source(kEnvironment, {})->info()),
        tokenizer_(make_tokenizer(info_.vocabulary)),
        model_(grid_model(*tokenizer_)),
        engine_(model_, tokenizer_.get(), options_.engine, Stream{}, clock_),
        format_(*tokenizer_),
        player_(engine_, format_, {}, clock_) {
    Parameters parameters(model_.layout());
    init_parameters(model_.config(), 1, parameters);
    weights_ = std::make_shared<PackedWeights>(Stream{}, model_.config(), parameters);
  }

  // By member; the groups of a step have prompts of their own.
  std::map<std::pair<int64_t, int32_t>, Trajectory> play(int64_t step, int64_t num_groups) {
    engine_.install(weights_, step);
    for (int64_t group = 0; group < num_groups; ++group) {
      for (int32_t member = 0; member < kMembers; ++member) {
        EpisodeSpec spec;
        spec.lease.member = {.prompt = step * kGroups + group, .member = member};
        spec.task.seed = sandbox::task_seed(1, false, spec.lease.member.prompt);
        spec.key = member_key(1, Lane::kTrain, spec.lease.member);
        spec.sampling = episode_sampling(options_.sampling, info_, model_.config(), format_);
        spec.limits = episode_limits(options_, info_);
        player_.start(std::move(spec), environments_.source(kEnvironment, {}));
      }
    }
    std::map<std::pair<int64_t, int32_t>, Trajectory> trajectories;
    while (player_.num_running() > 0) {
      for (FinishedEpisode& episode : player_.poll(std::chrono::milliseconds(1))) {
        const auto& member = episode.trajectory.lease.member;
        trajectories[{member.prompt, member.member}] = std::move(episode.trajectory);
      }
    }
    return trajectories;
  }

  const Model& model() const { return model_; }
  double engine_seconds() const { return engine_.stats().busy_seconds; }
  int64_t passes() const { return engine_.stats().steps; }

 private:
  static constexpr const char* kEnvironment = "frozen_grid";
  static RolloutOptions rollout_options() {
    RolloutOptions options;
    options.engine.max_context_tokens = kContext;
    return options;
  }

  sandbox::EnvironmentRegistry environments_ = sandbox::built_in_environments();
  sandbox::EnvironmentInfo info_;
  RolloutOptions options_ = rollout_options();
  std::unique_ptr<text::Tokenizer> tokenizer_;
  Model model_;
  SteadyClock clock_;
  Engine engine_;
  chat::PromptFormat format_;
  Player player_;
  std::shared_ptr<const PackedWeights> weights_;
};

void check_group(GridPlayer& player) {
  // The same step twice: prompts and random numbers of a member follow from it and not from who
  // else plays.
  const auto alone = player.play(0, 1), among = player.play(0, kGroups);
  require(alone.size() == kMembers && among.size() == kGroups * kMembers,
          "{} and {} episodes ended; {} and {} were started", alone.size(), among.size(), kMembers,
          kGroups * kMembers);
  for (const auto& [member, episode] : alone) {
    const Trajectory& other = among.at(member);
    bool same = episode.segments.size() == other.segments.size();
    for (size_t i = 0; same && i < episode.segments.size(); ++i)
      same = episode.segments[i].tokens == other.segments[i].tokens &&
             episode.segments[i].logprobs == other.segments[i].logprobs;
    require(same && episode.num_sampled() > 0,
            "member {} played another episode alone than among "
            "the other groups",
            member.second);
  }
}

void measure(const Options& options, const Program& program) {
  GridPlayer player;
  check_group(player);
  Settings settings;
  describe_geometry("grid", player.model().config(), player.model().layout().num_parameters(),
                    settings);
  settings.emplace_back("environment", "frozen_grid");
  settings.emplace_back("groups", kGroups);
  settings.emplace_back("group_size", kMembers);
  Report report = program.report(settings);

  std::vector<double> wall, cpu, engine, sampled, tokens, passes, rate;
  for (int step = 1; step <= options.steps; ++step) {
    const Stopwatch watch, cpu_watch(CLOCK_PROCESS_CPUTIME_ID);
    const double engine_before = player.engine_seconds();
    const int64_t passes_before = player.passes();
    const auto trajectories = player.play(step, kGroups);
    wall.push_back(1e3 * watch.seconds());
    cpu.push_back(1e3 * cpu_watch.seconds());
    engine.push_back(1e3 * (player.engine_seconds() - engine_before));
    passes.push_back(static_cast<double>(player.passes() - passes_before));
    int64_t num_sampled = 0, num_tokens = 0;
    for (const auto& [member, trajectory] : trajectories) {
      num_sampled += trajectory.num_sampled();
      num_tokens += trajectory.num_tokens();
    }
    sampled.push_back(static_cast<double>(num_sampled));
    tokens.push_back(static_cast<double>(num_tokens));
    // By CPU time, which others on the machine do not lengthen.
    rate.push_back(1e3 * sampled.back() / cpu.back());
  }
  const std::string name = "frozen_grid";
  report.add(name, "step", "ms", wall);
  report.add(name, "engine", "ms", engine);
  report.add(name, "CPU time", "ms", cpu);
  report.add(name, "sampled, CPU time", "tokens/s", rate);
  report.add(name, "sampled", "tokens", sampled);
  report.add(name, "all tokens", "tokens", tokens);
  report.add(name, "forward passes", "passes", passes);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("episodes", TAILRACE_MEASURES, "episodes --steps 50");
  program.fix_threads(1);
  program.flags().option("--steps", options.steps,
                         {.help = "measured steps", .min = 1, .max = 100000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
