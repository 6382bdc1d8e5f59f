#include "rollout/worker/worker.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/parameters.h"
#include "core/text/tokenizer.h"
#include "core/weights/manifest.h"
#include "core/weights/version_folder.h"
#include "core/wire/server.h"
#include "core/wire/trajectory_codec.h"
#include "sandbox/builtin/built_in.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// The scheduler's end of the wire, driven by the test.
class Desk {
 public:
  explicit Desk(const std::string& endpoint) : server_(endpoint, {}) {}

  bool acknowledges = true;
  bool switches = true;  // whatever has been staged takes its place at once

  void send(const wire::Message& message) {
    EXPECT_TRUE(server_.send("rollout-0", session_, message)) << wire::describe(message);
  }

  // Serves until `enough` messages of type M have come.
  template <class M>
  std::vector<M> await(size_t enough) {
    std::vector<M> found;
    serve_until([&] {
      for (; !heard_.empty() && found.size() < enough; heard_.pop_front()) {
        if (auto* message = std::get_if<M>(&heard_.front())) found.push_back(std::move(*message));
      }
      return found.size() == enough;
    });
    EXPECT_EQ(found.size(), enough) << "timed out; refused: " << server_.last_malformed();
    return found;
  }
  void await_worker() {
    serve_until([&] { return session_ != 0; });
    ASSERT_NE(session_, 0u);
  }
  // What has come by now.
  void serve() {
    bool once = false;
    serve_until([&] { return std::exchange(once, true); });
  }
  void shut_down() {
    send(wire::Shutdown{"test"});
    server_.flush(5s);
  }
  // Serves until the worker has said goodbye; what it had said before is still to be awaited.
  void await_goodbye() {
    serve_until([&] { return down_.has_value(); });
    ASSERT_TRUE(down_.has_value());
    EXPECT_FALSE(down_->silent) << down_->reason;
  }

 private:
  template <class Done>
  void serve_until(const Done& done) {
    // Far more than it takes: only a test that fails waits for it, also under a sanitizer.
    auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!done() && std::chrono::steady_clock::now() < deadline) {
      for (wire::ServerEvent& event : server_.receive(5ms)) {
        if (auto* up = std::get_if<wire::WorkerUp>(&event)) session_ = up->session;
        if (auto* down = std::get_if<wire::WorkerDown>(&event)) down_ = *down;
        auto* incoming = std::get_if<wire::Incoming>(&event);
        if (incoming == nullptr) continue;
        if (acknowledges) server_.acknowledge(incoming->worker, incoming->sequence);
        if (const auto* staged = std::get_if<wire::Staged>(&incoming->message);
            staged != nullptr && switches)
          send(wire::Switch{staged->policy, staged->version, staged->digest});
        heard_.push_back(std::move(incoming->message));
      }
    }
  }

  wire::WorkerServer server_;
  uint64_t session_ = 0;
  std::optional<wire::WorkerDown> down_;
  std::deque<wire::Message> heard_;
};

class RolloutWorkerTest : public ::testing::Test {
 protected:
  RolloutWorkerTest() : environments_(sandbox::built_in_environments()) {
    const sandbox::EnvironmentInfo info = environments_.make("frozen_grid", {})->info();
    fs::create_directories(paths_.weights());
    text::write_word_tokenizer(paths_.tokenizer(), info.vocabulary);
    model_.hidden_size = 32;
    model_.intermediate_size = 48;
    model_.num_layers = 2;
    model_.num_heads = 4;
    model_.num_kv_heads = 2;
    model_.head_dim = 8;
    model_.vocab_size = text::load_tokenizer(paths_.tokenizer())->vocab_size();
    model_.max_positions = 256;
  }

  RolloutWorkerConfig config() {
    RolloutWorkerConfig config;
    config.endpoint = "ipc://" + (folder_.path() / "s").string();
    config.link.linger = 200ms;
    config.run = paths_;
    config.seed = 3;
    config.model = model_;
    config.tokenizer_dir = paths_.tokenizer();
    config.datasets = {{.env = "frozen_grid"}};
    config.rollout.engine.max_context_tokens = 256;
    config.rollout.validate();
    return config;
  }

  wire::Stage publish(int64_t version, uint64_t seed) {
    ParameterLayout layout(model_);
    Parameters parameters(layout);
    init_parameters(model_, seed, parameters);
    WeightManifest manifest = make_manifest(parameters, 0, version, numerics_class());
    auto file = publish_weights(paths_.weights(), manifest, parameters);
    TR_CHECK(file.ok(), "{}", file.failure().message);
    return {.policy = 0, .version = version, .digest = manifest.root, .manifest = file.value()};
  }

