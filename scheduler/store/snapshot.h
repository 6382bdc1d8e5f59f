// The files of a journal by name, and the one that holds a State.
//
//   snapshot-000007.bin   magic, u32 format, u32 law, u64 XXH3-64 of what follows, the State
//   journal-000007.log    the events since (journal.h)
//
// Thread: any; a file one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>

#include "core/base/result.h"
#include "scheduler/state/state.h"

namespace tailrace::scheduler {

std::filesystem::path snapshot_path(const std::filesystem::path& directory, int64_t number);
std::filesystem::path journal_path(const std::filesystem::path& directory, int64_t number);

// By number.
std::map<int64_t, std::filesystem::path> snapshots(const std::filesystem::path& directory);
std::map<int64_t, std::filesystem::path> journals(const std::filesystem::path& directory);

// Whole and on the disk, and read back once, or not there at all.
Result<void> write_snapshot(const std::filesystem::path& path, const State& state);
Result<State> read_snapshot(const std::filesystem::path& path);

// Removes what snapshot `number`, which is there, makes superfluous: all but the snapshot before
// it and the events since that one.
void remove_before(const std::filesystem::path& directory, int64_t number);

}  // namespace tailrace::scheduler
