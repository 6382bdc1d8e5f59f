#include "reward/plugin/plugin_verifier.h"

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "kernels/base/mutex.h"

namespace tailrace {
namespace {

using sandbox::PluginLibrary;

class PluginVerifier final : public Verifier {
 public:
  PluginVerifier(std::shared_ptr<const PluginLibrary> library,
                 const PluginLibrary::RewardEntry& entry,
                 const sandbox::EnvironmentSettings& settings)
      : library_(std::move(library)), type_(*entry.type), settings_(settings) {
    // Now, so that settings that it refuses end the start and no score.
    auto made = make();
    if (!made) throw UserError("reward {}: {}", entry.name, made.failure().message);
    idle_.push_back(made.value());
  }
  ~PluginVerifier() override {
    for (tr_reward* reward : idle_) type_.destroy(reward);
  }

  Result<Score> score(const std::string& evidence, Time budget) const override {
    return use<Score>([&](tr_reward* reward) -> Result<Score> {
      tr_score out{};
      out.size = sizeof out;
      const int32_t status =
          type_.score(reward, {evidence.data(), evidence.size()}, budget.count(), &out);
      if (status != TR_OK) return sandbox::failure_of(status, out.reason);
      return Score{.reward = out.reward,
                   .metrics = sandbox::metrics_of(out.metrics, out.num_metrics)};
    });
  }

  Result<void> check_row(const std::string& row, Time) const override {
    if (!TR_HAS(&type_, check_row) || type_.check_row == nullptr) return {};
    const auto checked = use<bool>([&](tr_reward* reward) -> Result<bool> {
      tr_text reason{};
      const int32_t status = type_.check_row(reward, {row.data(), row.size()}, &reason);
      if (status != TR_OK) return sandbox::failure_of(status, reason);
      return true;
    });
    if (!checked) return checked.failure();
    return {};
  }

 private:
  Result<tr_reward*> make() const {
    const sandbox::PluginValues values(settings_);
    tr_reward* made = nullptr;
    tr_text reason{};
    const int32_t status =
        type_.create(&library_->host(), values.data(), values.size(), &made, &reason);
    if (status != TR_OK) return sandbox::failure_of(status, reason);
    if (made == nullptr) return Failure{"it makes nothing, and gives no reason"};
    return made;
  }

  // An object that nobody else uses meanwhile.
  template <class T, class Call>
  Result<T> use(Call&& call) const {
    tr_reward* reward = nullptr;
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        reward = idle_.back();
        idle_.pop_back();
      }
    }
    if (reward == nullptr) {
      auto made = make();
      if (!made) return made.failure();
      reward = made.value();
    }
    Result<T> result = call(reward);
    MutexLock lock(mutex_);
    idle_.push_back(reward);
    return result;
  }

  const std::shared_ptr<const PluginLibrary> library_;
  const tr_reward_type& type_;
  const sandbox::EnvironmentSettings settings_;
  mutable Mutex mutex_;
  mutable std::vector<tr_reward*> idle_ TR_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Verifier> make_plugin_verifier(std::shared_ptr<const PluginLibrary> library,
                                               const PluginLibrary::RewardEntry& entry,
                                               const sandbox::EnvironmentSettings& settings) {
  return std::make_unique<PluginVerifier>(std::move(library), entry, settings);
}

}  // namespace tailrace
