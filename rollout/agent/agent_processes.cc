#include "rollout/agent/agent_processes.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <deque>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/counted_lines.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/file_descriptor.h"
#include "core/base/unique_number.h"
#include "kernels/base/mutex.h"
#include "rollout/agent/marked_processes.h"
#include "rollout/agent/sandbox_port.h"
#include "sandbox/process/process.h"
#include "sandbox/process/remove_folder.h"
#include "sandbox/process/stderr_lines.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using sandbox::AgentProgram;
using sandbox::CommandProcess;

constexpr size_t kMostOutputKept = size_t{64} << 10;  // of stdout: its end
constexpr const char* kTaskFile = "task.json";
constexpr int64_t kMostRewardBytes = 64 << 10;
constexpr Time kLongestWait = 1s;
// What ends together with an agent, such as its helpers, may take so long.
constexpr Time kGrace = 200ms, kTick = 20ms;

}  // namespace

enum class AgentPhase : uint8_t { kSetup, kRun, kScore, kOver };

struct AgentProcesses::State {
  struct Agent {
    AgentStart start;
    AgentPhase phase = AgentPhase::kSetup;
    fs::path folder;
    std::string mark_of_folder;
    std::unique_ptr<CommandProcess> process = nullptr;
    // Of its processes so far: what a setup starts may be there until the end.
    std::vector<sandbox::Offspring::Family> families = {};
    SandboxPort port = {};
    std::string to_write = {}, out = {};
    size_t written = 0;
    bool in_is_closed = false, out_is_closed = false, err_is_closed = false;
    sandbox::StderrLines said{"agent", nullptr};
    Time begun{}, deadline{};
    Time grace{};  // until then what was started may end with it; 0: it has not ended
    int64_t episode = 0, num_played = 0;
    bool is_idle = false;  // waits for a task

    const char* phase_name() const {
      constexpr std::array<const char*, 4> kNames = {"setup", "run", "score", ""};
      return kNames[static_cast<size_t>(phase)];
    }
    const AgentProgram& program() const { return *start.program; }
    std::string mark() const { return mark_of_folder; }
    // Of its phase alone: what a setup starts may be there for the run.
    std::string phase_mark() const { return mark() + phase_name(); }
    const std::vector<std::string>& words() const {
      return phase == AgentPhase::kSetup ? program().setup
             : phase == AgentPhase::kRun ? program().run
                                         : program().score;
    }
    Time patience() const {
      return phase == AgentPhase::kSetup ? program().setup_deadline
             : phase == AgentPhase::kRun ? program().run_deadline
                                         : program().score_deadline;
    }
  };

