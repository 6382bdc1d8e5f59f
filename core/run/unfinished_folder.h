// A folder that appears under its name whole or not at all: it is filled as NAME.unfinished and
// renamed at the end.
//
// Where several processes make one folder at once, one of them makes it. The others are refused and
// touch nothing of its files: both the creation and the renaming fail where something is there.
//
// Thread: one at a time.
#pragma once

#include <filesystem>

namespace tailrace {

// Behind the name of `out`, until it is published.
inline constexpr const char* kUnfinished = ".unfinished";

class UnfinishedFolder {
 public:
  // Throws UserError where `out` is there and is no empty folder, or somebody makes it.
  explicit UnfinishedFolder(std::filesystem::path out);
  ~UnfinishedFolder();  // removes what was not published
  UnfinishedFolder(const UnfinishedFolder&) = delete;
  UnfinishedFolder& operator=(const UnfinishedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& out() const { return out_; }
  // Gives it its name. Throws UserError where that has been taken meanwhile.
  void publish();

 private:
  std::filesystem::path out_, path_;
  bool published_ = false;
};

}  // namespace tailrace
