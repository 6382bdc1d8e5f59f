#include "kernels/cuda/libraries.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

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
  for (const fs::path& folder : folders_of(wanted))
    for (const fs::path& file : children(folder)) {
      const std::string name = file.filename().string();
      const std::string prefix = std::string(wanted.file) + ".";
      if (name.starts_with(prefix)) return {wanted.name, file.string(), name.substr(prefix.size())};
    }
  return {wanted.name, "", ""};
}

}  // namespace

std::vector<LibraryFacts> find_libraries() {
  std::vector<LibraryFacts> found;
  for (const Wanted& wanted : kWanted) found.push_back(find(wanted));
  return found;
}

}  // namespace tailrace::cuda
