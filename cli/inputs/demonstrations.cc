#include "cli/inputs/demonstrations.h"

#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "reward/judge.h"
#include "reward/registry.h"

namespace tailrace {
namespace {

// Far beyond the prompts that a run reaches: its training episodes are others.
constexpr int64_t kFirstPrompt = int64_t{1} << 40;
constexpr uint64_t kStream = 0x64656d6f;  // "demo": its own random numbers

struct Row {
  std::vector<TokenId> tokens;
  // The loss mask: 1 for what the demonstrator has written.
  std::vector<uint8_t> counts;

  void append(const std::vector<TokenId>& more, bool count) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    counts.insert(counts.end(), more.size(), count ? 1 : 0);
  }
  bool fits(size_t more, int64_t max_tokens) const {
    return static_cast<int64_t>(tokens.size() + more) <= max_tokens;
  }
};

// As often as an episode of a run is; then a person is told.
constexpr int kAttempts = 3;

// An environment that fails: its episode begins anew.
struct Failed {
  std::string reason;
};

template <class T>
T checked(Result<T> result) {
  if (result) return std::move(result).value();
  throw Failed{result.failure().message};
}

sandbox::StepResult step(sandbox::Environment& environment, const std::string& action,
                         Time timeout) {
  const SteadyClock clock;
  const Time begin = clock.now();
  for (;;) {
    sandbox::StepResult result = checked(environment.step(action));
    if (!result.pending) return result;
    if (clock.now() - begin >= timeout) {
      throw UserError("sft.demonstrations: environment {} was still pending after {:g} s",
                      environment.info().name, seconds_of(timeout))
          .about("sft.demonstrations");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as often as episodes ask
  }
}

bool is_success(const sandbox::StepResult& result, const VerifierRegistry& verifiers, Time budget) {
  auto metrics = result.metrics;
  if (!result.verifier.empty()) {
    const Result<Score> score = judge(verifiers, result.verifier, result.evidence, budget);
    // A verifier that fails has shown no success; the episode is a row all the same.
    metrics = score ? score.value().metrics : MetricList();
  }
  for (const auto& [key, value] : metrics) {
    if (key == "success") return value > 0;
  }
  return false;
}

class Demonstrator {
 public:
  Demonstrator(sandbox::Environment& environment, const chat::PromptFormat& format,
               const VerifierRegistry& verifiers, const DemonstrationPlan& plan)
      : environment_(environment), format_(format), verifiers_(verifiers), plan_(plan) {}

  // The same episode once more where the environment failed. Throws UserError.
  Row play(const sandbox::Task& task, const Rng& rng, DemonstrationCounts& counts) {
    for (int attempt = 1;; ++attempt) {
      try {
        return play_once(task, rng, counts);
      } catch (const Failed& failed) {
        environment_.close();
        if (attempt == kAttempts)
          throw UserError("sft.demonstrations: environment {} failed: {}", environment_.info().name,
                          failed.reason)
              .about("sft.demonstrations");
      }
    }
  }

 private:
  Row play_once(const sandbox::Task& task, Rng rng, DemonstrationCounts& counts) {
    Row row;
    const sandbox::Observation first = checked(environment_.reset(task));
    row.append(checked(format_.first({first.text, first.messages, first.tools})), false);
    while (true) {
      const auto action = environment_.demonstrate(rng);
      if (!action) throw Failed{"it shows nothing: it has no demonstrator, or that fails"};
      std::vector<TokenId> tokens = format_.tokenizer().encode(*action);
      if (format_.end_of_turn() >= 0) tokens.push_back(format_.end_of_turn());
      // Whole turns only: half an action would teach an action that does not end.
      if (!row.fits(tokens.size(), plan_.max_tokens)) break;
      row.append(tokens, true);
      const sandbox::StepResult result = step(environment_, *action, plan_.step_timeout);
      if (result.terminated || result.truncated) {
        counts.successes += is_success(result, verifiers_, plan_.score_budget);
        break;
      }
      const auto seen = checked(format_.next(
          {result.observation.text, result.observation.messages, result.observation.tools},
          row.tokens.empty() ? -1 : row.tokens.back()));
      if (!row.fits(seen.size(), plan_.max_tokens)) break;
      row.append(seen, false);
    }
    environment_.close();
    counts.tokens += static_cast<int64_t>(row.tokens.size());
    return row;
  }

  sandbox::Environment& environment_;
  const chat::PromptFormat& format_;
  const VerifierRegistry& verifiers_;
  const DemonstrationPlan& plan_;
};

// The stream of the first dataset is what it was when there was one.
Rng demonstrator_rng(uint64_t run_seed, size_t dataset, int64_t episode) {
  const auto number = static_cast<uint64_t>(episode);
  if (dataset == 0) return Rng(mix({run_seed, kStream, number}));
  return Rng(mix({run_seed, kStream, number, dataset}));
}

}  // namespace

DemonstrationCounts write_demonstrations(const std::filesystem::path& file,
                                         std::span<const DemonstratedDataset> datasets,
                                         const chat::PromptFormat& format,
                                         const VerifierRegistry& verifiers,
                                         const DemonstrationPlan& plan) {
  DemonstrationCounts counts;
  // In memory and written at once: a launch that is killed here begins anew, with the same bytes.
  std::string text;
  for (size_t index = 0; index < datasets.size(); ++index) {
    const DemonstratedDataset& dataset = datasets[index];
    Demonstrator demonstrator(dataset.environment, format, verifiers, plan);
    for (int64_t i = 0; i < dataset.episodes; ++i) {
      sandbox::Task task{sandbox::task_seed(plan.run_seed, /*held_out=*/false, kFirstPrompt + i,
                                            static_cast<int32_t>(index)),
                         ""};
      // A dataset may be shorter than the demonstrations: its rows then come round again.
      if (!dataset.rows.empty())
        task.data = dataset.rows[static_cast<size_t>(i) % dataset.rows.size()].json;
      const Row row = demonstrator.play(task, demonstrator_rng(plan.run_seed, index, i), counts);
      // In the form of sft.data, as which the trainer reads it.
      text += fmt::format("{{\"input_ids\":[{}],\"loss_mask\":[{}]}}\n", fmt::join(row.tokens, ","),
                          fmt::join(row.counts, ","));
    }
  }
  if (auto written = write_file_atomic(file, text); !written) {
    throw UserError("{}", written.failure().message);
  }
  return counts;
}

}  // namespace tailrace
