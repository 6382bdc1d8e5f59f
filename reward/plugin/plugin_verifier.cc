#include "reward/plugin/plugin_verifier.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/run/call_board.h"
#include "kernels/base/mutex.h"

namespace tailrace {
namespace {

using sandbox::PluginLibrary;
using sandbox::UsedLibrary;

class PluginVerifier final : public Verifier {
 public:
  PluginVerifier(std::shared_ptr<UsedLibrary> library, std::string name,
                 const sandbox::EnvironmentSettings& settings)
      : library_(std::move(library)),
        name_(std::move(name)),
        of_(sandbox::call_place(library_->file(), name_)),
        settings_(settings) {}
  ~PluginVerifier() override {
    MutexLock lock(mutex_);
    for (const Reward& reward : idle_) reward.type->destroy(reward.self);
  }

  Result<Score> score(const std::string& evidence, Time budget) const override {
    return use<Score>([&](const Reward& reward) -> Result<Score> {
      const CallMark mark("score()", of_, evidence);
      tr_score out{};
      out.size = sizeof out;
      const int32_t status =
          reward.type->score(reward.self, {evidence.data(), evidence.size()}, budget.count(), &out);
      if (status != TR_OK) return sandbox::failure_of(status, out.reason);
      return Score{.reward = out.reward,
                   .metrics = sandbox::metrics_of(out.metrics, out.num_metrics)};
    });
  }

  Result<void> check_row(const std::string& row, Time) const override {
    const auto checked = use<bool>([&](const Reward& reward) -> Result<bool> {
      if (!TR_HAS(reward.type, check_row) || reward.type->check_row == nullptr) return true;
      const CallMark mark("check_row()", of_, row);
      tr_text reason{};
      const int32_t status = reward.type->check_row(reward.self, {row.data(), row.size()}, &reason);
      if (status != TR_OK) return sandbox::failure_of(status, reason);
      return true;
    });
    if (!checked) return checked.failure();
    return {};
  }

 private:
  struct Reward {
    const tr_reward_type* type = nullptr;
    tr_reward* self = nullptr;
  };

  Result<Reward> make() const {
    const std::shared_ptr<const PluginLibrary> here = library_->here();
    const auto entry = std::ranges::find(here->rewards(), name_, &PluginLibrary::RewardEntry::name);
    if (entry == here->rewards().end())
      return Failure{fmt::format("{} has no reward '{}' any more", here->file().string(), name_)};
    const CallMark mark("create()", of_, "");
    const sandbox::PluginValues values(settings_);
    Reward made{.type = entry->type};
    tr_text reason{};
    const int32_t status =
        made.type->create(&here->host(), values.data(), values.size(), &made.self, &reason);
    if (status != TR_OK) return sandbox::failure_of(status, reason);
    if (made.self == nullptr) return Failure{"it makes nothing, and gives no reason"};
    return made;
  }

  // An object that nobody else uses meanwhile.
  template <class T, class Call>
  Result<T> use(Call&& call) const {
    Reward reward;
    {
      MutexLock lock(mutex_);
      if (!idle_.empty()) {
        reward = idle_.back();
        idle_.pop_back();
      }
    }
    if (reward.self == nullptr) {
      auto made = make();
      if (!made) return made.failure();
      reward = made.value();
    }
    Result<T> result = call(reward);
    MutexLock lock(mutex_);
    idle_.push_back(reward);
    return result;
  }

  const std::shared_ptr<UsedLibrary> library_;
  const std::string name_, of_;  // of_: for marks
  const sandbox::EnvironmentSettings settings_;
  mutable Mutex mutex_;
  mutable std::vector<Reward> idle_ TR_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Verifier> make_plugin_verifier(std::shared_ptr<UsedLibrary> library,
                                               const std::string& name,
                                               const sandbox::EnvironmentSettings& settings) {
  return std::make_unique<PluginVerifier>(std::move(library), name, settings);
}

}  // namespace tailrace