  State(const fs::path& its_folder, http::Server* server, bool logs)
      // A program finds these names in its environment, and works elsewhere.
      : folder_(fs::absolute(its_folder).lexically_normal()),
        mark_(mark_of(folder_)),
        server_(server),
        logs_(logs),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_.is_open()) throw UserError("no files are left for agents");
  }

  // --- Any thread.

  void start(AgentStart start) {
    MutexLock lock(mutex_);
    starting_.push_back(std::move(start));
    wake();
  }
  void stop(int64_t seat) {
    MutexLock lock(mutex_);
    stopping_.push_back(seat);
    std::erase_if(ended_, [&](const AgentEnd& end) { return end.seat == seat; });
    wake();
  }
  std::vector<AgentEnd> collect() {
    MutexLock lock(mutex_);
    return std::exchange(ended_, {});
  }
  void close() {
    MutexLock lock(mutex_);
    is_closing_ = true;
    wake();
  }

  // --- The thread of the agents.

  void run() {
    sandbox::leave_signals_to_others();
    end_marked_processes(mark_);
    remove(folder_);
    while (take_orders()) {
      wait();
      for (auto& [id, agent] : agents_) look_at(agent);
      if (!agents_.empty()) sandbox::Offspring::of_this_process().look();
      forget_ended();
    }
    for (auto& [id, agent] : agents_) clear(agent);
    agents_.clear();
    remove(folder_);
  }

  std::vector<std::string> take_notes(bool is_end) {
    return is_end ? notes_.take_totals() : notes_.take();
  }

 private:
  void wake() { (void)!::eventfd_write(wake_.get(), 1); }

  bool take_orders() {
    std::vector<AgentStart> starting;
    std::vector<int64_t> stopping;
    {
      MutexLock lock(mutex_);
      if (is_closing_) return false;
      starting.swap(starting_);
      stopping.swap(stopping_);
    }
    for (const int64_t seat : stopping) {
      const auto at = agents_.find(seat);
      if (at == agents_.end()) continue;
      clear(at->second);
      agents_.erase(at);
    }
    for (AgentStart& start : starting) begin(std::move(start));
    forget_ended();  // those that could not begin
    return true;
  }

  void forget_ended() {
    std::erase_if(agents_,
                  [](const auto& entry) { return entry.second.phase == AgentPhase::kOver; });
  }

  void begin(AgentStart start) {
    const int64_t seat = start.seat;
    const auto [at, is_new] = agents_.try_emplace(seat);
    Agent& agent = at->second;
    agent.episode = start.episode;
    agent.begun = steady_now();
    agent.start = std::move(start);
    if (!is_new && agent.process != nullptr) return give_task(agent);
    const std::string name = fmt::format("{}-{}", incarnation_, ++num_folders_);
    const fs::path folder = folder_ / name;
    std::error_code error;
    fs::create_directories(folder_, error);
    // What is there already is not its own, whoever has put it there.
    if (error || !fs::create_directory(folder, error))
      return end(agent, fmt::format("cannot make {}: {}", folder.string(),
                                    error ? error.message() : "it is there already"));
    agent.folder = folder;
    agent.mark_of_folder = fmt::format("{}{}/", mark_, name);
    if (!write_task(agent)) return;
    agent.phase = agent.program().setup.empty() ? AgentPhase::kRun : AgentPhase::kSetup;
    agent.num_played = 0;
    begin_phase(agent);
  }

  // To a process that waits for one.
  void give_task(Agent& agent) {
    // What was written there for an earlier task is not the reward of this one.
    if (!agent.program().is_isolated) {
      std::error_code error;
      fs::remove_all(reward_file(agent), error);
      if (error)
        return end(agent, fmt::format("cannot remove {}: {}", reward_file(agent).string(),
                                      error.message()));
    }
    if (!write_task(agent)) return;
    agent.is_idle = false;
    agent.out.clear();
    agent.to_write = agent.start.task + "\n";
    agent.written = 0;
    agent.deadline = steady_now() + agent.patience();
    write(agent);
  }

  bool write_task(Agent& agent) {
    auto file = AtomicFile::create(agent.folder / kTaskFile);
    Result<void> written =
        file ? file.value().write(agent.start.task) : Result<void>(file.failure());
    if (written) written = file.value().commit();
    if (!written) end(agent, written.failure().message);
    return written.ok();
  }

  void begin_phase(Agent& agent) {
    sandbox::CommandStart start{.words = agent.words(),
                                .is_isolated = agent.program().is_isolated,
                                .variables = {"OPENAI_BASE_URL=" + agent.start.base_url,
                                              "OPENAI_API_KEY=" + agent.start.api_key,
                                              fmt::format("TAILRACE_SEED={}", agent.start.seed)},
                                .digests = agent.program().digests};
    start.is_isolated ? put_into_sandbox(agent, start) : put_into_folder(agent, start);
    auto process = CommandProcess::start(start);
    if (!process) return end(agent, process.failure().message);
    agent.process = std::move(process).value();
    agent.families.push_back(agent.process->take_family());
    FileDescriptor listening = agent.process->take_listening();
    if (listening.is_open()) agent.port = SandboxPort(*server_, std::move(listening));
    agent.said = sandbox::StderrLines(sandbox::shown(start), logs_ ? &log_ : nullptr);
    agent.to_write = agent.start.task + "\n";
    agent.written = 0;
    agent.out.clear();
    agent.is_idle = false;
    agent.grace = {};
    agent.in_is_closed = agent.out_is_closed = agent.err_is_closed = false;
    agent.deadline = steady_now() + agent.patience();
  }

  static void put_into_folder(const Agent& agent, sandbox::CommandStart& start) {
    start.folder = agent.folder;
    for (std::string variable : {"TAILRACE_TASK=" + (agent.folder / kTaskFile).string(),
                                 "TAILRACE_REWARD_FILE=" + reward_file(agent).string(),
                                 std::string(kMarkVariable) + "=" + agent.phase_mark()})
      start.variables.push_back(std::move(variable));
  }

  // Its working directory is /tmp, of which nothing comes out, and where nothing can be put later:
  // a process that plays several episodes has their tasks on its stdin alone.
  void put_into_sandbox(const Agent& agent, sandbox::CommandStart& start) const {
    start.port = server_ == nullptr ? 0 : kSandboxPort;
    if (plays_several(agent)) return;
    start.files = {{kTaskFile, agent.start.task}};
    start.variables.push_back(fmt::format("TAILRACE_TASK=/tmp/{}", kTaskFile));
  }

  static fs::path reward_file(const Agent& agent) { return agent.folder / "reward.json"; }

  void wait() {
    std::vector<pollfd> files = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    Time until = steady_now() + kLongestWait;
    for (auto& [seat, agent] : agents_) {
      if (agent.process == nullptr) continue;
      const CommandProcess& process = *agent.process;
      if (agent.grace != Time{}) {
        until = std::min(until, steady_now() + kTick);
        continue;
      }
      files.push_back({.fd = process.pidfd(), .events = POLLIN, .revents = 0});
      if (!agent.out_is_closed)
        files.push_back({.fd = process.out(), .events = POLLIN, .revents = 0});
      if (!agent.err_is_closed)
        files.push_back({.fd = process.err(), .events = POLLIN, .revents = 0});
      if (wants_to_write(agent))
        files.push_back({.fd = process.in(), .events = POLLOUT, .revents = 0});
      if (!agent.is_idle) until = std::min(until, agent.deadline);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_now());
    (void)::poll(files.data(), files.size(), std::max<int>(0, static_cast<int>(left.count()) + 1));
    uint64_t ignored = 0;
    (void)!::read(wake_.get(), &ignored, sizeof ignored);
  }

  void look_at(Agent& agent) {
    if (agent.process == nullptr) return;  // it ended while nothing was asked of it
    write(agent);
    read(agent);
    if (agent.is_idle) {
      // A reward that nobody has asked for would be taken for that of the next episode.
      if (told(agent) || has_ended(agent)) retire(agent);
      return;
    }
    if (plays_several(agent)) {
      if (auto reward = told(agent)) return episode_ended(agent, std::move(*reward));
    }
    if (has_ended(agent)) {
      read(agent);  // its last words
      return phase_ended(agent);
    }
    if (steady_now() < agent.deadline) return;
    end(agent, fmt::format("its {} did not end within {:g} s{}", agent.phase_name(),
                           seconds_of(agent.patience()), last_words(agent)));
  }

  // Another process takes the next task.
  void retire(Agent& agent) { clear(agent); }

  static bool has_ended(const Agent& agent) {
    pollfd ended{.fd = agent.process->pidfd(), .events = POLLIN, .revents = 0};
    return ::poll(&ended, 1, 0) > 0;
  }

  static bool plays_several(const Agent& agent) {
    return agent.phase == AgentPhase::kRun && agent.program().episodes > 1;
  }
  static bool is_last(const Agent& agent) {
    return !plays_several(agent) || agent.num_played + 1 >= agent.program().episodes;
  }

  // The first of the lines that have come which is a reward.
  static std::optional<AgentReward> told(Agent& agent) {
    std::string& out = agent.out;
    for (size_t end; (end = out.find('\n')) != out.npos;) {
      const std::string line = out.substr(0, end);
      out.erase(0, end + 1);
      if (!line.starts_with('{')) continue;
      auto reward = parse_agent_reward(line);
      if (reward && reward.value().episode.value_or(agent.episode) == agent.episode)
        return std::move(reward).value();
    }
    return std::nullopt;
  }

  void episode_ended(Agent& agent, AgentReward reward) {
    if (is_last(agent)) return end(agent, "", std::move(reward));
    ++agent.num_played;
    agent.is_idle = true;
    const double seconds = seconds_of(steady_now() - agent.begun);
    MutexLock lock(mutex_);
    ended_.push_back({.seat = agent.start.seat,
                      .episode = agent.episode,
                      .waits = true,
                      .reward = std::move(reward),
                      .seconds = seconds});
  }

  static bool wants_to_write(const Agent& agent) {
    return !agent.is_idle && !agent.in_is_closed &&
           (agent.written < agent.to_write.size() || is_last(agent));
  }

  // One that does not read its task has no use for it.
  static void write(Agent& agent) {
    while (wants_to_write(agent)) {
      const std::string_view left = std::string_view(agent.to_write).substr(agent.written);
      const ssize_t done =
          left.empty() ? 0 : ::write(agent.process->in(), left.data(), left.size());
      if (done > 0) {
        agent.written += static_cast<size_t>(done);
      } else if (left.empty() || (errno != EAGAIN && errno != EINTR)) {
        agent.process->close_in();
        agent.in_is_closed = true;
      } else {
        return;
      }
    }
  }

  static bool read_some(int file, bool& is_closed, std::string& bytes) {
    if (is_closed) return false;
    std::array<char, 16384> buffer;
    const ssize_t got = ::read(file, buffer.data(), buffer.size());
    if (got > 0) {
      bytes.assign(buffer.data(), static_cast<size_t>(got));
      return true;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) is_closed = true;
    return false;
  }

  static void read(Agent& agent) {
    std::string bytes;
    // Not for ever: one that writes without end must not hold up the others.
    for (int i = 0; i < 64 && read_some(agent.process->out(), agent.out_is_closed, bytes); ++i) {
      agent.out += bytes;
      if (agent.out.size() > 2 * kMostOutputKept)
        agent.out.erase(0, agent.out.size() - kMostOutputKept);
    }
    for (int i = 0; i < 64 && read_some(agent.process->err(), agent.err_is_closed, bytes); ++i)
      agent.said.take(bytes, steady_now());
  }

  void phase_ended(Agent& agent) {
    if (!leaves_nothing(agent)) return;
    const std::string how = agent.process->ending();
    agent.said.end(steady_now());
    if (!how.ends_with("status 0"))
      return end(agent, fmt::format("its {} {}{}", agent.phase_name(), how, last_words(agent)));
    agent.process.reset();
    agent.grace = {};
    if (agent.phase == AgentPhase::kSetup) {
      agent.phase = AgentPhase::kRun;
      return begin_phase(agent);
    }
    if (agent.phase == AgentPhase::kRun && !agent.program().score.empty()) {
      agent.phase = AgentPhase::kScore;
      return begin_phase(agent);
    }
    take_reward(agent);
  }

  // What it has started may end with it, a little later. True: it is gone. Else it is looked at
  // again, until the episode fails.
  bool leaves_nothing(Agent& agent) {
    if (agent.program().is_isolated || agent.phase != AgentPhase::kRun) return true;
    std::vector<pid_t> found = marked_processes(agent.phase_mark());
    std::ranges::move(agent.families.back().living(), std::back_inserter(found));
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    const size_t left = found.size();
    if (left == 0) return true;
    const Time now = steady_now();
    if (agent.grace == Time{}) agent.grace = now + kGrace;
    if (now < agent.grace) return false;
    end(agent, fmt::format("it left {} process{} behind{}", left, left == 1 ? "" : "es",
                           last_words(agent)));
    return false;
  }

  void take_reward(Agent& agent) {
    std::error_code ignored;
    std::string said = agent.out;
    if (fs::exists(reward_file(agent), ignored)) {
      auto text = read_file(reward_file(agent), kMostRewardBytes);
      if (!text) return end(agent, text.failure().message);
      said = std::move(text).value();
    }
    // Somebody else may score it: then it needs none.
    const bool is_scored = !agent.program().verifier.empty();
    auto reward = parse_agent_reward(said);
    if (!reward && !is_scored) return end(agent, reward.failure().message + last_words(agent));
    std::optional<AgentReward> given;
    if (reward) given = std::move(reward).value();
    end(agent, "", std::move(given));
  }

  static std::string last_words(Agent& agent) {
    agent.said.end(steady_now());
    const std::string last = agent.said.last();
    return last.empty() ? "" : "; it says: " + last;
  }

  void end(Agent& agent, std::string failure, std::optional<AgentReward> reward = {}) {
    const double seconds = seconds_of(steady_now() - agent.begun);
    clear(agent);
    agent.phase = AgentPhase::kOver;
    MutexLock lock(mutex_);
    ended_.push_back({.seat = agent.start.seat,
                      .episode = agent.episode,
                      .failure = std::move(failure),
                      .reward = std::move(reward),
                      .seconds = seconds});
  }

  void clear(Agent& agent) {
    agent.port = {};
    agent.process.reset();
    int left = 0;
    for (sandbox::Offspring::Family& family : agent.families) left += family.end();
    agent.families.clear();
    if (left > 0)
      notes_.note("process", fmt::format("{} process{} of an agent could not be killed", left,
                                         left == 1 ? "" : "es"));
    if (agent.folder.empty()) return;
    if (!agent.program().is_isolated) end_marked_processes(agent.mark());
    remove(agent.folder);
    agent.folder.clear();
  }

  void remove(const fs::path& folder) {
    if (const auto removed = sandbox::remove_folder(folder); !removed)
      notes_.note("folder", removed.failure().message);
  }

  const fs::path folder_;
  const std::string mark_;  // of all of its processes
  http::Server* const server_;
  const bool logs_;
  const FileDescriptor wake_;
  // Of the names of its folders: those of an earlier process may still be there.
  const std::string incarnation_ = fmt::format("{:08x}", unique_number() & 0xffff'ffff);
  int64_t num_folders_ = 0;
  CountedLines notes_;
  sandbox::StderrLog log_;
  std::map<int64_t, Agent> agents_;  // of the thread

  Mutex mutex_;
  std::vector<AgentStart> starting_ TR_GUARDED_BY(mutex_);
  std::vector<int64_t> stopping_ TR_GUARDED_BY(mutex_);
  std::vector<AgentEnd> ended_ TR_GUARDED_BY(mutex_);
  bool is_closing_ TR_GUARDED_BY(mutex_) = false;
};

AgentProcesses::AgentProcesses(const fs::path& folder, http::Server* server, bool logs)
    : state_(std::make_shared<State>(folder, server, logs)),
      thread_([state = state_] { state->run(); }) {}

AgentProcesses::~AgentProcesses() {
  state_->close();
  thread_.join();
}

void AgentProcesses::start(AgentStart start) { state_->start(std::move(start)); }
void AgentProcesses::stop(int64_t seat) { state_->stop(seat); }
std::vector<AgentEnd> AgentProcesses::collect() { return state_->collect(); }
std::vector<std::string> AgentProcesses::take_notes(bool is_end) {
  return state_->take_notes(is_end);
}

}  // namespace tailrace
