// Whole runs of a config, one a seed, in directories of their own.
#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/run/seeds.h"
#include "core/base/error.h"

namespace tailrace {
namespace {

struct Spread {
  double min = 0, median = 0, max = 0;
};

Spread spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

void print_seeds(const SeedsCase& setup, bool json) {
  SeedsReport report = bench_seeds(setup, [&](const SeedRun& run) {
    if (!json)
      fmt::print(
          "seed {:>3}: success {:.3f} -> {:.3f}, invalid actions {:.2f} % -> {:.2f} %, {:.0f} s\n",
          run.seed, run.success_first, run.success_last, 100 * run.invalid_first,
          100 * run.invalid_last, run.seconds);
    std::fflush(stdout);
  });
  if (json) {
    nlohmann::ordered_json out = {{"config", setup.config}};
    for (const auto& run : report.runs)
      out["runs"].push_back({{"seed", run.seed},
                             {"success_first", run.success_first},
                             {"success_last", run.success_last},
                             {"invalid_first", run.invalid_first},
                             {"invalid_last", run.invalid_last},
                             {"seconds", run.seconds}});
    fmt::print("{}\n", out.dump());
    return;
  }
  std::vector<double> first, last, seconds;
  for (const auto& run : report.runs) {
    first.push_back(run.success_first);
    last.push_back(run.success_last);
    seconds.push_back(run.seconds);
  }
  fmt::print(
      "{} seeds: success {:.3f} -> {:.3f} (median), worst at the end {:.3f}, {:.0f} s a run "
      "(median)\n",
      report.runs.size(), spread(first).median, spread(last).median, spread(last).min,
      spread(seconds).median);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  CLI::App app("Whole runs of a config, one a seed.", "seeds");
  SeedsCase setup;
  bool json = false;
  app.add_option("config", setup.config, "the config")->required();
  app.add_option("overrides", setup.overrides, "key=value ...");
  app.add_option("--seeds", setup.num_seeds, "how many, from --first on")
      ->check(CLI::Range(1, 10000));
  app.add_option("--first", setup.first_seed, "first seed");
  app.add_option("--out", setup.out, "where the run directories go");
  app.add_flag("--json", json, "one JSON object instead of a table");
  CLI11_PARSE(app, argc, argv);
  try {
    print_seeds(setup, json);
  } catch (const UserError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
  return 0;
}
