#include "core/weights/version_folder.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/model/safetensors.h"
#include "core/weights/proved_weights.h"
#include "core/weights/tidy_versions.h"
#include "core/weights/verify.h"
#include "core/weights/version_keeper.h"
#include "core/weights/way.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/core/weights/small_model.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class VersionFolderTest : public testing::TestWithParam<Dtype> {
 protected:
  VersionFolderTest() : layout_(small_model()), weights_(layout_) {
    fs::create_directories(scratch_);
    for (const ParameterInfo& info : layout_.entries())
      for (float& value : weights_.vector(info.name))
        value = static_cast<float>(rng_.uniform() - 0.5);
  }

  // A few elements of a few tensors change, as a step changes them.
  const WeightManifest& publish(int64_t version) {
    for (int i = 0; i < 40; ++i) {
      const auto& info =
          layout_.entries()[static_cast<size_t>(rng_.below(std::ssize(layout_.entries())))];
      float& value = weights_.vector(info.name)[static_cast<size_t>(rng_.below(info.size))];
      value *= 1.01f;
    }
    WeightManifest manifest = make_manifest(weights_, 0, version, "", {}, GetParam());
    if (const auto before = published_.find(version - 1); before != published_.end())
      manifest.parent = before->second.root;
    const auto name = publish_weights(folder_, manifest, weights_);
    EXPECT_TRUE(name) << name.failure().message;
    return published_[version] = std::move(manifest);
  }

  // Made again from what lies there, it is what was published.
  testing::AssertionResult is_there(int64_t version) {
    fs::remove_all(scratch_);
    fs::create_directories(scratch_);
    const auto payload = payload_of(folder_, 0, version, scratch_);
    if (!payload) return testing::AssertionFailure() << payload.failure().message;
    const fs::path manifest = scratch_ / manifest_name(0, version);
    fs::copy_file(folder_ / manifest_name(0, version), manifest,
                  fs::copy_options::overwrite_existing);
    if (payload.value().parent_path() != scratch_)
      fs::copy_file(payload.value(), scratch_ / payload.value().filename());
    const auto proved = prove_weights(manifest, published_.at(version).root, layout_);
    if (!proved) return testing::AssertionFailure() << proved.failure().message;
    return testing::AssertionSuccess();
  }

  // With the payloads of so many newest versions.
  Result<void> tidy(int64_t newest, int64_t payloads, int64_t anchor_interval, int64_t below = 0) {
    return tidy_versions(folder_, 0, newest,
                         {.below = below,
                          .fetched_from = newest - payloads + 1,
                          .anchor_interval = anchor_interval});
  }
  std::vector<int64_t> versions(bool whole) const {
    std::vector<int64_t> found;
    for (const StoredVersion& version : list_versions(folder_))
      if (!whole || version.is_whole) found.push_back(version.version);
    return found;
  }
  bool has(const std::string& file) const { return fs::exists(folder_ / file); }

  Rng rng_{11};
  TemporaryDirectory root_;
  fs::path folder_ = root_ / "weights", scratch_ = root_ / "scratch";
  ParameterLayout layout_;
  Parameters weights_;
  std::map<int64_t, WeightManifest> published_;
};

INSTANTIATE_TEST_SUITE_P(Dtypes, VersionFolderTest, testing::Values(Dtype::kF32, Dtype::kBF16),
                         [](const auto& param) {
                           return std::string(param.param == Dtype::kF32 ? "f32" : "bf16");
                         });

TEST_P(VersionFolderTest, ADeltaLeadsFromOneVersionToAnother) {
  publish(1);
  publish(2);
  const auto delta = make_delta(folder_, 0, 1, 2);
  ASSERT_TRUE(delta) << delta.failure().message;
  EXPECT_EQ(delta.value().filename(), "p0-v2.from-v1.delta");
  EXPECT_LT(fs::file_size(delta.value()), fs::file_size(folder_ / "p0-v2.safetensors") / 2);
  const auto done = reconstruct(folder_ / "p0-v1.safetensors", delta.value(), published_.at(2),
                                scratch_ / "out.safetensors");
  ASSERT_TRUE(done) << done.failure().message;
  EXPECT_EQ(read_file(scratch_ / "out.safetensors").value(),
            read_file(folder_ / "p0-v2.safetensors").value());
  EXPECT_GT(done.value().reconstructed, 0);
  EXPECT_GT(done.value().compressed, 0);
  // Made once.
  const auto written = fs::last_write_time(delta.value());
  ASSERT_TRUE(make_delta(folder_, 0, 1, 2));
  EXPECT_EQ(fs::last_write_time(delta.value()), written);
}

