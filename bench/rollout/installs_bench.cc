// What a weight version costs from the trainer to the next token: publication, a delta, and an
// install while tokens are sampled, for models of different sizes whose matrices are bfloat16.
//
// Random weights and normal steps, so that about 1.9 % of the elements of a matrix change. The
// receiver's parts are measured by themselves, in CPU time of the one thread that has them beside
// an engine; then an engine samples all the time while versions are staged and switched
// (WeightStage, as a worker has it). A round of sampling with an install and one without take
// turns.
//
// The limits of what is written are a write of the same bytes, with fsync where we wait for the
// disk; of what is read, a copy of the same bytes in memory.
//
// Checked: each version that is switched to has the root that was published, and what the engine
// samples in the end is what one samples that has never known another version.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/core/geometry.h"
#include "bench/report/program.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/model/model.h"
#include "core/model/safetensors.h"
#include "core/weights/live_digest.h"
#include "core/weights/proved_weights.h"
#include "core/weights/tidy_versions.h"
#include "core/weights/version_folder.h"
#include "kernels/base/thread_pool.h"
#include "rollout/engine/engine.h"
#include "rollout/worker/weight_stage.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPrompt = 32, kNew = 96, kContext = kPrompt + kNew;
constexpr PolicyId kPolicy = 0;

struct Options {
  std::vector<int64_t> megabytes = {500, 2000};
  int runs = 5;
  int64_t sessions = 8;
  double interval_s = 20;
  std::string folder = (fs::temp_directory_path() / "tailrace-installs").string();
  bool quick = false;
};

// Layers of one shape, as many as come nearest to the size.
ModelConfig config_of_size(int64_t bytes) {
  const bool small = bytes < (int64_t{64} << 20);
  GeometrySizes sizes =
      small ? GeometrySizes{1, 128, 4, 2, 384, 512} : GeometrySizes{1, 1024, 16, 4, 4096, 8192};
  const auto size = [&] { return PackedWeights::bytes(config_of(sizes, kContext), Dtype::kBF16); };
  const int64_t one = size();
  sizes.layers = 2;
  const int64_t layer = size() - one;
  sizes.layers = std::max<int64_t>(1, 1 + (bytes - one + layer / 2) / layer);
  return config_of(sizes, kContext);
}

double gigabytes(int64_t bytes) { return 1e-9 * static_cast<double>(bytes); }

// The memory that this process has for itself: no files, mapped or cached.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes << 10;
  }
  throw UserError("/proc/self/status does not say RssAnon.");
}

template <class T>
T value_of(Result<T> result, const std::string& what) {
  require(result.ok(), "{}: {}", what, result.ok() ? "" : result.failure().message);
  return std::move(result).value();
}

// The trainer's side: weights that step, and the versions that it publishes.
class Publisher {
 public:
  Publisher(const ModelConfig& config, fs::path folder)
      : layout_(config), parameters_(layout_), folder_(std::move(folder)) {
    Rng rng(1);
    for (float& value : table_) value = static_cast<float>(rng.normal());
    for (const ParameterInfo& info : layout_.entries()) {
      const std::span<float> values = parameters_.vector(info.name);
      if (info.kind == ParameterKind::kNorm) {
        std::ranges::fill(values, 1.0f);
      } else {
        add_normal(values, 0.02f, rng);
      }
    }
  }

  // A step of the size of an update at a learning rate of 1e-6.
  void step() {
    Rng rng(static_cast<uint64_t>(version_) + 100);
    for (const ParameterInfo& info : layout_.entries())
      add_normal(parameters_.vector(info.name), 5.3e-7f, rng);
  }

  struct Times {
    double manifest = 0, files_cpu = 0;  // of the CPU
    double files = 0;
  };
  Times publish() {
    Times times;
    Stopwatch watch(CLOCK_THREAD_CPUTIME_ID), wall;
    manifest_ = make_manifest(parameters_, kPolicy, ++version_, numerics_class(Dtype::kBF16), {},
                              Dtype::kBF16);
    times.manifest = watch.lap();
    wall.lap();
    value_of(publish_weights(folder_, manifest_, parameters_), "publish");
    times.files_cpu = watch.lap();
    times.files = wall.lap();
    return times;
  }

