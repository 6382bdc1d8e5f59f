// A program of somebody's own that talks over its stdin and stdout: what starts it.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/digest.h"
#include "core/base/result.h"

namespace tailrace::sandbox {

struct CommandStart {
  std::vector<std::string> words;  // the first is the program
  bool is_isolated = false;        // in processes that see nothing of this machine (launcher)
  std::vector<std::string> variables =
      {};                             // "NAME=VALUE", beside ours, or beside those of a sandbox
  std::filesystem::path folder = {};  // working directory; empty: ours. A sandbox has its own
  // For an isolated one: the files in its working directory beside the files of the command (name,
  // bytes), and the port of 127.0.0.1 behind which somebody outside answers (0: no network).
  std::vector<std::pair<std::string, std::string>> files = {};
  uint16_t port = 0;
  // Digests of its files, when the run began (with_digests). Empty: whatever lies there is started.
  std::map<std::string, Digest> digests = {};
};

// "python3 program.py", for messages: files by their last name.
std::string shown(const CommandStart& command);

// Which of the words are files that belong to the run: regular files, but for programs of the
// system (/usr, /bin and the like).
std::vector<size_t> run_files(const std::vector<std::string>& words);

// The same with the digests of its files as they are now.
CommandStart with_digests(CommandStart command);
// A Failure names the first file that is not what it was then.
Result<void> check_files(const CommandStart& command);

// Where the program is: its path from the root, or where PATH has it. A Failure: this machine lacks
// it.
Result<std::filesystem::path> find_program(const CommandStart& command);

// Whether this machine has what it takes to start it, and in isolation if that is asked for.
Result<void> check_machine(const CommandStart& command);

}  // namespace tailrace::sandbox
