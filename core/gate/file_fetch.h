// Takes a file from the gate of a run, chunk by chunk. Each chunk is proved by its digest before it
// is written; what is there already (of a transfer that was cut, by another process too) is proved
// and kept. Memory does not grow with the file.
//
// Thread: fetch_file() blocks the thread that calls it, and has a connection of its own, so that a
// file never stands in the way of the run's messages.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "core/base/result.h"
#include "core/wire/endpoint.h"

namespace tailrace {

struct FetchOptions {
  wire::Endpoint gate;
  uint64_t incarnation = 0;  // under which this process has greeted
  // Time without any new chunk after which the fetch fails. A link may be away for a minute.
  std::chrono::milliseconds patience{150'000};
  // Time without a chunk on a living connection after which all chunks in flight are requested
  // again; it doubles each time. When a connection is made anew they are requested at once.
  std::chrono::milliseconds stall{10'000};
  // On their way at most, and no more than the link carries in about a second.
  int64_t window_bytes = int64_t{8} << 20;
  double rate_mbit = 0;  // of what is asked for; 0: as the link allows
  // What is there, of what there will be; for who watches. Called on the thread that fetches.
  std::function<void(int64_t bytes, int64_t total)> on_progress = [](int64_t, int64_t) {};
};

struct FetchCounters {
  int64_t received = 0;  // bytes of chunks
  int64_t kept = 0;      // bytes that were there already
  int64_t damaged = 0;   // chunks whose digest was another one
  int64_t asked_again = 0;
};

// Puts the file that the gate calls `name` at `target`, whole or not at all; beside it, as
// TARGET.part, what has arrived so far. What lies at `target` already is proved too, and stays
// where it is what the gate has. One process at a time fetches a target, and others wait for it. A
// Failure names the file; after one, another call goes on where this one has ended.
Result<FetchCounters> fetch_file(const FetchOptions& options, const std::string& name,
                                 const std::filesystem::path& target, const std::stop_token& stop);

}  // namespace tailrace
