// Peers that say what they like, as often as they can: strays, copies, garbage. The run goes on,
// and what they leave behind is bounded.
#include <fstream>
#include <functional>
#include <future>

#include "core/base/file.h"
#include "core/wire/admission.h"
#include "scheduler/store/journal.h"
#include "tests/core/wire/rude_peer.h"
#include "tests/scheduler/service/test_run.h"

namespace tailrace::scheduler {
namespace {

using fakes::FakeReward;
using fakes::FakeRollout;
using fakes::FakeTrainer;
using fakes::FakeWorker;
using fakes::TrainerDisk;
using std::chrono::milliseconds;
using wire::RudePeer;

constexpr int kFlood = 5000;

using Flood = std::function<void(const std::string& endpoint)>;
struct NamedFlood {
  const char* name;
  Flood run;
  bool of_names = false;
};

// For the test's name; its bytes are of this process alone.
void PrintTo(const NamedFlood& flood, std::ostream* out) { *out << flood.name; }

// `make(i)` kFlood times in one session.
template <class Make>
Flood in_a_session(Role role, const char* name, Make make) {
  return [=](const std::string& endpoint) {
    RudePeer peer(endpoint);
    peer.join(role, name);
    for (int i = 1; i <= kFlood; ++i) peer.say(make(i));
  };
}

// Of a lease that nobody has, and its tokens weigh a little.
wire::TrajectoryResult unasked_result() {
  const LeaseId lease{{.prompt = 7'000'000}, 1};
  return {wire::encode_trajectory(fakes::make_trajectory(lease, Lane::kTrain, 0, 6000))};
}

const std::string kLong(100'000, 'x');

const std::vector<NamedFlood> kFloods = {
    {"Names",
     [](const std::string& endpoint) {
       RudePeer peer(endpoint);
       for (int i = 0; i < kFlood; ++i)
         peer.say_hello(Role::kRollout, fmt::format("rollout-x{}", i), 1);
     },
     /*of_names=*/true},
    {"Incarnations",
     [](const std::string& endpoint) {
       RudePeer peer(endpoint);
       for (uint64_t i = 1; i <= kFlood; ++i) peer.say_hello(Role::kRollout, "rollout-x", i);
     }},
    {"Garbage",
     [](const std::string& endpoint) {
       RudePeer peer(endpoint);
       std::vector<std::byte> garbage = wire::encode({}, wire::Heartbeat{});
       garbage.resize(garbage.size() - 9);
       // send() writes the header, which is whole.
       for (int i = 0; i < kFlood; ++i) peer.say({1, 1, 0}, garbage);
     }},
    {"UnknownSessions",
     [](const std::string& endpoint) {
       RudePeer peer(endpoint);
       for (uint64_t i = 1; i <= kFlood; ++i)
         peer.say({i, 1, 0}, wire::encode({}, wire::TrainerWants{0, 1}));
     }},
    {"CopiesAndEarlyOnes",
     [](const std::string& endpoint) {
       RudePeer peer(endpoint);
       peer.join(Role::kReward, "reward-x");
       peer.say(wire::Verdict{});
       for (uint64_t i = 0; i < kFlood; ++i)
         peer.say_out_of_turn(wire::Verdict{}, i % 2 ? 1 : i + 9);
     }},
    {"Results", in_a_session(Role::kRollout, "rollout-x", [](int) { return unasked_result(); })},
    {"UnreadableResults",
     in_a_session(Role::kRollout, "rollout-x",
                  [](int) { return wire::TrajectoryResult{std::vector<std::byte>(100)}; })},
    {"Installed", in_a_session(Role::kRollout, "rollout-x",
                               [](int i) {
                                 return wire::Installed{0, i, "x"};
                               })},
    {"StageProgress", in_a_session(Role::kRollout, "rollout-x",
                                   [](int i) {
                                     return wire::StageProgress{0, i % 9, "x", i, 1 << 30};
                                   })},
    {"InstallFailed", in_a_session(Role::kRollout, "rollout-x",
                                   [](int i) {
                                     return wire::InstallFailed{0, i % 9, "x", kLong};
                                   })},
    {"WorkerFailed",
     in_a_session(Role::kRollout, "rollout-x", [](int) { return wire::WorkerFailed{kLong}; })},
    {"Verdicts",
     in_a_session(
         Role::kReward, "reward-x",
         [](int i) {
           return wire::Verdict{{{.prompt = i}, 1}, Lane::kTrain, 1, 1.0, {{"m", 1.0}}, ""};
         })},
    {"TrainerReady", in_a_session(Role::kTrainer, "trainer-x",
                                  [](int i) {
                                    return wire::TrainerReady{
                                        .version = i, .digest = "x", .manifest = "m"};
                                  })},
    {"TrainingStage", in_a_session(Role::kTrainer, "trainer-x",
                                   [](int i) {
                                     return wire::TrainingStage{0, i % 3 + 1, 9, kLong};
                                   })},
    {"TrainerWants", in_a_session(Role::kTrainer, "trainer-x",
                                  [](int i) {
                                    return wire::TrainerWants{0, i % 5 + 1};
                                  })},
    {"Published", in_a_session(Role::kTrainer, "trainer-x",
                               [](int i) {
                                 return wire::Published{0, i, "x", "m", {}, {{"reward/mean", 9.0}}};
                               })},
    {"Durable", in_a_session(Role::kTrainer, "trainer-x",
                             [](int i) {
                               return wire::Durable{0, i, i, kLong};
                             })},
    {"Progress", in_a_session(Role::kTrainer, "trainer-x",
                              [](int i) {
                                return wire::Progress{"sft", i, kFlood, {{"sft/loss", 9.0}}};
                              })},
    {"Fetch", in_a_session(Role::kTrainer, "trainer-x",
                           [](int i) {
                             return wire::Fetch{.request = i,
                                                .bodies = {{Lane::kTrain, {{.prompt = i}, 1}}},
                                                .offset = 0,
                                                .max_bytes = 1 << 20};
                           })},
    {"StraysOfOtherRoles", in_a_session(Role::kReward, "reward-x",
                                        [](int i) -> wire::Message {
                                          if (i % 2) return unasked_result();
                                          return wire::TrainerReady{.version = -1, .digest = ""};
                                        })},
};

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t bytes_below(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  return bytes;
}

class Floods : public testing::TestWithParam<NamedFlood> {};

TEST_P(Floods, LeaveTheRunAsItIsAndAreBounded) {
  constexpr int64_t kSteps = 6;
  TestRun run(kSteps);
  // Nothing is rotated away: all that was ever written counts.
  run.options.storage.journal_bytes = int64_t{1} << 30;
  run.options.config.deadlines.reconnect = std::chrono::seconds(1);  // what they were given
  run.options.flush_timeout = milliseconds(100);                     // nobody here takes a Shutdown
  Log log("scheduler", run.folder.path() / "log");
  auto service = run.make_service(log);
  TrainerDisk disk;
  FakeRollout w0("rollout-0", run.options.endpoint);
  FakeReward r0("reward-0", run.options.endpoint);
  FakeTrainer trainer(run.options.endpoint, disk, kSteps);
  // The flood comes in the middle of the run, and all of it.
  std::promise<void> middle, over;
  trainer.hears = [&](const wire::Message& message) {
    const auto* batch = std::get_if<wire::Batch>(&message);
    if (batch == nullptr || batch->step != 3) return;
    middle.set_value();
    over.get_future().wait_for(std::chrono::seconds(50));
  };
  for (FakeWorker* worker : std::vector<FakeWorker*>{&w0, &r0, &trainer}) worker->start();
  int64_t grown = 0;
  std::jthread flood([&] {
    middle.get_future().wait();
    const int64_t before = resident_bytes();
    GetParam().run(run.options.endpoint);
    grown = resident_bytes() - before;
    over.set_value();
  });
  const ServiceResult result = run_to_its_end(*service);
  flood.join();
  EXPECT_EQ(result.end, ServiceResult::End::kDone) << result.message;
  EXPECT_EQ(result.version, kSteps);
  trainer.kill();
  EXPECT_EQ(disk.fault, "");
  EXPECT_EQ(std::ssize(disk.batches), kSteps);
  int64_t steps = 0, warm_up = 0;
  for (const MetricsRow& row : run.rows()) {
    warm_up += row.version < 0;
    const double* reward = row.find("reward/mean");
    steps += reward != nullptr && *reward == 0.5;
  }
  EXPECT_EQ(steps, kSteps);
  EXPECT_EQ(warm_up, 1);
  const auto state = restore(run.options.paths.journal());
  ASSERT_TRUE(state && state.value().state);
  EXPECT_LE(std::ssize(state.value().state->workers), wire::kMaxWorkers + 4);
  // An undisturbed run leaves some 12 KB and 1 KB. Each name that is let in costs a few hundred
  // bytes of both, the other floods a line at each doubling.
  const int64_t most = GetParam().of_names ? 500 << 10 : 60 << 10;
  const auto log_bytes =
      static_cast<int64_t>(std::filesystem::file_size(run.folder.path() / "log"));
  EXPECT_LE(bytes_below(run.options.paths.journal()), most);
  EXPECT_LE(log_bytes, most);
  EXPECT_LE(bytes_below(run.options.paths.trajectories()), 100 << 10);
// The address sanitizer keeps what was freed, up to a quarter of a gigabyte of it.
#if !defined(__SANITIZE_ADDRESS__)
  EXPECT_LE(grown, 300 << 20);
#endif
}

INSTANTIATE_TEST_SUITE_P(Kinds, Floods, testing::ValuesIn(kFloods),
                         [](const auto& kind) { return std::string(kind.param.name); });

}  // namespace
}  // namespace tailrace::scheduler
