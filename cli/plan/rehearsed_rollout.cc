#include "cli/plan/rehearsed_rollout.h"

#include <algorithm>
#include <barrier>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "cli/plan/fit.h"
#include "cli/plan/quiet_clock.h"
#include "cli/simulate/simulation.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/machine.h"
#include "core/base/random.h"
#include "core/chat/prompt_format.h"
#include "core/model/placement.h"
#include "core/text/dataset.h"
#include "core/text/tokenizer.h"
#include "kernels/base/backend.h"
#include "reward/judge.h"
#include "reward/registry.h"
#include "rollout/engine/engine.h"
#include "rollout/episode/task_source.h"
#include "rollout/player/player.h"
#include "rollout/worker/weight_stage.h"
#include "sandbox/registry.h"

namespace tailrace {
namespace {

constexpr double kPointSeconds = 0.25;  // of decode steps at one batch and context
constexpr double kDecodeSeconds = 25;   // of all such points together; the first ones are measured
constexpr int64_t kMostPasses = 48, kFewestPasses = 3;
constexpr int64_t kPrefillTokens = 512;  // that are measured, where prompts are so long together

}  // namespace

struct RehearsedRollout::Worker {
  Worker(const RolloutWorkerConfig& config, const text::Tokenizer& tokenizer)
      : pool(static_cast<int>(config.rollout.threads)),
        model(config.model, config.rollout.engine.max_context_tokens,
              Placement::on(config.device, config.compute)),
        stream(config.device, &pool),
        engine(model, &tokenizer, config.rollout.engine, stream.get(), clock),
        stage(config.model, config.compute.weights, stream.get(),
              {.fetch = weights_in(config.run.weights()),
               .base = config.model.lora ? load_frozen_base(stream.get(), config.base_dir,
                                                            config.model, config.compute.weights)
                                         : FrozenBase{}}) {}

  void install(const WeightManifest& manifest, const std::string& file) {
    const WeightVersion version{manifest.version, manifest.root};
    stage.ask(version, file);
    // It waits for nobody: nothing samples.
    const auto staged = stage.poll(/*samples=*/false);
    if (!staged || staged->failure)
      throw UserError("{}", staged ? staged->failure->message : "no version was staged");
    stage.order_switch(version);
    const auto switched = stage.poll_switch(/*may_change=*/true);
    if (!switched || switched->failure)
      throw UserError("{}", switched ? switched->failure->message : "no version was installed");
    if (switched->weights) engine.install(switched->weights, version.version);
  }

  // Submits prompts of random tokens whose answers end by length alone.
  void submit(int64_t sequences, int64_t share, int64_t prompt, int64_t answer,
              SamplingParams sampling) {
    std::vector<TokenId> tokens;
    sampling.max_new_tokens = answer;
    for (int64_t i = 0; i < sequences; ++i) {
      // Members of a group share the KV of their prompt, as in the run.
      if (i % share == 0) {
        tokens.clear();
        for (int64_t t = 0; t < prompt; ++t)
          tokens.push_back(static_cast<TokenId>(rng.below(model.config().num_ids())));
      }
      GenerateRequest request{
          .session = next_session++, .new_tokens = tokens, .sampling = sampling, .key = {}};
      request.key.value = static_cast<uint64_t>(request.session);
      engine.submit(std::move(request));
    }
  }

  void finish() {
    while (!engine.idle()) engine.step();
    for (; released < next_session; ++released) engine.release(released);
  }

