// Faults of single processes of a launched run, and what the journal says of them afterwards.
#include <algorithm>
#include <functional>

#include "scheduler/decide/decide.h"
#include "scheduler/state/archive.h"
#include "scheduler/state/describe.h"
#include "scheduler/state/expects.h"
#include "scheduler/store/journal.h"
#include "scheduler/store/snapshot.h"
#include "tests/cli/commands/launch_fixture.h"
#include "tests/core/base/environment_variable.h"

namespace tailrace {
namespace {

class LaunchFaults : public LaunchTest {
 protected:
  // The whole run, once its second checkpoint is there.
  void kill_behind_the_second_checkpoint() {
    start_run();
    ASSERT_TRUE(wait_until([&] { return fs::exists(paths().checkpoints() / "step_000006"); }))
        << output();
    launched_->send_signal(SIGKILL);
    (void)finish();
    EXPECT_TRUE(wait_until([&] {
      return processes_with({"worker", paths().root.string()}).empty();
    }));
  }

  // All events of a run with scheduler.archive, in order, each with the state before it.
  void replay(
      const std::function<void(const scheduler::State&, const scheduler::JournalEntry&)>& use) {
    const fs::path first = folder_ / "first";
    fs::create_directories(first);
    fs::copy_file(paths().journal() / "snapshot-000001.bin", first / "snapshot-000001.bin");
    const auto begin = scheduler::restore(first);
    ASSERT_TRUE(begin) << begin.failure().message;
    scheduler::State state = *begin.value().state;
    // A scheduler that was killed between the snapshot and the journal of a pair has left none.
    for (const auto& [number, file] : scheduler::journals(paths().journal())) {
      const auto journal = scheduler::read_journal(file, nullptr);
      ASSERT_TRUE(journal) << journal.failure().message;
      for (const auto& entry : journal.value().entries) {
        use(state, entry);
        (void)scheduler::decide(state, entry.event, entry.now);
      }
    }
  }

  // Of the run's first journal: where the first event lies behind a state that cannot have led to
  // this checkpoint, although its version is only one behind. 0: nowhere.
  int64_t first_offset_with_a_state_before(int64_t checkpoint, const fs::path& file) const {
    const fs::path first = folder_ / "before";
    fs::create_directories(first);
    fs::copy_file(paths().journal() / "snapshot-000001.bin", first / "snapshot-000001.bin");
    const auto begin = scheduler::restore(first);
    const auto journal = scheduler::read_journal(file, nullptr);
    if (!begin || !begin.value().state || !journal) return 0;
    scheduler::State state = *begin.value().state;
    int64_t offset = scheduler::RecordFile::kFileHeaderBytes;
    for (scheduler::JournalEntry entry : journal.value().entries) {
      const auto& policy = state.policies.begin()->second;
      if (policy.published == checkpoint - 1 && scheduler::is_beyond(policy, checkpoint))
        return offset;
      std::string record;
      scheduler::RecordFile::frame(scheduler::to_bytes(entry), record);
      offset += std::ssize(record);
      (void)scheduler::decide(state, entry.event, entry.now);
    }
    return 0;
  }

  static int64_t samples_out(const scheduler::State& state) {
    return std::ranges::count_if(state.leases.in_order(), [](const auto& entry) {
      return entry.second.kind == scheduler::LeaseKind::kGenerate;
    });
  }
  int64_t samples_out() const {
    const auto seen = scheduler::restore(paths().journal());
    return seen && seen.value().state ? samples_out(*seen.value().state) : 0;
  }

  std::vector<pid_t> rollouts() const {
    std::vector<pid_t> pids = workers("rollout", 0);
    for (const pid_t pid : workers("rollout", 1)) pids.push_back(pid);
    return pids;
  }
  static void signal(const std::vector<pid_t>& pids, int number) {
    for (const pid_t pid : pids) ::kill(pid, number);
  }

