// The files that a gate or a relay hands out in chunks, by name. Their digests are computed when
// they are asked for first, beside the thread that asks. A file that is handed out stays readable
// while it is on the shelf, also when its owner removes it: a transfer of an old weight version
// then ends well. Once nobody has used such a file for a while, the next new one puts it away.
//
// Thread: that of the gate or relay; one of its own computes digests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "core/base/file_descriptor.h"
#include "core/base/result.h"
#include "core/wire/gate_frames.h"
#include "core/wire/wakeup.h"
#include "kernels/base/mutex.h"

namespace tailrace {

// A file that a worker of another host may have.
struct SharedFile {
  std::filesystem::path path = {};
  int64_t bytes = -1;  // the first ones, which alone travel; -1: all
  // Name of a file that is asked for next: it is put on the shelf with this one, before its owner
  // may remove it. Empty: none.
  std::string next = {};
  // It is not there yet: its owner fetches it, and this number changes while that gets on. -1: it
  // is there.
  int64_t arriving = -1;
  std::string absent = {};  // why it is not to be had; empty: it is
  // Makes the file and says where it lies, which may take a while: called once, on the shelf's
  // thread, and the name has to say all that the file depends on. Then `path` is empty.
  std::function<Result<std::filesystem::path>(const std::stop_token& stop)> make = {};
};

class FileShelf {
 public:
  using Find = std::function<std::optional<SharedFile>(const std::string& name)>;

  // A file that its owner has removed takes its room on the disk for as long as it is here: after
  // its last use for as long as a fetch waits for its next chunk (FetchOptions::patience).
  static constexpr std::chrono::seconds kKeepRemoved{180};

  // `find` says which files there are. Borrows the bell, which rings when digests are ready.
  FileShelf(Find find, wire::Wakeup& bell, std::chrono::milliseconds keep_removed = kKeepRemoved);
  ~FileShelf();
  FileShelf(const FileShelf&) = delete;

  wire::FileFacts facts(const std::string& name);
  // Whether the shelf has something under this name, whatever the name leads to by now.
  bool holds(const std::string& name) const;
  // Its digests are being computed, or its owner fetches it.
  bool is_pending(const std::string& name) const;
  // Nothing: no file on the shelf has this digest, it has no such chunk, or it cannot be read.
  std::optional<wire::Chunk> chunk(const Digest& digest, int64_t index);

 private:
  struct Entry;
  struct Identity;
  wire::FileFacts facts_of(std::list<Entry>::iterator entry, const SharedFile& shared);
  wire::FileFacts facts_of_made(const std::string& name, SharedFile shared);
  std::list<Entry>::iterator put(Entry entry);
  void put_away_removed();
  void run(const std::stop_token& stop);

  const Find find_;
  wire::Wakeup& bell_;
  const std::chrono::milliseconds keep_removed_;
  std::list<Entry> entries_;  // latest use first; kMaxFiles at most

  Mutex mu_;
  std::condition_variable_any changed_;
  struct Job;
  std::deque<std::shared_ptr<Job>> jobs_ TR_GUARDED_BY(mu_);
  std::jthread thread_;  // last: uses what is above
};

}  // namespace tailrace
