#include "tests/core/hosts/weight_world.h"

#include <fcntl.h>
#include <unistd.h>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/model/safetensors.h"
#include "core/weights/live_digest.h"
#include "core/weights/tidy_versions.h"
#include "core/weights/way.h"
#include "kernels/base/memory.h"
#include "tests/core/base/file_steps.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace scheduler;  // events and actions

const WorkerId kRelay = "rollout-0";

ModelConfig model_of_a_world() {
  ModelConfig config;
  config.vocab_size = 48;
  config.hidden_size = 16;
  config.intermediate_size = 32;
  config.num_layers = 1;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  return config;
}

Config law_of_a_world(Rng& rng) {
  Config config = random_config(rng, /*num_pools=*/1);
  config.steps = 8 + rng.below(12);
  for (DatasetConfig& dataset : config.datasets) dataset.epochs = 0;
  config.keep_weights = 2 + rng.below(2);  // as people may
  config.keep_sampled = true;
  config.retries.lost = 30;
  config.validate();
  return config;
}

simulator::Cluster cluster_of_a_world(Rng& rng, double calm) {
  simulator::Cluster cluster;
  cluster.pools.clear();
  for (int i = 0; i < 4; ++i) {
    cluster.pools.push_back(
        {.workers = 1,
         .slots = 2 + rng.below(4),
         .hardware = {.decode = {.step = 0.01 + 0.1 * rng.uniform(), .sequence = 0.005},
                      .prefill_tokens_per_s = 500},
         // A slow receiver takes longer than an install may without progress.
         .transfer = {.payload_bytes = 1000,
                      .fetch = rng.uniform(),
                      .bytes_per_s = rng.chance(0.2) ? 50.0 : 1e6,
                      .switch_over = 0.1 * rng.uniform()}});
  }
  cluster.reward_workers = 1;
  cluster.reward_slots = 8;
  cluster.trainer = {.step = 0.2,
                     .sample = 0.02,
                     .update = 0.1,
                     .publish = 0.2,
                     .save = rng.uniform(),
                     .warm_up = 1};
  cluster.trainer.keep_last = 1 + rng.below(3);
  simulator::FaultModel& faults = cluster.faults;
  faults.rollout_mean = 30;
  faults.trainer_mean = 60;
  faults.rank_mean = 60;
  faults.noticed = 0.2;
  faults.restart = 1;
  faults.unnoticed = 0.5;
  faults.goodbye = 0.5;
  faults.cut_mean = 20;
  faults.reconnect = 2;
  faults.silent = 0.5;
  faults.hang_mean = 60;
  faults.hang = 8;
  faults.hang_noticed = 2;
  faults.scheduler_mean = 5;
  faults.power_lost = 0.2;
  faults.join_mean = 40;
  faults.install = 0.02;
  faults.install_silent = 0.02;
  faults.source = 0.02;
  faults.other_weights = 0.3;
  faults.until = calm;
  cluster.wire = {.delay = 0.01, .spread = 0.2, .doubled = 0.1, .overtaken = 0.2, .back = 0.2};
  return cluster;
}

Parameters copy_of(const Parameters& from) {
  Parameters copy(from.layout());
  std::ranges::copy(from.flat(), copy.flat().begin());
  return copy;
}

WeightSource values_of(const Parameters& parameters) {
  return [&](std::string_view name) -> TensorValues { return parameters.vector(name); };
}

std::vector<fs::path> files_below(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::recursive_directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored) &&
        (extension.empty() || entry.path().extension() == extension))
      files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

}  // namespace

WeightWorld::WeightWorld(uint64_t seed)
    : seed_(seed),
      rng_(tailrace::mix({seed, 0x77656967})),
      folder_(fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()),
      run_(folder_ / "run"),
      scratch_(folder_ / "scratch"),
      log_("world", "", LogLevel::kWarning),
      config_(model_of_a_world()),
      layout_(config_),
      law_(law_of_a_world(rng_)),
      episodes_(seed, law_),
      world_(law_, cluster_of_a_world(rng_, kCalm), episodes_, seed),
      checker_(world_, tailrace::mix({seed, 0x636865}), /*whole_share=*/0.02) {
  for (const char* name : {"first", "second"}) {
    Host& host = hosts_.emplace_back();
    host.versions = folder_ / name;
    fs::create_directories(host.versions);
  }
  for (Host& host : hosts_)
    host.cache = std::make_unique<WeightCache>(
        host.versions,
        [this, &host](const WeightFile& file, const fs::path& target, const std::stop_token&,
                      const auto&) { return fetch(host, file, target); });
  checker_.watch = [this](const State& state, const Event& event, Time) {
    if (std::holds_alternative<Restarted>(event)) note("kill scheduler");
    prove_versions(state);
  };
  world_.hands = {
      .stage = [this](const WorkerId& worker, const Stage& what) { return stage(worker, what); },
      .switch_to = [this](const WorkerId& worker,
                          const Switch& what) { return switch_to(worker, what); },
      .publish = [this](int64_t version, const Digest& name) { publish(version, name); },
      .release = [this](const ReleaseWeights& what) { release(what); },
      .on_death = [this](const WorkerId& worker) { died(worker); }};
}

