#include "trainer/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/progress.h"
#include "core/model/parameter_files.h"
#include "tests/trainer/fixtures.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using testing::make_batch;
using testing::tiny_trainer;

class CheckpointTest : public ::testing::Test {
 protected:
  TemporaryDirectory dir_;
  fs::path root_ = dir_.path() / "checkpoints";
  std::unique_ptr<PolicyTrainer> trainer_ = tiny_trainer({});

  void SetUp() override { fs::create_directories(root_); }

  Result<fs::path> save(CheckpointFolder& folder, int64_t step) {
    return folder.save(
        {.step = step, .version = step, .updates = 2 * step, .digest = "d", .extra = "{\"a\":1}"},
        trainer_->model().config(), trainer_->parameters(), trainer_->optimizer());
  }
  std::optional<ProvedCheckpoint> load(CheckpointFolder& folder) {
    return folder.load_latest(trainer_->model().config(), trainer_->parameters(),
                              trainer_->optimizer());
  }
};

// Dense, and of experts in either layout of the files.
std::vector<ModelConfig> all_models() {
  ModelConfig fused = testing::sparse_model();
  fused.fused_experts = true;
  fused.choice_bias = true;
  return {testing::tiny_model(), testing::sparse_model(), fused};
}

TEST_F(CheckpointTest, SaveLoadContinueGivesTheSameBitsAsNeverStopping) {
  for (const ModelConfig& model : all_models()) {
    // A schedule and momentum: without the optimizer's state and update number the third step would
    // differ.
    OptimOptions optim{
        .lr = 1e-2, .weight_decay = .1, .warmup_updates = 2, .schedule = LrSchedule::kCosine};
    TrainOptions train{.minibatches_per_step = 2};
    if (model.choice_bias) train.balance_bias_rate = 0.1;
    auto step = [](PolicyTrainer& trainer, int64_t n) {
      TrainBatch batch = make_batch(testing::random_trajectories(4, static_cast<uint64_t>(n)));
      trainer.policy_step(batch, 0, {});
    };
    auto straight = tiny_trainer(train, optim, {}, 1, model);
    for (int64_t n = 1; n <= 4; ++n) step(*straight, n);

    const fs::path root = root_ / (model.num_experts == 0 ? "dense"
                                   : model.fused_experts  ? "fused"
                                                          : "apart");
    fs::create_directories(root);
    CheckpointFolder folder(root, {}, 3);
    auto first = tiny_trainer(train, optim, {}, 1, model);
    for (int64_t n = 1; n <= 2; ++n) step(*first, n);
    ASSERT_TRUE(
        folder.save({.step = 2}, first->model().config(), first->parameters(), first->optimizer()));
    // Other weights, all of which the checkpoint has to replace.
    auto second = tiny_trainer(train, optim, {}, /*seed=*/99, model);
    auto loaded =
        folder.load_latest(second->model().config(), second->parameters(), second->optimizer());
    second->weights_changed();
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->state.step, 2);
    EXPECT_EQ(read_model_config(loaded->path), model);
    for (int64_t n = 3; n <= 4; ++n) step(*second, n);
    EXPECT_TRUE(std::ranges::equal(straight->parameters().flat(), second->parameters().flat()));
  }
}

// At each look at it this clock has gone on by as much as a line is worth.
class HastyClock final : public Clock {
 public:
  Time now() const override { return now_ += kTellEvery; }

 private:
  mutable Time now_{};
};

TEST_F(CheckpointTest, SaysHowFarItIsWhereThatTakesLong) {
  const HastyClock clock;
  std::vector<std::string> said;
  const ProgressScope scope([&](const std::string& line) { said.push_back(line); }, clock);
  CheckpointFolder folder(root_, {}, 3);
  // Before the first update there are no moments to write.
  TrainBatch batch = make_batch(testing::random_trajectories(4, 1));
  trainer_->policy_step(batch, 0, {});
  ASSERT_TRUE(save(folder, 3));
  ASSERT_TRUE(load(folder));
  const auto count = [&](std::string_view begin) {
    return std::ranges::count_if(said, [&](const auto& line) { return line.starts_with(begin); });
  };
  const std::string saved = (root_ / "step_000003").string();
  EXPECT_GT(count("writing " + saved + ".tmp/model.safetensors: "), 1);
  EXPECT_GT(count("writing " + saved + ".tmp/optimizer.safetensors: "), 1);
  EXPECT_GT(count("hashing " + saved + "/model.safetensors: "), 0);
  EXPECT_GT(count("loading " + saved + ": "), 1);
}

