// Stands between this program and its disk and notes what has reached it, so that a test can see
// what a machine without power would find: of each file the bytes that were there at its last sync,
// of each folder the names at its last sync. Removals take effect at once.
//
// It replaces fsync, fdatasync, rename, remove and pread of the whole program, and those of
// processes that it forks. Nothing is forced to the real disk.
//
// Thread: any. One at a time in a program.
#pragma once

#include <filesystem>
#include <functional>

namespace tailrace {

class DiskWitness {
 public:
  // Watches files below `root` and notes them in the file `notes`, which is not below it.
  DiskWitness(const std::filesystem::path& root, const std::filesystem::path& notes);
  ~DiskWitness();
  DiskWitness(const DiskWitness&) = delete;

  // Called in the thread, and the process, that is about to remove a file: it is gone already as
  // far as images go.
  std::function<void(const std::filesystem::path&)> on_remove;

  // Called likewise when somebody is about to sync a file or a folder; he may be held up, and
  // others are not.
  std::function<void(const std::filesystem::path&)> before_sync;

  // Called likewise when a file or a folder has just been synced.
  std::function<void(const std::filesystem::path&)> on_sync;

  // Called likewise when somebody is about to read from a place in a file.
  std::function<void(const std::filesystem::path&)> on_read;

  // Writes what is left of `root` to the new folder `image`: of the folders `names` what has
  // reached the disk, of files beside them nothing.
  void write_image(const std::filesystem::path& image,
                   std::initializer_list<const char*> names) const;

 private:
  std::filesystem::path root_;
};

}  // namespace tailrace