void WeightWorld::fail(const std::string& why) {
  if (checker_.failure.empty()) checker_.failure = why;
}

void WeightWorld::note(const std::string& what) {
  ++seen_[what];
  notes_.push_back(fmt::format("{:.3f} s  {}", world_.now(), what));
  if (notes_.size() > 40) notes_.pop_front();
}

std::string WeightWorld::tail() const {
  std::string text;
  for (const std::string& line : checker_.log) text += line + "\n";
  for (const std::string& line : notes_) text += line + "\n";
  for (const auto& [name, host] : {std::pair{"run", run_}})
    for (const fs::path& file : files_below(host, "")) text += file.filename().string() + " ";
  return text + "\n";
}

bool WeightWorld::run() {
  using simulator::World;
  constexpr double kLimit = 3000;
  while (world_.now() < kLimit) {
    const World::Stop stop = world_.run(world_.now() + 20);
    if (!failure().empty()) return false;
    if (stop == World::Stop::kEnded) return true;
    if (stop == World::Stop::kStuck || stop == World::Stop::kHalted) {
      fail(stop == World::Stop::kStuck ? "nothing would ever happen again"
                                       : "halted: " + world_.state().halted);
      return false;
    }
  }
  fail("the run did not end");
  return false;
}

std::optional<bool> WeightWorld::act(const std::string& what, double kill,
                                     const std::function<bool()>& deed) {
  int64_t& usual = steps_.try_emplace(what, 8).first->second;
  if (strikes(kill)) {
    // The next process finds what the one before has left, and may be killed as well.
    bool was_killed = false;
    do {
      const InChild child = run_and_kill(1 + rng_.below(usual), deed);
      if (child.threw) fail(what + " has thrown");
      if (child.ended != Ended::kKilled) {
        usual = std::max<int64_t>(1, usual / 2);
        return was_killed ? std::nullopt : std::optional(child.ended == Ended::kDone);
      }
      note("kill " + what);
      was_killed = true;
      usual += usual / 8 + 1;
    } while (rng_.chance(0.6));
    return std::nullopt;
  }
  if (strikes(0.15)) {
    const FileSteps steps(AtStep::kFull, 1 + rng_.below(usual));
    note("full disk: " + what);
    return deed();
  }
  return deed();
}

// ---- the trainer

const WeightWorld::Truth& WeightWorld::truth_of(int64_t version, const Digest& name) {
  std::unique_ptr<Truth>& truth = truths_[name];
  if (truth) return *truth;
  Rng rng(tailrace::mix({seed_, std::hash<std::string>()(name)}));
  const auto before = truths_.find(last_published_);
  Parameters values =
      before != truths_.end() ? copy_of(before->second->values) : Parameters(layout_);
  if (before == truths_.end())
    for (float& value : values.flat()) value = static_cast<float>(rng.uniform() - 0.5);
  for (int i = 0; i < 30; ++i)
    values.flat()[static_cast<size_t>(rng.below(std::ssize(values.flat())))] *= 1.01f;
  WeightManifest manifest = make_manifest(values, 0, version, "");
  truth = std::make_unique<Truth>(std::move(values), std::move(manifest));
  return *truth;
}

void WeightWorld::publish(int64_t version, const Digest& name) {
  const Truth& truth = truth_of(version, name);
  WeightManifest manifest = truth.manifest;
  manifest.attempt = fmt::format("{}", ++attempts_);
  if (const auto before = truths_.find(last_published_); before != truths_.end())
    manifest.parent = before->second->manifest.root;
  published_.erase(version);  // what lies there is neither the one nor the other meanwhile
  const auto done = act("trainer while it publishes", 0.3, [&] {
    return publish_weights(run_, manifest, truth.values) ? true : false;
  });
  look_ = true;
  // A trainer that cannot publish ends.
  if (!done || !*done) return world_.kill(simulator::kTrainerName);
  published_[version] = last_published_ = name;
  newest_ = version;
  tidy();
}

