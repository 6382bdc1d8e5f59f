// What a worker of another host gets of a run, and what it takes a listing for.
#include "cli/roles/bundle.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/base/random.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class BundleTest : public testing::Test {
 protected:
  Result<BundleListing> read(const std::string& text) {
    std::ofstream(folder_ / "listing.json", std::ios::binary) << text;
    return read_listing(folder_ / "listing.json");
  }
  static BundleListing sample() {
    return {.files = {{.place = "config.yaml", .digest = std::string(32, 'a'), .bytes = 7},
                      {.place = "model/a.safetensors",
                       .digest = std::string(32, '0'),
                       .bytes = 100,
                       .is_header = true}},
            .keys = {{"model.path", "model"}}};
  }

  TemporaryDirectory folder_;
};

TEST_F(BundleTest, AListingComesBackAsItWent) {
  const auto read_back = read(to_json(sample()));
  ASSERT_TRUE(read_back) << read_back.failure().message;
  EXPECT_EQ(to_json(read_back.value()), to_json(sample()));
}

TEST_F(BundleTest, NoPlaceLeadsOutOfTheFolder) {
  for (const std::string place : {"../x", "/etc/passwd", "a/../../x", "", "./x", "a/.."}) {
    BundleListing listing = sample();
    listing.files[0].place = place;
    EXPECT_FALSE(read(to_json(listing))) << place;
    listing = sample();
    listing.keys[0].second = place;
    EXPECT_FALSE(read(to_json(listing))) << place;
  }
  BundleListing listing = sample();
  listing.files[0].digest = "../../../../../../../../etc/hosts";
  EXPECT_FALSE(read(to_json(listing)));
  listing = sample();
  listing.files[0].bytes = -1;
  EXPECT_FALSE(read(to_json(listing)));
}

TEST_F(BundleTest, ADamagedListingIsRefusedOrHarmless) {
  const std::string text = to_json(sample());
  Rng rng(5);
  for (size_t cut = 0; cut < text.size(); cut += 3) (void)read(text.substr(0, cut));
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = text;
    for (int64_t n = 1 + rng.below(3); n > 0; --n)
      damaged[static_cast<size_t>(rng.below(std::ssize(damaged)))] =
          static_cast<char>(rng.below(256));
    const auto listing = read(damaged);
    if (!listing) continue;
    for (const BundleFile& file : listing.value().files) {
      EXPECT_TRUE(fs::path(file.place).is_relative()) << file.place;
      EXPECT_EQ(fs::path(file.place).lexically_normal().string().find(".."), std::string::npos);
      EXPECT_GE(file.bytes, 0);
    }
  }
}

// A run in a folder, as prepare_run() leaves it.
class BundleOfRun : public testing::Test {
 protected:
  BundleOfRun() {
    const fs::path model = folder_ / "model";
    for (const fs::path& folder : {model, run_.tokenizer()}) fs::create_directories(folder);
    write(run_.config(), "run: {}");
    write(run_.inputs(), to_proved_json(nlohmann::json::object()));
    write(run_.tokenizer() / "tokenizer.json", "{}");
    write(model / "config.json", "{}");
    write(model / "model.safetensors.index.json", "{}");
    // 8 bytes of length, a header, and data that stay at home.
    for (const char* shard : {"model-1.safetensors", "model-2.safetensors"})
      write(model / shard, std::string("\x02\0\0\0\0\0\0\0{}", 10) + std::string(5000, 'w'));
    write(folder_ / "rows.jsonl", "{}");
    options_.model.path = model;
    options_.env.dataset = folder_ / "rows.jsonl";
  }
  static void write(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }

  TemporaryDirectory folder_;
  const RunPaths run_{folder_ / "run"};
  RunOptions options_;
};

TEST_F(BundleOfRun, OfWeightsTheHeadersAloneTravel) {
  const Bundle bundle(run_, resolve(options_));
  for (const char* shard : {"model-1.safetensors", "model-2.safetensors"}) {
    const auto file = bundle.find(std::string("files/model/") + shard);
    ASSERT_TRUE(file) << shard;
    EXPECT_EQ(file->bytes, 10);
  }
}

