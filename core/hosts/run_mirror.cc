#include "core/hosts/run_mirror.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/hosts/bundle_listing.h"
#include "core/wire/tcp_address.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// Length of a run's name in that of a log.
constexpr size_t kMaxRunInName = 100;
constexpr int64_t kWorthALine = int64_t{16} << 20;

void make_or_throw(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw UserError("{}", describe_errno("create", folder, error.value()));
}

// Whether the file is what the bundle says; a header has a hole behind it.
bool is_proved(const fs::path& path, const BundleFile& file) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error || (!file.is_header && static_cast<int64_t>(size) != file.bytes)) return false;
  if (file.is_header) return false;  // small: fetch_file() looks whether it is there
  const auto digest = digest_of_file(path);
  return digest && digest.value() == file.digest;
}

// The mark of a work directory, which holds nothing of anybody else's, since it is swept.
constexpr char kMarker[] = "tailrace-work";

// Another worker that begins now may be about to write the marker.
bool comes_to_be_claimed(const fs::path& work) {
  std::error_code error;
  for (int i = 0; i < 100; ++i) {
    if (fs::exists(work / kMarker, error)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

void claim(const fs::path& work) {
  std::error_code error;
  if (fs::exists(work / kMarker, error)) return;
  make_or_throw(work);
  const bool is_empty = fs::is_empty(work, error) && !error;
  if (!is_empty && comes_to_be_claimed(work)) return;
  if (!is_empty)
    throw UserError(
        "--work-dir {} holds files of somebody else, and what a worker keeps there is swept.\n"
        "       Try --work-dir {}.",
        work.string(), (work / "tailrace").string());
  // Data and weights of the run come to lie there: others of this host may neither read nor change
  // them.
  fs::permissions(work, fs::perms::owner_all, error);
  if (auto written = write_file_atomic(work / kMarker, "files of tailrace workers\n"); !written)
    throw UserError("{}", written.failure().message);
}

fs::path lock_of(const fs::path& folder) { return folder.string() + ".lock"; }

// Folders of workers that are gone: nobody holds the lock beside them.
void sweep(const fs::path& workers) {
  std::error_code ignored;
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(workers, ignored))
    if (WeightCache::is_own_folder(entry)) folders.push_back(entry.path());
  for (const fs::path& folder : folders) {
    const LockFile lock(lock_of(folder));
    if (!lock.held()) continue;
    fs::remove_all(folder, ignored);
    fs::remove(lock_of(folder), ignored);
  }
}

fs::path folder_of(const fs::path& work, const RemoteRun& run) {
  claim(work);
  for (const char* folder : {"files", "weights", "relays", "workers", "logs"})
    make_or_throw(work / folder);
  // With the incarnation: names are given again, and a folder of the one before may not be swept
  // yet.
  return work / "workers" / fmt::format("{}-{:x}", run.welcome().name, run.incarnation());
}

// Held by the worker of this host that relays at the address.
fs::path relay_lock(const fs::path& work, const std::string& address) {
  return work / "relays" / digest_of(std::string_view(address));
}

// This worker relays at the address, or may, or another one of this host does.
bool relays_here(const fs::path& work, const RemoteRun& run, const std::string& address) {
  if (address == run.greeting().relay) return true;
  const fs::path file = relay_lock(work, address);
  std::error_code ignored;
  return fs::exists(file, ignored) && !LockFile(file).held();
}

}  // namespace

fs::path default_work_directory() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "tailrace";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache" / "tailrace";
  return fs::temp_directory_path() / fmt::format("tailrace-{}", ::geteuid());
}

RunMirror::RunMirror(RemoteRun& run, Role role, const fs::path& work, const std::stop_token& stop,
                     const std::function<void(const std::string&)>& say)
    : run_(run),
      work_(fs::absolute(work)),
      sources_(run, {.is_here =
                         [this](const std::string& address) {
                           return relays_here(work_, run_, address);
                         }}),
      weights_(
          work_ / "weights",
          [this](const WeightFile& file, const fs::path& target, const std::stop_token& stop_fetch,
                 const WeightSources::Progress& progress) {
            return sources_.fetch(file, target, stop_fetch, progress);
          },
          [this](const fs::path& target, const std::string& why) {
            return sources_.refuse(target, why);
          }),
      paths_{folder_of(work_, run)},
      lock_(lock_of(paths_.root)) {
  if (!lock_.held()) throw UserError("{} is in use", paths_.root.string());
  sweep(work_ / "workers");
  for (const fs::path& folder : {paths_.logs(), paths_.roles(), paths_.tokenizer()})
    make_or_throw(folder);
  const auto fetch = [&](const std::string& name, const fs::path& target) {
    auto fetched = run_.fetch(name, target, stop);
    if (!fetched) throw UserError("{}", fetched.failure().message);
  };
  const fs::path listing_file = paths_.root / "bundle.json";
  fetch(fmt::format("{}{}.json", kBundleListings, name_of(role)), listing_file);
  const auto listing = read_listing(listing_file);
  if (!listing) throw UserError("{}", listing.failure().message);
  for (const BundleFile& file : listing.value().files) {
    const fs::path cached = work_ / "files" / file.digest, place = paths_.root / file.place;
    if (!is_proved(cached, file)) {
      if (file.bytes > kWorthALine)
        say(fmt::format("fetching {} ({} MB)", file.place, file.bytes >> 20));
      fetch(std::string(kBundleFiles) + file.place, cached);
      if (!file.is_header && !is_proved(cached, file)) {
        std::error_code ignored;
        fs::remove(cached, ignored);
        throw UserError("{}: its digest is not that of the bundle: it has changed at the run.",
                        file.place);
      }
    }
    make_or_throw(place.parent_path());
    std::error_code error;
    // Files are kept once under their digests, for all workers and runs of this host. What a worker
    // sees is a run directory of links.
    fs::create_hard_link(cached, place, error);
    if (error) throw UserError("{}", describe_errno("link", place, error.value()));
  }
  for (const auto& [key, place] : listing.value().keys) {
    std::error_code ignored;
    // The program itself, and not a file that it reads.
    if (key.ends_with("command.0"))
      fs::permissions(paths_.root / place, fs::perms::owner_exec, fs::perm_options::add, ignored);
    overrides_.push_back(fmt::format("{}={}", key, (paths_.root / place).string()));
  }
}

fs::path RunMirror::log_file() const {
  const wire::GreetingAnswer& welcome = run_.welcome();
  std::string run = welcome.run;
  // It is a name for people, and may have a slash.
  std::ranges::replace(run, '/', '-');
  run = run.substr(0, kMaxRunInName);
  return work_ / "logs" / fmt::format("{}-{}.log", run, welcome.name);
}

RunMirror::~RunMirror() {
  std::error_code ignored;
  fs::remove_all(paths_.root, ignored);
  fs::remove(lock_of(paths_.root), ignored);
}

WeightRelayOptions RunMirror::relay_options(const std::string& address,
                                            std::optional<int64_t> link_mbit, Log& log) {
  return {.listen = address_to_bind(address),
          .own = run_.endpoint().keys->own,
          .weights = weights_.folder(),
          .lock = relay_lock(work_, address),
          .is_guest = [this](std::string_view key) { return run_.is_guest(key); },
          .fetch =
              [this, link_mbit, &log](const Digest& root, const std::string& file,
                                      const std::stop_token& stop,
                                      const std::function<void(int64_t)>& on_progress) {
                return weights_.bring_file(root, file, stop, on_progress, link_mbit, log);
              }};
}

}  // namespace tailrace
