// Takes a file from the gate of a run, or from a relay of it, chunk by chunk. Each chunk is proved
// by its digest before it is written; what is there already (of a transfer that was cut, by another
// process too) is proved and kept. Memory does not grow with the file.
//
// Thread: fetch_file() blocks the thread that calls it, over a connection beside that of the run's
// messages, so that a file never stands in their way.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "core/base/result.h"
#include "core/wire/endpoint.h"
#include "core/wire/gate_frames.h"
#include "core/wire/socket.h"

namespace tailrace {

struct FetchCounters {
  int64_t received = 0;  // bytes of chunks
  int64_t kept = 0;      // bytes that were there already
  int64_t damaged = 0;   // chunks whose digest was another one
  int64_t asked_again = 0;
};

struct FetchOptions {
  uint64_t incarnation = 0;  // under which this process has greeted
  // The facts that the run gives of the file, where the source is not the run: a source that has
  // another file is refused, and nothing else that it says of the file counts. Null: the source is
  // believed (the run is, and so is a relay whose file is proved by what it leads to).
  const wire::FileFacts* expected = nullptr;
  // A source that says that the file has more bytes is refused before any of them come; -1: none
  // is.
  int64_t max_bytes = -1;
  // Time without progress after which the fetch fails: no new chunk, or a source that gets ready
  // and does not get on. A link may be away for a minute.
  std::chrono::milliseconds patience{150'000};
  // The same of another process that fetches the same target.
  std::chrono::milliseconds lock_patience{150'000};
  // Time without a chunk on a living connection after which all chunks in flight are requested
  // again; it doubles each time. When a connection is made anew they are requested at once.
  std::chrono::milliseconds stall{10'000};
  // On their way at most, and no more than the link carries in about a second.
  int64_t window_bytes = int64_t{8} << 20;
  double rate_mbit = 0;  // of what is asked for; 0: as the link allows
  // The bytes that are there and proved, of those that there will be; for a watcher. While the
  // source gets ready, or another process writes the target: a number that changes when that gets
  // on, and 0. Called on the thread that fetches.
  std::function<void(int64_t bytes, int64_t total)> on_progress = [](int64_t, int64_t) {};
  FetchCounters* counters = nullptr;  // also of a fetch that fails; null: nobody asks
};

// A connection to a gate for files, one after the other: making one takes a few round trips.
struct FetchConnection {
  explicit FetchConnection(const wire::Endpoint& gate);

  wire::Socket socket{wire::Socket::Kind::kDealer};
  bool was_ready = false;  // so that one that is ready again is seen to be another one
};

// Puts the file that the gate calls `name` at `target`, whole or not at all; beside it, as
// TARGET.part, what has arrived so far. What lies at `target` already is proved too, and stays
// where it is what the gate has. One process at a time fetches a target, and others wait for it. A
// Failure names the file; after one, another call goes on where this one has ended.
Result<FetchCounters> fetch_file(const FetchOptions& options, FetchConnection& connection,
                                 const std::string& name, const std::filesystem::path& target,
                                 const std::stop_token& stop);
// The same over a connection to `gate` that is made for it.
Result<FetchCounters> fetch_file(const FetchOptions& options, const wire::Endpoint& gate,
                                 const std::string& name, const std::filesystem::path& target,
                                 const std::stop_token& stop);

// The gate's facts of the file: its digest alone proves what another source has.
Result<wire::FileFacts> ask_facts(const FetchOptions& options, FetchConnection& connection,
                                  const std::string& name, const std::stop_token& stop);

}  // namespace tailrace
