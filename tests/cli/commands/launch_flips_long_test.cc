// One flipped bit in every file of a run directory: the run that goes on names it, or ends as if
// nothing had been.
#include <random>

#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

class LaunchFlips : public LaunchTest {
 protected:
  // Rows without what a continued run may have otherwise: times, and what a kill cost.
  static std::vector<std::string> figures(const RunPaths& run) {
    std::vector<std::string> lines;
    const auto rows = read_metrics(run.metrics());
    EXPECT_TRUE(rows) << rows.failure().message;
    if (!rows) return lines;
    for (MetricsRow row : rows.value()) {
      row.unix_seconds = 0;
      std::erase_if(row.values, [](const auto& value) {
        return value.first.starts_with("time/") || value.first.starts_with("perf/") ||
               value.first.ends_with("_ms") || value.first == "rollout/infra_failed_frac";
      });
      lines.push_back(format_metrics_row(row));
    }
    return lines;
  }

  // What a continued run reads, or a person.
  static std::vector<fs::path> files_that_matter(const fs::path& run) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(run)) {
      const fs::path file = fs::relative(entry.path(), run);
      const std::string first = file.begin()->string();
      const bool of_the_launch = first == "logs" || first == "roles" || first == "lock";
      if (entry.is_regular_file() && entry.file_size() > 0 && !of_the_launch) files.push_back(file);
    }
    std::ranges::sort(files);
    return files;
  }

  static void flip_bit(const fs::path& file, std::mt19937_64& random) {
    std::string bytes = read_file(file).value();
    const uint64_t bit = random() % (8 * bytes.size());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    std::ofstream(file, std::ios::binary) << bytes;
  }
};

TEST_F(LaunchFlips, AreNamedOrHealedInEveryFile) {
  const std::string expected = undisturbed_digest();
  const auto expected_figures = figures(paths("other"));
  start_run("half", {"checkpoint.keep_last=3"});
  ASSERT_TRUE(wait_until([&] {
    const auto rows = read_metrics(paths("half").metrics());
    return rows && std::ranges::any_of(rows.value(), [](const MetricsRow& row) {
             return row.step >= 8 && row.find("reward/mean") != nullptr;
           });
  })) << output();
  launched_->send_signal(SIGKILL);
  finish();

  const char* seed_text = std::getenv("TAILRACE_SEED");
  const uint64_t seed = seed_text != nullptr ? std::stoull(seed_text) : 1;
  std::mt19937_64 random(seed);
  int healed = 0, named = 0;
  for (const fs::path& file : files_that_matter(paths("half").root)) {
    fs::remove_all(paths().root);
    fs::copy(paths("half").root, paths().root, fs::copy_options::recursive);
    flip_bit(paths().root / file, random);
    continue_run();
    const ExitStatus status = finish();
    ASSERT_EQ(status.signal, 0) << file << ", seed " << seed << "\n" << output();
    if (status.ok()) {
      EXPECT_EQ(final_digest(), expected) << file << ", seed " << seed;
      const auto rows = figures(paths());
      EXPECT_EQ(rows.size(), expected_figures.size()) << file << ", seed " << seed;
      for (size_t i = 0; i < std::min(rows.size(), expected_figures.size()); ++i)
        ASSERT_EQ(rows[i], expected_figures[i]) << file << ", seed " << seed;
      ++healed;
    } else {
      EXPECT_TRUE(status.code == 1 || status.code == 2) << describe(status);
      EXPECT_NE(output().find("error: "), std::string::npos) << file << ", seed " << seed;
      ++named;
    }
    // Only the report reads it, and says so on its page.
    if (file == "samples.jsonl") {
      EXPECT_NE(read_file(paths().report()).value().find("samples.jsonl:"), std::string::npos);
    }
  }
  EXPECT_GE(healed, 10);
  EXPECT_GE(named, 5);
}

}  // namespace
}  // namespace tailrace
