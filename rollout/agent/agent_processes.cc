#include "rollout/agent/agent_processes.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/base/clock.h"
#include "core/base/counted_lines.h"
#include "core/base/file.h"
#include "core/base/unique_number.h"
#include "kernels/base/mutex.h"
#include "rollout/agent/marked_processes.h"
#include "rollout/agent/sandbox_port.h"
#include "sandbox/process/remove_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using sandbox::AgentProgram;

constexpr size_t kMostLineBytes = size_t{64} << 10;  // of a longer one its end is kept
constexpr const char* kTaskFile = "task.json";
constexpr int64_t kMostRewardBytes = 64 << 10;
// Helpers of an agent may need so long to end after it.
constexpr Time kGrace = 200ms;

}  // namespace

enum class AgentPhase : uint8_t { kSetup, kRun, kScore, kOver };

struct AgentProcesses::State final : sandbox::ProgramLoop {
  struct Agent final : sandbox::Conversation {
    explicit Agent(State& its_state) : state(its_state) {}

    std::optional<std::string> hear(const std::string& line, std::string_view) override {
      state.hear(*this, line);
      return std::nullopt;
    }
    std::string late() override {
      return fmt::format("its {} did not end within {:g} s", phase_name(), seconds_of(patience()));
    }
    bool may_end() override { return state.may_go_on(*this); }
    void lost(const sandbox::ProgramLoss& loss) override { state.phase_ended(*this, loss); }

    State& state;
    AgentStart start = {};
    AgentPhase phase = AgentPhase::kSetup;
    fs::path folder = {};
    std::string mark = {};  // of the folder
    std::unique_ptr<sandbox::ChildProgram> process = nullptr;
    // Process families started so far: processes of a setup may live until the end.
    std::vector<sandbox::Offspring::Family> families = {};
    SandboxPort port = {};
    std::string last_line = {};  // of stdout, of one that plays one episode
    Time begun{};
    Time grace{};           // until then what was started may end with it; 0: it has not ended
    std::string left = {};  // what has not ended by then, as a failure
    int64_t num_played = 0;
    bool is_idle = false;  // waits for a task

    const char* phase_name() const {
      constexpr std::array<const char*, 4> kNames = {"setup", "run", "score", ""};
      return kNames[static_cast<size_t>(phase)];
    }
    const AgentProgram& program() const { return *start.program; }
    // The mark of this phase alone: processes of a setup may live on during the run.
    std::string phase_mark() const { return mark + phase_name(); }
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
      : ProgramLoop("agents", logs ? std::make_shared<sandbox::ToldTracebacks>() : nullptr),
        // A program finds these names in its environment, and works elsewhere.
        folder_(fs::absolute(its_folder).lexically_normal()),
        mark_(mark_of(folder_)),
        server_(server) {
    post([this](bool) {
      end_marked_processes(mark_);
      remove(folder_);
    });
  }

  // --- Any thread.

  void post_begin(AgentStart start) {
    post([this, start = std::move(start)](bool goes_on) mutable {
      if (goes_on) begin(std::move(start));
    });
  }
  void stop(int64_t seat) {
    {
      MutexLock lock(mutex_);
      std::erase_if(ended_, [&](const AgentEnd& end) { return end.seat == seat; });
    }
    post([this, seat](bool goes_on) {
      const auto at = agents_.find(seat);
      if (!goes_on || at == agents_.end()) return;
      clear(at->second);
      agents_.erase(at);
    });
  }
  std::vector<AgentEnd> collect() {
    MutexLock lock(mutex_);
    return std::exchange(ended_, {});
  }
  std::vector<std::string> take_notes(bool is_end) {
    return is_end ? notes_.take_totals() : notes_.take();
  }

 private:
  // --- The thread of the agents.

  Time turn(Time) override {
    std::erase_if(agents_,
                  [](const auto& entry) { return entry.second.phase == AgentPhase::kOver; });
    return Time::max();
  }

  void end() override {
    for (auto& [id, agent] : agents_) clear(agent);
    agents_.clear();
    remove(folder_);
  }

