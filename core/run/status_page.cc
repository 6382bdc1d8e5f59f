#include "core/run/status_page.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tailrace {
namespace {

constexpr off_t kPageBytes = 16384;
constexpr size_t kWords = 256;  // 2,048 characters
// With these the page is there as long as somebody maps it: who reads it never meets its end.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // at least
constexpr unsigned kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, which older headers lack
constexpr int kReadTries = 100;

Failure system_failure(const char* what) {
  return Failure{
      fmt::format("cannot {} a page for a process's status: {}", what, std::strerror(errno))};
}

}  // namespace

// `turn` is odd while the line is being written: a reader takes what it read only if the turn was
// even and is still the same. Words of atomics, since both may be at it at once.
struct StatusPage::Layout {
  Pulse pulse;
  std::atomic<uint64_t> turn{0};
  std::atomic<int64_t> quiet_seconds{0}, failed_in_row{0};
  std::array<std::atomic<uint64_t>, kWords> line{};
  CallBoard calls;
};

Result<StatusPage> StatusPage::create() {
  static_assert(sizeof(Layout) <= kPageBytes);
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  // Where vm.memfd_noexec asks for it, a page must say that it holds no program; kernels before 6.3
  // do not know the flag.
  FileDescriptor descriptor(::memfd_create("tailrace-status", kFlags | kNoExecSeal));
  if (!descriptor.is_open() && errno == EINVAL)
    descriptor = FileDescriptor(::memfd_create("tailrace-status", kFlags));
  if (!descriptor.is_open() || ::ftruncate(descriptor.get(), kPageBytes) != 0 ||
      ::fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_failure("make");
  }
  auto page = map(std::move(descriptor));
  // Zeros are a new Layout's values too, but nobody has said so to the compiler.
  if (page) new (page.value().layout_.get()) Layout;
  return page;
}

Result<StatusPage> StatusPage::adopt(int descriptor) {
  struct stat status {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  if (::fstat(descriptor, &status) != 0 || status.st_size != kPageBytes || seals < 0 ||
      (seals & kSeals) != kSeals)
    return Failure{fmt::format("descriptor {} holds no status page", descriptor)};
  // Not for the programs that environments start.
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return map(FileDescriptor(descriptor));
}

Result<StatusPage> StatusPage::map(FileDescriptor descriptor) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(kPageBytes), PROT_READ | PROT_WRITE,
                        MAP_SHARED, descriptor.get(), 0);
  if (memory == MAP_FAILED) return system_failure("map");
  std::shared_ptr<Layout> layout(static_cast<Layout*>(memory), [](Layout* mapped) {
    ::munmap(mapped, static_cast<size_t>(kPageBytes));
  });
  return StatusPage(std::move(descriptor), std::move(layout));
}

StatusPage::StatusPage(FileDescriptor descriptor, std::shared_ptr<Layout> layout)
    : descriptor_(std::move(descriptor)), layout_(std::move(layout)) {}

Pulse& StatusPage::pulse() const { return layout_->pulse; }

std::shared_ptr<CallBoard> StatusPage::calls() const { return {layout_, &layout_->calls}; }

// A seqlock: the writer never waits for a reader, which may be a supervisor that is stopped. The
// fence keeps the words behind the odd turn, and the last addition keeps them before the even one.
void StatusPage::set_waits(const Waits& waits) {
  layout_->turn.fetch_add(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  layout_->quiet_seconds.store(waits.quiet.count(), std::memory_order_relaxed);
  layout_->failed_in_row.store(waits.failed_in_row, std::memory_order_relaxed);
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word = 0;
    const size_t at = i * sizeof(word);
    if (at < waits.line.size())
      std::memcpy(&word, waits.line.data() + at, std::min(sizeof(word), waits.line.size() - at));
    layout_->line[i].store(word, std::memory_order_relaxed);
  }
  layout_->turn.fetch_add(1, std::memory_order_release);
}

Waits StatusPage::waits() const {
  for (int i = 0; i < kReadTries; ++i) {
    const uint64_t turn = layout_->turn.load(std::memory_order_acquire);
    std::array<uint64_t, kWords> words;
    for (size_t k = 0; k < kWords; ++k) words[k] = layout_->line[k].load(std::memory_order_relaxed);
    const int64_t quiet = layout_->quiet_seconds.load(std::memory_order_relaxed);
    const int64_t failed = layout_->failed_in_row.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (turn % 2 == 1 || turn != layout_->turn.load(std::memory_order_relaxed)) continue;
    const char* text = reinterpret_cast<const char*>(words.data());
    return {std::string(text, ::strnlen(text, sizeof(words))), std::chrono::seconds(quiet), failed};
  }
  return {};  // its writer was stopped in the middle
}

}  // namespace tailrace
