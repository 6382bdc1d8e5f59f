// The files of a run are as large as its plan says.
#include "cli/prepare/disk_plan.h"
#include "core/config/yaml_config.h"
#include "core/model/model_config.h"
#include "tests/cli/commands/launch_fixture.h"
#include "trainer/checkpoint.h"

namespace tailrace {
namespace {

// Of a safetensors file: names, shapes and offsets.
constexpr int64_t kHeaderBytes = 16 << 10;

int64_t size_of_files(const fs::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

void expect_bytes(const fs::path& file, int64_t data) {
  ASSERT_EQ(fs::exists(file), data > 0) << file;
  if (data == 0) return;
  const auto size = static_cast<int64_t>(fs::file_size(file));
  EXPECT_GT(size, data) << file;
  EXPECT_LT(size, data + kHeaderBytes) << file;
}

class LaunchDisk : public LaunchTest, public testing::WithParamInterface<const char*> {};

TEST_P(LaunchDisk, IsAsMuchAsThePlanSays) {
  start_run("run", {fmt::format("model.compute={}", GetParam())});
  expect_done();
  RunOptions options;
  bind_config(load_config(paths().config(), {}), options);
  const std::vector<fs::path> checkpoints = list_checkpoints(paths().checkpoints());
  ASSERT_FALSE(checkpoints.empty());
  const int64_t tokens = options.step.prompts_per_step * options.step.group_size *
                         options.rollout.engine.max_context_tokens;
  ModelConfig config = read_model_config(checkpoints.back());
  config.dtype = Dtype::kF32;  // it was created, and came in no other
  const DiskPlan plan = plan_disk(place(resolve(options), config), options.run.steps, tokens, true);

  for (const fs::path& checkpoint : checkpoints) {
    expect_bytes(checkpoint / "model.safetensors", plan.model);
    expect_bytes(checkpoint / "master.safetensors", plan.master);
    expect_bytes(checkpoint / "optimizer.safetensors", plan.moments);
  }
  EXPECT_EQ(std::ssize(checkpoints) + 1, plan.checkpoints);
  for (int64_t version = kSteps - options.weights.keep + 1; version <= kSteps; ++version)
    expect_bytes(paths().weights() / fmt::format("p0-v{}.safetensors", version), plan.version);
  int64_t manifests = 0;
  for (const auto& entry : fs::directory_iterator(paths().weights()))
    manifests += entry.path().extension() == ".json";
  EXPECT_GE(manifests, plan.versions);
  EXPECT_LE(size_of_files(paths().root), plan.most_bytes());
  // Of the bodies of the steps that the oldest checkpoint does not cover, and of no others' place.
  EXPECT_LE(size_of_files(paths().trajectories()), plan.tokens * (kSteps + 1));
  EXPECT_NE(output().find("\ndisk "), std::string::npos) << output();
}

INSTANTIATE_TEST_SUITE_P(Compute, LaunchDisk, testing::Values("f32", "bf16"));

}  // namespace
}  // namespace tailrace
