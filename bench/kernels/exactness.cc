#include "bench/kernels/exactness.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "bench/report/program.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

std::vector<double> ratios(const std::vector<double>& exact, const std::vector<double>& free) {
  std::vector<double> all;
  for (size_t i = 0; i < exact.size(); ++i) all.push_back(exact[i] / free[i]);
  return all;
}

std::vector<double> milliseconds(std::vector<double> seconds) {
  for (double& s : seconds) s *= 1e3;
  return seconds;
}

// The share of a core that our threads may have waited for in a quiet pair.
constexpr double kQuiet = 0.01;

// How long our threads stood ready and somebody else had the cores. 0 where the system does not
// say.
double seconds_waited() {
  double total = 0;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream stats(task.path() / "schedstat");
    double running = 0, waiting = 0;  // nanoseconds
    if (stats >> running >> waiting) total += 1e-9 * waiting;
  }
  return total;
}

}  // namespace

ExactnessHarness::ExactnessHarness(Report report, int threads, Options options)
    : report_(std::move(report)), pool_(threads), options_(std::move(options)) {
  if (threads > 1) stream_.pool = &pool_;
}

bool ExactnessHarness::wants(const std::string& name) const {
  return name.find(options_.only) != std::string::npos;
}

// With one thread its CPU time, which others on the machine do not lengthen; else wall time.
double ExactnessHarness::seconds_of(const Call& call, int64_t rounds, int64_t copies) const {
  const Stopwatch watch(num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
  for (int64_t r = 0; r < rounds; ++r) {
    for (int64_t copy = 0; copy < copies; ++copy) call(copy);
  }
  return watch.seconds() / static_cast<double>(rounds * copies);
}

// A thread that waits for a core is seen to have waited when it has got one.
void ExactnessHarness::meet() const {
  if (stream_.pool == nullptr) return;
  const int threads = num_threads();
  std::atomic<int> here = 0;
  stream_.pool->run(threads, [&](int64_t, int64_t) {
    ++here;
    while (here < threads) std::this_thread::yield();
  });
}

int64_t ExactnessHarness::rounds_of(const Call& call, int64_t copies) const {
  seconds_of(call, 1, copies);  // warm up
  const double round = seconds_of(call, 1, copies) * static_cast<double>(copies);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(1e-3 * options_.milliseconds / round)),
                             1, 100000);
}

ExactnessHarness::Times ExactnessHarness::pairs_of(const Call& exact, const Call& free,
                                                   int64_t rounds, int64_t copies,
                                                   int pairs) const {
  struct Pair {
    double exact = 0, free = 0;
    double waited = 0;
  };
  std::vector<Pair> all;
  seconds_of(free, 1, copies);  // warm up
  const auto wanted = static_cast<size_t>(pairs);
  // Threads that meet at a barrier wait for the one whose core somebody else has: pairs in which
  // that happened are made again, for a while.
  size_t quiet = 0;
  const Stopwatch watch;
  while (quiet < wanted && (all.size() < wanted || watch.seconds() < options_.patience)) {
    Pair pair;
    meet();
    const double before = seconds_waited();
    const Stopwatch both;
    // Each goes first in every other pair.
    const bool exact_first = all.size() % 2 == 0;
    if (exact_first) pair.exact = seconds_of(exact, rounds, copies);
    pair.free = seconds_of(free, rounds, copies);
    if (!exact_first) pair.exact = seconds_of(exact, rounds, copies);
    const double passed = both.seconds();
    meet();
    // One thread is timed by its own clock.
    if (num_threads() > 1) pair.waited = (seconds_waited() - before) / passed;
    quiet += pair.waited <= kQuiet;
    all.push_back(pair);
  }
  // Where there were too few quiet ones, the quietest.
  std::ranges::stable_sort(all, {}, &Pair::waited);
  Times times;
  for (size_t i = 0; i < wanted; ++i) {
    times.exact.push_back(all[i].exact);
    times.free.push_back(all[i].free);
  }
  return times;
}

void ExactnessHarness::report_times(const std::string& name, const Times& times) {
  report_.add(name, "exact", "ms", milliseconds(times.exact));
  report_.add(name, "free", "ms", milliseconds(times.free));
  // At best exactness costs nothing.
  report_.add(name, "exact / free", "ratio", ratios(times.exact, times.free), 1.0);
}

void ExactnessHarness::measure(const std::string& name, int64_t copies, const Call& exact,
                               const std::vector<Liberty>& liberties) {
  const int64_t rounds = rounds_of(exact, copies);
  const Liberty* best = nullptr;
  double best_ratio = 0;
  for (const Liberty& liberty : liberties) {
    const Times few =
        pairs_of(exact, liberty.call, rounds, copies, std::max(1, options_.pairs / 3));
    std::vector<double> all = ratios(few.exact, few.free);
    const double median = spread(all).median;
    if (median > best_ratio) best = &liberty, best_ratio = median;
    report_.add(name, "exact / " + liberty.name, "ratio", std::move(all), 1.0);
  }
  TR_CHECK(best != nullptr, "{}: no liberty", name);
  times_[name] = pairs_of(exact, best->call, rounds, copies, options_.pairs);
  report_times(name, times_[name]);
}

void ExactnessHarness::measure_exact_only(const std::string& name, const Call& exact) {
  const int64_t rounds = rounds_of(exact, 1);
  Times& times = times_[name];
  for (int i = 0; i < options_.pairs; ++i) times.exact.push_back(seconds_of(exact, rounds, 1));
  times.free = times.exact;
  report_.add(name, "exact", "ms", milliseconds(times.exact));
}

void ExactnessHarness::sum_up(const std::string& name, const Calls& calls) {
  // A case that `only` left out would make a sum of the others.
  if (!options_.only.empty()) return;
  const auto pairs = static_cast<size_t>(options_.pairs);
  Times pass{.exact = std::vector<double>(pairs), .free = std::vector<double>(pairs)};
  for (const auto& [op, count] : calls) {
    const auto found = times_.find(op);
    TR_CHECK(found != times_.end(), "'{}' was not measured", op);
    const Times& times = found->second;
    const bool faster = spread(ratios(times.exact, times.free)).median > 1;
    for (size_t i = 0; i < pairs; ++i) {
      pass.exact[i] += count * times.exact[i];
      pass.free[i] += count * (faster ? times.free : times.exact)[i];
    }
  }
  report_times(name, pass);
}

int64_t num_copies(int64_t layers, int64_t bytes) {
  constexpr int64_t kBudget = int64_t{256} << 20;
  return std::clamp<int64_t>(kBudget / std::max<int64_t>(bytes, 1), 1, layers);
}

void require_same_bits(ConstMatrix a, ConstMatrix b, const std::string& what) {
  TR_CHECK(a.rows == b.rows && a.cols == b.cols);
  for (int64_t r = 0; r < a.rows; ++r) {
    require(std::memcmp(a.row(r), b.row(r), static_cast<size_t>(a.cols) * sizeof(float)) == 0,
            "{}: row {} has other bits", what, r);
  }
}

}  // namespace tailrace