  // The worker in a thread beside the test.
  std::future<ExitCode> start(const RolloutWorkerConfig& config, std::stop_token stop = {}) {
    return std::async(std::launch::async, [this, config, stop] {
      Log log("rollout-0", folder_.path() / "log");
      SteadyClock clock;
      return run_rollout_worker(config, environments_, log, clock, stop);
    });
  }

  // When the worker has ended.
  std::string log_text() const {
    std::ifstream file(folder_.path() / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static wire::Grant grant(int64_t prompt, int32_t member, int64_t version,
                           Lane lane = Lane::kTrain, int32_t attempt = 0) {
    return {.lease = {.member = {.prompt = prompt, .member = member}, .attempt = attempt},
            .lane = lane,
            .version = version};
  }

  TemporaryDirectory folder_;
  RunPaths paths_{folder_.path() / "run"};
  sandbox::EnvironmentRegistry environments_;
  ModelConfig model_;
};

Trajectory trajectory_in(const wire::TrajectoryResult& result) {
  auto trajectory = wire::decode_trajectory(result.body);
  EXPECT_TRUE(trajectory) << trajectory.failure().message;
  return trajectory ? std::move(trajectory).value() : Trajectory();
}

std::map<LeaseId, Trajectory> by_lease(const std::vector<wire::TrajectoryResult>& results) {
  std::map<LeaseId, Trajectory> trajectories;
  for (const wire::TrajectoryResult& result : results) {
    Trajectory trajectory = trajectory_in(result);
    trajectories[trajectory.lease] = std::move(trajectory);
  }
  return trajectories;
}

// Turns and results of `count` leases, up to the result of the last.
struct Heard {
  std::map<LeaseId, std::vector<std::vector<std::byte>>> turns;
  std::map<LeaseId, Trajectory> results;
};
Heard hear(Desk& desk, size_t count) {
  Heard heard;
  while (heard.results.size() < count && !::testing::Test::HasFailure()) {
    for (wire::TrajectoryResult& message : desk.await<wire::TrajectoryResult>(1)) {
      Trajectory trajectory = trajectory_in(message);
      EXPECT_EQ(message.goes_on, trajectory.outcome == Outcome::kAborted);
      EXPECT_FALSE(heard.results.contains(trajectory.lease));
      if (message.goes_on) {
        heard.turns[trajectory.lease].push_back(std::move(message.body));
      } else {
        heard.results[trajectory.lease] = std::move(trajectory);
      }
    }
  }
  return heard;
}

void expect_same_sample(const Trajectory& a, const Trajectory& b) {
  EXPECT_EQ(a.segments.at(0).tokens, b.segments.at(0).tokens);
  EXPECT_EQ(a.segments.at(0).logprobs, b.segments.at(0).logprobs);
  EXPECT_EQ(a.segments.at(0).versions, b.segments.at(0).versions);
  EXPECT_EQ(a.numerics_classes, b.numerics_classes);
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.reward, b.reward);
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.turns, b.turns);
}

// All of it before it asks for work, and no more with the versions that come.
TEST_F(RolloutWorkerTest, TakesTheMemoryThatItSays) {
  RolloutWorkerConfig config = this->config();
  config.rollout.engine.kv_cache_blocks = 40;
  config.rollout.engine.max_batch_tokens = 32;
  const std::vector<wire::Stage> versions = {publish(0, 1), publish(1, 2), publish(2, 3)};
  const int64_t before = Buffer::total_bytes();
  Buffer::begin_peak();
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  for (const wire::Stage& version : versions) {
    desk.send(version);
    desk.await<wire::Installed>(1);
    EXPECT_EQ(Buffer::total_bytes() - before, total_bytes(rollout_memory(config).host));
    for (int32_t member = 0; member < 8; ++member) desk.send(grant(0, member, version.version));
    EXPECT_EQ(desk.await<wire::TrajectoryResult>(8).size(), 8u);
  }
  desk.shut_down();
  EXPECT_EQ(status.get(), kExitDone);
  EXPECT_EQ(Buffer::peak_bytes() - before, total_bytes(rollout_memory(config).host));
}

