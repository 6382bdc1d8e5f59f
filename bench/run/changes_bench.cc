// How many elements of the published weights a step changes, by learning rate: whole runs of
// configs, whose matrices are published as bfloat16, and each version against the one before it.
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "core/base/error.h"
#include "core/model/safetensors.h"
#include "core/run/run_directory.h"
#include "core/weights/version_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::vector<std::string> configs;
  std::vector<std::string> rates = {"1e-6", "1e-5", "1e-4"};
  std::vector<std::string> overrides;
  std::string out = "runs/changes";
  int64_t steps = 20;
};

// Of the matrices; the few values of norms are float32, and an update changes all of them.
double changed_percent(const fs::path& before, const fs::path& after) {
  const SafetensorsFile from(before), to(after);
  int64_t all = 0, changed = 0;
  for (const auto& [name, view] : from.tensors()) {
    if (view.dtype != Dtype::kBF16) continue;
    const std::byte *a = view.data.data(), *b = to.tensors().at(name).data.data();
    all += view.num_elements();
    for (size_t at = 0; at < view.data.size(); at += sizeof(Bf16))
      changed += std::memcmp(a + at, b + at, sizeof(Bf16)) == 0 ? 0 : 1;
  }
  require(all > 0, "{}: no matrix is bfloat16", after.string());
  return 100 * static_cast<double>(changed) / static_cast<double>(all);
}

void measure_run(const Options& options, const std::string& config, const std::string& rate,
                 Report& report) {
  const std::string stem = fs::path(config).stem().string();
  const std::string name = fmt::format("{}, optim.lr {}", stem, rate);
  const RunPaths paths{fs::path(options.out) / fmt::format("{}-{}", stem, rate)};
  // The rate itself, in every step.
  std::vector<std::string> overrides = {"model.compute=bf16",
                                        fmt::format("run.steps={}", options.steps),
                                        fmt::format("optim.lr={}", rate),
                                        "optim.warmup_updates=0",
                                        "optim.schedule=constant",
                                        "eval.prompts=0",
                                        fmt::format("weights.keep={}", options.steps + 1)};
  overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
  launch_run(name, config, paths.root, overrides);
  const fs::path folder = paths.weights();
  std::vector<double> changed, ratios;
  const std::vector<StoredVersion> versions = list_versions(folder);
  for (size_t i = 1; i < versions.size(); ++i) {
    const auto [policy, from] = std::pair{versions[i - 1].policy, versions[i - 1].version};
    const int64_t to = versions[i].version;
    require(versions[i - 1].is_whole && versions[i].is_whole && to == from + 1,
            "{}: versions {} and {} are not there whole", folder.string(), from, to);
    const auto payload = [&](int64_t version) {
      return folder / payload_name(manifest_name(policy, version));
    };
    changed.push_back(changed_percent(payload(from), payload(to)));
    const auto delta = make_delta(folder, policy, from, to);
    require(delta.ok(), "{}", delta.ok() ? "" : delta.failure().message);
    ratios.push_back(static_cast<double>(fs::file_size(payload(to))) /
                     static_cast<double>(fs::file_size(delta.value())));
  }
  require(!changed.empty(), "{}: one version alone", folder.string());
  report.add(name, "changed bf16 elements", "%", changed);
  report.add(name, "payload / delta", "x", ratios);
}

void measure(const Options& options, const Program& program) {
  std::error_code failed;
  fs::create_directories(options.out, failed);
  if (failed) throw UserError("cannot make {}: {}", options.out, failed.message());
  Report report = program.report({{"steps", options.steps}, {"dtype", "bf16"}});
  for (const std::string& config : options.configs)
    for (const std::string& rate : options.rates) measure_run(options, config, rate, report);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("changes", TAILRACE_MEASURES,
                  "changes --config configs/quickstart.yaml --rate 1e-6 --rate 1e-4");
  program.fix_threads(0);  // the configs' business
  program.flags().option("--config", options.configs,
                         {.help = "of the runs, one a flag", .value = "FILE", .required = true});
  program.flags().option("--rate", options.rates, {.help = "a value of optim.lr, one a flag"});
  program.flags().option("--steps", options.steps, {.help = "of each run", .min = 1, .max = 10000});
  program.flags().option("--set", options.overrides,
                         {.help = "key=value for all runs", .value = "KEY=VALUE"});
  program.flags().option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
