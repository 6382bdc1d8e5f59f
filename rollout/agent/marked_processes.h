// Processes that carry a mark in their environment, which their children inherit wherever they go.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace tailrace {

// The variable that has the mark.
inline constexpr const char* kMarkVariable = "TAILRACE_AGENT";

// The mark of all that works below `folder`, with a slash at its end. It begins with the device and
// the number of the folder above, which is made if need be: two containers that share their
// processes and not their files may both have a folder of this name. The path is absolute.
std::string mark_of(const std::filesystem::path& folder);

// Processes of this user whose mark begins so, without ended ones that are not awaited yet.
std::vector<pid_t> marked_processes(const std::string& mark);

// For a message: the program and its arguments, at most 100 bytes; what it wrote over them counts.
std::string command_line_of(pid_t pid);

// Kills them, again while they start others. How many there were; some may be left where they
// multiply for longer than two seconds.
int end_marked_processes(const std::string& mark);

}  // namespace tailrace