TEST_F(RolloutWorkerTest, PlaysWhatItIsGrantedUnderTheWeightsItProved) {
  RolloutWorkerConfig config = this->config();
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  wire::Stage install = publish(0, 1);
  desk.send(install);
  auto installed = desk.await<wire::Installed>(1);
  EXPECT_EQ(installed[0].digest, install.digest);
  for (int64_t prompt = 0; prompt < 3; ++prompt)
    for (int32_t member = 0; member < 4; ++member) desk.send(grant(prompt, member, 0));
  desk.send(grant(0, 0, 0));  // twice: it is the same lease
  auto trajectories = by_lease(desk.await<wire::TrajectoryResult>(12));
  EXPECT_EQ(trajectories.size(), 12u);
  for (const auto& [lease, trajectory] : trajectories) {
    EXPECT_EQ(trajectory.seed, sandbox::task_seed(3, /*held_out=*/false, lease.member.prompt));
    EXPECT_TRUE(trajectory.reward.has_value());
    EXPECT_EQ(trajectory.numerics_classes, std::vector<std::string>{numerics_class()});
    EXPECT_EQ(trajectory.max_version(), 0);
    EXPECT_GT(trajectory.num_sampled(), 0);
  }
  // Another attempt of a member is the same episode, another member is not.
  desk.send(grant(0, 0, 0, Lane::kTrain, /*attempt=*/1));
  Trajectory again = trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]);
  const Trajectory& first = trajectories.at(grant(0, 0, 0).lease);
  EXPECT_EQ(again.lease.attempt, 1);
  EXPECT_EQ(again.segments[0].tokens, first.segments[0].tokens);
  EXPECT_EQ(again.segments[0].logprobs, first.segments[0].logprobs);
  EXPECT_NE(trajectories.at(grant(0, 1, 0).lease).segments[0].tokens, first.segments[0].tokens);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

// The baseline of ReMax: whatever the seed of the run is, it is the same episode.
TEST_F(RolloutWorkerTest, PlaysTheFirstMemberGreedilyWhereTheRunAsksForIt) {
  const auto play = [&](bool is_asked_for, uint64_t seed) {
    RolloutWorkerConfig config = this->config();
    // Of one letter the environment draws another task.
    config.datasets = {{.env = "text",
                        .settings = {{"verifier", "text_rules"}},
                        .rows = folder_.path() / "rows.jsonl"}};
    config.rollout.greedy_member = is_asked_for;
    config.seed = seed;
    Desk desk(config.endpoint.address);
    auto status = start(config);
    desk.await_worker();
    desk.send(publish(0, 1));
    for (int32_t member = 0; member < 3; ++member) desk.send(grant(0, member, 0));
    desk.send(grant(0, 0, 0, Lane::kEval));
    std::map<std::pair<Lane, int32_t>, Trajectory> played;
    for (const wire::TrajectoryResult& result : desk.await<wire::TrajectoryResult>(4)) {
      Trajectory trajectory = trajectory_in(result);
      const std::pair key(trajectory.lane, trajectory.lease.member.member);
      played[key] = std::move(trajectory);
    }
    desk.shut_down();
    EXPECT_EQ(status.get(), kExitDone);
    return played;
  };
  std::ofstream(folder_.path() / "rows.jsonl") << R"({"prompt": "up up"})"
                                               << "\n";
  const auto sampled = play(false, 3), greedy = play(true, 3), other = play(true, 4);
  for (const auto& [key, trajectory] : sampled) {
    const auto& [lane, member] = key;
    const bool is_greedy = lane == Lane::kTrain && member == 0;
    EXPECT_EQ(trajectory.sampling.temperature, 1);
    EXPECT_EQ(greedy.at(key).sampling.temperature, is_greedy ? 0 : 1);
    const auto& tokens = greedy.at(key).segments.at(0).tokens;
    if (is_greedy) {
      EXPECT_NE(tokens, trajectory.segments.at(0).tokens);
      EXPECT_EQ(tokens, other.at(key).segments.at(0).tokens);
    } else {
      expect_same_sample(greedy.at(key), trajectory);
      EXPECT_NE(tokens, other.at(key).segments.at(0).tokens);
    }
  }
}

