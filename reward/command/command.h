// A program of somebody's own that scores episodes: what starts it.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/base/digest.h"
#include "core/base/enum_names.h"
#include "core/base/result.h"

namespace tailrace {

// Where rewards that are not of this binary run.
enum class RewardIsolation : uint8_t {
  kNone,     // in our processes; of a library alone
  kProcess,  // in processes of their own
  kSandbox,  // in processes that see nothing of this machine (sandbox/launcher); of a program alone
};
constexpr auto enum_names(RewardIsolation) {
  using enum RewardIsolation;
  return name_table<RewardIsolation>(
      {{kNone, "none"}, {kProcess, "process"}, {kSandbox, "sandbox"}});
}

struct RewardCommand {
  std::vector<std::string> words;  // the first is the program
  bool is_isolated = false;        // kSandbox
  // Of its files, when the run began (with_digests). Empty: whatever lies there is started.
  std::map<std::string, Digest> digests = {};
};

// "python3 reward.py", for messages: files by their last name.
std::string shown(const RewardCommand& command);

// Which of the words are files that belong to the run: regular files, but for programs of the
// system (/usr, /bin and the like).
std::vector<size_t> run_files(const std::vector<std::string>& words);

// The same with the digests of its files as they are now.
RewardCommand with_digests(RewardCommand command);
// A Failure names the first file that is not what it was then.
Result<void> check_files(const RewardCommand& command);

// Where the program is: its path, or where PATH has it. A Failure: this machine lacks it.
Result<std::filesystem::path> find_program(const RewardCommand& command);

// Whether this machine has what it takes to start it, and in isolation if that is asked for.
Result<void> check_machine(const RewardCommand& command);

}  // namespace tailrace
