#include "core/gate/file_shelf.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/digest_of.h"
#include "core/base/file.h"

namespace tailrace {
namespace {

// Open files and digests of that many: the inputs of a run and a few versions of its weights.
constexpr size_t kMaxFiles = 64;

int64_t chunk_bytes_for(int64_t bytes) {
  // Small chunks as long as their list of digests stays within a message.
  return bytes > wire::kMaxChunks * wire::kChunkBytes ? wire::kMaxChunkBytes : wire::kChunkBytes;
}

}  // namespace

// Which file a name led to: another one under the same name has other digests.
struct FileShelf::Identity {
  dev_t device = 0;
  ino_t inode = 0;
  int64_t bytes = 0, nanoseconds = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

// Computed on the shelf's thread, which writes `facts` and `failure` before `done`.
struct FileShelf::Job {
  std::function<Result<std::filesystem::path>(const std::stop_token&)> make = {};
  FileDescriptor file;
  wire::FileFacts facts;
  std::string failure;
  std::atomic<bool> done = false;
  std::atomic<int64_t> computed = 0;  // bytes, for who waits

  // Opens what is made first. False: `failure` says why there is none.
  bool open(const std::stop_token& stop) {
    if (!make) return true;
    auto path = make(stop);
    if (path) {
      auto opened = open_to_read(path.value());
      if (opened) {
        file = std::move(opened).value();
        if (auto fault = measure(path.value(), -1)) failure = std::move(*fault);
      } else {
        failure = opened.failure().message;
      }
    } else {
      failure = path.failure().message;
    }
    make = {};
    return failure.empty();
  }

  // How much of the file there is to hand out: `most` bytes, or all. What is wrong with it.
  std::optional<std::string> measure(const std::filesystem::path& path, int64_t most) {
    struct stat now {};
    if (::fstat(file.get(), &now) != 0) return describe_errno("read", path, errno);
    facts.apparent_bytes = now.st_size;
    facts.bytes = most < 0 ? now.st_size : std::min<int64_t>(most, now.st_size);
    facts.chunk_bytes = chunk_bytes_for(facts.bytes);
    if (wire::num_chunks(facts.bytes, facts.chunk_bytes) <= wire::kMaxChunks) return std::nullopt;
    return fmt::format("{}: it has {} bytes, and {} is the most that is handed out", path.string(),
                       facts.bytes, wire::kMaxChunks * wire::kMaxChunkBytes);
  }

