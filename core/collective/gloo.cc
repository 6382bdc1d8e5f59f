#include "core/collective/gloo.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <fstream>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The floats of a sum at a time: a rank holds one such piece of each other rank beside the values.
constexpr size_t kPieceFloats = size_t{1} << 20;
constexpr std::chrono::milliseconds kBeat{100};
// A rank that connects has heard that all are there.
constexpr std::chrono::seconds kConnect{15};
// After a rank has gone, for what still comes from the others.
constexpr std::chrono::seconds kGrace{2};
// For those that still read when this rank is done.
constexpr std::chrono::seconds kFarewell{10};

// Gloo tells of a connection that closes to who waits for a message that has not begun: not where
// one was half sent or half read. So one more receive waits for a message that no rank sends, and
// fails with the first connection.
class Watch {
 public:
  explicit Watch(gloo::rendezvous::Context& context)
      : buffer_(context.createUnboundBuffer(&nothing_, 1)) {
    for (int other = 0; other < context.size; ++other)
      if (other != context.rank) buffer_->recv(other, kNoTag, 0, 1);
    reason_ = std::async(std::launch::async, [this]() -> std::string {
      try {
        buffer_->waitRecv(std::chrono::hours(24 * 365 * 10));
      } catch (const std::exception& error) {
        return error.what();
      }
      return "";
    });
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  ~Watch() { buffer_->abortWaitRecv(); }

  // A connection is closed.
  bool fired() const {
    return reason_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  const std::string& reason() const { return reason_.get(); }  // once fired

 private:
  static constexpr uint64_t kNoTag = ~uint64_t{0};
  char nothing_ = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
  std::shared_future<std::string> reason_;  // waits for its thread when it goes, before the buffer
};

class GlooCollective : public Collective {
 public:
  explicit GlooCollective(const GlooOptions& options)
      : options_(options),
        context_(std::make_shared<gloo::rendezvous::Context>(options.rank, options.size)) {
    guarded("did not come", [&] {
      fs::create_directories(options.folder);
      gloo::rendezvous::FileStore store(options.folder.string());
      gloo::transport::tcp::attr attributes;
      attributes.hostname = options.address;
      context_->setTimeout(std::min<std::chrono::milliseconds>(options.timeout, kConnect));
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      context_->connectFullMesh(store, device);
      watch_.emplace(*context_);
    });
  }

  ~GlooCollective() override {
    if (watch_ && !lost_ && std::uncaught_exceptions() == 0) farewell();
    // Gloo's thread tells a buffer of its connection's end, and may still be about it when the one
    // that waited goes on: no connection is left before the buffers go.
    if (watch_) context_->closeConnections();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  void sum(std::span<float> values) override {
    guarded("is gone", [&] { sum_pieces(values); });
  }

  void broadcast(std::span<std::byte> bytes) override {
    guarded("is gone", [&] {
      const auto buffer = open(bytes.data(), bytes.size());
      const uint64_t tag = next_tag();
      if (rank() == 0) {
        for (int to = 1; to < size(); ++to) buffer->send(to, tag);
        for (int to = 1; to < size(); ++to) await_sent(*buffer);
      } else {
        buffer->recv(0, tag);
        await_received(*buffer);
      }
    });
  }

  std::vector<std::vector<std::byte>> gather(std::span<const std::byte> own) override {
    std::vector<std::vector<std::byte>> all(static_cast<size_t>(size()));
    guarded("is gone", [&] {
      std::vector<uint64_t> sizes(all.size());
      sizes[static_cast<size_t>(rank())] = own.size();
      const auto counts = open(sizes.data(), sizes.size() * kCount);
      exchange(*counts, [&](int r) { return Piece{static_cast<size_t>(r) * kCount, kCount}; });
      // The bytes of all ranks, one behind the other.
      std::vector<size_t> offsets = {0};
      for (const uint64_t bytes : sizes) offsets.push_back(offsets.back() + bytes);
      std::vector<std::byte> bytes(offsets.back());
      std::ranges::copy(own, bytes.begin() + static_cast<ptrdiff_t>(at(offsets, rank())));
      const auto buffer = open(bytes.data(), bytes.size());
      exchange(*buffer, [&](int r) {
        return Piece{at(offsets, r), sizes[static_cast<size_t>(r)]};
      });
      for (size_t r = 0; r < all.size(); ++r)
        all[r].assign(bytes.begin() + static_cast<ptrdiff_t>(offsets[r]),
                      bytes.begin() + static_cast<ptrdiff_t>(offsets[r + 1]));
    });
    return all;
  }

 private:
  static constexpr size_t kCount = sizeof(uint64_t);
  struct Piece {
    size_t offset = 0, bytes = 0;
  };

  static size_t at(const std::vector<size_t>& offsets, int rank) {
    return offsets[static_cast<size_t>(rank)];
  }

  // Gloo has no numbers of calls of its own.
  uint64_t next_tag() { return next_tag_++; }

  template <class Call>
  void guarded(const char* what, const Call& call) {
    if (lost_) throw RankLost(*lost_);
    if (size() == 1) return;
    try {
      run(call);
    } catch (const std::exception& error) {  // Gloo has several roots
      lost_ = fmt::format("a rank of {} {}: {}", size(), what, error.what());
      throw RankLost(*lost_);
    }
  }

  using Buffer = gloo::transport::UnboundBuffer;

  // Gloo resets a connection that it closes, and what the other side has not read yet is lost with
  // it: also of a call that has returned here. So a rank goes when the others have said that they
  // have all, when one of them is gone, or when it has waited long enough.
  void farewell() {
    constexpr uint64_t kTag = ~uint64_t{1};
    try {
      std::vector<std::byte> words(static_cast<size_t>(size()));
      const auto buffer = open(words.data(), words.size());
      run([&] {
        const auto deadline = std::chrono::steady_clock::now() + kFarewell;
        for (int other = 0; other < size(); ++other) {
          if (other == rank()) continue;
          buffer->recv(other, kTag, static_cast<size_t>(other), 1);
          buffer->send(other, kTag, static_cast<size_t>(rank()), 1);
        }
        for (int others = size() - 1; others > 0; --others)
          buffer->waitRecv(std::max(std::chrono::milliseconds(1),
                                    std::chrono::floor<std::chrono::milliseconds>(
                                        deadline - std::chrono::steady_clock::now())));
      });
    } catch (const std::exception&) {
      // It goes all the same.
    }
  }

  // Runs what blocks on a thread of its own, so that the caller's pulse goes on.
  template <class Call>
  void run(const Call& call) {
    const Watch* watch = watch_ ? &*watch_ : nullptr;  // null: it connects
    auto done = std::async(std::launch::async, call);
    std::chrono::milliseconds gone{0};
    while (done.wait_for(kBeat) != std::future_status::ready) {
      beat();
      if (watch == nullptr || !watch->fired()) continue;
      gone += kBeat;
      if (gone >= kGrace) end_waits();
    }
    done.get();
  }

  // One whose waits end when the call is given up.
  std::shared_ptr<Buffer> open(void* data, size_t bytes) {
    std::shared_ptr<Buffer> buffer = context_->createUnboundBuffer(data, bytes);
    const std::scoped_lock lock(open_mutex_);
    std::erase_if(open_, [](const auto& other) { return other.expired(); });
    open_.emplace_back(buffer);
    return buffer;
  }
  void end_waits() {
    const std::scoped_lock lock(open_mutex_);
    for (const auto& one : open_) {
      const std::shared_ptr<Buffer> buffer = one.lock();
      if (!buffer) continue;
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  void await_received(Buffer& buffer) const {
    if (!buffer.waitRecv(options_.timeout)) throw std::runtime_error(watch_->reason());
  }
  void await_sent(Buffer& buffer) const {
    if (!buffer.waitSend(options_.timeout)) throw std::runtime_error(watch_->reason());
  }

  // Every rank sends its own piece of `buffer` to all others, and gets theirs into their places.
  template <class PieceOf>
  void exchange(Buffer& buffer, const PieceOf& piece_of) {
    const uint64_t tag = next_tag();
    const Piece own = piece_of(rank());
    int sent = 0, awaited = 0;
    for (int other = 0; other < size(); ++other) {
      const Piece theirs = piece_of(other);
      if (other == rank()) continue;
      // Nothing is not sent: the transport takes 0 bytes for "all of it".
      if (theirs.bytes > 0) buffer.recv(other, tag, theirs.offset, theirs.bytes), ++awaited;
      if (own.bytes > 0) buffer.send(other, tag, own.offset, own.bytes), ++sent;
    }
    for (; awaited > 0; --awaited) await_received(buffer);
    for (; sent > 0; --sent) await_sent(buffer);
  }

  // The part of n values that a rank adds up, and of it the piece number `i`.
  Piece piece_of(size_t n, int rank, size_t i) const {
    const auto parts = static_cast<size_t>(size()), part = static_cast<size_t>(rank);
    const size_t begin = n * part / parts, end = n * (part + 1) / parts;
    const size_t first = std::min(end, begin + i * kPieceFloats);
    return {first, std::min(end, first + kPieceFloats) - first};
  }

  // Each rank adds up a part of the values for all: so much travels as a sum needs at least,
  // 2 (size - 1) / size of the values in and out of each rank.
  void sum_pieces(std::span<float> values) {
    const auto whole = open(values.data(), values.size() * sizeof(float));
    const size_t most =
        (values.size() + static_cast<size_t>(size()) - 1) / static_cast<size_t>(size());
    std::vector<float> received(std::min(most, kPieceFloats) * static_cast<size_t>(size()));
    const auto theirs = open(received.data(), received.size() * sizeof(float));
    const size_t width = received.size() / static_cast<size_t>(size());
    for (size_t i = 0; i * kPieceFloats < most; ++i) {
      const Piece mine = piece_of(values.size(), rank(), i);
      collect(*whole, *theirs, values.size(), i, width * sizeof(float), mine.bytes);
      if (mine.bytes > 0) {
        std::span<float> own = values.subspan(mine.offset, mine.bytes);
        add_up(received, width, own);
      }
      exchange(*whole, [&](int r) {
        const Piece piece = piece_of(values.size(), r, i);
        return Piece{piece.offset * sizeof(float), piece.bytes * sizeof(float)};
      });
    }
  }

  // Piece i of each rank's part goes to it from all others; `theirs` gets what comes, `width` bytes
  // a rank.
  void collect(Buffer& whole, Buffer& theirs, size_t n, size_t i, size_t width, size_t own_floats) {
    const uint64_t tag = next_tag();
    int sent = 0, awaited = 0;
    for (int other = 0; other < size(); ++other) {
      if (other == rank()) continue;
      const Piece piece = piece_of(n, other, i);
      if (own_floats > 0) {
        theirs.recv(other, tag, static_cast<size_t>(other) * width, own_floats * sizeof(float));
        ++awaited;
      }
      if (piece.bytes > 0) {
        whole.send(other, tag, piece.offset * sizeof(float), piece.bytes * sizeof(float));
        ++sent;
      }
    }
    for (; awaited > 0; --awaited) await_received(theirs);
    for (; sent > 0; --sent) await_sent(whole);
  }

  // received [size, width]: of the other ranks; own [n], n <= width: of this one, and the sum.
  void add_up(std::span<float> received, size_t width, std::span<float> own) const {
    std::ranges::copy(own, received.begin() + static_cast<ptrdiff_t>(at_rank(rank(), width)));
    for (int step = 1; step < size(); step *= 2) {
      for (int left = 0; left + step < size(); left += 2 * step) {
        float* to = &received[at_rank(left, width)];
        const float* from = &received[at_rank(left + step, width)];
        for (size_t k = 0; k < own.size(); ++k) to[k] += from[k];
      }
    }
    std::ranges::copy(received.first(own.size()), own.begin());
  }
  static size_t at_rank(int rank, size_t width) { return static_cast<size_t>(rank) * width; }

  GlooOptions options_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::mutex open_mutex_;
  std::vector<std::weak_ptr<Buffer>> open_;
  std::optional<Watch> watch_;  // once connected
  uint64_t next_tag_ = 0;
  std::optional<std::string> lost_;  // why no call can be answered any more
};

}  // namespace

int64_t sum_bytes(int size, int64_t values) {
  const int64_t part = std::min<int64_t>((values + size - 1) / size, kPieceFloats);
  return part * static_cast<int64_t>(sizeof(float)) * size;
}

namespace {

fs::path arrival(const GlooOptions& options, int rank) {
  return options.folder / fmt::format("arrived-{}", rank);
}

}  // namespace

void arrive(const GlooOptions& options) {
  std::error_code ignored;  // what follows fails for the same reason
  fs::create_directories(options.folder, ignored);
  const fs::path path = arrival(options, options.rank);
  errno = 0;
  if (!std::ofstream(path))
    throw RankLost(fmt::format("{}: the ranks cannot meet there: {}", path.string(),
                               std::generic_category().message(errno)));
}

std::optional<int> missing_rank(const GlooOptions& options) {
  for (int rank = 0; rank < options.size; ++rank) {
    std::error_code error;
    if (rank != options.rank && !fs::exists(arrival(options, rank), error)) return rank;
  }
  return std::nullopt;
}

std::unique_ptr<Collective> join_ranks(const GlooOptions& options) {
  TR_CHECK(options.size >= 1 && options.rank >= 0 && options.rank < options.size);
  return std::make_unique<GlooCollective>(options);
}

}  // namespace tailrace