// Experts that no token went to, by the root of their set: a delta is made without a look at them.
TEST_P(VersionFolderTest, ASetThatIsTheSameIsNotRead) {
  ModelConfig sparse = small_model();
  sparse.num_experts = 4;
  sparse.experts_per_token = 1;
  sparse.expert_size = 16;
  sparse.sparse = {true};
  const ParameterLayout layout(sparse);
  Parameters weights(layout);
  init_parameters(sparse, 3, weights);
  std::map<int64_t, WeightManifest> made;
  for (const int64_t version : {1, 2}) {
    weights.vector(kEmbeddingName)[5] = static_cast<float>(version);
    made[version] = make_manifest(weights, 0, version, "", {}, GetParam());
    ASSERT_TRUE(publish_weights(folder_, made[version], weights));
  }
  ASSERT_EQ(tensor_sets(made[1].tensors).at(0).name, "experts");
  // What a disk does to them in the second version does not come into the delta.
  const std::string truth = read_file(folder_ / "p0-v2.safetensors").value();
  {
    const SafetensorsFile payload(folder_ / "p0-v2.safetensors");
    std::string damaged = truth;
    for (const auto& [name, view] : payload.tensors())
      if (set_of(name) == "experts")
        damaged[damaged.find(std::string_view(reinterpret_cast<const char*>(view.data.data()),
                                              view.data.size()))] ^= 1;
    ASSERT_NE(damaged, truth);
    fs::remove(folder_ / "p0-v2.safetensors");
    std::ofstream(folder_ / "p0-v2.safetensors", std::ios::binary) << damaged;
  }
  const auto delta = make_delta(folder_, 0, 1, 2);
  ASSERT_TRUE(delta) << delta.failure().message;
  const auto file = DeltaFile::open(delta.value());
  ASSERT_TRUE(file);
  for (const auto& tensor : file.value().tensors()) {
    if (set_of(tensor.name) != "experts") continue;
    EXPECT_EQ(tensor.payload, TensorPayload::kSame) << tensor.name;
  }
  const auto done = reconstruct(folder_ / "p0-v1.safetensors", delta.value(), made[2],
                                scratch_ / "out.safetensors");
  ASSERT_TRUE(done) << done.failure().message;
  EXPECT_EQ(read_file(scratch_ / "out.safetensors").value(), truth);
}

TEST_P(VersionFolderTest, AWrongBaseIsFoundAndLeavesNothing) {
  publish(1);
  publish(2);
  publish(3);
  const auto delta = make_delta(folder_, 0, 2, 3);
  ASSERT_TRUE(delta);
  const auto done = reconstruct(folder_ / "p0-v1.safetensors", delta.value(), published_.at(3),
                                scratch_ / "out.safetensors");
  ASSERT_FALSE(done);
  EXPECT_NE(done.failure().message.find("tensor "), std::string::npos) << done.failure().message;
  EXPECT_TRUE(fs::is_empty(scratch_));
  // A delta of other ends is refused before.
  EXPECT_FALSE(reconstruct(folder_ / "p0-v1.safetensors", delta.value(), published_.at(2),
                           scratch_ / "out.safetensors"));
}

TEST_P(VersionFolderTest, OldVersionsAreMadeAgainFromAnchorsAndDeltas) {
  for (int64_t version = 0; version <= 25; ++version) {
    publish(version);
    const auto tidied = tidy(version, 3, 10);
    ASSERT_TRUE(tidied) << tidied.failure().message;
  }
  EXPECT_EQ(versions(/*whole=*/true), (std::vector<int64_t>{0, 10, 20, 23, 24, 25}));
  EXPECT_EQ(versions(/*whole=*/false).size(), 26u) << "all are needed: nothing was released";
  for (int64_t version = 0; version <= 25; ++version) EXPECT_TRUE(is_there(version)) << version;
  const VerifiedFolder found = verify_versions(folder_, std::nullopt, scratch_);
  EXPECT_EQ(found.versions, 26);
  EXPECT_EQ(found.damages, std::vector<std::string>());
}