TEST_F(RolloutWorkerTest, PlaysTheDatasetThatALeaseNames) {
  const fs::path rows = folder_.path() / "rows.jsonl";
  std::ofstream(rows) << R"({"prompt": "up up"})"
                      << "\n";
  RolloutWorkerConfig config = this->config();
  config.datasets.push_back(
      {.env = "text", .settings = {{"verifier", "text_rules"}}, .rows = rows});
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  wire::Grant grid = grant(0, 0, 0), text = grid, unknown = grid;
  text.lease.member.dataset = 1;
  unknown.lease.member.dataset = 2;
  for (const wire::Grant& one : {grid, text, unknown}) desk.send(one);
  auto trajectories = by_lease(desk.await<wire::TrajectoryResult>(3));
  EXPECT_EQ(trajectories.at(grid.lease).env, "frozen_grid");
  EXPECT_EQ(trajectories.at(text.lease).env, "text");
  EXPECT_EQ(trajectories.at(text.lease).verifier, "text_rules");
  EXPECT_EQ(trajectories.at(unknown.lease).outcome, Outcome::kLost) << "given back, not played";
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

// Sets are large: only what is trained on carries them, and only in runs that keep them.
TEST_F(RolloutWorkerTest, SendsWhatWasKeptWithWhatTrains) {
  for (bool keeps : {false, true}) {
    RolloutWorkerConfig config = this->config();
    config.rollout.sampling.top_k = 5;
    config.keeps_sets = keeps;
    Desk desk(config.endpoint.address);
    auto status = start(config);
    desk.await_worker();
    desk.send(publish(0, 1));
    desk.send(grant(0, 0, 0));
    desk.send(grant(0, 0, 0, Lane::kEval));
    for (const wire::TrajectoryResult& result : desk.await<wire::TrajectoryResult>(2)) {
      const Trajectory trajectory = trajectory_in(result);
      const Segment& segment = trajectory.segments[0];
      const bool carries = keeps && trajectory.lane == Lane::kTrain;
      EXPECT_EQ(std::ssize(segment.kept_ids), carries ? 5 * trajectory.num_sampled() : 0);
      EXPECT_EQ(segment.log_masses.size(), segment.tokens.size());
      EXPECT_EQ(find_fault(trajectory), std::nullopt);
    }
    desk.shut_down();
    EXPECT_EQ(status.get(), 0);
  }
}

TEST_F(RolloutWorkerTest, HoldsAGrantUntilItsWeightsAreInstalled) {
  RolloutWorkerConfig config = this->config();
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.send(grant(0, 0, 1));
  desk.send(grant(1, 0, 0));
  Trajectory first = trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]);
  EXPECT_EQ(first.lease.member.prompt, 1);
  desk.send(publish(1, 2));
  Trajectory second = trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]);
  EXPECT_EQ(second.lease.member.prompt, 0);
  EXPECT_EQ(second.min_version(), 1);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

TEST_F(RolloutWorkerTest, EvaluatesHeldOutTasksOnExactlyTheirVersion) {
  RolloutWorkerConfig config = this->config();
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.await<wire::Installed>(1);
  for (int64_t prompt = 0; prompt < 8; ++prompt) desk.send(grant(prompt, 0, 0, Lane::kEval));
  desk.send(publish(1, 2));
  for (const auto& [lease, trajectory] : by_lease(desk.await<wire::TrajectoryResult>(8))) {
    EXPECT_EQ(trajectory.lane, Lane::kEval);
    EXPECT_EQ(trajectory.seed, sandbox::task_seed(3, /*held_out=*/true, lease.member.prompt));
    // Although version 1 came while they were waiting.
    EXPECT_EQ(trajectory.max_version(), trajectory.num_sampled() > 0 ? 0 : -1);
  }
  desk.send(grant(0, 0, 1));
  EXPECT_EQ(trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]).max_version(), 1);
  desk.send(grant(9, 0, 0, Lane::kEval));
  EXPECT_EQ(trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]).outcome, Outcome::kStale);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