  void compute(const std::stop_token& stop) {
    if (!open(stop)) return;
    std::vector<std::byte> bytes(static_cast<size_t>(facts.chunk_bytes));
    std::string all;
    for (int64_t at = 0; at < facts.bytes; at += facts.chunk_bytes) {
      if (stop.stop_requested()) return;
      const std::span chunk(bytes.data(),
                            static_cast<size_t>(std::min(facts.chunk_bytes, facts.bytes - at)));
      if (!read_at(file, at, chunk)) {
        failure = "it cannot be read to its end";
        return;
      }
      facts.chunks.push_back(digest_of(chunk));
      all += facts.chunks.back();
      computed.store(at + std::ssize(chunk), std::memory_order_relaxed);
    }
    // Over the digests of its chunks, so that it is read once.
    facts.digest = digest_of(std::string_view(all));
  }
};

struct FileShelf::Entry {
  std::string name;
  Identity identity;
  std::shared_ptr<Job> job;
  Time used;
};

FileShelf::FileShelf(Find find, wire::Wakeup& bell, std::chrono::milliseconds keep_removed)
    : find_(std::move(find)),
      bell_(bell),
      keep_removed_(keep_removed),
      thread_([this](std::stop_token stop) { run(stop); }) {}

FileShelf::~FileShelf() = default;

wire::FileFacts FileShelf::facts(const std::string& name) {
  using Status = wire::FileFacts::Status;
  wire::FileFacts answer{.name = name, .status = Status::kAbsent};
  auto shared = find_(name);
  if (shared && shared->make) return facts_of_made(name, *std::move(shared));
  const auto shelved = std::ranges::find(entries_, name, &Entry::name);
  // An open file can be read to its end after its name is gone.
  if (!shared && shelved != entries_.end()) return facts_of(shelved, {});
  if (!shared) {
    answer.reason = "the run has no such file for a worker";
    return answer;
  }
  if (!shared->absent.empty() || shared->arriving >= 0) {
    // Its owner has removed it, and fetches it again.
    if (shared->arriving >= 0 && shelved != entries_.end()) return facts_of(shelved, *shared);
    answer.reason = shared->absent;
    if (shared->absent.empty()) answer.status = Status::kLater;
    answer.bytes = answer.apparent_bytes = std::max<int64_t>(shared->arriving, 0);
    return answer;
  }
  errno = 0;
  auto file = open_to_read(shared->path);
  if (!file) {
    const int error = errno;
    // Its owner has removed it, and it is here still.
    if (shelved != entries_.end()) return facts_of(shelved, *shared);
    answer.reason = file.failure().message;
    // An error that passes is no reason to do without the file.
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR)
      answer.status = Status::kLater;
    return answer;
  }
  struct stat now {};
  if (::fstat(file.value().get(), &now) != 0) {
    answer.reason = describe_errno("read", shared->path, errno);
    return answer;
  }
  const Identity identity{now.st_dev, now.st_ino, now.st_size,
                          now.st_mtim.tv_sec * 1'000'000'000 + now.st_mtim.tv_nsec};
  auto entry = shelved;
  if (entry != entries_.end() && entry->identity != identity) {
    entries_.erase(entry);
    entry = entries_.end();
  }
  if (entry == entries_.end()) {
    auto job = std::make_shared<Job>();
    job->file = std::move(file).value();
    job->facts.name = name;
    if (auto fault = job->measure(shared->path, shared->bytes)) {
      answer.reason = std::move(*fault);
      return answer;
    }
    put_away_removed();
    entry = put({name, identity, std::move(job), steady_now()});
  }
  return facts_of(entry, *shared);
}

std::list<FileShelf::Entry>::iterator FileShelf::put(Entry entry) {
  entries_.push_front(std::move(entry));
  {
    MutexLock lock(mu_);
    jobs_.push_back(entries_.front().job);
  }
  changed_.notify_one();
  if (entries_.size() > kMaxFiles) entries_.pop_back();
  return entries_.begin();
}

wire::FileFacts FileShelf::facts_of_made(const std::string& name, SharedFile shared) {
  auto entry = std::ranges::find(entries_, name, &Entry::name);
  if (entry == entries_.end()) {
    auto job = std::make_shared<Job>();
    job->make = std::move(shared.make);
    job->facts.name = name;
    entry = put({name, {}, std::move(job), steady_now()});
  }
  const wire::FileFacts answer = facts_of(entry, shared);
  // Whoever asks again may have more luck.
  if (entry->job->done.load(std::memory_order_acquire) && !entry->job->failure.empty())
    entries_.erase(entry);
  return answer;
}

wire::FileFacts FileShelf::facts_of(std::list<Entry>::iterator entry, const SharedFile& shared) {
  using Status = wire::FileFacts::Status;
  // In order of use: put() drops the one that was not used for longest.
  entries_.splice(entries_.begin(), entries_, entry);
  entry->used = steady_now();
  wire::FileFacts answer{.name = entry->name, .status = Status::kAbsent};
  // The file that will be asked for next gets its digests meanwhile.
  if (!shared.next.empty()) (void)facts(shared.next);
  const Job& job = *entry->job;
  if (!job.done.load(std::memory_order_acquire)) {
    answer.status = Status::kLater;
    answer.bytes = answer.apparent_bytes = job.computed.load(std::memory_order_relaxed);
    return answer;
  }
  if (!job.failure.empty()) {
    answer.reason = shared.path.empty() ? job.failure
                                        : fmt::format("{}: {}", shared.path.string(), job.failure);
    return answer;
  }
  return job.facts;
}

void FileShelf::put_away_removed() {
  std::erase_if(entries_, [&](const Entry& entry) {
    struct stat facts {};
    return steady_now() - entry.used > keep_removed_ && entry.job->done.load() &&
           ::fstat(entry.job->file.get(), &facts) == 0 && facts.st_nlink == 0;
  });
}

bool FileShelf::holds(const std::string& name) const {
  return std::ranges::find(entries_, name, &Entry::name) != entries_.end();
}

bool FileShelf::is_pending(const std::string& name) const {
  const auto entry = std::ranges::find(entries_, name, &Entry::name);
  if (entry != entries_.end()) return !entry->job->done.load(std::memory_order_acquire);
  const auto shared = find_(name);
  return shared && shared->absent.empty() && shared->arriving >= 0;
}

std::optional<wire::Chunk> FileShelf::chunk(const Digest& digest, int64_t index) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const Job& job = *entry->job;
    if (!job.done.load(std::memory_order_acquire) || job.facts.digest != digest) continue;
    const wire::FileFacts& facts = job.facts;
    if (index >= std::ssize(facts.chunks)) return std::nullopt;
    const int64_t at = index * facts.chunk_bytes;
    wire::Chunk chunk{digest, index, {}};
    chunk.bytes.resize(static_cast<size_t>(std::min(facts.chunk_bytes, facts.bytes - at)));
    if (!read_at(job.file, at, chunk.bytes)) return std::nullopt;
    entry->used = steady_now();
    return chunk;
  }
  return std::nullopt;
}

void FileShelf::run(const std::stop_token& stop) {
  while (true) {
    std::shared_ptr<Job> job;
    {
      MutexLock lock(mu_);
      changed_.wait(lock.native(), stop, [this] { return !jobs_.empty(); });
      if (stop.stop_requested()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    // Nobody else's: it was put away, or is another file by now.
    if (job.use_count() == 1) continue;
    job->compute(stop);
    job->done.store(true, std::memory_order_release);
    bell_.ring();
  }
}

}  // namespace tailrace