TEST_P(VersionFolderTest, WhatIsReleasedGoesDownToItsAnchor) {
  for (int64_t version = 0; version <= 25; ++version) {
    publish(version);
    ASSERT_TRUE(tidy(version, 3, 10));
  }
  ASSERT_TRUE(tidy(25, 3, 10, 14));
  EXPECT_EQ(versions(false).front(), 10) << "the way to 14 begins there";
  for (int64_t version = 14; version <= 25; ++version) EXPECT_TRUE(is_there(version)) << version;
  // Never one of those that are kept, whatever is released.
  ASSERT_TRUE(tidy(25, 3, 10, 1000));
  EXPECT_EQ(versions(false), (std::vector<int64_t>{23, 24, 25}));
  EXPECT_EQ(versions(true), (std::vector<int64_t>{23, 24, 25}));
}

// It lies behind those that are fetched, and gives its payload up like any other when that is over.
TEST_P(VersionFolderTest, WhatIsEvaluatedKeepsItsPayload) {
  const auto tidy_with = [&](int64_t newest, int64_t below, int64_t evaluated) {
    return tidy_versions(folder_, 0, newest,
                         {.below = below,
                          .fetched_from = newest - 1,
                          .evaluated = evaluated,
                          .anchor_interval = 100});
  };
  for (int64_t version = 0; version <= 7; ++version) {
    publish(version);
    ASSERT_TRUE(tidy_with(version, 0, version >= 3 ? 3 : -1));
  }
  EXPECT_EQ(versions(/*whole=*/true), (std::vector<int64_t>{0, 3, 6, 7}));
  for (int64_t version = 0; version <= 7; ++version) EXPECT_TRUE(is_there(version)) << version;
  ASSERT_TRUE(tidy_with(7, 5, 3));
  EXPECT_EQ(versions(/*whole=*/false).front(), 3) << "whatever is released";
  ASSERT_TRUE(tidy_with(7, 4, -1));
  EXPECT_EQ(versions(/*whole=*/true), (std::vector<int64_t>{3, 6, 7})) << "it is the first now";
  EXPECT_TRUE(verify_versions(folder_, std::nullopt, scratch_).damages.empty());

  publish(8);
  ASSERT_TRUE(tidy_with(8, 4, 6));
  EXPECT_EQ(versions(true), (std::vector<int64_t>{3, 6, 7, 8}));
  ASSERT_TRUE(tidy_with(8, 4, -1));
  EXPECT_EQ(versions(true), (std::vector<int64_t>{3, 7, 8}));
  for (int64_t version = 3; version <= 8; ++version) EXPECT_TRUE(is_there(version)) << version;
  EXPECT_TRUE(verify_versions(folder_, std::nullopt, scratch_).damages.empty());
}

// A killed process may leave any of these steps out; the next one does what is missing.
TEST_P(VersionFolderTest, TidyingBeginsAnywhere) {
  for (int64_t version = 0; version <= 9; ++version) publish(version);
  fs::remove(folder_ / "p0-v0.json");  // cut off between two files of the oldest
  std::ofstream(folder_ / "p0-v6.from-v5.delta") << "half";
  ASSERT_TRUE(tidy(9, 2, 100));
  for (int64_t version = 1; version <= 9; ++version) EXPECT_TRUE(is_there(version));
  EXPECT_EQ(versions(true), (std::vector<int64_t>{1, 8, 9}));
  EXPECT_TRUE(verify_versions(folder_, std::nullopt, scratch_).damages.empty());
}

