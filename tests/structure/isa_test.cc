// A binary for many machines: instructions that not all of them have stand in the namespaces of
// their instruction sets alone (kernels/cpu), never in a template that other code shares.
#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

// Wide registers by the functions that name them, as objdump shows them: "zmm" or "ymm".
std::map<std::string, std::string> find_wide(const std::string& binary, bool& readable) {
  std::map<std::string, std::string> found;
  const std::string command = "objdump -d --no-show-raw-insn " + binary + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 4096> buffer;
  std::string function;
  readable = false;
  while (pipe != nullptr && std::fgets(buffer.data(), buffer.size(), pipe.get()) != nullptr) {
    const std::string line = buffer.data();
    if (line.ends_with(">:\n")) {
      function = line.substr(line.find('<'));
      readable = true;
    }
    for (const char* wide : {"%zmm", "{%k", "%ymm"})
      if (line.find(wide) != std::string::npos)
        found.emplace(function, std::string(wide) == "%ymm" ? "ymm" : "zmm");
  }
  return found;
}

TEST(Isa, WideInstructionsStandInTheirNamespaces) {
#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "of the plain build for x86-64";
#endif
  bool readable = false;
  const auto wide = find_wide(TAILRACE_BINARY, readable);
  ASSERT_TRUE(readable) << "objdump (binutils) shows nothing of " << TAILRACE_BINARY;
  int kernels = 0;
  for (const auto& [function, registers] : wide) {
    const bool avx512 = function.find("avx512") != std::string::npos,
               avx2 = function.find("avx2") != std::string::npos;
    kernels += avx512;
    EXPECT_TRUE(avx512 || (avx2 && registers == "ymm")) << registers << " in " << function;
  }
  EXPECT_GT(kernels, 20) << "the kernels are not there";
}

}  // namespace
}  // namespace tailrace