// A scheduler comes back: what it still holds is finished, what it lets go is not begun, and
// nothing is played twice.
TEST_F(RolloutWorkerTest, KeepsTheWorkThatANewSessionHolds) {
  RolloutWorkerConfig config = this->config();
  auto desk = std::make_unique<Desk>(config.endpoint.address);
  auto status = start(config);
  desk->await_worker();
  desk->send(publish(0, 1));
  // What was not acknowledged is sent again to the next session.
  desk->acknowledges = false;
  desk->send(grant(0, 0, 0));  // ends, and is not acknowledged
  desk->await<wire::TrajectoryResult>(1);
  desk->send(grant(1, 0, 1));  // waits for weights: held
  desk->send(grant(2, 0, 1));  // waits for weights: let go
  desk.reset();

  desk = std::make_unique<Desk>(config.endpoint.address);
  desk->await_worker();
  const auto body = [](const wire::Grant& grant) { return BodyId{grant.lane, grant.lease}; };
  desk->send(wire::Hold{{body(grant(0, 0, 0)), body(grant(1, 0, 1)), body(grant(3, 0, 1))}});
  // What it holds is granted once more; it cannot know what the worker still has.
  desk->send(grant(0, 0, 0));
  desk->send(grant(1, 0, 1));
  desk->send(grant(3, 0, 1));
  desk->send(publish(1, 2));
  const auto trajectories = by_lease(desk->await<wire::TrajectoryResult>(3));
  ASSERT_EQ(trajectories.size(), 3u);
  EXPECT_EQ(trajectories.at(grant(0, 0, 0).lease).max_version(), 0)
      << "sent again, not played again";
  EXPECT_EQ(trajectories.at(grant(1, 0, 1).lease).min_version(), 1);
  EXPECT_EQ(trajectories.at(grant(3, 0, 1).lease).min_version(), 1);
  desk->send(grant(4, 0, 1));
  EXPECT_EQ(trajectory_in(desk->await<wire::TrajectoryResult>(1)[0]).lease.member.prompt, 4)
      << "the one that was let go is not played";
  desk->shut_down();
  EXPECT_EQ(status.get(), 0);
}