void WeightWorld::release(const ReleaseWeights& what) {
  below_ = std::max(below_, what.below);
  fetched_from_ = std::max(fetched_from_, what.fetched_from);
  evaluated_ = what.evaluated;
  tidy();
}

void WeightWorld::tidy() {
  if (newest_ < 0) return;
  if (strikes(0.1)) damage_something(run_, ".delta");
  const Retention retention{.below = below_,
                            .fetched_from = fetched_from_,
                            .evaluated = evaluated_,
                            .anchor_interval = 4};
  const auto done = act("trainer while it tidies", 0.6, [&] {
    const auto tidied = tidy_versions(run_, 0, newest_, retention);
    if (!tidied) log_.warning("not tidied: {}", tidied.failure().message);
    return true;
  });
  look_ = true;
  if (!done) world_.kill(simulator::kTrainerName);
}

// ---- hosts

WeightWorld::Host& WeightWorld::host_of(const WorkerId& worker) {
  return hosts_[worker == kRelay || worker == "rollout-1" ? 0 : 1];
}

WeightWorld::Receiver& WeightWorld::receiver(const WorkerId& worker) {
  Receiver& there = receivers_[worker];
  if (there.stage) return there;
  WeightStage::Options options;
  options.fetch = [this, &host = host_of(worker)](const WeightFetch& fetch) {
    return host.cache->bring(fetch, /*link_mbit=*/0, log_);
  };
  there.stage = std::make_unique<WeightStage>(config_, Dtype::kF32, Stream{}, std::move(options));
  return there;
}

// One file over the wire. What the run has says what it is; the relay of the first host has the
// bytes for the second, and ways of its own.
Result<FetchCounters> WeightWorld::fetch(const Host& host, const WeightFile& wanted,
                                         const fs::path& target) {
  const auto& [root, file, max_bytes] = wanted;
  const bool may_relay = &host == &hosts_[1] && world_.is_alive(kRelay);
  std::error_code ignored;
  if (may_relay && max_bytes >= 0 && !fs::exists(target, ignored))
    if (const auto relayed = at_relay(root, file))
      if (const auto bytes = read_file(*relayed);
          bytes && transfer(*relayed, digest_of(bytes.value()), target)) {
        note("a way of the relay's own");
        return FetchCounters{.received = std::ssize(bytes.value())};
      }
  fs::path source = run_ / file;
  if (const auto way = parse_way_name(file)) {
    const auto made = next_on_way(run_, *way);
    if (!made) return made.failure();
    source = made.value();
  }
  const auto bytes = read_file(source);
  if (!bytes) return bytes.failure();
  const Digest digest = digest_of(bytes.value());
  if (const auto there = read_file(target); there && digest_of(there.value()) == digest)
    return FetchCounters{.kept = std::ssize(bytes.value())};
  if (may_relay && max_bytes < 0)
    if (const auto relayed = at_relay(root, file); relayed && transfer(*relayed, digest, target))
      return FetchCounters{.received = std::ssize(bytes.value())};
  for (int attempt = 0; attempt < 3; ++attempt)
    if (transfer(source, digest, target))
      return FetchCounters{.received = std::ssize(bytes.value())};
  return Failure{fmt::format("{} did not come", file)};
}

std::optional<fs::path> WeightWorld::at_relay(const Digest& root, const std::string& file) {
  const auto brought = hosts_[0].cache->bring_file(
      root, file, {}, [](int64_t) {}, /*link_mbit=*/0, log_);
  return brought ? std::optional(hosts_[0].versions / root / file) : std::nullopt;
}

// In chunks, of which each may come with a flipped bit, or be the last. False: it is not what the
// digest says, or there is no space.
bool WeightWorld::transfer(const fs::path& from, const Digest& digest, const fs::path& target) {
  auto bytes = read_file(from);
  if (!bytes) return false;
  std::string text = std::move(bytes).value();
  if (strikes(0.05) && !text.empty())
    text[static_cast<size_t>(rng_.below(std::ssize(text)))] ^= char(1 << rng_.below(8));
  if (strikes(0.05)) text.resize(static_cast<size_t>(rng_.below(std::ssize(text) + 1)));
  const fs::path part = target.string() + ".part";
  const int out = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) return false;
  bool whole = true;
  constexpr size_t kChunk = 8192;
  for (size_t at = 0; whole && at < text.size(); at += kChunk) {
    const size_t size = std::min(kChunk, text.size() - at);
    whole = ::write(out, text.data() + at, size) == static_cast<ssize_t>(size);
  }
  ::close(out);
  if (!whole) return false;
  const auto arrived = read_file(part);
  if (!arrived || digest_of(arrived.value()) != digest) return false;
  return ::rename(part.c_str(), target.c_str()) == 0;
}