  const WeightManifest& manifest() const { return manifest_; }
  const Parameters& parameters() const { return parameters_; }
  const ParameterLayout& layout() const { return layout_; }
  const fs::path& folder() const { return folder_; }
  fs::path payload(int64_t version) const {
    return folder_ / payload_name(manifest_name(kPolicy, version));
  }
  // Versions before the one before the newest.
  void tidy() {
    const Retention retention{
        .below = version_ - 1, .fetched_from = version_ - 1, .anchor_interval = 1 << 20};
    const auto tidied = tidy_versions(folder_, kPolicy, version_, retention);
    require(tidied.ok(), "tidy: {}", tidied.ok() ? "" : tidied.failure().message);
  }

 private:
  // Normal numbers from a table, in runs that begin anywhere: drawing each would take minutes.
  void add_normal(std::span<float> values, float deviation, Rng& rng) const {
    constexpr size_t kRun = 4096;
    for (size_t i = 0; i < values.size(); i += kRun) {
      const float* numbers = table_.data() + rng.below(static_cast<int64_t>(table_.size() - kRun));
      const std::span<float> run = values.subspan(i, std::min(kRun, values.size() - i));
      for (size_t j = 0; j < run.size(); ++j) run[j] += deviation * numbers[j];
    }
  }

  const ParameterLayout layout_;
  Parameters parameters_;
  const fs::path folder_;
  std::vector<float> table_ = std::vector<float>(1 << 20);
  int64_t version_ = -1;
  WeightManifest manifest_;
};

// A receiver on another host: its cache of payloads, each made from the one before and a delta.
class Receiver {
 public:
  Receiver(const Publisher& publisher, fs::path cache)
      : publisher_(publisher), cache_(std::move(cache)) {
    fs::create_directories(cache_);
  }

  // The first comes whole.
  void take_whole(int64_t version) {
    fs::copy_file(publisher_.payload(version), cache_ / payload(version));
    copy_manifest(version);
  }
  void reconstruct_from(int64_t version) {
    const WeightManifest target =
        value_of(read_manifest(publisher_.folder() / manifest_name(kPolicy, version)), "manifest");
    value_of(reconstruct(cache_ / payload(version - 1),
                         publisher_.folder() / delta_name(kPolicy, version - 1, version), target,
                         cache_ / payload(version)),
             "reconstruct");
    copy_manifest(version);
  }
  void drop(int64_t version) {
    fs::remove(cache_ / payload(version));
    fs::remove(cache_ / manifest_name(kPolicy, version));
  }
  fs::path manifest(int64_t version) const { return cache_ / manifest_name(kPolicy, version); }

  FetchWeights fetch() {
    return [this](const WeightFetch& fetch) -> Result<FetchedWeights> {
      const int64_t version =
          value_of(read_manifest(publisher_.folder() / fetch.manifest), "manifest").version;
      std::error_code ignored;
      if (!fs::exists(manifest(version), ignored)) reconstruct_from(version);
      return FetchedWeights{.manifest = manifest(version)};
    };
  }

 private:
  static std::string payload(int64_t version) {
    return payload_name(manifest_name(kPolicy, version));
  }
  void copy_manifest(int64_t version) {
    fs::copy_file(publisher_.folder() / manifest_name(kPolicy, version), manifest(version));
  }

  const Publisher& publisher_;
  const fs::path cache_;
};

double changed_share(const fs::path& before, const fs::path& after) {
  const SafetensorsFile from(before), to(after);
  int64_t all = 0, changed = 0;
  for (const auto& [name, view] : from.tensors()) {
    const auto size = static_cast<size_t>(size_of(view.dtype));
    const std::byte *a = view.data.data(), *b = to.tensors().at(name).data.data();
    all += view.num_elements();
    for (size_t at = 0; at < view.data.size(); at += size)
      changed += std::memcmp(a + at, b + at, size) == 0 ? 0 : 1;
  }
  return static_cast<double>(changed) / static_cast<double>(all);
}