  // Kills the scheduler while samples are out; its workers rest meanwhile.
  void kill_scheduler_in_the_middle_of_samples() {
    std::vector<pid_t> pids;
    const bool reached = wait_until([&] {
      pids = rollouts();
      if (pids.size() != 2) return false;
      signal(pids, SIGSTOP);
      if (samples_out() > 0) return true;
      signal(pids, SIGCONT);
      return false;
    });
    ASSERT_TRUE(reached) << output();
    const auto schedulers = workers("scheduler");
    ASSERT_EQ(schedulers.size(), 1u);
    ::kill(schedulers[0], SIGKILL);
    EXPECT_TRUE(wait_until([&] {
      const auto now = workers("scheduler");
      return now.size() == 1 && now != schedulers;
    })) << output();
    signal(pids, SIGCONT);
  }

  // User time of a process, in hundredths of a second.
  static int64_t cpu_ticks(pid_t pid) {
    std::ifstream file(fmt::format("/proc/{}/stat", pid));
    std::string word;
    for (int i = 0; i < 14; ++i) file >> word;
    return file ? std::stoll(word) : 0;
  }

  std::string log_of(const std::string& role) const {
    auto text = read_file(paths().log(role, 0));
    return text ? text.value() : "";
  }
  // Of the running launch.
  fs::path endpoint_folder() const {
    const auto record = read_file(paths().root / "endpoint");
    constexpr std::string_view kScheme = "ipc://";
    if (!record || !record.value().starts_with(kScheme)) return {};
    return fs::path(record.value().substr(kScheme.size())).parent_path();
  }
  fs::path tokenizer() const { return paths().tokenizer() / "tokenizer.json"; }
  fs::path hidden() const { return folder_ / "tokenizer.json"; }
};

TEST_F(LaunchFaults, AKilledSchedulerCostsNoSample) {
  const std::string expected = undisturbed_digest();
  start_run("run", {"scheduler.archive=true"});
  constexpr int kKills = 3;
  for (int i = 0; i < kKills; ++i) {
    ASSERT_TRUE(wait_until([&] { return has_step(i); })) << output();
    kill_scheduler_in_the_middle_of_samples();
    ASSERT_FALSE(HasFailure());
  }
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
  int64_t restarts = 0, survived = 0, results = 0;
  replay([&](const scheduler::State& state, const scheduler::JournalEntry& entry) {
    if (std::holds_alternative<scheduler::Restarted>(entry.event)) {
      ++restarts;
      survived += samples_out(state);
    }
    const auto* result = std::get_if<scheduler::AttemptResult>(&entry.event);
    if (result == nullptr || !expects_result(state, result->worker, result->lane, result->lease))
      return;
    ++results;
    EXPECT_EQ(result->lease.attempt, 1) << describe(entry.event);
    EXPECT_TRUE(has_sample(result->outcome)) << describe(entry.event);
  });
  EXPECT_GE(restarts, 1);  // one that is killed while it starts says nothing
  EXPECT_LE(restarts, kKills);
  EXPECT_GE(survived, 1) << "nothing was out when the scheduler was killed";
  // Each sample once: 4 x 4 a step, and 8 held-out ones of versions 0, 8 and 16.
  EXPECT_EQ(results, kSteps * 16 + 3 * 8);
  const auto rows = read_metrics(paths().metrics());
  ASSERT_TRUE(rows);
  for (const MetricsRow& row : rows.value()) {
    const double* failed = row.find("rollout/infra_failed_frac");
    EXPECT_TRUE(failed == nullptr || *failed == 0) << "step " << row.step;
  }
}

TEST_F(LaunchFaults, AWorkerThatCannotStartOnceTheRunHasBegunDoesNotEndIt) {
  const std::string expected = undisturbed_digest();
  start_run();
  const pid_t trainer = stop_in_the_middle();
  const auto victims = workers("rollout", 1);
  ASSERT_EQ(victims.size(), 1u);
  fs::rename(tokenizer(), hidden());
  ::kill(victims[0], SIGKILL);
  EXPECT_TRUE(wait_until([&] {
    return output().find("rollout-1: exit status 2; starting it again") != std::string::npos;
  })) << output();
  EXPECT_TRUE(wait_until([&] {
    return log_of("scheduler").find("rollout-1 gets no work until it had a rest") !=
           std::string::npos;
  })) << log_of("scheduler");
  fs::rename(hidden(), tokenizer());
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

TEST_F(LaunchFaults, AWorkerThatCannotStartBeforeTheRunHasBegunEndsItWithItsMessage) {
  start_run("run", {"sft.demonstrations=20000"});
  // Once launch has worked for a while since the tokenizer is there, it has read it and makes
  // demonstrations: the next to read it is a worker.
  std::optional<int64_t> since;
  const bool reached = wait_until([&] {
    if (!since && fs::exists(tokenizer())) since = cpu_ticks(launched_->pid());
    return since && cpu_ticks(launched_->pid()) >= *since + 5;
  });
  ASSERT_TRUE(reached) << output();
  launched_->send_signal(SIGSTOP);
  ASSERT_FALSE(fs::exists(paths().demonstrations())) << "too late";
  fs::rename(tokenizer(), hidden());
  launched_->send_signal(SIGCONT);
  EXPECT_EQ(finish().code, 2) << output();
  EXPECT_NE(output().find("error: rollout-"), std::string::npos) << output();
  EXPECT_NE(output().find("tokenizer.json"), std::string::npos) << output();
  EXPECT_EQ(output().find("starting it again"), std::string::npos) << output();
  // When that is mended, the run goes on.
  fs::rename(hidden(), tokenizer());
  start(command({"--run-dir", paths().root.string()}));
  ASSERT_TRUE(wait_until([&] { return has_step(1); })) << output();
  launched_->send_signal(SIGINT);
  EXPECT_EQ(finish().code, 130) << output();
}

// Where a journal carries the number of the law (tests/scheduler/store/journal_test.cc).
constexpr int64_t kLawInJournal = 16;

TEST_F(LaunchFaults, AJournalOfAnotherLawIsRefusedWithAdviceAndLeftAsItIs) {
  const std::string expected = undisturbed_digest();
  start_run();
  stop_in_the_middle();
  launched_->send_signal(SIGKILL);
  finish();
  ASSERT_TRUE(wait_until([&] {
    return processes_with({"worker", paths().root.string()}).empty();
  }));
  const auto flip_law = [&] {
    for (const auto& file : fs::directory_iterator(paths().journal())) {
      if (file.path().extension() != ".log") continue;
      std::fstream stream(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(kLawInJournal);
      const int byte = stream.get();
      stream.seekp(kLawInJournal);
      stream.put(static_cast<char>(byte ^ 0x40));
    }
  };
  flip_law();
  continue_run();
  EXPECT_EQ(finish().code, 2) << output();
  const std::string said = output();
  const auto says = [&](std::string_view words) { return said.find(words) != std::string::npos; };
  EXPECT_TRUE(says("error: scheduler-0: ")) << said;
  EXPECT_TRUE(says(fmt::format("this build has law {}", scheduler::kLawVersion))) << said;
  EXPECT_TRUE(says("Let the build that wrote them continue the run and stop it with Ctrl-C"))
      << said;
  EXPECT_EQ(said.find("error: "), said.rfind("error: ")) << "once is enough: " << said;
  flip_law();
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

TEST_F(LaunchFaults, RowsSurviveAFileThatIsReplacedAndTheTerminalNamesThoseThatAreCut) {
  start_run();
  pid_t trainer = stop_in_the_middle();
  // A copy that takes the name, as sed -i and rsync make one.
  fs::copy_file(paths().metrics(), paths().root / "copy");
  fs::rename(paths().root / "copy", paths().metrics());
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_EQ(output().find("warning: "), std::string::npos) << output();
  EXPECT_NE(output().find(fmt::format("step {}/{}", kSteps, kSteps)), std::string::npos)
      << output();
  expect_each_step_once();

  fs::resize_file(paths().metrics(), fs::file_size(paths().metrics()) / 2);
  continue_run();
  expect_done();
  const std::string said = output();
  const std::string warning = "warning: " + paths().metrics().string() + " has no rows of ";
  const size_t first = said.find(warning), last = said.rfind(warning);
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_LT(first, last) << "at its start and before its figure: " << said;
  EXPECT_NE(said.find("of versions from 8 to 16", last), std::string::npos) << said;
  EXPECT_LT(last, said.find("tiny: success")) << said;
}

// Somebody starts roles by hand that run already: the run does not notice.
TEST_F(LaunchFaults, ASecondHolderOfARoleIsRefused) {
  const std::string expected = undisturbed_digest();
  start_run();
  const pid_t trainer = stop_in_the_middle();
  const std::string metrics = read_file(paths().metrics()).value();
  for (const char* role : {"trainer", "scheduler", "rollout", "reward"}) {
    const auto before = workers(role);
    ASSERT_EQ(before.size(), 1u) << role;
    const fs::path log = folder_ / fmt::format("second-{}.log", role);
    auto second = ChildProcess::spawn(
        {TAILRACE_BINARY, "worker", "--role", role, "--index", "0", "--run", paths().root.string()},
        log);
    ASSERT_TRUE(second) << second.failure().message;
    std::optional<ExitStatus> status;
    ASSERT_TRUE(wait_until([&] { return (status = second.value().try_reap()).has_value(); }));
    EXPECT_EQ(status->code, 2);
    const std::string said = read_file(log).value();
    EXPECT_NE(said.find(fmt::format("{}-0 of {} is played already, by process {}", role,
                                    paths().root.string(), before[0])),
              std::string::npos)
        << said;
    EXPECT_EQ(workers(role), before);
  }
  EXPECT_EQ(read_file(paths().metrics()).value(), metrics);
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

TEST_F(LaunchFaults, ARunWhoseJournalIsGoneIsRefusedAndLeftAsItIs) {
  start_run();
  // Before the first checkpoint after that of version 0 nothing would be lost.
  ASSERT_TRUE(wait_until([&] { return fs::exists(paths().checkpoints() / "step_000003"); }))
      << output();
  launched_->send_signal(SIGKILL);
  (void)finish();
  EXPECT_TRUE(wait_until([&] { return workers("scheduler").empty(); }));
  const std::string metrics = read_file(paths().metrics()).value();
  fs::remove_all(paths().journal());
  continue_run();
  expect_refused("but its journal is missing or damaged");
  EXPECT_TRUE(read_file(paths().metrics()).value() == metrics);

  // What a kill in the middle of the first checkpoint leaves is none: nothing is lost.
  for (const auto& entry : fs::directory_iterator(paths().checkpoints())) fs::remove_all(entry);
  fs::create_directory(paths().checkpoints() / "step_000000.tmp");
  continue_run();
  expect_done();
  expect_each_step_once();
}

// One bit of the newest checkpoint: the run goes on from the one before it, to the same weights.
TEST_F(LaunchFaults, ADamagedCheckpointCostsTheTrainingSinceTheOneBeforeItAndNoSample) {
  const std::string expected = undisturbed_digest();
  ASSERT_NO_FATAL_FAILURE(kill_behind_the_second_checkpoint());
  std::set<int64_t> steps;
  for (const auto& entry : fs::directory_iterator(paths().checkpoints()))
    if (const auto step = checkpoint_step(entry.path())) steps.insert(*step);
  ASSERT_GE(steps.size(), 2u);
  const fs::path newest = paths().checkpoints() / checkpoint_name(*steps.rbegin());
  const fs::path before = paths().checkpoints() / checkpoint_name(*std::next(steps.rbegin()));
  {
    std::fstream file(newest / "optimizer.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-5, std::ios::end);
    const int byte = file.get();
    file.seekp(-5, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  // Who evaluates the run meanwhile gets the same checkpoint as the launch, and is told.
  const auto evaluated = run_binary("eval --run " + paths().root.string() + " --episodes 2");
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_NE(evaluated.err.find("optimizer.safetensors: it was changed or damaged since it was "
                               "saved\nnote: what is evaluated is " +
                               before.string()),
            std::string::npos)
      << evaluated.err;
  EXPECT_TRUE(fs::exists(newest));
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
  const std::string told = fmt::format(
      "checkpoint passed over: {}: it was changed or damaged since it was "
      "saved; it goes on from step {} ({})\n",
      (newest / "optimizer.safetensors").string(), *std::next(steps.rbegin()), before.string());
  EXPECT_NE(log_of("trainer").find(told), std::string::npos) << log_of("trainer");
  EXPECT_NE(output().find("note: trainer-0: " + told), std::string::npos) << output();
  EXPECT_TRUE(fs::exists(newest.string() + ".damaged"));
}

TEST_F(LaunchFaults, AChangedConfigOrDataIsRefusedAndLeftAsItIs) {
  start_run();
  ASSERT_TRUE(wait_until([&] { return has_step(1); })) << output();
  launched_->send_signal(SIGINT);
  EXPECT_EQ(finish().code, 130) << output();
  const std::string config = read_file(paths().config()).value();
  std::string edited = config;
  edited.replace(edited.find("lr: 0.001"), 9, "lr: 0.002");
  std::ofstream(paths().config()) << edited;
  continue_run();
  expect_refused("config.yaml: it was edited or damaged since the run began");
  std::ofstream(paths().config()) << config;

  const std::string demonstrations = read_file(paths().demonstrations()).value();
  std::ofstream(paths().demonstrations()) << demonstrations.substr(0, demonstrations.size() / 2);
  continue_run();
  expect_refused("demonstrations.jsonl: it has changed since the run began");
  std::ofstream(paths().demonstrations()) << demonstrations;
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), undisturbed_digest());
}

// One bit of the journal, behind the last event of a step whose next one is trained and saved: what
// is left is a state of long ago, and everybody who tells of it says so.
TEST_F(LaunchFaults, ADamagedJournalIsNamedByWhoeverReadsIt) {
  const std::string expected = undisturbed_digest();
  ASSERT_NO_FATAL_FAILURE(kill_behind_the_second_checkpoint());
  const int64_t newest = newest_checkpoint(paths()).value();
  const fs::path file = paths().journal() / "journal-000001.log";
  const int64_t offset = first_offset_with_a_state_before(newest, file);
  ASSERT_GT(offset, 0);
  const auto flip = [&] {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset + 20);
    const int byte = stream.get();
    stream.seekp(offset + 20);
    stream.put(static_cast<char>(byte ^ 1));
  };
  flip();
  const std::string place = fmt::format("cut or damaged at offset {}", offset);
  const auto expect_named = [&](const std::string& said) {
    EXPECT_NE(said.find("the journal " + paths().journal().string() +
                        " is damaged: " + file.string() + ": dropped the last "),
              std::string::npos)
        << said;
    EXPECT_NE(said.find(place), std::string::npos) << said;
  };
  const std::string run = paths().root.string();
  const std::string status = run_binary("status " + run).out;
  expect_named(status);
  EXPECT_TRUE(status.starts_with("damaged ")) << status;
  EXPECT_NE(status.find("What follows is the state before the damage"), std::string::npos)
      << status;
  EXPECT_NE(status.find(fmt::format("step      {} of {}", newest - 1, kSteps)), std::string::npos)
      << status;
  expect_named(run_binary("status " + run + " --sample prompt=0 member=0").err);
  expect_named(run_binary("report " + run).err);
  expect_named(read_file(paths().report()).value());
  expect_named(
      run_binary("report " + run + " --perfetto " + (folder_ / "trace.json").string()).err);

  // Not the trainer, whose version is right.
  continue_run();
  expect_refused("but its journal is missing or damaged: where the run stood is not known (" +
                 file.string());
  EXPECT_NE(output().find(place), std::string::npos) << output();
  EXPECT_EQ(output().find("the trainer holds"), std::string::npos) << output();

  // It was left as it is: mended, the run goes on.
  flip();
  EXPECT_EQ(run_binary("status " + run).out.find("damaged"), std::string::npos);
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
}

TEST_F(LaunchFaults, AJournalWithoutItsSnapshotsIsRefusedAndLeftAsItIs) {
  start_run();
  ASSERT_TRUE(wait_until([&] { return has_step(1); })) << output();
  launched_->send_signal(SIGKILL);
  (void)finish();
  EXPECT_TRUE(wait_until([&] { return workers("scheduler").empty(); }));
  const std::string metrics = read_file(paths().metrics()).value();
  for (const auto& entry : fs::directory_iterator(paths().journal()))
    if (entry.path().extension() == ".bin") fs::remove(entry.path());
  continue_run();
  expect_refused("snapshot");
  EXPECT_TRUE(read_file(paths().metrics()).value() == metrics);
}

// What a cleaner of /tmp does to a run that lasts for days.
TEST_F(LaunchFaults, ASocketFolderThatIsTakenAwayLocksNobodyOut) {
  const std::string expected = undisturbed_digest();
  start_run();
  const pid_t trainer = stop_in_the_middle();
  const fs::path folder = endpoint_folder();
  ASSERT_TRUE(fs::exists(folder / "s")) << folder;
  fs::remove_all(folder);
  const auto victims = workers("rollout", 1);
  ASSERT_EQ(victims.size(), 1u);
  ::kill(victims[0], SIGKILL);
  EXPECT_TRUE(wait_until([&] {
    const std::string log = log_of("scheduler");
    const size_t first = log.find("rollout-1 is here");
    return first != std::string::npos &&
           log.find("rollout-1 is here", first + 1) != std::string::npos;
  })) << log_of("scheduler");
  EXPECT_NE(log_of("scheduler").find(fmt::format("{}/s was taken away", folder.string())),
            std::string::npos)
      << log_of("scheduler");
  // And once more, with nobody there to put it back but the next scheduler.
  const auto schedulers = workers("scheduler");
  ASSERT_EQ(schedulers.size(), 1u);
  ::kill(schedulers[0], SIGSTOP);
  fs::remove_all(folder);
  ::kill(schedulers[0], SIGKILL);
  ::kill(trainer, SIGCONT);
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
  EXPECT_FALSE(fs::exists(folder));
}

// Killed with all that it started, at several moments of a run, and resumed to the end.
TEST_F(LaunchFaults, NothingIsLeftBehindAfterKillsAndAResume) {
  const std::string expected = undisturbed_digest();
  const fs::path temporary = folder_ / "t";
  fs::create_directory(temporary);
  const EnvironmentVariable base("TMPDIR", temporary), runtime_base("XDG_RUNTIME_DIR", temporary);
  const std::vector<std::function<bool()>> moments = {
      [&] { return fs::exists(paths().root / "endpoint"); },
      [&] { return !workers("scheduler").empty(); },
      [&] { return fs::exists(paths().root / "begun"); },
      [&] { return has_step(1); },
      [&] { return has_step(5); },
  };
  for (const auto& moment : moments) {
    if (fs::exists(paths().config())) {
      continue_run();
    } else {
      start_run();
    }
    ASSERT_TRUE(wait_until(moment)) << output();
    launched_->send_signal(SIGKILL);
    signal(processes_with({"worker", paths().root.string()}), SIGKILL);
    (void)finish();
    ASSERT_TRUE(wait_until([&] {
      return processes_with({"worker", paths().root.string()}).empty();
    }));
    // A kill in the middle of a write is seldom met.
    std::ofstream(paths().weights() / "p0-v1.safetensors.unfinished.99999999") << "half";
    std::ofstream(paths().journal() / "snapshot-000001.bin.unfinished.99999999") << "half";
  }
  continue_run();
  expect_done();
  EXPECT_EQ(final_digest(), expected);
  expect_each_step_once();
  EXPECT_TRUE(fs::is_empty(temporary)) << fs::directory_iterator(temporary)->path();
  for (const auto& entry : fs::recursive_directory_iterator(paths().root))
    EXPECT_EQ(entry.path().filename().string().find(".unfinished"), std::string::npos)
        << entry.path();
  for (const char* name : {"endpoint", "begun"}) EXPECT_FALSE(fs::exists(paths().root / name));
}

}  // namespace
}  // namespace tailrace
