#include "kernels/cuda/libraries.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

namespace tailrace::cuda {
namespace {

namespace fs = std::filesystem;

struct Wanted {
  const char* name;
  const char* file;     // up to its version
  const char* package;  // Python's
};
constexpr std::array<Wanted, 2> kWanted = {
    {{"cublasLt", "libcublasLt.so", "cublas"}, {"nccl", "libnccl.so", "nccl"}}};

std::vector<std::string> parts_of(const char* list) {
  std::vector<std::string> parts;
  std::string_view rest = list == nullptr ? "" : list;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) parts.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return parts;
}

std::vector<fs::path> children(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) found.push_back(entry.path());
  // The file system gives them in any order, and which of two versions is taken must not change
  // from run to run.
  std::ranges::sort(found);
  return found;
}

// Folders of Python packages: of this user, of the environment, of the system.
std::vector<fs::path> python_packages() {
  std::vector<fs::path> roots = {"/usr/lib", "/usr/local/lib", "/opt/conda/lib"};
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const char* value = std::getenv(name)) roots.emplace_back(fs::path(value) / "lib");
  if (const char* home = std::getenv("HOME")) roots.emplace_back(fs::path(home) / ".local/lib");
  std::vector<fs::path> packages;
  for (const fs::path& root : roots)
    for (const fs::path& python : children(root)) {
      if (!python.filename().string().starts_with("python3")) continue;
      packages.push_back(python / "site-packages");
      packages.push_back(python / "dist-packages");
    }
  return packages;
}

// In their order, the first that has the library counts: what a person has named, the toolkit, the
// system, and last Python's packages.
std::vector<fs::path> folders_of(const Wanted& wanted) {
  std::vector<fs::path> folders;
  for (const char* list : {"TAILRACE_CUDA_LIBRARIES", "LD_LIBRARY_PATH"})
    for (const std::string& part : parts_of(std::getenv(list))) folders.emplace_back(part);
  std::vector<fs::path> toolkits;
  if (const char* home = std::getenv("CUDA_HOME")) toolkits.emplace_back(home);
  toolkits.emplace_back("/usr/local/cuda");
  for (const fs::path& toolkit : toolkits)
    for (const char* part : {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"})
      folders.push_back(toolkit / part);
  folders.emplace_back("/usr/lib/x86_64-linux-gnu");
  folders.emplace_back("/usr/lib/aarch64-linux-gnu");
  for (const fs::path& packages : python_packages()) {
    folders.push_back(packages / "nvidia" / wanted.package / "lib");
    // From CUDA 13 on the wheels share one folder.
    for (const fs::path& folder : children(packages / "nvidia"))
      if (folder.filename().string().starts_with("cu")) folders.push_back(folder / "lib");
  }
  return folders;
}

LibraryFacts find(const Wanted& wanted) {
  LibraryFacts facts;
  facts.name = wanted.name;
  for (const fs::path& folder : folders_of(wanted))
    for (const fs::path& file : children(folder))
      if (facts.path.empty() &&
          file.filename().string().starts_with(std::string(wanted.file) + "."))
        facts.path = file.string();
  return facts;
}

// "13.1.0", by the library's own function.
std::string version_of(void* library) {
  if (const auto cublas = reinterpret_cast<size_t (*)()>(dlsym(library, "cublasLtGetVersion"))) {
    const size_t version = cublas();
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  int version = 0;
  const auto nccl = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  if (nccl == nullptr || nccl(&version) != 0) return "";
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

std::vector<LibraryFacts> load_libraries() {
  std::vector<LibraryFacts> all;
  for (const Wanted& wanted : kWanted) {
    LibraryFacts facts = find(wanted);
    if (!facts.path.empty()) {
      void* library = dlopen(facts.path.c_str(), RTLD_LAZY | RTLD_LOCAL);
      if (library == nullptr) {
        const char* reason = dlerror();
        facts.fault = reason == nullptr ? "it cannot be loaded" : reason;
      } else {
        facts.version = version_of(library);
      }
    }
    all.push_back(std::move(facts));
  }
  return all;
}

void* load_library(const std::string& name) {
  const auto* wanted = std::ranges::find(kWanted, name, &Wanted::name);
  if (wanted == kWanted.end()) return nullptr;
  const LibraryFacts facts = find(*wanted);
  return facts.path.empty() ? nullptr : dlopen(facts.path.c_str(), RTLD_LAZY | RTLD_LOCAL);
}

}  // namespace tailrace::cuda