// The same bytes, written as plainly as can be.
// On the clock where it waits for the disk, else of the CPU.
double write_seconds(const fs::path& file, std::span<const std::byte> bytes, bool durable) {
  const Stopwatch watch(durable ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID);
  AtomicFile out = value_of(AtomicFile::create(file, durable), "write");
  auto done = out.write({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (done) done = out.commit();
  require(done.ok(), "write: {}", done.ok() ? "" : done.failure().message);
  const double seconds = watch.seconds();
  fs::remove(file);
  return seconds;
}

// An engine that always has as many sessions as it may.
class Sampler {
 public:
  Sampler(const Model& model, int64_t sessions, const Stream& stream)
      : engine_(model, nullptr, options_of(sessions), stream, clock_),
        sessions_(sessions),
        vocab_(model.config().vocab_size) {}

  Engine& engine() { return engine_; }

  void step() {
    while (running_ < sessions_) {
      engine_.submit(request(next_, kNew - 1));
      ++next_;
      ++running_;
    }
    for (const Generation& generation : engine_.step()) {
      engine_.release(generation.session);
      --running_;
    }
  }

  // What a prompt that it has not seen is answered with.
  std::vector<GeneratedToken> answer_alone() {
    GenerateRequest alone = request(int64_t{1} << 40, 8);
    const SessionId session = alone.session;
    engine_.submit(std::move(alone));
    for (;;)
      for (Generation& generation : engine_.step())
        if (generation.session == session) return std::move(generation.tokens);
  }

 private:
  static EngineOptions options_of(int64_t sessions) {
    EngineOptions options;
    options.max_context_tokens = kContext;
    options.max_sequences = sessions + 1;
    return options;
  }
  GenerateRequest request(SessionId session, int64_t tokens) const {
    GenerateRequest request;
    request.session = session;
    Rng rng(static_cast<uint64_t>(session));
    for (int64_t i = 0; i < kPrompt; ++i)
      request.new_tokens.push_back(static_cast<TokenId>(rng.below(vocab_)));
    request.sampling.max_new_tokens = tokens;
    request.key = {mix({static_cast<uint64_t>(session)})};
    return request;
  }

  const SteadyClock clock_;
  Engine engine_;
  const int64_t sessions_, vocab_;
  int64_t running_ = 0;
  SessionId next_ = 0;
};

struct Receiving {
  std::vector<double> delta, reconstruct, prove, repack, prove_packed, write, copy;
};

// The parts, one after the other, on one thread.
void measure_parts(Publisher& publisher, Receiver& receiver, const ModelConfig& config,
                   const Options& options, const std::string& name, Report& report) {
  std::vector<double> manifests, files_cpu, files, synced;
  Receiving parts;
  double changed = 0;
  int64_t payload_bytes = 0, delta_bytes = 0;
  PackedWeights spare(
      config, Dtype::kBF16,
      Buffer(static_cast<size_t>(PackedWeights::bytes(config, Dtype::kBF16)), Device{}));
  std::vector<std::byte> bytes, copied;
  publisher.publish();
  receiver.take_whole(0);
  for (int run = 0; run < options.runs; ++run) {
    publisher.step();
    const Publisher::Times published = publisher.publish();
    manifests.push_back(published.manifest);
    files_cpu.push_back(published.files_cpu);
    files.push_back(published.files);
    const int64_t version = publisher.manifest().version;
    payload_bytes = static_cast<int64_t>(fs::file_size(publisher.payload(version)));

    Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
    const fs::path delta =
        value_of(make_delta(publisher.folder(), kPolicy, version - 1, version), "delta");
    parts.delta.push_back(watch.lap());
    receiver.reconstruct_from(version);
    parts.reconstruct.push_back(watch.lap());
    {
      const ProvedWeights proved = value_of(
          prove_weights(receiver.manifest(version), publisher.manifest().root, publisher.layout()),
          "prove");
      parts.prove.push_back(watch.lap());
      spare.repack(Stream{}, [&](std::string_view tensor) { return proved.values(tensor); });
      parts.repack.push_back(watch.lap());
      const Digest live = value_of(prove_packed(Stream{}, spare, proved), "prove packed");
      parts.prove_packed.push_back(watch.lap());
      require(live == publisher.manifest().root, "packed weights have another root");
    }
    if (run == 0)
      changed = changed_share(publisher.payload(version - 1), publisher.payload(version));
    delta_bytes = static_cast<int64_t>(fs::file_size(delta));

    bytes.resize(static_cast<size_t>(payload_bytes));
    copied.resize(bytes.size());
    std::ifstream(publisher.payload(version), std::ios::binary)
        .read(reinterpret_cast<char*>(bytes.data()), payload_bytes);
    watch.lap();
    std::memcpy(copied.data(), bytes.data(), bytes.size());
    parts.copy.push_back(watch.lap());
    synced.push_back(write_seconds(publisher.folder() / "plain", bytes, true));
    parts.write.push_back(write_seconds(publisher.folder() / "plain", bytes, false));
    receiver.drop(version - 1);
    publisher.tidy();
  }
  const double copy = spread(parts.copy).median, write = spread(parts.write).median;
  report.add(name, "payload", "GB", {gigabytes(payload_bytes)});
  report.add(name, "changed elements", "%", {100 * changed});
  report.add(name, "payload / delta", "x",
             {static_cast<double>(payload_bytes) / static_cast<double>(delta_bytes)});
  report.add(name, "publish: digests", "s", manifests, copy);
  report.add(name, "publish: files", "s", files_cpu, write);
  report.add(name, "publish: files, on disk", "s", files, spread(synced).median);
  report.add(name, "make delta", "s", parts.delta, copy);
  report.add(name, "reconstruct", "s", parts.reconstruct, write);
  report.add(name, "prove payload", "s", parts.prove, copy);
  report.add(name, "repack", "s", parts.repack, copy);
  report.add(name, "prove packed", "s", parts.prove_packed, copy);
}

// What was sampled for a while, with or without an install.
struct Round {
  double seconds = 0, cpu_seconds = 0;  // all threads
  int64_t tokens = 0, prefilled = 0;
  double pause = 0, stage = 0, step_after = 0;
};

class Installs {
 public:
  Installs(Publisher& publisher, Receiver& receiver, const ModelConfig& config,
           const Options& options, int threads)
      : publisher_(publisher),
        options_(options),
        pool_(threads),
        model_(config, kContext),
        sampler_(model_, options.sessions, stream()),
        before_(anonymous_bytes()),
        stage_(config, Dtype::kBF16, stream(), {.fetch = receiver.fetch()}) {}

  // The version that it begins with is staged while nothing samples.
  void begin() {
    stage_.ask(wanted(), manifest_file());
    const auto staged = stage_.poll(/*samples=*/false);
    require(staged && !staged->failure, "the first version was not staged: {}",
            staged && staged->failure ? staged->failure->message : "");
    switch_now();
    for (int64_t i = 0; i < kContext; ++i) sampler_.step();  // as many of each length
  }

  Round round(bool installs) {
    Round round;
    const EngineStats before = sampler_.engine().stats();
    if (installs) stage_.ask(wanted(), manifest_file());
    bool waits = installs;
    std::optional<Stopwatch> after;
    Stopwatch watch, step_end, cpu(CLOCK_PROCESS_CPUTIME_ID);
    while (watch.seconds() < options_.interval_s || waits) {
      if (waits) {
        if (const auto staged = stage_.poll(/*samples=*/true)) {
          require(!staged->failure, "not staged: {}",
                  staged->failure ? staged->failure->message : "");
          round.stage = watch.seconds();
          switch_now();
          round.pause = step_end.seconds();
          waits = false;
          after.emplace();
        }
      }
      sampler_.step();
      if (after) round.step_after = after->seconds();
      after.reset();
      step_end.lap();
      peak_ = std::max(peak_, anonymous_bytes());
    }
    round.seconds = watch.seconds();
    round.cpu_seconds = cpu.seconds();
    const EngineStats now = sampler_.engine().stats();
    round.tokens = now.sampled_tokens - before.sampled_tokens;
    round.prefilled = now.prefill_tokens - before.prefill_tokens;
    return round;
  }

  // Anonymous memory that came with the stage: what samples, and what is beside it.
  int64_t bytes_beside() const { return peak_ - before_ - packed_bytes(); }
  int64_t packed_bytes() const { return PackedWeights::bytes(model_.config(), Dtype::kBF16); }

  void check_against_cold() {
    const auto warm = sampler_.answer_alone();
    Sampler cold(model_, 1, stream());
    cold.engine().install(std::make_shared<PackedWeights>(stream(), model_.config(),
                                                          publisher_.parameters(), Dtype::kBF16),
                          0);
    const auto expected = cold.answer_alone();
    require(warm.size() == expected.size(), "{} tokens, and {} of a cold engine", warm.size(),
            expected.size());
    for (size_t i = 0; i < warm.size(); ++i)
      require(warm[i].id == expected[i].id && warm[i].logprob == expected[i].logprob,
              "token {} after the installs is not that of a cold engine", i);
  }

 private:
  Stream stream() { return {.device = {}, .pool = &pool_, .native = nullptr}; }
  WeightVersion wanted() const {
    return {publisher_.manifest().version, publisher_.manifest().root};
  }
  std::string manifest_file() const {
    return manifest_name(kPolicy, publisher_.manifest().version);
  }
  void switch_now() {
    stage_.order_switch(wanted());
    auto switched = stage_.poll_switch(/*may_change=*/true);
    require(switched && switched->weights, "version {} was not switched to", wanted().version);
    sampler_.engine().install(std::move(switched->weights), wanted().version);
  }

  const Publisher& publisher_;
  const Options& options_;
  ThreadPool pool_;
  const Model model_;
  Sampler sampler_;
  const int64_t before_;
  int64_t peak_ = 0;
  WeightStage stage_;
};

void measure_installs(Publisher& publisher, Receiver& receiver, const ModelConfig& config,
                      const Options& options, int threads, const std::string& name,
                      Report& report) {
  Installs installs(publisher, receiver, config, options, threads);
  installs.begin();
  std::vector<double> pauses, stages, with, without, costs, lost, lost_cpu, afters;
  for (int run = 0; run < options.runs; ++run) {
    publisher.step();
    publisher.publish();
    const int64_t version = publisher.manifest().version;
    value_of(make_delta(publisher.folder(), kPolicy, version - 1, version), "delta");
    const Round quiet = installs.round(false), busy = installs.round(true);
    receiver.drop(version - 1);
    publisher.tidy();
    const auto rate = [](const Round& round) {
      return static_cast<double>(round.tokens) / round.seconds;
    };
    const auto cpu_rate = [](const Round& round) {
      return static_cast<double>(round.tokens) / round.cpu_seconds;
    };
    pauses.push_back(1e3 * busy.pause);
    stages.push_back(busy.stage);
    afters.push_back(1e3 * busy.step_after);
    without.push_back(rate(quiet));
    with.push_back(rate(busy));
    lost.push_back(100 * (1 - rate(busy) / rate(quiet)));
    costs.push_back(busy.cpu_seconds - static_cast<double>(busy.tokens) / cpu_rate(quiet));
    lost_cpu.push_back(100 * (1 - cpu_rate(busy) / cpu_rate(quiet)));
  }
  report.add(name, "staged while sampling", "s", stages);
  report.add(name, "pause", "ms", pauses);
  report.add(name, "first step after", "ms", afters);
  report.add(name, "CPU time of an install", "s", costs);
  report.add(name, "tokens, no install", "tokens/s", without);
  report.add(name, fmt::format("tokens, install every {:g} s", options.interval_s), "tokens/s",
             with, spread(without).median);
  report.add(name, "engine time lost", "%", lost);
  report.add(name, "CPU time lost", "%", lost_cpu);
  report.add(name, "memory beside the model", "x",
             {static_cast<double>(installs.bytes_beside()) /
              static_cast<double>(installs.packed_bytes())});
  installs.check_against_cold();
}

// Empty when made, gone afterwards.
class Folder {
 public:
  explicit Folder(fs::path path) : path_(std::move(path)) {
    std::error_code error;
    if (fs::exists(path_, error) && !fs::is_empty(path_, error))
      throw UserError("--folder {} exists and is not empty. Name a new one.", path_.string());
    fs::create_directories(path_ / "weights", error);
    if (error) throw UserError("{}", describe_errno("create", path_, error.value()));
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

void measure(const Options& given, const Program& program) {
  Options options = given;
  if (options.quick) {
    options.megabytes = {2};
    options.runs = 1;
    options.interval_s = 0.1;
  }
  Report report = program.report({{"runs", int64_t{options.runs}},
                                  {"sessions", options.sessions},
                                  {"interval_s", options.interval_s},
                                  {"dtype", "bf16"}});
  for (const int64_t megabytes : options.megabytes) {
    const ModelConfig config = config_of_size(megabytes * 1'000'000);
    const Folder folder(options.folder);
    Publisher publisher(config, folder.path() / "weights");
    Receiver receiver(publisher, folder.path() / "cache");
    const std::string name = fmt::format("{} MB, {} layers", megabytes, config.num_layers);
    measure_parts(publisher, receiver, config, options, name, report);
    measure_installs(publisher, receiver, config, options, program.threads(), name, report);
  }
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("installs", TAILRACE_MEASURES, "installs --mb 500 --threads 1");
  program.flags().option(
      "--mb", options.megabytes,
      {.help = "sizes of the packed weights, in MB; disk needs four times the largest",
       .min = 1,
       .max = 1'000'000});
  program.flags().option("--runs", options.runs,
                         {.help = "versions of each part, and rounds", .min = 1, .max = 1000});
  program.flags().option("--sessions", options.sessions,
                         {.help = "that are sampled at once", .min = 1, .max = 4096});
  program.flags().option(
      "--interval-s", options.interval_s,
      {.help = "seconds of sampling for each install", .min = 0.01, .max = 3600});
  program.flags().option("--folder", options.folder,
                         {.help = "new folder for versions; a disk, not memory", .value = "DIR"});
  program.flags().option("--quick", options.quick, {.help = "a small model, one run"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