// What samples is bf16, what is trained is not.
TEST_F(CheckpointTest, ABfloatModelGoesOnFromItsMasterWeights) {
  ModelConfig config = trainer_->model().config();
  config.dtype = Dtype::kBF16;
  CheckpointFolder folder(root_, {}, 3);
  const std::vector<float> before(trainer_->parameters().flat().begin(),
                                  trainer_->parameters().flat().end());
  const auto saved =
      folder.save({.step = 3}, config, trainer_->parameters(), trainer_->optimizer());
  ASSERT_TRUE(saved);
  std::ranges::fill(trainer_->parameters().flat(), 0.0f);
  ASSERT_TRUE(load(folder));
  EXPECT_TRUE(std::ranges::equal(trainer_->parameters().flat(), before));
  const ModelConfig read = read_model_config(saved.value());
  EXPECT_EQ(read.dtype, Dtype::kBF16);
  Parameters exported(trainer_->model().layout());
  load_parameters(saved.value(), read, exported, "model.safetensors");
  const auto name = std::string(kEmbeddingName);
  const auto ours = exported.vector(name), master = trainer_->parameters().vector(name);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_EQ(ours[i], to_float(to_bf16(master[i])));
  // One that is cut is damaged.
  fs::resize_file(saved.value() / "master.safetensors", 1000);
  EXPECT_THROW(load(folder), UserError);
}

// A run begins with a checkpoint of the weights that it was given.
TEST_F(CheckpointTest, WeightsThatCameInBfloatHaveAMasterFromTheFirstUpdateOn) {
  ModelConfig config = trainer_->model().config();
  config.dtype = Dtype::kBF16;
  const std::span<float> flat = trainer_->parameters().flat();
  for (float& value : flat) value = to_float(to_bf16(value));
  const std::vector<float> before(flat.begin(), flat.end());
  CheckpointFolder folder(root_, {}, 3);
  const auto has_master = [&](int64_t step) {
    const auto saved =
        folder.save({.step = step}, config, trainer_->parameters(), trainer_->optimizer());
    return fs::exists(saved.value() / "master.safetensors");
  };
  EXPECT_FALSE(has_master(0));
  std::ranges::fill(flat, 0.0f);
  ASSERT_TRUE(load(folder));
  EXPECT_TRUE(std::ranges::equal(flat, before));
  flat.back() = std::nextafter(flat.back(), 2.0f);
  EXPECT_TRUE(has_master(1));
}

// float16, in files and with a config of its own: so it is written, and the run loses nothing.
TEST_F(CheckpointTest, AModelThatCameInFloat16StaysThatAndGoesOnFromItsMasterWeights) {
  const ModelConfig& config = trainer_->model().config();
  const Parameters& parameters = trainer_->parameters();
  ModelForm form{.files = {{"model-a.safetensors"}, {"model-b.safetensors"}}, .index = "{}"};
  for (const ParameterInfo& info : trainer_->model().layout().entries())
    form.files[info.name == kFinalNormName ? 1 : 0].tensors.push_back({info.name, Dtype::kF16});
  save_model(dir_.path() / "model", config, parameters, form);
  const fs::path text_path = dir_.path() / "model" / "config.json";
  const std::string text = "{\"mine\": [1e-06]," + read_file(text_path).value().substr(1);
  ASSERT_TRUE(write_file_atomic(text_path, text));
  const std::vector<float> before(parameters.flat().begin(), parameters.flat().end());

  CheckpointFolder folder(root_, {}, 3);
  folder.use_form(read_model_form(dir_.path() / "model"));
  const auto saved = save(folder, 3);
  ASSERT_TRUE(saved);
  EXPECT_EQ(read_file(saved.value() / "config.json").value(), text);
  const ModelForm written = read_model_form(saved.value());
  ASSERT_EQ(written.files.size(), 2u);
  EXPECT_EQ(written.files[1].name, "model-b.safetensors");
  for (const auto& file : written.files)
    for (const auto& tensor : file.tensors) EXPECT_EQ(tensor.dtype, Dtype::kF16) << tensor.name;
  std::ranges::fill(trainer_->parameters().flat(), 0.0f);
  ASSERT_TRUE(load(folder));
  EXPECT_TRUE(std::ranges::equal(trainer_->parameters().flat(), before));
  // A trainer that goes on from it has no other folder to look at.
  CheckpointFolder again(root_, {}, 3);
  ASSERT_TRUE(load(again));
  const auto saved_again = save(again, 3);
  ASSERT_TRUE(saved_again);
  EXPECT_EQ(read_file(saved_again.value() / "config.json").value(), text);
  EXPECT_EQ(read_model_form(saved_again.value()).files.size(), 2u);

  // What float16 does not hold costs no weight: the checkpoint has what samples.
  trainer_->parameters().vector(kFinalNormName)[1] = 7e4f;
  const auto wide = save(folder, 4);
  ASSERT_TRUE(wide) << wide.failure().message;
  EXPECT_EQ(read_model_config(wide.value()).dtype, Dtype::kF32);
  for (const auto& file : read_model_form(wide.value()).files)
    for (const auto& tensor : file.tensors) EXPECT_EQ(tensor.dtype, Dtype::kF32) << tensor.name;
  EXPECT_FALSE(fs::exists(wide.value() / kMasterFile));
  EXPECT_EQ(load(folder)->state.step, 4);
  EXPECT_EQ(trainer_->parameters().vector(kFinalNormName)[1], 7e4f);
}