// A delta that a gate has made, and a disk has damaged since.
TEST_P(VersionFolderTest, ADamagedDeltaIsMadeAnewBeforeAPayloadGoes) {
  for (int64_t version = 0; version <= 4; ++version) publish(version);
  const auto delta = make_delta(folder_, 0, 1, 2);
  ASSERT_TRUE(delta);
  std::string bytes = read_file(delta.value()).value();
  bytes.back() ^= 4;
  std::ofstream(delta.value(), std::ios::binary) << bytes;
  ASSERT_TRUE(tidy(4, 2, 100));
  for (int64_t version = 0; version <= 4; ++version) EXPECT_TRUE(is_there(version)) << version;
  EXPECT_TRUE(verify_versions(folder_, std::nullopt, scratch_).damages.empty());
}

// Its base has no payload any more, so no other can be made: the payload to which it leads stays.
TEST_P(VersionFolderTest, ADeltaThatWasDamagedSinceItWasProvedTakesNoPayload) {
  for (int64_t version = 0; version <= 5; ++version) publish(version);
  ASSERT_TRUE(tidy(5, 2, 100));
  ASSERT_EQ(versions(true), (std::vector<int64_t>{0, 4, 5}));
  const fs::path delta = folder_ / delta_name(0, 3, 4);
  std::string bytes = read_file(delta).value();
  bytes.back() ^= 4;
  std::ofstream(delta, std::ios::binary) << bytes;
  publish(6);
  const auto tidied = tidy(6, 2, 100);
  ASSERT_FALSE(tidied);
  EXPECT_NE(tidied.failure().message.find(delta.filename().string()), std::string::npos)
      << tidied.failure().message;
  EXPECT_EQ(versions(true), (std::vector<int64_t>{0, 4, 5, 6}));
  ASSERT_TRUE(tidy(6, 2, 100));
  publish(7);
  ASSERT_TRUE(tidy(7, 2, 100));
  EXPECT_EQ(versions(true), (std::vector<int64_t>{0, 4, 6, 7}));
  for (int64_t version = 0; version <= 7; ++version) EXPECT_TRUE(is_there(version)) << version;
  EXPECT_TRUE(verify_versions(folder_, std::nullopt, scratch_).damages.empty());
}

// A trainer that goes back to a checkpoint publishes the same numbers again.
TEST_P(VersionFolderTest, AfterARollbackNothingLeadsToTheAbandonedVersions) {
  for (int64_t version = 0; version <= 6; ++version) {
    publish(version);
    ASSERT_TRUE(tidy(version, 2, 100));
  }
  for (int64_t version = 3; version <= 8; ++version) {
    publish(version);  // other weights
    ASSERT_TRUE(tidy(version, 2, 100));
  }
  for (int64_t version = 0; version <= 8; ++version) EXPECT_TRUE(is_there(version)) << version;
}

TEST_P(VersionFolderTest, NamesTheFileAndTheTensorOfEachFlippedBit) {
  for (int64_t version = 0; version <= 6; ++version) {
    publish(version);
    ASSERT_TRUE(tidy(version, 2, 100));
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path());
  std::ranges::sort(files);
  Rng rng(5);
  int damaged_tensors = 0;
  for (int i = 0; i < 150; ++i) {
    const fs::path& file = files[static_cast<size_t>(rng.below(std::ssize(files)))];
    const std::string text = read_file(file).value();
    std::string damaged = text;
    damaged[static_cast<size_t>(rng.below(std::ssize(text)))] ^=
        static_cast<char>(1 << rng.below(8));
    std::ofstream(file, std::ios::binary) << damaged;
    fs::remove_all(scratch_);
    fs::create_directories(scratch_);
    const VerifiedFolder found = verify_versions(folder_, std::nullopt, scratch_);
    ASSERT_FALSE(found.damages.empty()) << file << " " << i;
    EXPECT_TRUE(std::ranges::any_of(found.damages,
                                    [&](const std::string& damage) {
                                      return damage.find(file.filename().string()) !=
                                             std::string::npos;
                                    }))
        << file << ": " << found.damages.front();
    damaged_tensors += found.damages.front().find("tensor ") != std::string::npos ? 1 : 0;
    std::ofstream(file, std::ios::binary) << text;
  }
  EXPECT_GT(damaged_tensors, 20);
}

