#include "cli/simulate/recorded_episodes.h"

#include <cmath>
#include <fstream>
#include <memory>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/run/run_directory.h"
#include "core/trajectory/timeline_rows.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/store/trajectory_store.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// A prompt of two tokens, then answers of two and one, with an observation of three between them.
Trajectory trajectory_of(int64_t prompt, int32_t member, int32_t attempt = 1) {
  using enum TokenRole;
  Trajectory t;
  t.lease = {.member = {.prompt = prompt, .member = member}, .attempt = attempt};
  t.env = "paced";
  t.outcome = Outcome::kFinished;
  t.reward = 0.5;
  t.turns = 2;
  t.numerics_classes = {"cpu-test"};
  Segment segment;
  segment.tokens = {1, 2, 3, 4, 5, 6, 7, static_cast<TokenId>(8 + prompt)};
  segment.roles = {kPrompt,      kPrompt,      kSampled,     kSampled,
                   kObservation, kObservation, kObservation, kSampled};
  for (const TokenRole role : segment.roles) {
    segment.logprobs.push_back(role == kSampled ? -1.0f : 0.0f);
    segment.versions.push_back(role == kSampled ? 3 : -1);
    segment.classes.push_back(role == kSampled ? 0 : -1);
  }
  segment.turn_begins = {2, 7};
  t.segments = {segment};
  t.env_waits = {0.25f, 0.5f, 0.125f};
  t.env_seconds = 0.875;
  return t;
}

void store(const fs::path& run, const std::vector<Trajectory>& trajectories, int32_t turns = 0) {
  auto opened = scheduler::TrajectoryStore::open(RunPaths{run}.trajectories(), 1 << 20);
  ASSERT_TRUE(opened) << opened.failure().message;
  for (const Trajectory& t : trajectories) {
    const BodyId id{.lane = t.lane, .lease = t.lease, .turns = turns};
    ASSERT_TRUE(opened.value().put(id, wire::encode_trajectory(t)));
    opened.value().release(std::vector<BodyId>{id});
  }
}

