#include "bench/gpu/parts.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/report/program.h"
#include "core/base/error.h"

namespace tailrace::gpu_bench {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); }

}  // namespace

Settings describe(const BackendFacts& facts) {
  Settings settings = {
      {"code", facts.built ? fmt::format("{}", fmt::join(facts.architectures, " ")) : "none"},
      {"toolkit", facts.toolkit},
      {"driver", facts.driver}};
  if (facts.devices.empty()) {
    settings.emplace_back("fault", facts.built ? facts.fault : "this build has no CUDA backend");
  } else {
    settings.emplace_back("gpu", facts.devices.front().name);
    settings.emplace_back("architecture", facts.devices.front().architecture);
  }
  return settings;
}

void report_facts(const BackendFacts& facts, Report& report) {
  report.add("facts", "devices", "devices", {static_cast<double>(facts.devices.size())});
  for (const DeviceFacts& device : facts.devices) {
    report.add(device.name, "multiprocessors", "units",
               {static_cast<double>(device.multiprocessors)});
    report.add(device.name, "memory", "GiB", {gib(device.total_bytes)});
    report.add(device.name, "free memory", "GiB",
               {gib(free_bytes({DeviceKind::kCuda, device.index}))});
  }
}

void measure(const Options& options, const BackendFacts& facts, Report& report) {
  const auto wants = [&](const char* part) {
    return std::ranges::find(options.parts, part) != options.parts.end();
  };
  if (wants("facts")) report_facts(facts, report);
  if (std::ranges::all_of(options.parts, [](const auto& part) { return part == "facts"; })) return;
  if (facts.devices.empty())
    throw UserError(
        "there is no GPU to measure: {}\n       Try --parts facts, or 'tailrace doctor'.",
        facts.built ? facts.fault : "this build has no CUDA backend");
  Harness harness({DeviceKind::kCuda, 0}, options.sizes);
  if (wants("limits")) measure_limits(harness, report);
  if (wants("decode")) measure_decode(harness, options, report);
  if (wants("prefill")) measure_prefill(harness, options, report);
  if (wants("training")) measure_training(harness, options, report);
  if (wants("products")) measure_products(harness, options, report);
  require(harness.fault().empty(), "{}", harness.fault());
}

}  // namespace tailrace::gpu_bench
