// A library of environments and rewards (tailrace/abi.h), loaded into this process.
//
// What a library says about itself is copied out, and checked: names are there and stand once.
//
// Thread: any, once loaded. It is never unloaded: what it made may outlive everybody here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/metric_list.h"
#include "core/base/result.h"
#include "sandbox/plugin/facts.h"
#include "tailrace/abi.h"

namespace tailrace::sandbox {

// Copied out of a library. Nothing at null, or of no bytes.
std::string string_of(const char* text);
std::string string_of(tr_text text);
std::vector<std::string> strings_of(const char* const* list);
MetricList metrics_of(const tr_metric* metrics, uint64_t count);
// The Failure of a call that came to neither TR_OK nor TR_PENDING.
Failure failure_of(int32_t status, tr_text reason);

// "maze (libmaze.so)", for messages about a call.
std::string call_place(const std::filesystem::path& library, const std::string& name);

// Settings as create() takes them. Borrows their texts.
class PluginValues {
 public:
  explicit PluginValues(const EnvironmentSettings& settings);
  const tr_setting_value* data() const { return views_.data(); }
  uint64_t size() const { return views_.size(); }

 private:
  std::vector<tr_setting_value> views_;
};

class PluginLibrary {
 public:
  struct EnvironmentEntry : Declaration {
    const tr_env_type* type = nullptr;
  };
  struct RewardEntry : Declaration {
    const tr_reward_type* type = nullptr;
  };

  // Once for each file in a process. Throws UserError: no such file, no library, none of
  // Tailrace's, another ABI, a library that refuses or that is not well formed.
  static std::shared_ptr<const PluginLibrary> load(const std::filesystem::path& file);
  // A library linked into this binary, in the same form. `name` stands for its file in messages.
  static std::shared_ptr<const PluginLibrary> linked(const std::string& name,
                                                     decltype(&tailrace_library_1) entry);

  const std::filesystem::path& file() const { return file_; }
  const std::vector<EnvironmentEntry>& environments() const { return environments_; }
  const std::vector<RewardEntry>& rewards() const { return rewards_; }
  // The host that a call which makes an object is given.
  const tr_host& host() const { return host_; }

 private:
  // `entry`: of this binary; none: it is loaded from `file`.
  explicit PluginLibrary(std::filesystem::path file, decltype(&tailrace_library_1) entry = nullptr);

  std::filesystem::path file_;
  std::string file_name_;
  tr_host host_{};
  std::vector<EnvironmentEntry> environments_;
  std::vector<RewardEntry> rewards_;
};

}  // namespace tailrace::sandbox