// No version has them.
TEST_F(BundleOfRun, TheWeightsBesideAnAdapterTravelWholeToWhoSamples) {
  options_.lora.adapter = folder_ / "adapter";
  fs::create_directories(folder_ / "adapter");
  write(folder_ / "adapter" / "adapter_config.json", "{}");
  const Bundle bundle(run_, resolve(options_));
  const auto file = bundle.find("files/model/model-1.safetensors");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->bytes, -1) << "all of it";
  EXPECT_TRUE(bundle.is_for(Role::kRollout, "files/model/model-1.safetensors"));
  EXPECT_FALSE(bundle.is_for(Role::kReward, "files/model/model-1.safetensors"));
  bundle.write_listings();
  const auto listing = read_listing(run_.bundle() / "rollout.json");
  ASSERT_TRUE(listing);
  const auto& keys = listing.value().keys;
  EXPECT_NE(std::ranges::find(keys, std::pair<std::string, std::string>("lora.adapter", "adapter")),
            keys.end());
}

TEST_F(BundleOfRun, ARewardWorkerHasNoDatasetsAndNoWeights) {
  const Bundle bundle(run_, resolve(options_));
  bundle.write_listings();
  const auto rollout = read_listing(run_.bundle() / "rollout.json"),
             reward = read_listing(run_.bundle() / "reward.json");
  ASSERT_TRUE(rollout && reward);
  EXPECT_GT(rollout.value().files.size(), reward.value().files.size());
  for (const BundleFile& file : rollout.value().files)
    EXPECT_TRUE(bundle.is_for(Role::kRollout, "files/" + file.place)) << file.place;
  for (const BundleFile& file : reward.value().files) {
    EXPECT_EQ(file.place.find("rows"), std::string::npos);
    EXPECT_TRUE(bundle.is_for(Role::kReward, "files/" + file.place)) << file.place;
  }
  EXPECT_FALSE(bundle.is_for(Role::kReward, "files/inputs/1-rows.jsonl"));
  EXPECT_FALSE(bundle.is_for(Role::kReward, "weights/p0-v1.json"));
}

// Both roles know of them; the interpreter is each machine's own.
TEST_F(BundleOfRun, TheFilesOfAProgramTravelAndStayTogether) {
  fs::create_directories(folder_ / "other");
  for (const char* file : {"reward.py", "table.json", "other/reward.py"})
    write(folder_ / file, file);
  const auto path = [&](const char* file) { return (folder_ / file).string(); };
  options_.reward.parts = {
      {.name = "a", .command = {"/bin/sh", path("reward.py"), "-x", path("table.json")}},
      {.name = "b", .command = {"sh", path("other/reward.py"), path("reward.py")}}};
  const Bundle bundle(run_, resolve(options_));
  bundle.write_listings();
  const auto listing = read_listing(run_.bundle() / "reward.json");
  ASSERT_TRUE(listing) << listing.failure().message;
  using Keys = std::vector<std::pair<std::string, std::string>>;
  Keys keys;
  for (const auto& key : listing.value().keys)
    if (key.first.starts_with("reward.")) keys.push_back(key);
  EXPECT_EQ(keys, (Keys{{"reward.parts.a.command.1", "reward/0/reward.py"},
                        {"reward.parts.a.command.3", "reward/0/table.json"},
                        {"reward.parts.b.command.1", "reward/1/reward.py"},
                        {"reward.parts.b.command.2", "reward/0/reward.py"}}));
  // One file is sent once.
  EXPECT_EQ(std::ranges::count(listing.value().files, "reward/0/reward.py", &BundleFile::place), 1);
  const auto found = bundle.find("files/reward/1/reward.py");
  ASSERT_TRUE(found);
  EXPECT_EQ(read_file(found->path).value(), "other/reward.py");
}

TEST_F(BundleOfRun, NothingElseOfTheRunIsFound) {
  const Bundle bundle(run_, resolve(options_));
  for (const char* name :
       {"config.yaml", "files/../config.yaml", "weights/../config.yaml", "weights/..", "weights/",
        "files/journal", "bundle/trainer.json", "../keys/server.key", "", "weights/a/b"})
    EXPECT_FALSE(bundle.find(name)) << name;
}

}  // namespace
}  // namespace tailrace
