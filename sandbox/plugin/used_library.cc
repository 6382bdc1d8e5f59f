#include "sandbox/plugin/used_library.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "sandbox/plugin/hosted_environment.h"
#include "sandbox/plugin/plugin_environment.h"

namespace tailrace::sandbox {
namespace {

template <class Entry>
const Entry& entry_of(const std::vector<Entry>& entries, const std::string& name,
                      const std::filesystem::path& file) {
  const auto found = std::ranges::find(entries, name, &Entry::name);
  if (found != entries.end()) return *found;
  throw UserError("{} has no '{}' any more. Start the run again.", file.string(), name);
}

std::unique_ptr<Environment> open_here(const UsedLibrary& library, const std::string& name,
                                       const EnvironmentSettings& settings) {
  const auto here = library.here();
  return make_plugin_environment(here, entry_of(here->environments(), name, library.file()),
                                 settings);
}

class LibrarySource final : public EnvironmentSource {
 public:
  LibrarySource(std::shared_ptr<UsedLibrary> library, EnvironmentInfo info,
                EnvironmentSettings settings, PlaysIn plays_in, Time timeout)
      : library_(std::move(library)),
        info_(std::move(info)),
        settings_(std::move(settings)),
        is_apart_(plays_in == PlaysIn::kOwnProcess),
        timeout_(timeout) {}

  const EnvironmentInfo& info() const override { return info_; }
  std::unique_ptr<Environment> open() const override {
    if (is_apart_) return make_hosted_environment(library_->hosted(), info_, settings_, timeout_);
    return open_here(*library_, info_.name, settings_);
  }
  std::unique_ptr<RemoteEnvironment> open_remote() const override {
    if (!is_apart_) return nullptr;
    return make_remote_environment(library_->hosted(), info_.name, settings_, timeout_);
  }

 private:
  const std::shared_ptr<UsedLibrary> library_;
  const EnvironmentInfo info_;
  const EnvironmentSettings settings_;
  const bool is_apart_;
  const Time timeout_;
};

}  // namespace

std::shared_ptr<UsedLibrary> UsedLibrary::ask(const std::filesystem::path& file) {
  auto hosted = HostedLibrary::start(file);
  std::shared_ptr<UsedLibrary> library(new UsedLibrary(file, hosted->facts()));
  MutexLock lock(library->mutex_);
  library->hosted_ = std::move(hosted);
  return library;
}

std::shared_ptr<UsedLibrary> UsedLibrary::load(const std::filesystem::path& file) {
  const auto here = PluginLibrary::load(file);
  LibraryFacts facts;
  facts.environments.assign(here->environments().begin(), here->environments().end());
  facts.rewards.assign(here->rewards().begin(), here->rewards().end());
  std::shared_ptr<UsedLibrary> library(new UsedLibrary(file, std::move(facts)));
  library->is_asked_here_ = true;
  return library;
}

std::shared_ptr<UsedLibrary> UsedLibrary::known(const std::filesystem::path& file,
                                                LibraryFacts facts) {
  return std::shared_ptr<UsedLibrary>(new UsedLibrary(file, std::move(facts)));
}

LibraryFacts UsedLibrary::facts() const {
  MutexLock lock(mutex_);
  return facts_;
}

std::shared_ptr<const HostedLibrary> UsedLibrary::hosted() {
  MutexLock lock(mutex_);
  if (hosted_ == nullptr) hosted_ = HostedLibrary::known(file_, facts_);
  return hosted_;
}

EnvironmentInfo UsedLibrary::info(const std::string& name, const EnvironmentSettings& settings,
                                  Time timeout) {
  {
    MutexLock lock(mutex_);
    for (const KnownInfo& known : facts_.infos)
      if (known.name == name && known.settings == settings) return known.info;
  }
  EnvironmentInfo info = is_asked_here_ ? open_here(*this, name, settings)->info()
                                        : ask_info(*hosted(), name, settings, timeout);
  MutexLock lock(mutex_);
  facts_.infos.push_back({name, settings, info});
  return info;
}

std::shared_ptr<const EnvironmentSource> source_of(std::shared_ptr<UsedLibrary> library,
                                                   const std::string& name,
                                                   const EnvironmentSettings& settings,
                                                   PlaysIn plays_in, Time timeout) {
  const LibraryFacts facts = library->facts();
  const EnvironmentSettings whole =
      complete_settings(entry_of(facts.environments, name, library->file()).settings, settings,
                        "environment " + name, "env.settings");
  EnvironmentInfo info = library->info(name, whole, timeout);
  return std::make_shared<LibrarySource>(std::move(library), std::move(info), whole, plays_in,
                                         timeout);
}

}  // namespace tailrace::sandbox
