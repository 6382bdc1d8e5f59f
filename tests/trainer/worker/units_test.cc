// The units of the trainer's process, each without its process.
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/wire/trajectory_codec.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/trainer/fixtures.h"
#include "tests/trainer/worker/stages.h"
#include "trainer/worker/batch_intake.h"
#include "trainer/worker/publisher.h"
#include "trainer/worker/rank_meeting.h"
#include "trainer/worker/row_stages.h"
#include "trainer/worker/saved_state.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// A trainer of one rank with what its units share.
struct Holder {
  explicit Holder(const fs::path& dir, int rank = 0, int64_t num_ranks = 1)
      : config(config_in(dir, rank, num_ranks)), log("trainer", dir / fmt::format("log{}", rank)) {
    trainer.reset_optimizer(config.optim);
  }
  static TrainerWorkerConfig config_in(const fs::path& dir, int rank, int64_t num_ranks) {
    TrainerWorkerConfig config;
    config.run = RunPaths{dir};
    fs::create_directories(config.run.weights());
    config.rank = rank;
    config.model = testing::tiny_model();
    config.max_sequence_tokens = testing::kMaxSequenceTokens;
    config.train.gradient_slots = 2;
    config.train.ranks = num_ranks;
    config.steps = 4;
    return config;
  }

  TrainerWorkerConfig config;
  Log log;
  SteadyClock clock;
  Digest base;
  HeldVersion held;
  PolicyTrainer trainer{{}, config.model, config.train, config.max_sequence_tokens};
  ReferenceWeights reference{config, trainer, base};
  Publisher publisher{config, trainer, reference, held, base, log};
  RankMeeting ranks{config, trainer, reference, held, base, log, clock};
};

class TrainerUnits : public ::testing::Test {
 protected:
  const fs::path& dir() const { return dir_.path(); }

  TemporaryDirectory dir_;
};

wire::Batch part_of(const std::vector<Trajectory>& all, int64_t first, int64_t count) {
  wire::Batch batch{.step = 1, .first = first, .items = {}};
  for (int64_t i = first; i < first + count; ++i) {
    const auto body = wire::encode_trajectory(all[static_cast<size_t>(i)]);
    batch.items.push_back({.lease = all[static_cast<size_t>(i)].lease,
                           .reward = 1,
                           .bytes = std::ssize(body),
                           .checksum = wire::checksum_of(body),
                           .judged = {}});
  }
  return batch;
}

TEST(BatchIntake, ARepeatedPartCountsOnceAndAMissingOneIsNamed) {
  const std::vector<Trajectory> all = testing::random_trajectories(8, 1);
  std::vector<wire::Fetch> asked;
  BatchIntake intake([&](const wire::Fetch& request) { asked.push_back(request); });
  intake.request();
  EXPECT_TRUE(asked.empty());
  intake.add(part_of(all, 0, 4));
  intake.add(part_of(all, 0, 4));
  intake.add(part_of(all, 4, 2));
  intake.request();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].bodies.size(), 4u);
  EXPECT_FALSE(intake.front().complete());
  try {
    intake.add(part_of(all, 7, 1));
    FAIL() << "a part is missing";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "the batch of step 1 cannot be trained on: a part of it is missing");
  }
  // The first part is whole: the next one is asked for, under numbers of its own.
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < 4; ++i) {
    const auto body = wire::encode_trajectory(all[static_cast<size_t>(i)]);
    bytes.insert(bytes.end(), body.begin(), body.end());
  }
  intake.add(wire::Payload{.request = asked[0].request, .bytes = bytes});
  ASSERT_TRUE(intake.front().complete());
  EXPECT_EQ(intake.take().trajectories().value().size(), 4u);
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[1].bodies.size(), 2u);
  EXPECT_NE(asked[1].request, asked[0].request);
  intake.forget();
  EXPECT_TRUE(intake.empty());
  intake.add(wire::Payload{.request = asked[1].request, .bytes = bytes});  // of nobody
}

