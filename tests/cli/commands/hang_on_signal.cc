// Loaded into a process (LD_PRELOAD), it makes a deadlock at any moment: the thread that gets
// SIGUSR1 never comes back, and all others go on.
#include <signal.h>
#include <unistd.h>

namespace {

[[noreturn]] void hang(int) {
  while (true) ::pause();
}

[[gnu::constructor]] void install() { ::signal(SIGUSR1, hang); }

}  // namespace