// Once its damage was forgotten, and the version was counted as sound.
TEST_P(VersionFolderTest, WhatChangesUnderEachLookIsNamed) {
  for (int64_t version = 0; version <= 2; ++version) publish(version);
  const fs::path payload = folder_ / payload_name(manifest_name(0, 1));
  std::string bytes = read_file(payload).value();
  bytes.back() ^= 2;
  std::ofstream(payload, std::ios::binary) << bytes;
  int looks = 0;
  const auto change = [&](const std::string& file) {
    if (file != payload.filename().string()) return;
    const fs::path stray = folder_ / delta_name(0, 0, 1);
    if (++looks % 2 == 1)
      std::ofstream(stray) << "half";
    else
      fs::remove(stray);
  };
  const VerifiedFolder found = verify_versions(folder_, 1, scratch_, change);
  EXPECT_EQ(looks, 5);
  ASSERT_FALSE(found.damages.empty());
  EXPECT_NE(
      found.damages.back().find("p0-v1.json: its files have changed under each of five looks"),
      std::string::npos)
      << found.damages.back();
}

// A base of which a disk has lost a bit: nothing is made from it, and what depends on it says why.
TEST_P(VersionFolderTest, ADamagedPayloadIsTheOneThatIsNamed) {
  for (int64_t version = 0; version <= 6; ++version) publish(version);
  const auto flip = [&](int64_t version) {
    const fs::path file = folder_ / payload_name(manifest_name(0, version));
    std::string bytes = read_file(file).value();
    bytes.back() ^= 2;
    std::ofstream(file, std::ios::binary) << bytes;
  };
  flip(2);
  const auto tidied = tidy(6, 2, 100);
  ASSERT_FALSE(tidied);
  EXPECT_NE(tidied.failure().message.find("p0-v2.safetensors"), std::string::npos)
      << tidied.failure().message;
  EXPECT_EQ(versions(true), (std::vector<int64_t>{0, 1, 2, 3, 5, 6})) << "the others went on";
  flip(2);
  ASSERT_TRUE(tidy(6, 2, 100));
  EXPECT_EQ(versions(true), (std::vector<int64_t>{0, 5, 6}));
  flip(0);
  const VerifiedFolder all = verify_versions(folder_, std::nullopt, scratch_);
  ASSERT_EQ(all.damages.size(), 1u) << all.damages.back();
  EXPECT_NE(all.damages[0].find("p0-v0.safetensors: tensor "), std::string::npos);
  EXPECT_EQ(all.lost.size(), 4u);
  const VerifiedFolder one = verify_versions(folder_, 3, scratch_);
  ASSERT_EQ(one.damages.size(), 1u);
  EXPECT_EQ(one.damages, all.damages);
  EXPECT_NE(one.lost.at(0).find("p0-v0.safetensors is damaged"), std::string::npos);
  const auto payload = payload_of(folder_, 0, 3, scratch_);
  ASSERT_FALSE(payload);
  EXPECT_NE(payload.failure().message.find("p0-v0.safetensors"), std::string::npos)
      << payload.failure().message;
}

TEST_P(VersionFolderTest, WhatIsMissingOrExchangedIsDamage) {
  for (int64_t version = 0; version <= 4; ++version) publish(version);
  const auto damages = [&] { return verify_versions(folder_, std::nullopt, scratch_).damages; };
  EXPECT_TRUE(damages().empty());
  const std::string second = read_file(folder_ / "p0-v2.json").value();
  std::ofstream(folder_ / "p0-v2.json") << read_file(folder_ / "p0-v3.json").value();
  EXPECT_NE(damages().at(0).find("p0-v2.json: it is the manifest of version 3"), std::string::npos);
  fs::remove(folder_ / "p0-v2.json");
  EXPECT_NE(damages().at(0).find("p0-v2.json: it is missing"), std::string::npos);
  std::ofstream(folder_ / "p0-v2.json") << second;
  ASSERT_TRUE(make_delta(folder_, 0, 1, 2));
  fs::copy_file(folder_ / "p0-v2.from-v1.delta", folder_ / "p0-v4.from-v3.delta");
  EXPECT_NE(damages().at(0).find("p0-v4.from-v3.delta"), std::string::npos);
}