// A bit, or the end of it.
void WeightWorld::damage_something(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> files = files_below(folder, extension);
  // What is damaged is never the last way to a version: the payload to which the delta leads is
  // there still.
  if (folder == run_)
    std::erase_if(files, [&](const fs::path& file) {
      const std::string name = file.filename().string();
      return !fs::exists(run_ / (name.substr(0, name.find('.')) + ".safetensors"));
    });
  if (files.empty()) return;
  const fs::path& file = files[static_cast<size_t>(rng_.below(std::ssize(files)))];
  auto bytes = read_file(file);
  if (!bytes || bytes.value().empty()) return;
  std::string text = std::move(bytes).value();
  const int64_t at = rng_.below(std::ssize(text));
  const bool is_short = rng_.chance(0.3);
  if (is_short) {
    text.resize(static_cast<size_t>(at));
  } else {
    text[static_cast<size_t>(at)] ^= char(1 << rng_.below(8));
  }
  note(fmt::format("{} {}", is_short ? "short" : "flipped", extension));
  // Another file of the same name: whoever has mapped the old one has bytes that are whole.
  const fs::path damaged = file.string() + ".damaged";
  std::ofstream(damaged, std::ios::binary) << text;
  fs::rename(damaged, file);
}

// Time passes, in which versions become old enough to be let go.
void WeightWorld::age(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    fs::last_write_time(entry.path(), entry.last_write_time(ignored) - std::chrono::seconds(60),
                        ignored);
}

// ---- receivers

std::optional<InstallCause> WeightWorld::stage(const WorkerId& worker, const Stage& what) {
  Host& host = host_of(worker);
  if (strikes(0.3)) age(host.versions);
  if (strikes(0.1)) damage_something(host.versions, ".safetensors");
  if (strikes(0.1)) damage_something(host.versions, "");
  if (strikes(0.1)) damage_something(run_, ".delta");
  const WeightManifest& truth = truth_of(what.version, what.digest).manifest;
  const std::string manifest = manifest_name(0, what.version);
  // The relay of its cluster may die while it brings the version.
  if (&host == &hosts_[1] && world_.is_alive(kRelay)) {
    const std::string file = rng_.chance(0.5) ? payload_name(manifest) : manifest;
    const auto brought =
        act("relay", 0.8, [&] { return at_relay(truth.root, file) ? true : false; });
    if (!brought) world_.kill(kRelay);
  }
  const auto brought = act("receiver while it stages", 0.7, [&] {
    return host.cache->bring({.manifest = manifest, .root = truth.root}, 0, log_) ? true : false;
  });
  if (!brought) {
    world_.kill(worker);
    return std::nullopt;
  }
  Receiver& there = receiver(worker);
  const bool is_full = strikes(0.1);
  std::optional<WeightStage::Staged> staged;
  {
    const FileSteps steps(is_full ? AtStep::kFull : AtStep::kGoOn, 1);
    there.stage->ask({what.version, truth.root}, manifest);
    staged = there.stage->poll(/*samples=*/false);
  }
  prove_receivers("staging of " + worker);
  if (!staged) {
    fail("no answer to a Stage");
    return InstallCause::kOther;
  }
  if (strikes(0.1)) {
    note("kill receiver behind staging");
    world_.kill(worker);
    return std::nullopt;
  }
  if (!staged->failure) {
    note("staged");
    return std::nullopt;
  }
  note(fmt::format("staging failed of cause {}", static_cast<int>(staged->cause)));
  log_.warning("{}: staging of {} failed: {}", worker, what.version, staged->failure->message);
  return staged->cause;
}

