#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/commands/libraries_generated.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/machine.h"
#include "core/base/version.h"
#include "core/config/flags.h"
#include "core/weights/manifest.h"
#include "kernels/base/backend.h"
#include "kernels/base/isa.h"
#include "sandbox/launcher/launcher.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

struct Problem {
  bool fatal = false;  // training will not work
  std::string message;
};

// "fmt 9.1.0, spdlog 1.10.0, ...": written by CMake, which knows what the binary was built with.
Json libraries() {
  Json out = Json::object();
  std::string_view rest = kLibraries;
  while (!rest.empty()) {
    size_t end = std::min(rest.find(','), rest.size());
    std::string_view entry = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    size_t space = entry.find(' ');
    out[std::string(entry.substr(0, space))] =
        space == std::string_view::npos ? "" : std::string(entry.substr(space + 1));
  }
  out["cli11"] = flags_library_version();
  return out;
}

std::vector<Problem> find_problems(const MemoryFacts& memory, const DiskFacts& disk,
                                   const BackendFacts& cuda, const Result<void>& isolation) {
  std::vector<Problem> problems;
  // Where /proc does not say what the CPU has, nothing can be said of what it lacks.
  if (isa() == Isa::kPortable && is_available(Isa::kAvx2))
    problems.push_back({false, "TAILRACE_ISA is portable: the kernels are slow. Unset it."});
  if (isa() != Isa::kAvx512Bf16 && pairs_pay())
    problems.push_back(
        {false, fmt::format("TAILRACE_ISA is {}: products with bfloat16 weights could "
                            "be {:.1f} times as fast in pairs. Unset it.",
                            name_of(isa()), measured_gain_of_pairs())});
  if (memory.available_bytes < (int64_t{512} << 20))
    problems.push_back(
        {false, fmt::format("only {} of memory are free", format_bytes(memory.available_bytes))});
  if (disk.available_bytes < (int64_t{1} << 30))
    problems.push_back({false, fmt::format("only {} of disk are free here; a run may not fit",
                                           format_bytes(disk.available_bytes))});
  for (const auto& [name, value] : limit_facts()) {
    // 1024 is what most systems give.
    if (name == "open_files" && value != "unlimited" && std::stoll(value) < 1024)
      problems.push_back(
          {false, fmt::format("the limit of open files is {}; raise it (ulimit -n 4096)", value)});
    if (name == "file_size_bytes" && value != "unlimited")
      problems.push_back(
          {false, fmt::format("files are limited to {} bytes (ulimit -f); checkpoints may not fit",
                              value)});
  }
  if (const std::string driver = nvidia_driver_version(); !driver.empty()) {
    if (!cuda.built)
      problems.push_back({false,
                          "there is an NVIDIA driver, but this build has no CUDA backend: the CPU "
                          "does all the work. 'make build' adds it where nvcc is found."});
    else if (cuda.devices.empty())
      problems.push_back(
          {false, fmt::format("no GPU can be used: {} (driver {})", cuda.fault, driver)});
  }
  if (!isolation)
    problems.push_back({false, fmt::format("the verifier program has no use here: {}",
                                           isolation.failure().message)});
  return problems;
}

Json describe_cuda(const BackendFacts& cuda) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const auto free_or_null = [](const DeviceFacts& device) {
    const int64_t bytes = free_bytes({DeviceKind::kCuda, device.index});
    return bytes < 0 ? Json() : Json(bytes);
  };
  Json out = {{"built", cuda.built},
              {"architectures", cuda.architectures},
              {"toolkit", or_null(cuda.toolkit)},
              {"driver", or_null(cuda.driver)},
              {"driver_version", or_null(nvidia_driver_version())},
              {"fault", or_null(cuda.fault)},
              {"devices", Json::array()},
              {"libraries", Json::array()}};
  for (const DeviceFacts& device : cuda.devices)
    out["devices"].push_back({{"name", device.name},
                              {"architecture", device.architecture},
                              {"multiprocessors", device.multiprocessors},
                              {"total_bytes", device.total_bytes},
                              {"free_bytes", free_or_null(device)}});
  for (const LibraryFacts& library : backend_libraries(DeviceKind::kCuda))
    out["libraries"].push_back({{"name", library.name},
                                {"path", or_null(library.path)},
                                {"version", or_null(library.version)},
                                {"fault", or_null(library.fault)}});
  return out;
}

Json describe_machine() {
  CpuFacts cpu = cpu_facts();
  MemoryFacts memory = memory_facts();
  // Here is where 'tailrace launch' puts runs/.
  DiskFacts disk = disk_facts(".");
  const BackendFacts& cuda = backend_facts(DeviceKind::kCuda);
  const Result<void> isolation = sandbox::check_isolation();
  const double gain = measured_gain_of_pairs();
  Json out;
  out["version"] = version();
  out["libraries"] = libraries();
  out["cpu"] = {
      {"name", cpu.name},
      {"usable_cores", num_usable_cores()},
      {"features", cpu.features},
      {"kernels", name_of(isa())},
      {"numerics",
       {{"float32", numerics_class(Dtype::kF32)}, {"bfloat16", numerics_class(Dtype::kBF16)}}},
      {"gain_of_pairs", gain > 0 ? Json(std::round(gain * 100) / 100) : Json()}};
  out["cuda"] = describe_cuda(cuda);
  out["memory"] = {
      {"total_bytes", memory.total_bytes},
      {"available_bytes", memory.available_bytes},
      {"cgroup_limit_bytes", memory.cgroup_limit_bytes ? Json(memory.cgroup_limit_bytes) : Json()}};
  out["disk"] = {{"path", std::filesystem::current_path().string()},
                 {"total_bytes", disk.total_bytes},
                 {"available_bytes", disk.available_bytes}};
  for (const auto& [name, value] : limit_facts())
    out["limits"][name] = value == "unlimited" ? Json(value) : Json(std::stoull(value));
  out["isolates_programs"] = isolation.ok();
  out["problems"] = Json::array();
  for (const Problem& problem : find_problems(memory, disk, cuda, isolation))
    out["problems"].push_back({{"fatal", problem.fatal}, {"message", problem.message}});
  return out;
}

