// What a bench has measured, in one form for all: a table for a person, or with --json one JSON
// object a row, whose keys bench/README.md explains. Rows are printed as they come, so that a long
// bench shows its progress and one that is stopped has not measured for nothing.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tailrace {

struct Spread {
  double median = 0, min = 0, max = 0;
  int64_t runs = 0;
};

// Of at least one value. The median of an even number is the mean of the two in the middle.
Spread spread(std::vector<double> values);

// Seconds on the wall, or with CLOCK_PROCESS_CPUTIME_ID or CLOCK_THREAD_CPUTIME_ID of CPU time,
// which other processes of a shared machine do not lengthen.
class Stopwatch {
 public:
  explicit Stopwatch(clockid_t clock = CLOCK_MONOTONIC) : clock_(clock), last_(now()) {}

  // Since it was made or since the last lap().
  double seconds() const { return now() - last_; }
  double lap();

 private:
  double now() const;
  clockid_t clock_;
  double last_;
};

// The most memory that this process has had resident, in 10^6 bytes.
double peak_memory_mb();

// What was measured besides the machine: sizes, dtype, how often. Two programs may be compared when
// the settings that both name are equal.
using Setting = std::variant<std::string, int64_t, double>;
using Settings = std::vector<std::pair<std::string, Setting>>;

// Who measured where.
struct Heading {
  std::string bench;    // "rl-step"
  std::string version;  // of this build
  Settings settings;
  std::string cpu;       // "AMD EPYC 9B14"
  int cores = 0;         // that this process may use
  std::string numerics;  // the numerics class, which names the instruction set
  int threads = 0;       // 0: not for the bench to say
  std::string device = "cpu";
};
Heading make_heading(std::string bench, Settings settings, int threads);

// What a row of one bench says beyond the keys that all have: in the JSON form keys behind those.
using Fact = std::variant<std::string, double, std::map<std::string, double>>;
using Facts = std::vector<std::pair<std::string, Fact>>;

struct Row {
  std::string name;    // the case: "tiny", "linear [2048, 128] -> 384"
  std::string metric;  // "train"
  std::string unit;    // a unit that ends in "/s" is a rate: more is better
  Spread value;
  std::optional<double> limit;  // what could be reached at best, measured in the same run
  Facts facts = {};
};

// One line without its end.
std::string to_json(const Heading& heading, const Row& row);

class Report {
 public:
  enum class Form { kTable, kJson };

  // Borrows `out`. Prints the heading of a table.
  Report(Heading heading, Form form, std::FILE* out);

  void add(const Row& row);
  // `values` as in spread().
  void add(const std::string& name, const std::string& metric, const std::string& unit,
           std::vector<double> values, std::optional<double> limit = {});
  // What the rows before it mean, in words, for the reader of a table; not in the JSON form, whose
  // reader judges for himself.
  void note(const std::string& text);

 private:
  Heading heading_;
  Form form_;
  std::FILE* out_;
  std::string case_;  // of the last row: a table names it once
};

}  // namespace tailrace
