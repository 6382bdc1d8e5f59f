// A library that was built with the first headers of this ABI. Whatever has grown since, it loads
// and plays as it did.
#include <gtest/gtest.h>

#include "core/base/digest_of.h"
#include "tests/sandbox/plugin/plugins.h"

namespace tailrace::sandbox {
namespace {

TEST(PluginGolden, ALibraryOfTheFirstHeadersPlaysAsItDid) {
#ifndef __x86_64__
  GTEST_SKIP() << "the library is for x86-64";
#endif
  const auto library =
      PluginLibrary::load(TAILRACE_SOURCE_DIR "/tests/data/plugins/libmaze-abi1.so");
  const auto& entry = testing::entry_of(*library, "maze");
  const auto environment = make_plugin_environment(
      library, entry,
      complete_settings(entry.settings, {{"scored_by", "short_way"}}, "maze", "env.settings"));
  EXPECT_EQ(environment->info().verifier, "short_way");
  std::string heard;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    heard += environment->reset({.seed = seed, .data = {}}).value().text;
    for (uint64_t turn = 0;; ++turn) {
      const auto step = environment->step(environment->demonstrate(seed + turn).value()).value();
      heard += step.observation.text + step.evidence;
      for (const auto& [name, value] : step.metrics) heard += name + std::to_string(value);
      if (step.terminated || step.truncated) break;
    }
    environment->close();
  }
  EXPECT_EQ(digest_of(heard), "186a0aa96128bace3d8eb2079f59a9b0") << heard.substr(0, 400);
}

}  // namespace
}  // namespace tailrace::sandbox
