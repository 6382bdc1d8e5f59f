// A process that makes progress for so many milliseconds and says that the run is quiet.
#include <chrono>
#include <string>
#include <thread>

#include "cli/process/child_process.h"

int main(int argc, char** argv) {
  using namespace tailrace;
  using Clock = std::chrono::steady_clock;
  if (argc != 2) return 2;
  auto page = StatusPage::adopt(ChildProcess::kStatusDescriptor);
  if (!page) return 1;
  const auto end = Clock::now() + std::chrono::milliseconds(std::stoll(argv[1]));
  while (Clock::now() < end) {
    page.value().pulse().beat();
    page.value().set_waits({"all wait for the test", std::chrono::seconds(61)});
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return 0;
}