TEST_P(VersionFolderTest, TheNextFileOnTheWay) {
  for (int64_t version = 0; version <= 6; ++version) publish(version);
  const Digest &wanted = published_.at(6).root, &have = published_.at(5).root;
  const auto next = [&](const Digest& from) {
    const auto file = next_on_way(folder_, {0, 6, wanted, from});
    return file ? file.value().filename().string() : file.failure().message;
  };
  EXPECT_EQ(next(have), "p0-v6.from-v5.delta");
  EXPECT_EQ(next(published_.at(2).root), "p0-v6.from-v2.delta") << "encoded at once";
  EXPECT_EQ(next("0123456789abcdef0123456789abcdef"), "p0-v6.safetensors") << "an unknown base";
  EXPECT_FALSE(next_on_way(folder_, {0, 6, have, have})) << "another root by now";
  EXPECT_FALSE(next_on_way(folder_, {0, 7, have, have}));
  // Without the payload of the base there is only the chain.
  ASSERT_TRUE(tidy(6, 2, 100));
  EXPECT_EQ(next(published_.at(3).root), "p0-v4.from-v3.delta");
}

TEST_P(VersionFolderTest, TheKeeperTidiesBesideWhoPublishes) {
  std::vector<std::string> failures;
  VersionKeeper keeper(folder_, 0,
                       {.anchor_interval = 4,
                        .on_failure = [&](const std::string& why) { failures.push_back(why); }});
  for (int64_t version = 0; version <= 12; ++version) {
    publish(version);
    keeper.published(version);
    keeper.release(0, version - 1);
  }
  // Where it is late, version 6 has its payload still, and would begin the way itself.
  keeper.wait();
  keeper.release(6, 11);
  keeper.wait();
  EXPECT_EQ(failures, std::vector<std::string>());
  EXPECT_EQ(versions(false).front(), 4);
  for (int64_t version = 4; version <= 12; ++version) EXPECT_TRUE(is_there(version)) << version;
}

TEST(WayName, SaysWhatIsAskedFor) {
  const Digest a(32, 'a'), b(32, '7');
  const std::string name = way_name({0, 12, a, b, 1000});
  const auto read = parse_way_name(name);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->version, 12);
  EXPECT_EQ(read->root, a);
  EXPECT_EQ(read->from, b);
  EXPECT_EQ(read->link_mbit, 1000);
  for (size_t cut = 0; cut < name.size(); ++cut)
    EXPECT_FALSE(parse_way_name(name.substr(0, cut)) && cut < name.size() - 4);
  for (const char* other : {"", "p0-v1.json", "p0-v1.safetensors", "p-1-v2.way-"})
    EXPECT_FALSE(parse_way_name(other)) << other;
  EXPECT_FALSE(parse_way_name(name + "/x"));
  EXPECT_FALSE(parse_way_name(way_name({0, 12, "../../../../../../../etc/passwd0", b, 1})));
}

TEST(CheapestWay, CountsTheLinkAndTheWork) {
  WayFacts facts{.dense_bytes = 500'000'000, .direct_bytes = 8'000'000};
  facts.chain_bytes = {4'000'000, 4'500'000};
  EXPECT_EQ(cheapest_way(facts), Way::kDirect) << "fewest bytes";
  // 10 Mbit/s: bytes are all that counts.
  facts.link_bytes_per_s = 1.25e6;
  EXPECT_EQ(cheapest_way(facts), Way::kDirect);
  // 10 Gbit/s: what is there already costs no encoding.
  facts.link_bytes_per_s = 1.25e9;
  facts.chain_bytes = {9'000'000};
  facts.direct_bytes = 9'000'000;
  EXPECT_EQ(cheapest_way(facts), Way::kChain);
  // 100 Gbit/s: the bytes are faster there than applied.
  facts.link_bytes_per_s = 12.5e9;
  EXPECT_EQ(cheapest_way(facts), Way::kWhole);
  facts.link_bytes_per_s = 0;
  facts.direct_bytes.reset();
  facts.chain_bytes.clear();
  EXPECT_EQ(cheapest_way(facts), Way::kWhole);
}

}  // namespace
}  // namespace tailrace
