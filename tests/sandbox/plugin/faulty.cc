// A library whose environment fails in the way that its setting says, at its third step; else it
// counts to five. Its reward may fail too. For the tests of those who have to live with them.
#include <csignal>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tailrace/env.h"
#include "tailrace/reward.h"

namespace {

// How often the processes of a test have called it before, which `file` says. Dice would now and
// then leave a fault out.
int64_t call_number(const std::string& file) {
  const int out = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const bool is_written = out >= 0 && ::write(out, ".", 1) == 1;
  const int64_t calls = is_written ? ::lseek(out, 0, SEEK_CUR) : 0;
  ::close(out);
  if (!is_written) throw std::runtime_error("cannot write " + file);
  return calls - 1;
}

class Faulty : public tailrace::Env {
 public:
  explicit Faulty(const tailrace::Settings& settings)
      : fault_(settings.text("fault")),
        file_(settings.text("file")),
        turns_(settings.integer("max_turns")) {
    if (fault_ == "sometimes" && file_.empty())
      throw std::invalid_argument("fault is sometimes, and there is no file");
    if (fault_ == "construct") throw std::invalid_argument("fault is construct");
  }

  tailrace::Info info() const override {
    tailrace::Info info;
    info.max_turns = turns_;
    info.stop_strings = {"\n"};
    info.vocabulary = {"\n", "at", "seed"};
    for (int digit = 0; digit < 10; ++digit) info.vocabulary.push_back(std::to_string(digit));
    info.max_action_tokens = 2;
    if (fault_ == "judged") info.reward = "length";
    info.needs_dataset = fault_ == "broken_row";
    return info;
  }
  tailrace::Observation reset(const tailrace::Task& task) override {
    if (fault_ == "broken") throw tailrace::TaskBroken("nobody can play it");
    at_ = 0;
    sevens_.clear();
    broken_ = fault_ == "broken_row" && task.row.find("broken") != std::string_view::npos;
    // Its words are few, and a row's are none of them.
    if (fault_ == "broken_row") return {"seed " + std::to_string(task.seed % 10) + " "};
    return {"seed " + std::to_string(task.seed % 10) + " " + std::string(task.row)};
  }
  tailrace::Step step(std::string_view action) override {
    if (fault_ == "pending" && !std::exchange(asked_, !asked_)) return tailrace::Step::pending();
    if (broken_) throw tailrace::TaskBroken("this row has no end");
    if (++at_ == 3) fail(fault_);
    if (fault_ == "sometimes") fail_sometimes();
    const double liked = action == "7\n" ? 0.25 : 0.125;
    if (action == "7\n") sevens_ += '7';
    if (at_ < turns_) return tailrace::Step::observe("at " + std::to_string(at_ % 10) + " ", liked);
    tailrace::Step end = tailrace::Step::terminated(1);
    end.evidence = "{\"turns\":" + std::to_string(at_) + ",\"sevens\":\"" + sevens_ + "\"}";
    return std::move(end).metric("success", 1);
  }
  std::string demonstrate(tailrace::Random& random) override { return sample_action(random); }
  std::string sample_action(tailrace::Random& random) override {
    return std::to_string(random.below(10)) + "\n";
  }
  tailrace::Step score() override {
    tailrace::Step step;
    if (fault_ == "no_verdict") throw tailrace::NotDecided("the judge is away");
    if (fault_ == "scored") step.reward = 10;
    return step;
  }

 private:
  // In one of a hundred steps, whatever the task: tried again it goes well.
  void fail_sometimes() {
    constexpr const char* kFaults[] = {"throw", "crash", "exit", "hang", "stdout", "fork"};
    const int64_t call = call_number(file_);
    if (call % 100 == 99) fail(kFaults[call / 100 % 6]);
  }
  // By the signal itself, also where a sanitizer would say something first.
  static void crash() {
    std::signal(SIGSEGV, SIG_DFL);
    std::raise(SIGSEGV);
  }
  void fail(const std::string& fault) {
    if (fault == "throw") throw std::runtime_error("a bad day");
    if (fault == "failed") throw tailrace::Failed("out of luck");
    if (fault == "crash") crash();
    if (fault == "exit") ::_exit(7);
    if (fault == "hang")
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (fault == "stdout") {
      std::printf("hello from the library\n");
      std::fflush(stdout);
    }
    if (fault == "signals") std::signal(SIGTERM, SIG_IGN);
    if (fault == "fork" && ::fork() == 0)
      while (true) ::pause();
    // Leaves its process group.
    if (fault == "daemon" && ::fork() == 0) {
      ::setsid();
      ::prctl(PR_SET_NAME, "tr-daemon");
      while (true) ::pause();
    }
    if (fault == "leak") leak();
    // In one of all processes: whoever makes the file.
    if (fault == "crash_once" && ::open(file_.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600) >= 0)
      std::raise(SIGSEGV);
  }
  // More than any limit allows, a MiB at a time.
  void leak() {
    for (int i = 0; i < 1 << 14; ++i) leaked_.push_back(std::string(1 << 20, 'x'));
  }

  std::vector<std::string> leaked_;
  const std::string fault_, file_;
  const int64_t turns_;
  std::string sevens_;  // that were said: what a reward can tell episodes by
  int64_t at_ = 0;
  bool asked_ = false;
  bool broken_ = false;
};

class Big : public Faulty {
 public:
  using Faulty::Faulty;
  tailrace::Step step(std::string_view) override {
    return tailrace::Step::observe(std::string(size_t{2} << 20, 'x'));
  }
};
class Nan : public Faulty {
 public:
  using Faulty::Faulty;
  tailrace::Step step(std::string_view) override {
    return tailrace::Step::terminated(std::numeric_limits<double>::quiet_NaN());
  }
};

class Length : public tailrace::Reward {
 public:
  explicit Length(const tailrace::Settings& settings) : calls_(settings.text("sometimes")) {}
  tailrace::Score score(std::string_view evidence, int64_t) override {
    if (evidence.empty()) throw tailrace::NotDecided("there is no evidence");
    if (!calls_.empty()) fail_sometimes();
    return {static_cast<double>(evidence.size()), {{"bytes", 1.0 * evidence.size()}}};
  }

 private:
  // In one of forty scores, whatever the evidence: tried again it goes well.
  void fail_sometimes() {
    const int64_t call = call_number(calls_);
    if (call % 40 != 39) return;
    const int64_t how = call / 40 % 3;
    if (how == 0) std::raise(SIGSEGV);
    if (how == 1) throw tailrace::NotDecided("the judge is away");
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  }

  const std::string calls_;
};

}  // namespace

TAILRACE_LIBRARY("faulty", "1.0") {
  const auto declare = [](auto& declared) {
    declared
        .choice(
            "fault", "what goes wrong", "none",
            {"none",    "throw",  "failed",     "crash",     "exit",       "hang",   "stdout",
             "signals", "fork",   "leak",       "sometimes", "construct",  "broken", "broken_row",
             "pending", "judged", "no_verdict", "scored",    "crash_once", "daemon"})
        .text("file", "where crash_once and sometimes say what has been", "")
        .integer("max_turns", "of an episode", 5, 1, 100);
  };
  declare(library.environment<Faulty>("faulty", "counts, or fails"));
  declare(library.environment<Big>("big", "says two megabytes"));
  declare(library.environment<Nan>("nan", "has a reward that is no number"));
  library.reward<Length>("length", "how long the evidence is")
      .text("sometimes",
            "crashes, hangs or has no verdict in one of forty scores, which this file counts", "");
}