TEST_F(RolloutWorkerTest, RefusesWeightsWhoseDigestIsNotProved) {
  RolloutWorkerConfig config = this->config();
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  wire::Stage install = publish(0, 1);
  wire::Stage forged = install;
  // A digest of the right form, of other weights.
  forged.digest[0] = forged.digest[0] == '0' ? '1' : '0';
  desk.send(forged);
  auto failed = desk.await<wire::InstallFailed>(1);
  EXPECT_EQ(failed[0].version, 0);
  EXPECT_FALSE(failed[0].reason.empty());
  desk.send(install);
  desk.await<wire::Installed>(1);
  desk.send(install);  // again: answered at once
  desk.await<wire::Installed>(1);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

TEST_F(RolloutWorkerTest, SaysWhyItCannotBegin) {
  RolloutWorkerConfig config = this->config();
  config.datasets = {{.env = "text", .settings = {{"verifier", "text_rules"}}}};
  Desk desk(config.endpoint.address);
  auto status = start(config);
  auto failed = desk.await<wire::WorkerFailed>(1);
  EXPECT_NE(failed[0].reason.find("needs a dataset"), std::string::npos) << failed[0].reason;
  EXPECT_EQ(status.get(), 2);
}

TEST_F(RolloutWorkerTest, AFailedEpisodeIsReportedAsSuch) {
  fs::path dataset = folder_.path() / "rows.jsonl";
  std::ofstream(dataset) << R"({"prompt": "up up up"})"
                         << "\n"
                         << R"({"prompt": "up"})"
                         << "\n";
  RolloutWorkerConfig config = this->config();
  config.datasets = {{.env = "text", .settings = {{"verifier", "text_rules"}}, .rows = dataset}};
  config.rollout.max_prompt_tokens = 2;
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.send(grant(0, 0, 0));
  desk.send(grant(1, 0, 0));
  auto trajectories = by_lease(desk.await<wire::TrajectoryResult>(2));
  const Trajectory& failed = trajectories.at(grant(0, 0, 0).lease);
  EXPECT_EQ(failed.outcome, Outcome::kEnvFailed);
  EXPECT_NE(failed.evidence.find("rollout.max_prompt_tokens"), std::string::npos)
      << failed.evidence;
  EXPECT_EQ(trajectories.at(grant(1, 0, 0).lease).verifier, "text_rules");
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

TEST_F(RolloutWorkerTest, StoresTurnsAndGoesOnBehindThem) {
  RolloutWorkerConfig config = this->config();
  config.rollout.store_turns_tokens = 10;
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  for (Lane lane : {Lane::kTrain, Lane::kEval}) {
    desk.send(grant(0, 0, 0, lane));
    Heard first = hear(desk, 1);
    const auto [lease, whole] = *first.results.begin();
    ASSERT_GE(first.turns[lease].size(), 2u);
    wire::Grant again = grant(0, 0, 0, lane, /*attempt=*/1);
    again.prefix = first.turns[lease][1];
    desk.send(again);
    desk.send(again);  // twice: it is the same lease
    Heard second = hear(desk, 1);
    const Trajectory& resumed = second.results.at(again.lease);
    expect_same_sample(resumed, whole);
    // What an attempt before had stored is stored.
    const int32_t turns = wire::read_trajectory_header(again.prefix).value().turns;
    for (const auto& body : second.turns[again.lease])
      EXPECT_GT(wire::read_trajectory_header(body).value().turns, turns);
  }
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
  const std::string log = log_text();
  EXPECT_NE(log.find("goes on policy=0 dataset=0 epoch=0 prompt=0 launch=0 member=0 attempt=1 "
                     "lane=eval turns="),
            std::string::npos)
      << log;
}

TEST_F(RolloutWorkerTest, KeepsAGrantedPrefixUntilItsWeightsAreInstalled) {
  RolloutWorkerConfig config = this->config();
  config.rollout.store_turns_tokens = 10;
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.send(grant(0, 0, 0));
  Heard first = hear(desk, 1);
  wire::Grant later = grant(0, 0, 1, Lane::kTrain, /*attempt=*/1);
  later.prefix = first.turns[grant(0, 0, 0).lease].at(1);
  desk.send(later);
  desk.send(grant(1, 0, 0));
  hear(desk, 1);
  desk.send(publish(1, 2));
  const Trajectory resumed = hear(desk, 1).results.at(later.lease);
  EXPECT_EQ(resumed.min_version(), 0) << "what was sampled under the old weights stays";
  EXPECT_EQ(resumed.max_version(), 1);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

TEST_F(RolloutWorkerTest, BeginsAnewWhereAPrefixDoesNotFit) {
  RolloutWorkerConfig config = this->config();
  config.rollout.store_turns_tokens = 10;
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.send(grant(0, 0, 0));
  desk.send(grant(0, 1, 0));
  desk.send(grant(0, 0, 0, Lane::kEval));
  // In two lanes, so that the results are awaited by hand.
  std::map<BodyId, Trajectory> whole;
  std::map<BodyId, std::vector<std::byte>> turns;
  while (whole.size() < 3 && !HasFailure()) {
    for (wire::TrajectoryResult& message : desk.await<wire::TrajectoryResult>(1)) {
      Trajectory trajectory = trajectory_in(message);
      const BodyId id{trajectory.lane, trajectory.lease};
      if (message.goes_on) {
        turns[id] = std::move(message.body);
      } else {
        whole[id] = std::move(trajectory);
      }
    }
  }
  const BodyId own{Lane::kTrain, grant(0, 0, 0).lease};
  const auto altered = [&](const std::function<void(Trajectory&)>& alter) {
    Trajectory trajectory = wire::decode_trajectory(turns.at(own)).value();
    alter(trajectory);
    return wire::encode_trajectory(trajectory);
  };
  const std::vector<std::pair<std::vector<std::byte>, std::string>> lies = {
      {turns.at({Lane::kTrain, grant(0, 1, 0).lease}), "is of policy=0"},
      {turns.at({Lane::kEval, grant(0, 0, 0).lease}), "lane=eval"},
      {std::vector(turns.at(own).begin(), turns.at(own).end() - 9), "cannot be read: "},
      {altered([](Trajectory& t) { t.seed += 1; }), "began with the seed"},
      {altered([](Trajectory& t) { t.segments[0].versions[0] = 3; }), "was not sampled but has"},
      {altered([](Trajectory& t) { t.segments[0].tokens[0] = 1 << 20; }), "holds token 1048576"}};
  int32_t attempt = 0;
  for (const auto& [prefix, reason] : lies) {
    wire::Grant again = grant(0, 0, 0, Lane::kTrain, ++attempt);
    again.prefix = prefix;
    desk.send(again);
    expect_same_sample(hear(desk, 1).results.at(again.lease), whole.at(own));
  }
  // An evaluation is a number about one version.
  desk.send(publish(1, 1));
  wire::Grant older = grant(0, 0, 1, Lane::kEval, 1);
  older.prefix = turns.at({Lane::kEval, grant(0, 0, 0).lease});
  desk.send(older);
  EXPECT_EQ(hear(desk, 1).results.at(older.lease).min_version(), 1);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
  const std::string log = log_text();
  EXPECT_EQ(log.find("goes on"), std::string::npos) << log;
  EXPECT_NE(log.find("was sampled by another version"), std::string::npos) << log;
  size_t at = 0;
  for (const auto& [prefix, reason] : lies) {
    at = log.find("prefix ignored", at);
    ASSERT_NE(at, std::string::npos) << log;
    const std::string line = log.substr(at, log.find('\n', at) - at);
    EXPECT_NE(line.find(reason), std::string::npos) << line;
    ++at;
  }
}

// Two turns, and then it is not ready for ever.
class StuckEnvironment final : public sandbox::Environment {
 public:
  explicit StuckEnvironment(std::function<void()> reached) : reached_(std::move(reached)) {
    info_.name = "stuck";
    info_.stop_strings = {"\n"};
    info_.max_turns = 9;
    info_.max_action_tokens = 3;
  }
  const sandbox::EnvironmentInfo& info() const override { return info_; }
  Result<sandbox::Observation> reset(const sandbox::Task&) override {
    return sandbox::Observation{"ice >"};
  }
  Result<sandbox::StepResult> step(const std::string&) override {
    sandbox::StepResult result;
    if (turns_ == 2) {
      if (!std::exchange(result.pending, true)) std::exchange(reached_, [] {})();
      return result;
    }
    ++turns_;
    result.observation.text = "hole >";
    return result;
  }
  std::string sample_action(Rng&) override { return "up\n"; }

 private:
  sandbox::EnvironmentInfo info_;
  std::function<void()> reached_;
  int turns_ = 0;
};

TEST_F(RolloutWorkerTest, SendsTheTurnsOfWhatItPlaysBeforeItsGoodbye) {
  std::promise<void> reached;
  environments_.add({"stuck", "", {}}, [&](const sandbox::EnvironmentSettings&) {
    return std::make_unique<StuckEnvironment>([&] { reached.set_value(); });
  });
  RolloutWorkerConfig config = this->config();
  config.link.linger = 30s;  // under a sanitizer an acknowledgement may take a while
  config.datasets = {{.env = "stuck"}};
  config.rollout.store_turns_tokens = 0;
  Desk desk(config.endpoint.address);
  std::stop_source stop;
  auto status = start(config, stop.get_token());
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.send(grant(0, 0, 0));
  desk.send(grant(1, 0, 1));  // not begun: there is nothing of it
  desk.await<wire::Installed>(1);
  // The desk has to be served meanwhile.
  auto played = reached.get_future();
  while (played.wait_for(0s) != std::future_status::ready) desk.serve();
  stop.request_stop();
  desk.await_goodbye();
  EXPECT_EQ(status.get(), kExitInterrupted);
  const auto messages = desk.await<wire::TrajectoryResult>(1);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_TRUE(messages[0].goes_on);
  const Trajectory turns = trajectory_in(messages[0]);
  EXPECT_EQ(turns.lease, grant(0, 0, 0).lease);
  EXPECT_EQ(turns.turns, 2);
  EXPECT_EQ(turns.outcome, Outcome::kAborted);
  EXPECT_NE(log_text().find("leaving episodes=2 with_turns=1"), std::string::npos) << log_text();
}

// Weights are read and proved beside an episode that never ends, and change when they are told to.
TEST_F(RolloutWorkerTest, StagesWeightsWhileItPlays) {
  std::promise<void> reached;
  environments_.add({"stuck", "", {}}, [&](const sandbox::EnvironmentSettings&) {
    return std::make_unique<StuckEnvironment>([&] { reached.set_value(); });
  });
  RolloutWorkerConfig config = this->config();
  config.datasets = {{.env = "stuck"}};
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.await<wire::Installed>(1);
  const wire::Grant evaluated = grant(0, 0, 0, Lane::kEval);
  desk.send(evaluated);
  auto played = reached.get_future();
  while (played.wait_for(0s) != std::future_status::ready) desk.serve();
  desk.switches = false;
  const wire::Stage install = publish(1, 2);
  wire::Stage forged = install;
  forged.digest[0] = forged.digest[0] == '0' ? '1' : '0';
  desk.send(forged);
  EXPECT_EQ(desk.await<wire::InstallFailed>(1)[0].version, 1);
  desk.send(wire::Switch{0, 1, install.digest});
  EXPECT_EQ(desk.await<wire::InstallFailed>(1)[0].reason, "other weights are staged");
  desk.send(install);
  EXPECT_EQ(desk.await<wire::Staged>(1)[0].digest, install.digest);
  // A newer wish takes the place of one that waits.
  const wire::Stage newest = publish(2, 3);
  desk.send(newest);
  EXPECT_EQ(desk.await<wire::Staged>(1)[0].digest, newest.digest);
  // An evaluation keeps its weights until it has left.
  desk.send(wire::Switch{0, 2, newest.digest});
  desk.send(wire::Abort{evaluated.lease, evaluated.lane});
  const auto installed = desk.await<wire::Installed>(1);
  EXPECT_EQ(installed[0].version, 2);
  EXPECT_EQ(installed[0].digest, newest.digest);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

// A worker on another machine may download for minutes: it plays, answers and ends meanwhile.
TEST_F(RolloutWorkerTest, AFetchThatTakesLongKeepsItFromNothing) {
  std::atomic<bool> blocks = false;
  std::atomic<int> stopped = 0;
  RolloutWorkerConfig config = this->config();
  config.fetch_weights = [&](const WeightFetch& fetch) -> Result<FetchedWeights> {
    while (blocks && !fetch.stop.stop_requested()) std::this_thread::sleep_for(1ms);
    if (fetch.stop.stop_requested()) ++stopped;
    return FetchedWeights{.manifest = paths_.weights() / fetch.manifest};
  };
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  desk.send(publish(0, 1));
  desk.await<wire::Installed>(1);
  blocks = true;
  desk.send(publish(1, 2));  // while nothing is played
  desk.send(grant(0, 0, 0));
  EXPECT_EQ(trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]).max_version(), 0);
  blocks = false;
  EXPECT_EQ(desk.await<wire::Installed>(1)[0].version, 1);
  EXPECT_EQ(stopped, 0);
  blocks = true;
  desk.send(publish(2, 3));
  desk.shut_down();
  EXPECT_EQ(status.get(), kExitDone);
}

// What is staged and never told to take its place changes no token.
TEST_F(RolloutWorkerTest, SamplesByWhatItHasUntilItIsToldToSwitch) {
  RolloutWorkerConfig config = this->config();
  Desk desk(config.endpoint.address);
  auto status = start(config);
  desk.await_worker();
  const wire::Stage first = publish(0, 1);
  desk.send(first);
  desk.await<wire::Installed>(1);
  desk.send(grant(0, 0, 0));
  const Trajectory before = trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]);
  desk.switches = false;
  for (int64_t version : {1, 2, 3}) {
    desk.send(publish(version, 1 + static_cast<uint64_t>(version)));
    desk.await<wire::Staged>(1);
    desk.send(grant(0, 0, 0, Lane::kTrain, static_cast<int32_t>(version)));
    expect_same_sample(trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]), before);
  }
  // Back to what it samples by: it reads them again.
  EXPECT_EQ(publish(0, 1).digest, first.digest);
  desk.send(first);
  desk.await<wire::Staged>(1);
  desk.send(wire::Switch{0, 0, first.digest});
  desk.await<wire::Installed>(1);
  desk.send(grant(0, 0, 0, Lane::kTrain, 9));
  expect_same_sample(trajectory_in(desk.await<wire::TrajectoryResult>(1)[0]), before);
  desk.shut_down();
  EXPECT_EQ(status.get(), 0);
}

