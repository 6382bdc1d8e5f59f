// The rollout side of weight versions (law 9.6): what is asked for is fetched, proved and packed
// beside what samples, and proved again where products read it; an order to switch then gives it to
// the engine. It knows neither an engine nor the wire.
//
// Thread: the worker's. What takes long runs on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "core/base/digest.h"
#include "core/base/install_cause.h"
#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "core/base/time.h"
#include "core/model/model_config.h"
#include "core/model/packed_weights.h"
#include "core/model/parameters.h"
#include "core/weights/fetch_weights.h"
#include "core/weights/frozen_base.h"
#include "kernels/base/backend.h"
#include "kernels/base/device.h"
#include "kernels/base/dtype.h"

namespace tailrace {

struct WeightVersion {
  int64_t version = -1;
  Digest root;
};

// An adapter's base is packed once and never changes, and a version is the adapter alone.
//
// Invariant: there are two packed versions and never a third: the one that samples, and one to
// stage into.
class WeightStage {
 public:
  struct Options {
    FetchWeights fetch;
    // True: poll() never waits for it. Otherwise a version is staged by the threads of the stream,
    // and awaited, where nothing samples meanwhile.
    bool fetch_takes_long = false;
    // Weights that another role changes, in a device that it has in turn: a version is proved, and
    // nothing packed. Null: none.
    std::shared_ptr<PackedWeights> shared = {};
    std::function<bool(const Digest& root)> shared_holds = {};  // whether they are that version now
    FrozenBase base = {};                                       // of versions that are adapters
    // For tests: sees what was packed before it is read back.
    std::function<void(const PackedWeights&)> on_packed = {};
  };
  // Takes bytes() of memory, so that what is missing is missed now. What `stream` names is
  // borrowed.
  WeightStage(const ModelConfig& config, Dtype dtype, const Stream& stream, Options options);
  ~WeightStage();  // waits for the version that is being staged, whose fetch is told to stop
  static int64_t bytes(const ModelConfig& config, Dtype dtype, Device device = {});

  // Stage this version. It takes the place of a version that is asked for or staged, and of an
  // order to switch.
  void ask(WeightVersion version, std::string manifest);
  // Switch to the staged version, as soon as poll_switch() can.
  void order_switch(WeightVersion version);
  // Shared weights only: another role had them, and nothing is proved any more.
  void overwritten();
  // A session begins that asks for everything anew. What is being staged goes on.
  void forget();

  // The answer to the latest ask(), once.
  struct Staged {
    WeightVersion version;
    std::optional<Failure> failure = {};        // the version is not proved; what samples stays
    InstallCause cause = InstallCause::kOther;  // of a failure
    MetricList metrics = {};                    // those of its fetch, and stage_ms
  };
  // `samples`: episodes are played meanwhile, and nothing may wait.
  std::optional<Staged> poll(bool samples);

  // Something is being staged that poll() does not wait for.
  bool is_staging() const { return staging_.has_value(); }
  // How far the version that is being staged has come. The same as before: it stands still.
  struct Progress {
    WeightVersion version;
    int64_t bytes = 0, total = 0;  // fetched; `bytes` grows by one for each part behind that
  };
  std::optional<Progress> progress() const;

  // The answer to the latest order, once. The caller samples by `weights` from now on; where they
  // are null it does already.
  struct Switched {
    WeightVersion version;
    std::optional<Failure> failure = {};
    std::shared_ptr<const PackedWeights> weights = {};
    Time ordered{};  // when it was ordered, by the steady clock
  };
  // Only when nothing is being staged; unless `may_change`, only an order that changes nothing.
  std::optional<Switched> poll_switch(bool may_change);

 private:
  struct Wish {
    WeightVersion version;
    std::string manifest;
  };

  void begin(const Wish& wish, bool samples);
  struct Outcome {
    Result<Digest> root;
    InstallCause cause = InstallCause::kOther;
    MetricList metrics = {};
  };
  Outcome stage(const Wish& wish, const std::stop_token& stop, const Stream& stream);
  std::optional<Staged> finish(bool samples);

  const ParameterLayout layout_;
  const Stream stream_;
  const OwnedStream beside_;  // of the same device, for the thread that stages while others sample
  const Options options_;

  std::shared_ptr<PackedWeights> packed_;  // staged last
  std::shared_ptr<PackedWeights> spare_;
  std::shared_ptr<const PackedWeights> installed_;  // what samples
  // Roots that were proved of packed_ (none while something is being staged) and of installed_.
  std::optional<Digest> packed_root_, installed_root_;
  int64_t installed_version_ = -1;

  std::optional<Wish> wish_, staging_;
  std::optional<WeightVersion> order_;
  Time ordered_{};
  std::atomic<int64_t> bytes_ = 0, total_ = 0;  // Progress
  std::stop_source stop_;                       // of what is being staged
  std::future<Outcome> result_;                 // last: its thread uses what is above
};

}  // namespace tailrace