void print_cuda(const Json& cuda) {
  const auto text = [](const Json& value, const char* none) {
    return value.is_null() ? none : value.get<std::string>();
  };
  if (!cuda["built"].get<bool>()) {
    fmt::print("cuda       not built in, driver {}\n", text(cuda["driver_version"], "not found"));
    return;
  }
  fmt::print("cuda       built in with {}, for {}; driver {}\n", text(cuda["toolkit"], "?"),
             join_texts(cuda["architectures"].get<std::vector<std::string>>(), " "),
             text(cuda["driver_version"], "not found"));
  for (const Json& device : cuda["devices"])
    fmt::print("           {}, {}, {} multiprocessors, {} free of {}\n",
               device["name"].get<std::string>(), device["architecture"].get<std::string>(),
               device["multiprocessors"].get<int>(),
               device["free_bytes"].is_null() ? "an unknown part"
                                              : format_bytes(device["free_bytes"].get<int64_t>()),
               format_bytes(device["total_bytes"].get<int64_t>()));
  if (cuda["devices"].empty())
    fmt::print("           the CPU computes: {}\n", text(cuda["fault"], "there is no device"));
  for (const Json& library : cuda["libraries"])
    fmt::print("           {} {}\n", library["name"].get<std::string>(),
               library["path"].is_null() ? "not found"
               : library["fault"].is_null()
                   ? fmt::format("{} ({})", text(library["version"], "of unknown version"),
                                 library["path"].get<std::string>())
                   : fmt::format("cannot be loaded: {}", library["fault"].get<std::string>()));
}

// From the object that --json prints, so that both say the same.
void print_text(const Json& facts) {
  auto joined = [](const Json& list) {
    return join_texts(list.get<std::vector<std::string>>(), " ");
  };
  fmt::print("tailrace   {}\n", facts["version"].get<std::string>());
  std::string line;
  for (const auto& [name, value] : facts["libraries"].items())
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name, value.get<std::string>());
  fmt::print("libraries  {}\n", line);
  const Json& cpu = facts["cpu"];
  fmt::print("cpu        {}, {} usable cores\n", cpu["name"].get<std::string>(),
             cpu["usable_cores"].get<int>());
  fmt::print("           has {}\n           computes with {}\n", joined(cpu["features"]),
             cpu["kernels"].get<std::string>());
  for (const auto& [dtype, name] : cpu["numerics"].items())
    fmt::print("           with weights of {:<8}  {}\n", dtype, name.get<std::string>());
  if (const Json& gain = cpu["gain_of_pairs"]; !gain.is_null())
    fmt::print("           pairs of bfloat16 are {:.2f} times as fast as floats here\n",
               gain.get<double>());
  print_cuda(facts["cuda"]);
  const Json& memory = facts["memory"];
  fmt::print("memory     {} free of {}", format_bytes(memory["available_bytes"].get<int64_t>()),
             format_bytes(memory["total_bytes"].get<int64_t>()));
  if (!memory["cgroup_limit_bytes"].is_null())
    fmt::print(", this process may use {}",
               format_bytes(memory["cgroup_limit_bytes"].get<int64_t>()));
  const Json& disk = facts["disk"];
  fmt::print("\ndisk       {} free of {} at {}\n",
             format_bytes(disk["available_bytes"].get<int64_t>()),
             format_bytes(disk["total_bytes"].get<int64_t>()), disk["path"].get<std::string>());
  line.clear();
  for (const auto& [name, value] : facts["limits"].items())
    line += fmt::format("{}{} {}", line.empty() ? "" : ", ", name,
                        value.is_string() ? value.get<std::string>() : json_text(value));
  fmt::print("limits     {}\n", line);
  fmt::print("programs   {}\n", facts["isolates_programs"].get<bool>()
                                    ? "run in namespaces of their own"
                                    : "are not run: they cannot be isolated");
  for (const auto& problem : facts["problems"])
    fmt::print("{}    {}\n", problem["fatal"].get<bool>() ? "PROBLEM" : "warning",
               problem["message"].get<std::string>());
  if (facts["problems"].empty()) fmt::print("no problems found\n");
}

}  // namespace

void add_doctor(Command& program) {
  auto json = std::make_shared<bool>(false);
  Command& command =
      program.command("doctor", "What this build and this machine have, and what may go wrong");
  command.option("--json", *json, {.help = "one JSON object"});
  command.footer(
      "Exit code 1 when training cannot work here.\n\nExample:\n  tailrace doctor --json");
  command.action([json] {
    Json facts = describe_machine();
    if (*json)
      fmt::print("{}\n", json_text(facts, 2));
    else
      print_text(facts);
    // After the output: the status is for scripts, the text for who reads it.
    for (const auto& problem : facts["problems"])
      if (problem["fatal"].get<bool>()) return kExitFailed;
    return kExitDone;
  });
}

}  // namespace tailrace