TEST_F(TrainerUnits, AWarmUpThatIsStoppedGoesOnToTheSameWeights) {
  const fs::path rows = dir() / "rows.jsonl";
  std::ofstream file(rows);
  for (int i = 0; i < 40; ++i) file << "{\"input_ids\": [" << i % 19 << ", 2, 3, 4, 5]}\n";
  file.close();
  std::vector<std::vector<float>> weights;
  for (const int64_t stop_at : {0, 3}) {
    const fs::path run = dir() / std::to_string(stop_at);
    // Each part in a process of its own, as it were.
    for (int part = 0; part < (stop_at > 0 ? 2 : 1); ++part) {
      Holder holder(run);
      holder.config.stages = {testing::sft_stage(rows.string(), 20)};
      holder.publisher.load();
      std::vector<int64_t> done;
      bool stops = false;
      RowStages stages(holder.config, {}, holder.trainer, holder.base, holder.log,
                       {.begins = [](const wire::TrainingStage& at) { EXPECT_EQ(at.name, "sft"); },
                        .report =
                            [&](const wire::Progress& progress) {
                              done.push_back(progress.done);
                              EXPECT_EQ(progress.total, 10);
                              stops = part == 0 && progress.done == stop_at;
                            },
                        .stops = [&] { return stops; }});
      EXPECT_TRUE(stages.begin());
      const MetricList last = stages.run();
      EXPECT_GT(testing::metric(last, "sft/loss"), 0);
      EXPECT_EQ(done.front(), part == 0 ? 1 : stop_at + 1);
      EXPECT_EQ(done.back(), part == 0 && stop_at > 0 ? stop_at : 10);
      if (done.back() == 10) weights.push_back(testing::copy(holder.trainer.parameters().flat()));
    }
  }
  ASSERT_EQ(weights.size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(TrainerUnits, APublisherComesBackWithItsCheckpoint) {
  Holder first(dir());
  first.publisher.load();
  EXPECT_EQ(first.held.version, -1);
  first.publisher.publish(first.publisher.manifest_of(0), {{"sft/loss", 2}});
  first.publisher.write_checkpoint();
  EXPECT_EQ(first.held.version, 0);
  EXPECT_EQ(first.publisher.durable().version, 0);
  // A version without a checkpoint is gone with its process.
  first.trainer.parameters().flat()[0] += 1;
  first.trainer.weights_changed();
  const Digest before = first.held.digest;
  first.publisher.publish(first.publisher.manifest_of(1), {});
  EXPECT_NE(first.held.digest, before);
  EXPECT_EQ(read_manifest(first.config.run.weights() / first.held.manifest).value().parent, before);

  Holder second(dir());
  second.publisher.load();
  EXPECT_EQ(second.held.version, 0);
  EXPECT_EQ(second.held.digest, before);
  EXPECT_EQ(testing::metric(second.held.metrics, "sft/loss"), 2);
  EXPECT_EQ(second.publisher.durable().version, 0);
}

TEST_F(TrainerUnits, ARunThatGoesOnInAnotherNumericsClassSaysSo) {
  Holder first(dir());
  first.publisher.load();
  WeightManifest elsewhere = first.publisher.manifest_of(0);
  const std::string here = elsewhere.numerics_class;
  elsewhere.numerics_class = "cpu-of-another-kind";
  first.publisher.publish(elsewhere, {});
  first.publisher.write_checkpoint();
  const auto warnings = [&] {
    const std::string log = read_file(dir() / "log0").value();
    int count = 0;
    for (size_t at = 0;
         (at = log.find("version 0 was made as cpu-of-another-kind", at)) != log.npos; ++at)
      ++count;
    return count;
  };
  Holder(dir()).publisher.load();
  EXPECT_EQ(warnings(), 1);
  EXPECT_NE(read_file(dir() / "log0").value().find("goes on as " + here), std::string::npos);
  // The version is published again, as of this class.
  Holder(dir()).publisher.load();
  EXPECT_EQ(warnings(), 1);
}

TEST_F(TrainerUnits, AReferenceThatWasChangedIsRefused) {
  Holder first(dir());
  first.publisher.load();
  first.reference.keep();
  Holder second(dir());
  second.reference.load(first.reference.digest());
  EXPECT_EQ(second.reference.digest(), first.reference.digest());
  try {
    second.reference.load("another");
    FAIL() << "another digest";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("changed or damaged"), std::string::npos);
  }
}

TEST_F(TrainerUnits, RanksMeetWithTheWeightsOfTheFirstAndCompareThem) {
  std::vector<std::unique_ptr<Holder>> holders;
  for (int rank = 0; rank < 2; ++rank) {
    holders.push_back(std::make_unique<Holder>(dir(), rank, 2));
    EXPECT_FALSE(holders.back()->ranks.ready());
    EXPECT_FALSE(holders.back()->ranks.poll());  // nobody has said that they meet
  }
  holders[0]->publisher.load();
  holders[0]->publisher.publish(holders[0]->publisher.manifest_of(0), {});
  const auto on_both = [&](auto work) {
    auto other = std::async(std::launch::async, [&] { work(*holders[1]); });
    work(*holders[0]);
    other.get();
  };
  on_both([](Holder& holder) {
    holder.ranks.form({.formation = 7, .rank = holder.config.rank, .size = 2});
    EXPECT_TRUE(holder.ranks.is_meeting());
    while (!holder.ranks.poll()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(holder.ranks.ready());
    EXPECT_EQ(holder.held.version, 0);
    holder.ranks.compare(holder.publisher.manifest_of(1));
  });
  EXPECT_EQ(testing::copy(holders[1]->trainer.parameters().flat()),
            testing::copy(holders[0]->trainer.parameters().flat()));
  holders[1]->trainer.parameters().flat()[3] += 1;
  on_both([](Holder& holder) {
    try {
      holder.ranks.compare(holder.publisher.manifest_of(1));
      FAIL() << "other weights";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("after step 1 rank 1 has the weights"),
                std::string::npos);
    }
  });
}

}  // namespace
}  // namespace tailrace
