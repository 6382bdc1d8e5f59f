// A simulated run whose weights are real. The scheduler, its workers and the wire are those of the
// simulator; what they do with weights is done with files: a trainer publishes and tidies its
// folder, two hosts have caches, one of them relays to the other, and receivers stage, prove and
// switch. kill -9 strikes any of them in the middle of a step on the disk, disks are full, bits
// flip, files are short.
//
// After each of these every worker that samples is proved to sample by the version that it names,
// and what stored samples name is proved to be there.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "core/base/random.h"
#include "core/hosts/weight_cache.h"
#include "core/run/log.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"
#include "rollout/worker/weight_stage.h"
#include "scheduler/simulator/world.h"
#include "tests/core/base/file_steps.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/scheduler/decide/random_run.h"

namespace tailrace {

class WeightWorld {
 public:
  explicit WeightWorld(uint64_t seed);

  // To the end of the run. False with the reason in failure().
  bool run();
  const std::string& failure() const { return checker_.failure; }
  // What came last, for a person.
  std::string tail() const;
  // How often what happened; those that begin with "kill" are kills.
  const std::map<std::string, int64_t>& seen() const { return seen_; }

 private:
  // A version as it is, kept in memory: what others have is compared with it.
  struct Truth {
    Parameters values;
    WeightManifest manifest;
  };
  struct Host {
    std::filesystem::path versions;
    std::unique_ptr<WeightCache> cache;
  };
  struct Receiver {
    std::unique_ptr<WeightStage> stage;
    std::shared_ptr<const PackedWeights> samples;
    Digest root;  // of what samples
  };

  void fail(const std::string& why);
  void note(const std::string& what);
  bool calm() const { return world_.now() >= kCalm; }
  bool strikes(double p) { return !calm() && rng_.chance(p); }

  // Runs `deed` in one of three ways: to its end, with a chance of `kill` killed at a step on the
  // disk, or with a disk that is full from such a step on. Nothing: it was killed.
  std::optional<bool> act(const std::string& what, double kill, const std::function<bool()>& deed);

  // As the run names a version by its root in the simulator.
  const Truth& truth_of(int64_t version, const Digest& name);
  void publish(int64_t version, const Digest& name);
  void release(const scheduler::ReleaseWeights& what);
  void tidy();

  std::optional<InstallCause> stage(const WorkerId& worker, const scheduler::Stage& stage);
  std::optional<InstallCause> switch_to(const WorkerId& worker, const scheduler::Switch& change);
  void died(const WorkerId& worker);
  Receiver& receiver(const WorkerId& worker);
  Host& host_of(const WorkerId& worker);
  Result<FetchCounters> fetch(const Host& host, const WeightFile& wanted,
                              const std::filesystem::path& target);
  std::optional<std::filesystem::path> at_relay(const Digest& root, const std::string& file);
  bool transfer(const std::filesystem::path& from, const Digest& digest,
                const std::filesystem::path& target);

  // Faults of disks.
  void damage_something(const std::filesystem::path& folder, const std::string& extension);
  void age(const std::filesystem::path& folder);

  void prove_receivers(const std::string& behind);
  void prove_versions(const scheduler::State& state);
  void prove_version(int64_t version, const Digest& name);

  static constexpr double kCalm = 150;  // seconds, behind which nothing goes wrong any more

  const uint64_t seed_;
  Rng rng_;
  TemporaryDirectory folder_;  // in memory, where that is possible
  const std::filesystem::path run_, scratch_;
  Log log_;
  ModelConfig config_;
  ParameterLayout layout_;
  scheduler::Config law_;
  scheduler::RandomEpisodes episodes_;
  simulator::World world_;
  scheduler::Checker checker_;

  std::map<Digest, std::unique_ptr<Truth>> truths_;  // by the simulator's name
  std::map<int64_t, Digest> published_;              // by the number: what lies there
  Digest last_published_;
  int64_t newest_ = -1, below_ = 0, fetched_from_ = 0, evaluated_ = -1;  // of the trainer's process
  int64_t attempts_ = 0;
  std::map<std::string, int64_t> steps_;  // about as many as a deed takes before it is done
  std::vector<Host> hosts_;
  std::map<WorkerId, Receiver> receivers_;
  bool look_ = false;  // something has changed since what samples name was proved
  std::map<std::string, int64_t> seen_;
  std::deque<std::string> notes_;
};

}  // namespace tailrace
