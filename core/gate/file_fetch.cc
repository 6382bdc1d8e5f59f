#include "core/gate/file_fetch.h"

#include <algorithm>
#include <cerrno>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/file_descriptor.h"
#include "core/gate/fetch_window.h"
#include "core/run/lock_file.h"
#include "core/wire/gate_frames.h"
#include "core/wire/socket.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kFetchLook{50};
constexpr std::chrono::milliseconds kBurst{100};  // that a rate allows after a pause
constexpr std::chrono::milliseconds kConnecting{5};
constexpr std::chrono::milliseconds kAskAgain{1'000};  // for facts, which may be lost or not ready
constexpr char kOther[] = "what is there is another file";
constexpr int kMaxDamaged = 16;  // more than a window of them: then it is not the link

class Fetch {
 public:
  Fetch(const FetchOptions& options, FetchConnection& connection, const std::string& name,
        const fs::path& target, const std::stop_token& stop)
      : options_(options),
        name_(name),
        target_(target),
        part_(target.string() + ".part"),
        lock_(target.string() + ".lock"),
        stop_(stop),
        connection_(connection),
        socket_(connection.socket) {
    // Drops messages for the file before it that came too late.
    while (socket_.receive()) {
    }
  }

  Result<wire::FileFacts> facts() {
    if (auto known = ask_facts(); !known) return known.failure();
    return std::move(facts_);
  }

  // The bytes that it has received are counted even where it fails.
  Result<FetchCounters> run() {
    auto ended = fetch();
    if (options_.counters != nullptr) *options_.counters = counters_;
    return ended;
  }

 private:
  Result<FetchCounters> fetch() {
    // The other one may be done by the time that we hold it.
    const LockFile lock = hold();
    if (!lock.held()) return refuse("it was given up, before anybody else had fetched it");
    if (auto known = ask_facts(); !known) return known.failure();
    while (true) {
      // Whoever reads it goes on with the file that it has opened.
      if (is_there()) return counters_;
      if (auto opened = open_part(); !opened) return opened.failure();
      if (auto taken = take_chunks(); !taken) return taken.failure();
      if (!renewed_) return settle();
      // The name leads to another file since: what is here may be of use for that one too.
      facts_ = *std::exchange(renewed_, std::nullopt);
      if (!is_expected()) return refuse(kOther);
      if (is_too_long()) return refuse(too_long());
      in_flight_.clear();
      counters_.kept = 0;
    }
  }

  Failure refuse(const std::string& why) const {
    return Failure{fmt::format("{}: {}", name_, why)};
  }

  // Another process may fetch the same: it is waited for as long as it gets on.
  LockFile hold() const {
    Time give_up = steady_now() + options_.lock_patience;
    fs::file_time_type written{}, waited{};
    bool has_looked = false;
    int64_t writes_seen = 0;  // but for what the first look finds
    const auto has_changed = [](const fs::path& file, fs::file_time_type& seen) {
      std::error_code missing;
      const auto now = fs::last_write_time(file, missing);
      return !missing && std::exchange(seen, now) != now;
    };
    while (true) {
      LockFile lock(lock_);
      if (lock.held() || stop_.stop_requested() || steady_now() > give_up) return lock;
      // It writes chunks, or its source gets on.
      const bool writes = has_changed(part_, written), waits = has_changed(lock_, waited);
      if (writes || waits) give_up = steady_now() + options_.lock_patience;
      // Waiting is not passed on: two that wait for each other would keep each other waiting.
      if (std::exchange(has_looked, true) && writes) options_.on_progress(++writes_seen, 0);
      beat();
      std::this_thread::sleep_for(kFetchLook);
    }
  }

  // The next message of the gate within `wait`.
  std::optional<wire::GateMessage> receive(std::chrono::nanoseconds wait = kFetchLook) {
    beat();
    auto received = socket_.receive();
    if (!received) {
      socket_.wait(wait);
      received = socket_.receive();
    }
    if (!received) return std::nullopt;
    auto message = wire::decode_gate_message(received->frame);
    if (!message) return std::nullopt;
    return std::move(message).value();
  }

  // False: there is no connection yet, or no room.
  bool ask_for_facts() {
    return socket_.send("", wire::encode(wire::AskFile{options_.incarnation, name_}));
  }

  Result<void> ask_facts() {
    Time give_up = steady_now() + options_.patience;
    Time ask_at = Time::min();
    int64_t ready = -1;  // bytes, of a source that gets ready
    while (steady_now() < give_up) {
      (void)is_connected_anew();
      if (stop_.stop_requested()) return refuse("it was given up");
      if (steady_now() >= ask_at) {
        ask_at = steady_now() + (ask_for_facts() ? kAskAgain : kConnecting);
      }
      auto message = receive(std::min<std::chrono::nanoseconds>(kFetchLook, ask_at - steady_now()));
      auto* facts = message ? std::get_if<wire::FileFacts>(&*message) : nullptr;
      if (facts == nullptr || facts->name != name_) continue;
      switch (facts->status) {
        case wire::FileFacts::Status::kThere:
          facts_ = std::move(*facts);
          if (!is_expected()) return refuse(kOther);
          if (is_too_long()) return refuse(too_long());
          return {};
        case wire::FileFacts::Status::kAbsent:
          return refuse(facts->reason);
        case wire::FileFacts::Status::kLater:
          // It works on it, and answers again when it is ready; an answer may be lost.
          ask_at = steady_now() + kAskAgain;
          if (std::exchange(ready, facts->bytes) == facts->bytes) break;
          give_up = steady_now() + options_.patience;
          tell_who_waits();
          options_.on_progress(facts->bytes, 0);
          break;
      }
    }
    const auto seconds = options_.patience.count() / 1000;
    return refuse(ready < 0 ? fmt::format("the other end has not answered for {} s", seconds)
                            : fmt::format("it has not got on there for {} s", seconds));
  }

  // Tells the processes that wait for the lock (hold()) that this one gets on.
  void tell_who_waits() const {
    std::error_code ignored;
    if (fs::exists(lock_, ignored))
      fs::last_write_time(lock_, fs::file_time_type::clock::now(), ignored);
  }

  // Whether the source has the file that is meant. What else it says of it is not believed.
  bool is_expected() {
    if (options_.expected == nullptr) return true;
    if (facts_.digest != options_.expected->digest) return false;
    facts_ = *options_.expected;
    return true;
  }

  bool is_too_long() const {
    return options_.max_bytes >= 0 &&
           std::max(facts_.bytes, facts_.apparent_bytes) > options_.max_bytes;
  }
  std::string too_long() const {
    return fmt::format("it has {} bytes there, and can have {} at most",
                       std::max(facts_.bytes, facts_.apparent_bytes), options_.max_bytes);
  }

  // The target is what the gate has.
  bool is_there() {
    FileDescriptor file(::open(target_.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat found {};
    if (!file.is_open() || ::fstat(file.get(), &found) != 0 ||
        found.st_size != facts_.apparent_bytes)
      return false;
    const bool whole = prove_chunks(file, found.st_size).empty();
    if (!whole) counters_.kept = 0;
    return whole;
  }

  // Proves what an earlier transfer has left.
  Result<void> open_part() {
    file_ = FileDescriptor(::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat found {};
    if (!file_.is_open() || ::fstat(file_.get(), &found) != 0)
      return Failure{describe_errno("open", part_, errno)};
    // A part that is longer than the file was of another one: its chunks are proved like all.
    if (::ftruncate(file_.get(), facts_.bytes) != 0)
      return Failure{describe_errno("write", part_, errno)};
    missing_ = prove_chunks(file_, found.st_size);
    there_ = counters_.kept;
    return {};
  }

  // The chunks that a file of so many bytes lacks, or has otherwise. After a stop, all that follow.
  std::deque<int64_t> prove_chunks(const FileDescriptor& file, int64_t size) {
    std::deque<int64_t> missing;
    std::vector<std::byte> bytes(static_cast<size_t>(facts_.chunk_bytes));
    for (int64_t i = 0; i < std::ssize(facts_.chunks); ++i) {
      beat();
      const int64_t at = i * facts_.chunk_bytes;
      const std::span chunk(bytes.data(), static_cast<size_t>(bytes_of(i)));
      if (!stop_.stop_requested() && at + std::ssize(chunk) <= size && read_at(file, at, chunk) &&
          digest_of(chunk) == facts_.chunks[static_cast<size_t>(i)]) {
        counters_.kept += std::ssize(chunk);
        options_.on_progress(counters_.kept, facts_.bytes);
      } else {
        missing.push_back(i);
      }
    }
    return missing;
  }

  int64_t bytes_of(int64_t index) const {
    return std::min(facts_.chunk_bytes, facts_.bytes - index * facts_.chunk_bytes);
  }

  // All of them, unless the file is another one by now (`renewed_`).
  Result<void> take_chunks() {
    window_.emplace(options_.window_bytes, facts_.chunk_bytes);
    ask_at_ = {};
    Time last = steady_now(), asked_all = last;
    auto stall = options_.stall;
    while (!missing_.empty() || !in_flight_.empty()) {
      if (stop_.stop_requested()) return refuse("it was given up");
      fill_window();
      if (is_connected_anew()) ask_all_again();
      auto message = receive(next_look());
      if (const auto* chunk = message ? std::get_if<wire::Chunk>(&*message) : nullptr) {
        auto taken = take(*chunk);
        if (!taken) return taken.failure();
        if (!taken.value()) continue;
        last = asked_all = steady_now();
        stall = options_.stall;
        absent_.clear();
        continue;
      }
      if (auto* facts = message ? std::get_if<wire::FileFacts>(&*message) : nullptr;
          facts != nullptr && facts->name == name_) {
        if (facts->status == wire::FileFacts::Status::kAbsent) absent_ = facts->reason;
        // The gate had to look at the file again: what was asked for until it had is lost.
        if (facts->status == wire::FileFacts::Status::kLater) was_put_away_ = true;
        if (facts->status == wire::FileFacts::Status::kThere && facts->digest == facts_.digest &&
            std::exchange(was_put_away_, false))
          take_back_asked();
        if (facts->status == wire::FileFacts::Status::kThere && facts->digest != facts_.digest) {
          renewed_ = std::move(*facts);
          return {};
        }
      }
      const Time now = steady_now();
      if (now - last > options_.patience)
        return refuse(fmt::format("nothing of it has come for {} s; {} of {} bytes are here",
                                  options_.patience.count() / 1000, there_, facts_.bytes));
      // Nothing is missed before it may be asked for.
      if (in_flight_.empty()) asked_all = now;
      // The wait doubles with each time that all are asked for again: on a slow link the answers
      // may still be on their way, and asking would add to the queue.
      if (now - asked_all < (absent_.empty() ? stall : options_.stall / 2)) continue;
      // A file that its owner has removed is given for as long as it is on the gate's shelf: only
      // one of which no chunk comes either is gone.
      if (!absent_.empty()) return refuse(absent_);
      asked_all = now;
      stall *= 2;
      ask_all_again();
    }
    return {};
  }

  // Requests that were under way are lost with their connection.
  bool is_connected_anew() {
    bool anew = false;
    while (const auto contact = socket_.contact())
      if (*contact == wire::Socket::Contact::kReady)
        anew = std::exchange(connection_.was_ready, true);
    socket_.revive();
    return anew;
  }

  // A gate that is new must look at the file before it can give a chunk of it.
  void ask_all_again() {
    take_back_asked();
    (void)ask_for_facts();
  }

  void take_back_asked() {
    counters_.asked_again += std::ssize(in_flight_);
    while (!in_flight_.empty()) {
      missing_.push_front(in_flight_.back().index);
      in_flight_.pop_back();
    }
  }

  // Until the rate allows the next request, where that is what is waited for.
  std::chrono::nanoseconds next_look() const {
    const Time now = steady_now();
    return ask_at_ > now ? std::min<std::chrono::nanoseconds>(ask_at_ - now, kFetchLook)
                         : std::chrono::nanoseconds(kFetchLook);
  }

  void fill_window() {
    while (!missing_.empty() && std::ssize(in_flight_) < window_->chunks() &&
           steady_now() >= ask_at_) {
      const int64_t index = missing_.front();
      const wire::AskChunk ask{options_.incarnation, facts_.digest, index};
      if (!socket_.send("", wire::encode(ask))) return;
      missing_.pop_front();
      in_flight_.push_back({index, steady_now()});
      if (options_.rate_mbit > 0)
        ask_at_ = std::max(ask_at_, steady_now() - kBurst) +
                  std::chrono::duration_cast<Time>(std::chrono::duration<double, std::micro>(
                      static_cast<double>(bytes_of(index)) * 8 / options_.rate_mbit));
    }
  }

  // Whether it was one that was missing.
  Result<bool> take(const wire::Chunk& chunk) {
    const auto asked = std::ranges::find(in_flight_, chunk.index, &Asked::index);
    if (chunk.digest != facts_.digest || asked == in_flight_.end()) return false;
    // They come in the order in which they were asked for: those before it were dropped.
    while (in_flight_.front().index != chunk.index) {
      ++counters_.asked_again;
      missing_.push_front(in_flight_.front().index);
      in_flight_.pop_front();
    }
    // The round trip of a chunk tells how many may be asked for at once.
    window_->on_chunk(steady_now() - in_flight_.front().at);
    in_flight_.pop_front();
    if (std::ssize(chunk.bytes) != bytes_of(chunk.index) ||
        digest_of(chunk.bytes) != facts_.chunks[static_cast<size_t>(chunk.index)]) {
      missing_.push_back(chunk.index);
      if (++counters_.damaged > kMaxDamaged)
        return refuse(fmt::format("its chunks arrive damaged ({} of them)", counters_.damaged));
      (void)ask_for_facts();  // it may have been written over
      return false;
    }
    if (!write_at(file_, chunk.index * facts_.chunk_bytes, chunk.bytes))
      return Failure{describe_errno("write", part_, errno)};
    counters_.received += std::ssize(chunk.bytes);
    there_ += std::ssize(chunk.bytes);
    options_.on_progress(there_, facts_.bytes);
    return true;
  }

  Result<FetchCounters> settle() {
    if (facts_.apparent_bytes > facts_.bytes &&
        ::ftruncate(file_.get(), facts_.apparent_bytes) != 0)
      return Failure{describe_errno("write", part_, errno)};
    std::error_code error;
    // The name appears once every chunk is proved: whoever sees it has the whole file.
    fs::rename(part_, target_, error);
    if (error) return Failure{describe_errno("rename", part_, error.value())};
    return counters_;
  }

  const FetchOptions& options_;
  const std::string& name_;
  const fs::path target_, part_, lock_;
  const std::stop_token stop_;
  FetchConnection& connection_;
  wire::Socket& socket_;
  wire::FileFacts facts_;
  int64_t there_ = 0;                       // bytes of the part that are proved
  std::string absent_;                      // why the gate has no such file by now
  std::optional<wire::FileFacts> renewed_;  // of the name, when they are others than `facts_`
  FileDescriptor file_;
  struct Asked {
    int64_t index;
    Time at;
  };
  bool was_put_away_ = false;    // the gate computes the digests of the file again
  std::deque<int64_t> missing_;  // chunks
  std::deque<Asked> in_flight_;  // in the order of their requests
  std::optional<FetchWindow> window_;
  Time ask_at_{};  // by the rate
  FetchCounters counters_;
};

}  // namespace

FetchConnection::FetchConnection(const wire::Endpoint& gate) {
  socket.watch();
  socket.connect(gate);
}

Result<wire::FileFacts> ask_facts(const FetchOptions& options, FetchConnection& connection,
                                  const std::string& name, const std::stop_token& stop) {
  return Fetch(options, connection, name, {}, stop).facts();
}

Result<FetchCounters> fetch_file(const FetchOptions& options, FetchConnection& connection,
                                 const std::string& name, const fs::path& target,
                                 const std::stop_token& stop) {
  try {
    return Fetch(options, connection, name, target, stop).run();
  } catch (const UserError& error) {
    return Failure{error.what()};  // a folder that cannot be written
  }
}

Result<FetchCounters> fetch_file(const FetchOptions& options, const wire::Endpoint& gate,
                                 const std::string& name, const fs::path& target,
                                 const std::stop_token& stop) {
  try {
    FetchConnection connection(gate);
    return fetch_file(options, connection, name, target, stop);
  } catch (const UserError& error) {
    return Failure{error.what()};  // no files left
  }
}

}  // namespace tailrace