  SteadyClock clock;
  ThreadPool pool;
  Model model;
  OwnedStream stream;
  Engine engine;
  WeightStage stage;
  Rng rng{1};
  SessionId next_session = 1, released = 1;  // all are released between two measurements
};

namespace {

std::unique_ptr<text::Tokenizer> tokenizer_of(const RolloutWorkerConfig& config) {
  return text::load_tokenizer(config.tokenizer_dir);
}

}  // namespace

RehearsedRollout::RehearsedRollout(const RolloutWorkerConfig& config, int64_t workers,
                                   const Registries& registries)
    : config_(config), registries_(registries), tokenizer_(tokenizer_of(config)) {
  for (int64_t i = 0; i < workers; ++i)
    workers_.push_back(std::make_unique<Worker>(config_, *tokenizer_));
}

RehearsedRollout::~RehearsedRollout() = default;

void RehearsedRollout::all(const std::function<void(Worker&, size_t)>& work) {
  std::mutex mutex;
  std::exception_ptr failed;
  const auto guarded = [&](size_t i) {
    try {
      work(*workers_[i], i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      failed = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < workers_.size(); ++i) threads.emplace_back([&, i] { guarded(i); });
    guarded(0);
  }
  if (failed) std::rethrow_exception(failed);
}

double RehearsedRollout::crowding() const {
  // QuietClock leaves out the time in which threads stand in a queue for a core. Where the run's
  // own threads are more than the cores, that wait is the run's, and is put back as a factor.
  const auto threads =
      static_cast<double>(std::ssize(workers_)) * static_cast<double>(config_.rollout.threads);
  return std::max(1.0, threads / static_cast<double>(num_usable_cores()));
}

double RehearsedRollout::install(const RehearsedTrainer::Published& version) {
  std::vector<double> seconds(workers_.size());
  all([&](Worker& worker, size_t i) {
    const QuietClock watch;
    worker.install(version.manifest, version.file);
    seconds[i] = watch.seconds();
  });
  return crowding() * std::ranges::max(seconds);
}

namespace {

// The median of decode steps of `batch` sequences, and the tokens of KV that they hold then.
template <class Worker>
DecodePoint decode_point(Worker& worker, int64_t batch, int64_t share, int64_t prompt,
                         const RolloutWorkerConfig& config) {
  const int64_t room = config.rollout.engine.max_context_tokens - prompt;
  // A few tokens more than are measured: the first steps prefill, and do not count.
  const int64_t answer = std::max<int64_t>(1, std::min(room, kMostPasses + 16));
  worker.submit(batch, share, prompt, answer, config.rollout.sampling.params());
  std::vector<double> seconds;
  double context = 0, passed = 0;
  EngineStats before = worker.engine.stats();
  while (!worker.engine.idle()) {
    const QuietClock watch;
    worker.engine.step();
    const double took = watch.seconds();
    const EngineStats after = worker.engine.stats();
    // Steps in which all decode and none is prefilled.
    if (after.prefill_tokens == before.prefill_tokens &&
        after.decode_tokens - before.decode_tokens == batch) {
      seconds.push_back(took);
      passed += took;
      context += static_cast<double>(batch) * static_cast<double>(prompt + std::ssize(seconds));
      if ((passed > kPointSeconds && std::ssize(seconds) >= kFewestPasses) ||
          std::ssize(seconds) >= kMostPasses)
        break;
    }
    before = after;
  }
  // Sequences that still decode are given up.
  for (; worker.released < worker.next_session; ++worker.released)
    worker.engine.release(worker.released);
  worker.finish();
  if (seconds.empty()) return {};
  context /= static_cast<double>(seconds.size());
  std::ranges::sort(seconds);
  return {static_cast<double>(batch), context, seconds[seconds.size() / 2]};
}

// Batches and prompts in the order in which they are worth measuring.
std::vector<std::pair<int64_t, int64_t>> decode_points(int64_t batch, int64_t prompt,
                                                       int64_t late) {
  std::vector<std::pair<int64_t, int64_t>> points = {{batch, prompt}, {1, prompt}, {batch, late}};
  for (int64_t smaller = batch / 2; smaller > 1; smaller /= 2) {
    points.emplace_back(smaller, prompt);
    if (smaller * 4 >= batch) points.emplace_back(smaller, late);
  }
  points.emplace_back(1, late);
  std::vector<std::pair<int64_t, int64_t>> unique;
  for (const auto& point : points)
    if (std::ranges::find(unique, point) == unique.end()) unique.push_back(point);
  return unique;
}

}  // namespace

simulator::Hardware RehearsedRollout::measure(const Largest& largest) {
  const EngineOptions& engine = config_.rollout.engine;
  simulator::Hardware hardware;
  hardware.name = "this machine";
  const int64_t kv_tokens = workers_.front()->engine.num_blocks() * engine.block_tokens;
  hardware.kv_tokens = kv_tokens;
  // Room for a few tokens behind each context.
  const int64_t last = std::max<int64_t>(1, engine.max_context_tokens - 8);
  const int64_t prompt = std::clamp<int64_t>(largest.prompt, 1, last);
  const int64_t late = std::clamp<int64_t>(largest.context, prompt, last);
  const int64_t batch = std::clamp<int64_t>(
      std::min(largest.batch, kv_tokens / (late + kMostPasses + 16 + engine.block_tokens)), 1,
      engine.max_sequences);
  const auto points = decode_points(batch, prompt, late);
  std::vector<std::vector<DecodePoint>> found(workers_.size());
  std::vector<double> prefill(workers_.size());
  std::barrier meet(std::ssize(workers_));
  std::atomic<bool> enough = false;
  const Time begin = steady_now();
  const auto measure_worker = [&](Worker& worker, size_t i) {
    worker.rng = Rng(i + 1);
    for (const auto& [sequences, context] : points) {
      // All workers measure the same point at the same time, as they sample in the run: they share
      // the memory's bandwidth.
      meet.arrive_and_wait();
      if (enough) break;
      const DecodePoint point =
          decode_point(worker, sequences, largest.group_size, context, config_);
      if (point.seconds > 0)
        found[i].push_back({point.batch, point.context, crowding() * point.seconds});
      meet.arrive_and_wait();
      // One of them decides for all, and all see it behind the next meeting.
      if (i == 0 && found[0].size() >= 3 && seconds_of(steady_now() - begin) > kDecodeSeconds)
        enough = true;
    }
    meet.arrive_and_wait();
    const int64_t prompts = std::clamp<int64_t>(kPrefillTokens / prompt, 1, batch);
    const QuietClock watch;
    worker.submit(prompts, 1, prompt, 1, config_.rollout.sampling.params());
    worker.finish();
    prefill[i] = crowding() * watch.seconds() / static_cast<double>(prompts * prompt);
  };
  all([&](Worker& worker, size_t i) {
    try {
      measure_worker(worker, i);
    } catch (...) {
      meet.arrive_and_drop();  // the others must not wait for it
      throw;
    }
  });
  std::vector<DecodePoint> together;
  for (const auto& of_worker : found)
    together.insert(together.end(), of_worker.begin(), of_worker.end());
  hardware.decode = fit_decode(together);
  double seconds = 0;
  for (const double of_worker : prefill) seconds += of_worker;
  hardware.prefill_tokens_per_s = static_cast<double>(prefill.size()) / seconds;
  return hardware;
}

RehearsedRollout::Play RehearsedRollout::play(const RunOptions& options, int64_t groups,
                                              double most_seconds) {
  const auto format = chat::PromptFormat::of(config_.chat, config_.tokenizer_dir, *tokenizer_);
  const RolloutDataset& dataset = config_.datasets.front();
  const auto source = registries_.environments.source(dataset.env, dataset.settings);
  const sandbox::EnvironmentInfo info = source->info();
  const TaskSource tasks(config_.seed,
                         dataset.rows.empty()
                             ? std::vector<text::DatasetRow>()
                             : text::read_dataset(dataset.rows, dataset.columns, dataset.limits));
  Play play;
  std::vector<std::vector<PlannedEpisode>> episodes(workers_.size());
  std::vector<double> seconds(workers_.size()), verify(workers_.size());
  std::atomic<bool> whole = true;
  all([&](Worker& worker, size_t index) {
    Player player(worker.engine, format, {.runner = runner_settings(config_.rollout)},
                  worker.clock);
    // Each worker plays prompts of its own, as the groups of a step are dealt.
    const auto first = static_cast<int64_t>(index) * groups;
    for (int64_t group = 0; group < groups; ++group)
      for (int64_t m = 0; m < options.step.group_size; ++m) {
        const MemberId member{.prompt = first + group, .member = static_cast<int32_t>(m)};
        player.start(
            {.lease = {.member = member},
             .lane = Lane::kTrain,
             .task = tasks.task(Lane::kTrain, member),
             .key = member_key(config_.seed, Lane::kTrain, member),
             .sampling = episode_sampling(config_.rollout.sampling, info, config_.model, format),
             .limits = episode_limits(config_.rollout, info)},
            source);
      }
    std::map<MemberId, Trajectory> ended;
    const Time begin = worker.clock.now();
    const QuietClock watch;
    while (player.num_running() > 0) {
      for (FinishedEpisode& finished : player.poll(std::chrono::milliseconds(1)))
        ended.emplace(finished.trajectory.lease.member, std::move(finished.trajectory));
      if (seconds_of(worker.clock.now() - begin) <= most_seconds) continue;
      // An episode that is cut off here tells nothing of lengths: all of this play is then left
      // out.
      whole = false;
      for (const BodyId& id : player.running()) player.abort(id);
    }
    seconds[index] = crowding() * watch.seconds();
    // Scores are timed apart: in a run they are the reward workers' work, beside the engine's.
    const QuietClock scored;
    for (const auto& [member, trajectory] : ended) {
      if (!trajectory.verifier.empty())
        (void)judge(*registries_.verifiers, trajectory.verifier, trajectory.evidence,
                    score_budget(options.scheduler.deadlines.verify));
      PlannedEpisode planned{.member = member, .episode = episode_of(recorded_episode(trajectory))};
      if (!planned.episode.turns.empty()) episodes[index].push_back(std::move(planned));
    }
    verify[index] = scored.seconds() / static_cast<double>(std::max<size_t>(1, ended.size()));
  });
  play.seconds = std::ranges::max(seconds);
  play.verify_seconds = std::ranges::max(verify);
  play.whole = whole;
  for (const std::vector<PlannedEpisode>& of_worker : episodes) {
    int64_t turns = 0;
    for (const PlannedEpisode& planned : of_worker) turns += std::ssize(planned.episode.turns);
    play.turns = std::max(play.turns, turns);
    play.episodes.insert(play.episodes.end(), of_worker.begin(), of_worker.end());
  }
  return play;
}

}  // namespace tailrace
