#include "sandbox/plugin/library.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/nearest.h"
#include "core/base/printable.h"
#include "core/base/version.h"
#include "kernels/base/mutex.h"

namespace tailrace::sandbox {
namespace {

namespace fs = std::filesystem;

// Standard error, which a role keeps in its log.
void log_line(void* self, int32_t level, tr_text line) {
  constexpr const char* kLevels[] = {"debug", "info", "warning", "error"};
  const char* name = level >= 0 && level <= 3 ? kLevels[level] : "info";
  fmt::print(stderr, "{}: {}: {}\n", *static_cast<const std::string*>(self), name, string_of(line));
}

SettingsSchema schema_of(const tr_setting* const* list, const std::string& where) {
  SettingsSchema schema;
  for (; list != nullptr && *list != nullptr; ++list) {
    const tr_setting& from = **list;
    Setting setting{.name = string_of(from.name), .help = string_of(from.help)};
    if (setting.name.empty()) throw UserError("{}: a setting has no name", where);
    switch (from.type) {
      case TR_INTEGER:
        setting.type = SettingType::kInteger;
        break;
      case TR_NUMBER:
        setting.type = SettingType::kNumber;
        break;
      case TR_BOOL:
        setting.type = SettingType::kBool;
        break;
      case TR_STRING:
        setting.type = SettingType::kString;
        break;
      case TR_CHOICE:
        setting.type = SettingType::kChoice;
        break;
      default:
        throw UserError(
            "{}: setting {} has type {}, which this Tailrace {} does not know: the library is "
            "newer",
            where, setting.name, from.type, version());
    }
    if (from.fallback != nullptr) setting.fallback = from.fallback;
    if (std::isnan(from.min) || std::isnan(from.max) || from.min > from.max)
      throw UserError("{}: setting {} has a range from {} to {}", where, setting.name, from.min,
                      from.max);
    // An infinite end is none.
    constexpr double kMost = std::numeric_limits<double>::max();
    setting.min = std::max(from.min, -kMost);
    setting.max = std::min(from.max, kMost);
    for (const Setting& other : schema)
      if (other.name == setting.name)
        throw UserError("{}: setting {} is declared twice", where, setting.name);
    setting.choices = strings_of(from.choices);
    schema.push_back(std::move(setting));
  }
  return schema;
}

// `required`: whether all functions are there without which nobody can use it.
template <class Entry, class Type, class Required>
std::vector<Entry> entries_of(const Type* const* list, const char* what, const fs::path& file,
                              Required&& required) {
  std::vector<Entry> entries;
  std::set<std::string> names;
  for (; list != nullptr && *list != nullptr; ++list) {
    const Type& type = **list;
    const std::string name = string_of(type.name);
    const std::string where = fmt::format("{}: {} '{}'", file.string(), what, name);
    if (name.empty()) throw UserError("{}: an {} has no name", file.string(), what);
    if (!names.insert(name).second) throw UserError("{} is there twice", where);
    if (!required(type)) throw UserError("{} lacks a function that the ABI requires", where);
    entries.push_back({{name, string_of(type.help), schema_of(type.settings, where)}, &type});
  }
  return entries;
}

// Opens a library. For a file that dlopen() refuses, or without an entry, it says what to do.
const tr_library* open_library(const fs::path& file, const tr_host& host) {
  std::error_code error;
  if (!fs::exists(file, error))
    throw UserError("{}: not found{}. A library is built as examples/maze shows.", file.string(),
                    nearest_path_hint(file));
  // Relative to here, and not searched for in the system's folders.
  void* handle = ::dlopen(fs::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    throw UserError("{}: cannot be loaded as a library: {}", file.string(), ::dlerror());
  void* entry = ::dlsym(handle, TR_ABI_ENTRY);
  if (entry == nullptr)
    throw UserError(
        "{}: it has no function {}: it is no library of Tailrace's, or of another ABI than {}, "
        "that "
        "of this Tailrace {}.",
        file.string(), TR_ABI_ENTRY, TR_ABI, version());
  const tr_library* library = reinterpret_cast<decltype(&tailrace_library_1)>(entry)(&host);
  if (library == nullptr)
    throw UserError("{}: it refuses to work here; its own words stand above, or in the log.",
                    file.string());
  return library;
}

}  // namespace

std::string string_of(const char* text) { return text == nullptr ? std::string() : text; }
std::string string_of(tr_text text) {
  return text.data == nullptr ? std::string() : std::string(text.data, text.bytes);
}

std::vector<std::string> strings_of(const char* const* list) {
  std::vector<std::string> texts;
  for (; list != nullptr && *list != nullptr; ++list) texts.emplace_back(*list);
  return texts;
}

std::string call_place(const std::filesystem::path& library, const std::string& name) {
  return fmt::format("{} ({})", name, library.filename().string());
}

Failure failure_of(int32_t status, tr_text reason_text) {
  std::string reason = printable(string_of(reason_text));
  if (reason.empty()) reason = "it gives no reason";
  switch (status) {
    case TR_FAILED:
      return {std::move(reason)};
    case TR_TASK_BROKEN:
      return {.message = "the task is broken: " + reason, .is_final = true};
    case TR_MISUSE:
      return {"a call out of order: " + reason};
    case TR_NOT_DECIDED:
      return {"no verdict: " + reason};
    default:
      return {fmt::format("it answers with status {}, which the ABI does not have", status)};
  }
}

PluginValues::PluginValues(const EnvironmentSettings& settings) {
  for (const auto& [name, value] : settings)
    views_.push_back({name.c_str(), {value.data(), value.size()}});
}

MetricList metrics_of(const tr_metric* metrics, uint64_t count) {
  constexpr uint64_t kMost = 256, kMostNameBytes = 256;
  MetricList list;
  for (uint64_t i = 0; metrics != nullptr && i < std::min(count, kMost); ++i)
    list.emplace_back(string_of(metrics[i].name).substr(0, kMostNameBytes), metrics[i].value);
  return list;
}

PluginLibrary::PluginLibrary(fs::path file, decltype(&tailrace_library_1) entry)
    : file_(std::move(file)), file_name_(file_.filename().string()) {
  static const std::string version_text(version());
  host_ = {.size = sizeof host_,
           .abi = TR_ABI,
           .version = version_text.c_str(),
           .self = &file_name_,
           .log = log_line};
  const tr_library* library = entry != nullptr ? entry(&host_) : open_library(file_, host_);
  if (library->abi != TR_ABI)
    throw UserError(
        "{}: it was built with ABI {}, and this Tailrace {} has ABI {}. Build it again "
        "with the headers of this Tailrace.",
        file_.string(), library->abi, tailrace::version(), TR_ABI);
  if (!TR_HAS(library, rewards))
    throw UserError("{}: its description ends too early ({} bytes)", file_.string(), library->size);
  environments_ = entries_of<EnvironmentEntry>(
      library->environments, "environment", file_, [](const tr_env_type& type) {
        return TR_HAS(&type, sample_action) && type.create && type.destroy && type.info &&
               type.reset && type.step && type.cut && type.close && type.sample_action;
      });
  rewards_ =
      entries_of<RewardEntry>(library->rewards, "reward", file_, [](const tr_reward_type& type) {
        return TR_HAS(&type, score) && type.create && type.destroy && type.score;
      });
}

std::shared_ptr<const PluginLibrary> PluginLibrary::linked(const std::string& name,
                                                           decltype(&tailrace_library_1) entry) {
  return std::shared_ptr<const PluginLibrary>(new PluginLibrary(name, entry));
}

std::shared_ptr<const PluginLibrary> PluginLibrary::load(const fs::path& file) {
  // A library answers once in a process, whoever asks.
  static Mutex mutex;
  static std::map<std::string, std::shared_ptr<const PluginLibrary>> loaded;
  std::error_code error;
  const fs::path real = fs::canonical(file, error);
  MutexLock lock(mutex);
  if (!error) {
    if (const auto found = loaded.find(real.string()); found != loaded.end()) return found->second;
  }
  // In place from the start: the library keeps the address of its host.
  std::shared_ptr<const PluginLibrary> library(new PluginLibrary(file));
  if (!error) loaded.emplace(real.string(), library);
  return library;
}

}  // namespace tailrace::sandbox