std::string message_of(const fs::path& source) {
  try {
    read_recorded_episodes(source);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(RecordedEpisodes, HaveTheLengthsAndWaitsOfEachTurn) {
  const RecordedEpisode episode = recorded_episode(trajectory_of(7, 3));
  EXPECT_EQ(episode.member, (MemberId{.prompt = 7, .member = 3}));
  EXPECT_EQ(episode.prompt_tokens, 2);
  EXPECT_EQ(episode.reset_seconds, 0.25);
  EXPECT_EQ(episode.reward, 0.5);
  EXPECT_EQ(episode.turns, (std::vector<RecordedTurn>{{2, 3, 0.5}, {1, 0, 0.125}}));
  EXPECT_EQ(episode.num_sampled(), 3);
  EXPECT_NE(episode.digest, recorded_episode(trajectory_of(8, 3)).digest) << "another token";
  Trajectory other_weights = trajectory_of(7, 3);
  EXPECT_EQ(episode.digest, recorded_episode(other_weights).digest);
  other_weights.segments[0].logprobs[2] = std::nextafter(-1.0f, 0.0f);
  EXPECT_NE(episode.digest, recorded_episode(other_weights).digest);
}

TEST(RecordedEpisodes, ALineComesBack) {
  RecordedEpisode episode = recorded_episode(trajectory_of(7, 3));
  EXPECT_EQ(parse_recorded_episode(format_recorded_episode(episode)).value(), episode);
  episode.reward.reset();
  episode.outcome = Outcome::kTruncated;
  EXPECT_EQ(parse_recorded_episode(format_recorded_episode(episode)).value(), episode);
  const auto least = parse_recorded_episode(R"({"prompt_tokens": 4, "turns": [{"tokens": 9}]})");
  ASSERT_TRUE(least) << least.failure().message;
  EXPECT_EQ(least.value().turns, (std::vector<RecordedTurn>{{9, 0, 0}}));
}

TEST(RecordedEpisodes, AWrongLineIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[1]", "not a JSON object"},
      {R"({"turns": []})", "prompt_tokens is missing"},
      {R"({"prompt_tokens": -1, "turns": []})", "prompt_tokens is -1; it must be a whole number"},
      {R"({"prompt_tokens": 1.5, "turns": []})", "prompt_tokens is 1.5"},
      {R"({"prompt_tokens": 1})", "turns, a list, is missing"},
      {R"({"prompt_tokens": 1, "turns": [3]})", "turns must hold objects"},
      {R"({"prompt_tokens": 1, "turns": [{}]})", "tokens is missing"},
      {R"({"prompt_tokens": 1, "turns": [{"tokens": 1, "env_seconds": -1}]})",
       "env_seconds is -1; it must be a number of seconds"},
      {R"({"prompt_tokens": 1, "turns": [{"tokens": 1, "env_seconds": 1e308}]})",
       "it must be a number of seconds from 0 to 1e+08"},
      {R"({"prompt_tokens": 1, "turns": [], "outcome": "lost"})",
       "outcome is \"lost\"; it must be finished or truncated"},
      {R"({"prompt_tokens": 1, "turns": [], "reward": "x"})", "reward is \"x\", no number"}};
  for (const auto& [line, message] : cases) {
    const auto parsed = parse_recorded_episode(line);
    ASSERT_FALSE(parsed) << line;
    EXPECT_NE(parsed.failure().message.find(message), std::string::npos)
        << parsed.failure().message;
  }
}

TEST(RecordedEpisodes, AreReadFromARunAlsoBehindTheRelease) {
  TemporaryDirectory folder;
  Trajectory held_out = trajectory_of(9, 0), failed = trajectory_of(6, 0);
  held_out.lane = Lane::kEval;
  failed.outcome = Outcome::kEnvFailed;
  failed.reward.reset();
  Trajectory again = trajectory_of(5, 1, /*attempt=*/2);
  again.env_waits = {0, 1, 2};
  store(folder.path(), {trajectory_of(5, 0), again, trajectory_of(5, 1), held_out, failed});
  store(folder.path(), {trajectory_of(4, 0)}, /*turns=*/1);
  const auto episodes = read_recorded_episodes(folder.path());
  ASSERT_EQ(episodes.size(), 2u);
  EXPECT_EQ(episodes.at({.prompt = 5, .member = 0}), recorded_episode(trajectory_of(5, 0)));
  EXPECT_EQ(episodes.at({.prompt = 5, .member = 1}).turns[0].env_seconds, 1) << "the last attempt";
}

TEST(RecordedEpisodes, TheTimelineHasWhatAVerifierSaid) {
  TemporaryDirectory folder;
  Trajectory unscored = trajectory_of(5, 0);
  unscored.reward.reset();
  unscored.verifier = "countdown";
  store(folder.path(), {unscored});
  EXPECT_EQ(read_recorded_episodes(folder.path()).begin()->second.reward, std::nullopt);
  TimelineRow row{.what = TimelineWhat::kVerify,
                  .at = std::chrono::seconds(9),
                  .from = std::chrono::seconds(7),
                  .worker = "reward-0",
                  .end = "finished",
                  .sample = BodyId{.lease = unscored.lease},
                  .busy = std::chrono::seconds(2),
                  .reward = 0.75};
  std::ofstream(RunPaths{folder.path()}.timeline()) << format_timeline_row(row) << "\n";
  const RecordedEpisode episode = read_recorded_episodes(folder.path()).begin()->second;
  EXPECT_EQ(episode.reward, 0.75);
  EXPECT_EQ(episode.verify_seconds, 2);
}

// Of two records the first one, then the only one.
TEST(RecordedEpisodes, DamageIsSaid) {
  const auto damaged = [](const std::vector<Trajectory>& trajectories) {
    auto folder = std::make_unique<TemporaryDirectory>();
    store(folder->path(), trajectories);
    for (const auto& entry : fs::directory_iterator(RunPaths{folder->path()}.trajectories())) {
      std::fstream bytes(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekp(200);
      bytes << "damaged";
    }
    return folder;
  };
  std::vector<std::string> notes;
  const auto two = damaged({trajectory_of(5, 0), trajectory_of(5, 1)});
  EXPECT_EQ(read_recorded_episodes(two->path(), &notes).size(), 1u);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("skipped 1 damaged records; 1 episodes of the run are left"),
            std::string::npos)
      << notes[0];
  const auto one = damaged({trajectory_of(5, 0)});
  EXPECT_NE(message_of(one->path()).find("holds no episode that came to an end: "),
            std::string::npos)
      << message_of(one->path());
}

TEST(RecordedEpisodes, ATimelineOfGarbageIsSaid) {
  TemporaryDirectory folder;
  store(folder.path(), {trajectory_of(5, 0)});
  std::ofstream(RunPaths{folder.path()}.timeline()) << "garbage\nmore\n";
  std::vector<std::string> notes;
  EXPECT_EQ(read_recorded_episodes(folder.path(), &notes).size(), 1u);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("2 damaged rows are left out"), std::string::npos) << notes[0];
}

TEST(RecordedEpisodes, AreReadFromAFile) {
  TemporaryDirectory folder;
  const fs::path file = folder / "episodes.jsonl";
  const RecordedEpisode episode = recorded_episode(trajectory_of(5, 0));
  std::ofstream(file) << format_recorded_episode(episode) << "\n";
  EXPECT_EQ(read_recorded_episodes(file).at(episode.member), episode);
  std::ofstream(file, std::ios::app) << "\n" << format_recorded_episode(episode) << "\n";
  EXPECT_NE(message_of(file).find("episodes.jsonl:3: policy=0 dataset=0 epoch=0 prompt=5"),
            std::string::npos)
      << message_of(file);
}

TEST(RecordedEpisodes, WithoutEpisodesThereIsOneMessage) {
  TemporaryDirectory folder;
  EXPECT_EQ(message_of(folder.path()),
            folder.path().string() + " is no run directory: it has no folder trajectories");
  fs::create_directories(RunPaths{folder.path()}.trajectories());
  EXPECT_EQ(message_of(folder.path()),
            folder.path().string() + " holds no episode that came to an end");
  EXPECT_NE(message_of(folder / "nothing").find("nothing"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
