// The process of a library: loads it, and for each session forks a child that runs one environment
// or one reward of it. What the library does there, it does to its child.
//
//   user                      host (this)                     child of a session
//   start ------------------> loads the library
//         <------------------ what it has, or why not
//   open, with a socket ----> fork -------------------------> serves the socket until it closes
//         <------------------ its pid
//   gone  ------------------> kills the group, waits
//         <------------------ how it ended
//
// Nobody but the user of a session knows its socket, so a session that hangs holds up nobody else.
//
// Thread: the process's only one.
#pragma once

#include <filesystem>

namespace tailrace::sandbox {

// Serves `control` until its other end closes; the exit status of the process.
int run_plugin_host(int control, const std::filesystem::path& library);

}  // namespace tailrace::sandbox