  void begin(AgentStart start) {
    const int64_t seat = start.seat;
    const auto [at, is_new] = agents_.try_emplace(seat, *this);
    Agent& agent = at->second;
    agent.begun = steady_now();
    agent.start = std::move(start);
    if (!is_new && agent.process != nullptr) return give_task(agent);
    const std::string name = fmt::format("{}-{}", incarnation_, ++num_folders_);
    const fs::path folder = folder_ / name;
    std::error_code error;
    fs::create_directories(folder_, error);
    // A folder that exists already is not the agent's own, whoever has made it.
    if (error || !fs::create_directory(folder, error))
      return end(agent, fmt::format("cannot make {}: {}", folder.string(),
                                    error ? error.message() : "it is there already"));
    agent.folder = folder;
    agent.mark = fmt::format("{}{}/", mark_, name);
    if (!write_task(agent)) return;
    agent.phase = agent.program().setup.empty() ? AgentPhase::kRun : AgentPhase::kSetup;
    agent.num_played = 0;
    begin_phase(agent);
  }

  // To a process that waits for one.
  void give_task(Agent& agent) {
    // A reward file written for an earlier task is not the reward of this one.
    if (!agent.program().is_isolated) {
      std::error_code error;
      fs::remove_all(reward_file(agent), error);
      if (error)
        return end(agent, fmt::format("cannot remove {}: {}", reward_file(agent).string(),
                                      error.message()));
    }
    if (!write_task(agent)) return;
    agent.process->forget_rest();
    say_task(agent);
  }