TEST_F(CheckpointTest, KeepsItsStateAndTheTokenizerAndLoadsAsAModelFolder) {
  fs::path tokenizer = testing::data_dir() / "models/stories260K";
  CheckpointFolder folder(root_, tokenizer, 3);
  Result<fs::path> path = save(folder, 7);
  ASSERT_TRUE(path);
  EXPECT_EQ(path.value().filename(), "step_000007");
  EXPECT_TRUE(fs::exists(path.value() / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(path.value() / "tokenizer_config.json"));
  auto loaded = load(folder);
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->state.version, 7);
  EXPECT_EQ(loaded->state.updates, 14);
  EXPECT_EQ(loaded->state.digest, "d");
  EXPECT_EQ(loaded->state.extra, "{\"a\":1}");
  ModelConfig config = read_model_config(path.value());
  Parameters parameters(trainer_->model().layout());
  load_parameters(path.value(), config, parameters);
  EXPECT_TRUE(std::ranges::equal(parameters.flat(), trainer_->parameters().flat()));
}

TEST_F(CheckpointTest, KeepsTheLastFewAndOverwritesTheSameStep) {
  CheckpointFolder folder(root_, {}, 2);
  EXPECT_FALSE(load(folder));
  // Numbers of several lengths: the latest is by number, not by name or by time.
  for (int64_t step : {5, 9, 10, 100}) ASSERT_TRUE(save(folder, step));
  trainer_->parameters().flat()[0] = 42;
  ASSERT_TRUE(save(folder, 100));
  std::vector<fs::path> left = list_checkpoints(root_);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].filename(), "step_000010");
  trainer_->parameters().flat()[0] = 0;
  EXPECT_EQ(load(folder)->state.step, 100);
  EXPECT_EQ(trainer_->parameters().flat()[0], 42);
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), 2);
}

TEST_F(CheckpointTest, WhatACrashLeftBehindIsIgnoredAndRemoved) {
  CheckpointFolder folder(root_, {}, 2);
  ASSERT_TRUE(save(folder, 1));
  fs::create_directories(root_ / "step_000002.tmp");
  std::ofstream(root_ / "step_000002.tmp/model.safetensors") << "half";
  EXPECT_EQ(load(folder)->state.step, 1);
  EXPECT_FALSE(fs::exists(root_ / "step_000002.tmp"));
}

// One bit of any file: it is named, and the checkpoint before it counts.
TEST_F(CheckpointTest, AFlippedBitAnywhereIsNoticed) {
  CheckpointFolder folder(root_, testing::data_dir() / "models/stories260K", 3);
  ASSERT_TRUE(save(folder, 1));
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "config.json",
                           "tokenizer.json", "state.json"}) {
    ASSERT_TRUE(save(folder, 2));
    EXPECT_EQ(folder.oldest(), 1);
    const fs::path file = root_ / "step_000002" / name;
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    // Late in the file: the tensors, not only their header.
    bytes.seekg(-8, std::ios::end);
    const char old = static_cast<char>(bytes.peek());
    bytes.seekp(-8, std::ios::end);
    bytes.put(static_cast<char>(old ^ 1));
    bytes.close();
    // Who only reads the run finds the same, and leaves it as it is.
    const auto found = find_proved_checkpoint(root_);
    EXPECT_EQ(found->path, root_ / "step_000001") << name;
    EXPECT_TRUE(fs::exists(file)) << name;
    const auto loaded = load(folder);
    EXPECT_EQ(loaded->state.step, 1) << name;
    EXPECT_EQ(loaded->passed_over, found->passed_over) << name;
    ASSERT_EQ(loaded->passed_over.size(), 1u) << name;
    EXPECT_NE(loaded->passed_over[0].find(name), std::string::npos) << loaded->passed_over[0];
    EXPECT_TRUE(fs::exists(root_ / "step_000002.damaged" / name));
    EXPECT_FALSE(fs::exists(root_ / "step_000002"));
  }
}

