// The bodies of trajectories, under the attempt that made them: append-only segment files in the
// run directory, read back on demand. decide() sees none of this.
//
// Memory: an index entry a body; bodies themselves are read when asked for (the page cache serves
// the recent ones). Disk: a segment is deleted once all its bodies are released and it is full.
//
// Somebody may delete the files of a living run: their bodies are then lost, and a segment that is
// no longer in its place takes no new ones, which could not be read back either.
//
// A kill can cut the last record: it is dropped at the next open, and its message, never
// acknowledged, comes again. A released body may come back with a reopened segment; retain_only()
// drops it again.
//
// Each record that it reads or releases is a beat of the caller's pulse.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "scheduler/state/state.h"
#include "scheduler/store/record_file.h"

namespace tailrace::scheduler {

class TrajectoryStore {
 public:
  // Reads the index of what is there, all of it on the disk from now on; creates `directory` if
  // need be.
  static Result<TrajectoryStore> open(const std::filesystem::path& directory,
                                      int64_t segment_bytes);

  // Gives `use` every body that the files in `directory` hold, in the order in which they were
  // written, also those that were released since. Nothing is changed: the run may go on meanwhile.
  // What was dropped for its damage comes back, a note a file. A Failure: a file cannot be read, or
  // is none of a store.
  static Result<std::vector<std::string>> read_bodies(
      const std::filesystem::path& directory,
      const std::function<void(const BodyId&, std::string_view body)>& use);

  // The facts of a body that are known without reading it.
  struct Entry {
    int64_t bytes = 0;
    uint64_t checksum = 0;  // XXH3-64
  };

  // Idempotent: a body that is there already stays as it is. A Failure (a full disk) names the file
  // and the system's reason, and leaves everything stored before untouched.
  Result<void> put(const BodyId& id, std::span<const std::byte> body);
  std::optional<Entry> find(const BodyId& id) const;
  // A few bytes beside a body, kept and released with it; the newest count. Of a body that is not
  // here: nothing happens.
  Result<void> put_note(const BodyId& id, std::string_view note);
  Result<std::string> note_of(const BodyId& id) const;  // empty: it has none
  bool has_note(const BodyId& id) const;
  // A Failure: not here, or its checksum does not fit.
  Result<std::vector<std::byte>> get(const BodyId& id) const;
  bool contains(const BodyId& id) const { return index_.contains(id); }

  void release(std::span<const BodyId> bodies);         // unknown ones are ignored
  void retain_only(const std::vector<BodyId>& bodies);  // after a restart: held_bodies(state)
  Result<void> sync();                                  // what was put reaches the disk

  const std::filesystem::path& directory() const { return directory_; }
  int64_t num_bodies() const { return std::ssize(index_); }
  int64_t disk_bytes() const;
  // Notes on what open() had to drop, for the log.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  enum class Kind : uint8_t { kBody, kNote };
  struct Place {
    int64_t segment = 0;
    int64_t offset = 0;
    Entry entry;
  };
  struct Kept {
    Place body;
    std::optional<Place> note;
  };
  struct Segment {
    int64_t live = 0;  // records that somebody may ask for
    int64_t bytes = 0;
  };

  TrajectoryStore(std::filesystem::path directory, int64_t segment_bytes)
      : directory_(std::move(directory)), segment_bytes_(segment_bytes) {}
  std::filesystem::path path_of(int64_t segment) const;
  Result<void> read_segment(int64_t number);
  Result<void> begin_segment();
  Result<Place> append(Kind kind, const BodyId& id, std::string_view bytes);
  Result<std::string> read(Kind kind, const BodyId& id, const Place& place) const;
  void index_record(int64_t segment, int64_t offset, std::string_view payload);
  void forget(const Kept& kept);
  void drop_if_empty(int64_t segment);

  std::filesystem::path directory_;
  int64_t segment_bytes_;
  std::map<BodyId, Kept> index_;
  std::map<int64_t, Segment> segments_;
  RecordFile active_;
  int64_t active_number_ = 0;  // 0: none yet
  bool dirty_ = false;
  std::vector<std::string> notes_;
};

}  // namespace tailrace::scheduler