  void say_task(Agent& agent) {
    agent.is_idle = false;
    agent.process->set_deadline(steady_now() + agent.patience());
    agent.process->write(agent.start.task + "\n");
    if (is_last(agent)) agent.process->close_in();
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
    sandbox::CommandStart command{.words = agent.words(),
                                  .is_isolated = agent.program().is_isolated,
                                  .variables = {"OPENAI_BASE_URL=" + agent.start.base_url,
                                                "OPENAI_API_KEY=" + agent.start.api_key,
                                                fmt::format("TAILRACE_SEED={}", agent.start.seed)},
                                  .digests = agent.program().digests};
    command.is_isolated ? put_into_sandbox(agent, command) : put_into_folder(agent, command);
    auto process =
        start(command, agent,
              {.most_line_bytes = kMostLineBytes, .keeps_end = true, .may_close_stdout = true});
    if (!process) return end(agent, process.failure().message);
    agent.process = std::move(process).value();
    agent.families.push_back(agent.process->take_family());
    FileDescriptor listening = agent.process->take_listening();
    if (listening.is_open()) agent.port = SandboxPort(*server_, std::move(listening));
    agent.last_line.clear();
    agent.grace = {};
    say_task(agent);
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

  static bool plays_several(const Agent& agent) {
    return agent.phase == AgentPhase::kRun && agent.program().episodes > 1;
  }
  static bool is_last(const Agent& agent) {
    return !plays_several(agent) || agent.num_played + 1 >= agent.program().episodes;
  }

  void hear(Agent& agent, const std::string& line) {
    if (!plays_several(agent)) {
      agent.last_line = line;
      return;
    }
    if (!line.starts_with('{')) return;
    auto reward = parse_agent_reward(line);
    const int64_t episode = agent.start.episode;
    if (!reward || reward.value().episode.value_or(episode) != episode) return;
    // A reward that nobody has asked for would be taken for that of the next episode: another
    // process takes the next task.
    if (agent.is_idle) return clear(agent);
    episode_ended(agent, std::move(reward).value());
  }

  void episode_ended(Agent& agent, AgentReward reward) {
    if (is_last(agent)) return end(agent, "", std::move(reward));
    ++agent.num_played;
    agent.is_idle = true;
    agent.process->set_deadline(Time::max());
    const double seconds = seconds_of(steady_now() - agent.begun);
    MutexLock lock(mutex_);
    ended_.push_back({.seat = agent.start.seat,
                      .episode = agent.start.episode,
                      .waits = true,
                      .reward = std::move(reward),
                      .seconds = seconds});
  }

  void phase_ended(Agent& agent, const sandbox::ProgramLoss& loss) {
    if (agent.is_idle) return clear(agent);
    if (!loss.has_ended) return end(agent, loss.why + last_words(loss));
    if (!loss.is_good_end)
      return end(agent, fmt::format("its {} {}{}", agent.phase_name(), loss.why, last_words(loss)));
    // Its last words are not about that.
    if (!agent.left.empty()) return end(agent, std::move(agent.left));
    agent.process.reset();
    if (agent.phase == AgentPhase::kSetup) {
      agent.phase = AgentPhase::kRun;
      return begin_phase(agent);
    }
    if (agent.phase == AgentPhase::kRun && !agent.program().score.empty()) {
      agent.phase = AgentPhase::kScore;
      return begin_phase(agent);
    }
    if (loss.rest.find_first_not_of(" \t\r") != loss.rest.npos) agent.last_line = loss.rest;
    take_reward(agent, last_words(loss));
  }

  // Processes that the agent has started may end with it, a little later. True: all are gone, or
  // have had time for that. Else they are looked at again.
  bool may_go_on(Agent& agent) {
    if (agent.is_idle || agent.program().is_isolated || agent.phase != AgentPhase::kRun)
      return true;
    std::vector<pid_t> found = marked_processes(agent.phase_mark());
    std::ranges::move(agent.families.back().living(), std::back_inserter(found));
    std::ranges::sort(found);
    found.erase(std::ranges::unique(found).begin(), found.end());
    if (found.empty()) return true;
    const Time now = steady_now();
    if (agent.grace == Time{}) agent.grace = now + kGrace;
    if (now < agent.grace) return false;
    agent.left = fmt::format(
        "it left {} behind{} '{}' (pid {}). Have it end what it starts, or start that in "
        "env.agent.setup",
        found.size() == 1 ? "1 process" : fmt::format("{} processes", found.size()),
        found.size() == 1 ? ":" : ", one of them", command_line_of(found.front()), found.front());
    return true;
  }

  void take_reward(Agent& agent, const std::string& words) {
    std::error_code ignored;
    std::string said = agent.last_line;
    if (fs::exists(reward_file(agent), ignored)) {
      auto text = read_file(reward_file(agent), kMostRewardBytes);
      if (!text) return end(agent, text.failure().message);
      said = std::move(text).value();
    }
    // Somebody else may score it: then it needs none.
    const bool is_scored = !agent.program().verifier.empty();
    auto reward = parse_agent_reward(said);
    if (!reward && !is_scored) return end(agent, reward.failure().message + words);
    std::optional<AgentReward> given;
    if (reward) given = std::move(reward).value();
    end(agent, "", std::move(given));
  }

  static std::string last_words(const sandbox::ProgramLoss& loss) {
    return loss.last.empty() ? "" : "; it says: " + loss.last;
  }

  void end(Agent& agent, std::string failure, std::optional<AgentReward> reward = {}) {
    const double seconds = seconds_of(steady_now() - agent.begun);
    clear(agent);
    agent.phase = AgentPhase::kOver;
    MutexLock lock(mutex_);
    ended_.push_back({.seat = agent.start.seat,
                      .episode = agent.start.episode,
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
    if (!agent.program().is_isolated) end_marked_processes(agent.mark);
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
  // Part of the names of its folders: folders of an earlier process may still be there.
  const std::string incarnation_ = fmt::format("{:08x}", unique_number() & 0xffff'ffff);
  int64_t num_folders_ = 0;
  CountedLines notes_;
  std::map<int64_t, Agent> agents_;  // of the thread

  Mutex mutex_;
  std::vector<AgentEnd> ended_ TR_GUARDED_BY(mutex_);
};

AgentProcesses::AgentProcesses(const fs::path& folder, http::Server* server, bool logs)
    : state_(std::make_shared<State>(folder, server, logs)), thread_(state_) {}

AgentProcesses::~AgentProcesses() = default;

void AgentProcesses::start(AgentStart start) { state_->post_begin(std::move(start)); }
void AgentProcesses::stop(int64_t seat) { state_->stop(seat); }
std::vector<AgentEnd> AgentProcesses::collect() { return state_->collect(); }
std::vector<std::string> AgentProcesses::take_notes(bool is_end) {
  return state_->take_notes(is_end);
}

}  // namespace tailrace