TEST_F(CheckpointTest, ADamagedCriticIsNamedAsWell) {
  CheckpointFolder folder(root_, {}, 3);
  const ModelConfig& config = trainer_->model().config();
  const Critic critic(config.hidden_size, /*slots=*/1, {});
  for (int64_t step : {1, 2})
    ASSERT_TRUE(folder.save({.step = step}, config, trainer_->parameters(), trainer_->optimizer(),
                            &critic));
  fs::resize_file(root_ / "step_000002/critic.safetensors", 100);
  const auto found = find_proved_checkpoint(root_);
  EXPECT_EQ(found->path.filename(), "step_000001");
  ASSERT_EQ(found->passed_over.size(), 1u);
  EXPECT_EQ(found->passed_over[0], (root_ / "step_000002/critic.safetensors").string() +
                                       ": it was changed or damaged since it was saved");
}

TEST_F(CheckpointTest, OneInThePlaceOfAnotherIsPassedOver) {
  CheckpointFolder folder(root_, {}, 3);
  for (int64_t step : {1, 2}) ASSERT_TRUE(save(folder, step));
  fs::remove_all(root_ / "step_000002");
  fs::copy(root_ / "step_000001", root_ / "step_000002", fs::copy_options::recursive);
  const auto found = find_proved_checkpoint(root_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path.filename(), "step_000001");
  ASSERT_EQ(found->passed_over.size(), 1u);
  EXPECT_NE(found->passed_over[0].find("it holds step 1: the folder was exchanged or renamed"),
            std::string::npos)
      << found->passed_over[0];
}

TEST_F(CheckpointTest, ADamagedNewestIsPassedOverWithItsReason) {
  CheckpointFolder folder(root_, {}, 3);
  for (int64_t step : {1, 2, 3}) ASSERT_TRUE(save(folder, step));
  fs::resize_file(root_ / "step_000003/model.safetensors", 1000);
  std::ofstream(root_ / "step_000002/state.json") << "{}";
  auto loaded = load(folder);
  EXPECT_EQ(loaded->state.step, 1);
  ASSERT_EQ(loaded->passed_over.size(), 2u);
  EXPECT_NE(loaded->passed_over[0].find("model.safetensors"), std::string::npos)
      << loaded->passed_over[0];
  EXPECT_NE(loaded->passed_over[1].find("state.json"), std::string::npos) << loaded->passed_over[1];
  EXPECT_FALSE(fs::exists(root_ / "step_000002")) << "set aside";
  fs::remove(root_ / "step_000001/optimizer.safetensors");
  try {
    load(folder);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("no checkpoint is whole, of 1"), std::string::npos)
        << e.what();
  }
}

// A limit on the size of files stands in for a full disk: writing fails in the middle of a file.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    // Else the limit kills the process; ignored, write() gives EFBIG.
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

TEST_F(CheckpointTest, AFullDiskIsAFailureAndLeavesTheOlderOneIntact) {
  CheckpointFolder folder(root_, {}, 1);
  ASSERT_TRUE(save(folder, 1));
  std::string message;
  {
    FileSizeLimit limit(4096);
    Result<fs::path> result = save(folder, 2);
    ASSERT_FALSE(result);
    message = result.failure().message;
  }
  EXPECT_NE(message.find("checkpoint of step 2 was not written"), std::string::npos) << message;
  EXPECT_NE(message.find("step_000002.tmp"), std::string::npos) << message;
  // The half-written folder is gone too: on a full disk its bytes are the ones that are missed.
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), fs::directory_iterator()), 1);
  EXPECT_EQ(load(folder)->state.step, 1);
  EXPECT_TRUE(save(folder, 2));
}

TEST_F(CheckpointTest, AMissingFolderIsCreated) {
  CheckpointFolder folder(root_ / "a/b", {}, 1);
  EXPECT_FALSE(load(folder));
  EXPECT_TRUE(save(folder, 1));
  EXPECT_TRUE(load(folder));
}

}  // namespace
}  // namespace tailrace
