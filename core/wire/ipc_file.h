// The file of an ipc socket in the eyes of the one who binds it: what may lie at its path, and
// whether it lies there still. Cleaners of temporary folders take such files away, and ZeroMQ
// unlinks whatever lies at a path that it binds and takes a live endpoint over without a word.
//
// Thread: one at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "core/base/result.h"

namespace tailrace::wire {

class IpcFile {
 public:
  // Whether it is one: "ipc://PATH".
  static bool names(std::string_view endpoint);
  explicit IpcFile(std::string_view endpoint);

  // Makes the path fit to be bound, with a folder for this user alone if it has none. A Failure
  // when it is too long, a live process has it, something else than a socket lies there, or the
  // folder is none, or another's than when the socket was bound before.
  Result<void> make_room() const;

  // It was bound just now: what lies there is ours.
  void note_bound();
  bool is_there() const;

  const std::filesystem::path& path() const { return path_; }

 private:
  Result<void> check_free() const;  // of living processes, and not too long
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  Identity identity() const;  // of the socket at the path; zeros: there is none

  std::filesystem::path path_;
  Identity bound_;
  std::optional<uid_t> folder_owner_;  // once it was bound
};

}  // namespace tailrace::wire