// A new session proves the weights anew. They are what samples already, also behind something newer
// that was staged: no episode of an evaluation has to end first.
TEST_F(RolloutWorkerTest, ProvesWhatItSamplesByInTheMiddleOfAnEvaluation) {
  for (const bool newer : {false, true}) {
    std::promise<void> reached;
    environments_ = {};
    environments_.add({"stuck", "", {}}, [&](const sandbox::EnvironmentSettings&) {
      return std::make_unique<StuckEnvironment>([&] { reached.set_value(); });
    });
    RolloutWorkerConfig config = this->config();
    config.datasets = {{.env = "stuck"}};
    auto desk = std::make_unique<Desk>(config.endpoint.address);
    auto status = start(config);
    desk->await_worker();
    const wire::Stage first = publish(0, 1);
    desk->send(first);
    desk->await<wire::Installed>(1);
    const wire::Grant evaluated = grant(0, 0, 0, Lane::kEval);
    desk->send(evaluated);
    auto played = reached.get_future();
    while (played.wait_for(0s) != std::future_status::ready) desk->serve();
    if (newer) {
      desk->switches = false;
      desk->send(publish(1, 2));
      desk->await<wire::Staged>(1);
    }
    desk.reset();
    desk = std::make_unique<Desk>(config.endpoint.address);
    desk->await_worker();
    desk->send(wire::Hold{{BodyId{evaluated.lane, evaluated.lease}}});
    desk->send(evaluated);
    desk->send(first);
    EXPECT_EQ(desk->await<wire::Installed>(1)[0].version, 0) << newer;
    desk->send(wire::Abort{evaluated.lease, evaluated.lane});
    desk->shut_down();
    EXPECT_EQ(status.get(), 0);
  }
}

}  // namespace
}  // namespace tailrace
