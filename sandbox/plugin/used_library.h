// A library as a run uses it. What it says about itself is asked in a process of its own, or known
// from the launch; only who plays its environments here, or asks its rewards, loads it.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "core/base/time.h"
#include "kernels/base/mutex.h"
#include "sandbox/environment_source.h"
#include "sandbox/plugin/facts.h"
#include "sandbox/plugin/hosted_library.h"
#include "sandbox/plugin/library.h"

namespace tailrace::sandbox {

class UsedLibrary {
 public:
  // Asks it, in a process of its own. Throws UserError.
  static std::shared_ptr<UsedLibrary> ask(const std::filesystem::path& file);
  // Asks it in this process.
  static std::shared_ptr<UsedLibrary> load(const std::filesystem::path& file);
  // Facts that are missing from `facts` are asked when they are wanted.
  static std::shared_ptr<UsedLibrary> known(const std::filesystem::path& file, LibraryFacts facts);

  const std::filesystem::path& file() const { return file_; }
  LibraryFacts facts() const;  // with the infos that were asked since
  // `settings` as complete_settings() gives them. Throws UserError.
  EnvironmentInfo info(const std::string& name, const EnvironmentSettings& settings, Time timeout);

  // Loaded into this process with the first call. Throws UserError.
  std::shared_ptr<const PluginLibrary> here() const { return PluginLibrary::load(file_); }
  // Its host starts with the first session.
  std::shared_ptr<const HostedLibrary> hosted();

 private:
  UsedLibrary(std::filesystem::path file, LibraryFacts facts)
      : file_(std::move(file)), facts_(std::move(facts)) {}

  const std::filesystem::path file_;
  bool is_asked_here_ = false;
  mutable Mutex mutex_;
  LibraryFacts facts_ TR_GUARDED_BY(mutex_);
  std::shared_ptr<const HostedLibrary> hosted_ TR_GUARDED_BY(mutex_);
};

// Where what a library has plays: in this process, or each session in one of its own.
enum class PlaysIn : uint8_t { kThisProcess, kOwnProcess };

// Environments of a library; in a process of its own each call has `timeout`. Throws UserError:
// settings that its schema or its constructor refuses.
std::shared_ptr<const EnvironmentSource> source_of(std::shared_ptr<UsedLibrary> library,
                                                   const std::string& name,
                                                   const EnvironmentSettings& settings,
                                                   PlaysIn plays_in, Time timeout);

}  // namespace tailrace::sandbox