std::optional<InstallCause> WeightWorld::switch_to(const WorkerId& worker, const Switch& what) {
  Receiver& there = receiver(worker);
  const WeightManifest& truth = truth_of(what.version, what.digest).manifest;
  there.stage->order_switch({what.version, truth.root});
  const bool dies = strikes(0.1), before = rng_.chance(0.5);
  std::optional<WeightStage::Switched> switched;
  if (!dies || !before) switched = there.stage->poll_switch(/*may_change=*/true);
  if (dies) {
    note("kill receiver while it switches");
    world_.kill(worker);
    return std::nullopt;
  }
  if (!switched) {
    fail("no answer to a Switch");
    return InstallCause::kOther;
  }
  if (switched->weights) there.samples = switched->weights;
  if (!switched->failure) there.root = truth.root;
  prove_receivers("switch of " + worker);
  if (!switched->failure) return std::nullopt;
  note("switch failed");
  return InstallCause::kOther;
}

void WeightWorld::died(const WorkerId& worker) {
  receivers_.erase(worker);
  if (worker != simulator::kTrainerName) return;
  newest_ = -1;
  below_ = fetched_from_ = 0;
  evaluated_ = -1;
}

// ---- what must hold

// What samples is read back, and is what the worker says that it is.
void WeightWorld::prove_receivers(const std::string& behind) {
  for (const auto& [worker, there] : receivers_) {
    if (!there.samples) continue;
    for (const auto& [name, truth] : truths_) {
      if (truth->manifest.root != there.root) continue;
      const auto live =
          prove_packed(Stream{}, *there.samples, truth->manifest.tensors, values_of(truth->values));
      if (!live || live.value() != there.root)
        fail(fmt::format("behind {}: {} samples by something else than {}: {}", behind, worker,
                         name, live ? live.value() : live.failure().message));
    }
  }
}

// Of a moment in which the trainer and the scheduler know of the same versions.
void WeightWorld::prove_versions(const State& state) {
  if (!look_ || !failure().empty()) return;
  const Policy& policy = state.policies.at(0);
  const auto known = policy.lineage.find(policy.frontier);
  if (!world_.is_alive(simulator::kTrainerName) || !at_frontier(policy) || !policy.greeted ||
      known == policy.lineage.end() || newest_ != policy.frontier)
    return;
  for (const auto& [version, weights] : policy.lineage)
    if (published_.contains(version) && published_.at(version) != weights.digest) return;
  look_ = false;
  std::set<int64_t> named;
  const auto name = [&](int64_t from, int64_t to) {
    for (int64_t version = from; version <= to; ++version) named.insert(version);
  };
  const auto look = [&](const auto& tasks) {
    for (const auto& [id, task] : tasks)
      for (const Member& member : task.members) {
        if (member.has_body) name(member.min_version, member.max_version);
        if (member.prefix) name(member.prefix->min_version, member.prefix->max_version);
        if (member.phase == Phase::kRunning) name(member.granted_version, member.granted_version);
      }
  };
  look(policy.tasks);
  if (policy.evaluation) look(policy.evaluation->tasks);
  for (const auto& [id, worker] : state.workers)
    if (worker.role == Role::kRollout && worker.held >= 0) named.insert(worker.held);
  ++seen_["moments of proof"];
  for (const int64_t version : named) {
    if (version < policy.released) fail(fmt::format("v{} is named and was released", version));
    const auto weights = policy.lineage.find(version);
    const auto lies = published_.find(version);
    if (weights == policy.lineage.end() && lies == published_.end()) continue;
    prove_version(version, weights != policy.lineage.end() ? weights->second.digest : lies->second);
    ++seen_["versions proved"];
  }
}

void WeightWorld::prove_version(int64_t version, const Digest& name) {
  const WeightManifest& truth = truth_of(version, name).manifest;
  fs::remove_all(scratch_);
  fs::create_directories(scratch_);
  const auto refuse = [&](const std::string& why) {
    fail(fmt::format("{} (v{}), which stored samples name, is not there: {}", name, version, why));
  };
  const auto manifest = read_manifest(run_ / manifest_name(0, version));
  if (!manifest) return refuse(manifest.failure().message);
  if (manifest.value().root != truth.root) return refuse("its manifest has another root");
  const auto payload = payload_of(run_, 0, version, scratch_);
  if (!payload) return refuse(payload.failure().message);
  const SafetensorsFile file(payload.value());
  for (const TensorManifest& tensor : truth.tensors) {
    const auto found = file.tensors().find(tensor.name);
    if (found == file.tensors().end()) return refuse("no tensor " + tensor.name);
    const auto values = std::as_bytes(truth_of(version, name).values.vector(tensor.name));
    if (!std::ranges::equal(found->second.data, values))
      return refuse("other bytes in tensor " + tensor.name);
  }
}

}  // namespace tailrace
