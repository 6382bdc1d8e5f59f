#include "core/base/machine.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(CpuFacts, AreReadAsX86AndArmWriteThem) {
  TemporaryDirectory folder;
  folder.write("x86",
               "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu sse4_2 avx2 fma bmi\n\n"
               "processor\t: 1\nmodel name\t: another\nflags\t\t: avx512f\n");
  EXPECT_EQ(cpu_facts(folder.path() / "x86").name, "AMD EPYC");
  EXPECT_EQ(cpu_facts(folder.path() / "x86").features,
            (std::vector<std::string>{"sse4_2", "avx2", "fma"}));
  folder.write("arm",
               "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd crc32 asimddp sve\n"
               "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
               "CPU part\t: 0xd40\nCPU revision\t: 1\n");
  EXPECT_EQ(cpu_facts(folder.path() / "arm").name, "ARM part 0xd40 of implementer 0x41");
  EXPECT_EQ(cpu_facts(folder.path() / "arm").features,
            (std::vector<std::string>{"asimd", "asimddp", "sve"}));
  EXPECT_EQ(cpu_facts(folder.path() / "none").name, "");
}

}  // namespace
}  // namespace tailrace
