// Do preferences teach? A policy answers training prompts, the verifier says which answers are
// right, and rows of preferences are made of them: what the policy learns from these rows alone,
// and what it learns from a reward model that was trained on such rows.
//
// The task is the one of a single turn of `bench algorithms`: countdown with two numbers up to 9.
// All begins with one warm-up checkpoint. For each seed:
//
//   samples     answers of the policy to training prompts, at temperature 1
//   pairs       right and wrong answers to one prompt, for `sigmoid` (DPO), `ipo` and `simpo`; for
//               `kto` all answers with their verdict. As the token ids that were sampled
//   judged      the pairs for the reward model, as texts, and each right answer beside an answer to
//               another prompt, which the verifier calls wrong too. Without those the model knows
//               only what this policy says, and RL leads away from there
//   RL          GRPO on the verifier and on the reward model, of as many steps
//
// All are evaluated by the verifier on held-out prompts.
//
// Checks: every run ends well.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/report/interval.h"
#include "bench/report/program.h"
#include "bench/run/launched_run.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/random.h"
#include "core/text/tokenizer.h"
#include "core/trajectory/trace_rows.h"
#include "reward/verifiers/countdown.h"
#include "trainer/preference_rows.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = R"(run: {name: bench_preferences}
model:
  create: {hidden_size: 64, intermediate_size: 192, layers: 3, heads: 4, kv_heads: 2, max_positions: 256}
env: {name: countdown, settings: {min_numbers: 2, max_numbers: 2, max_number: 9, max_target: 81}}
rollout: {group_size: 8, max_context_tokens: 256, workers: 2, threads: 1, prompts_per_step: 32}
sft:
  epochs: 1
  demonstrations: 10000
  batch_tokens: 2048
  optim: {lr: 8.0e-3, betas: [0.9, 0.95], weight_decay: 0.01, warmup_updates: 20, schedule: linear, min_lr_ratio: 0.05}
train: {minibatches_per_step: 2, microbatch_tokens: 4096, threads: 1}
optim: {lr: 1.0e-3, betas: [0.9, 0.95], warmup_updates: 5, schedule: linear, min_lr_ratio: 0.1}
algo: {name: grpo}
checkpoint: {interval_steps: 1000000}
)";

// A training on rows alone: no environment.
constexpr const char* kRowsConfig = R"(run: {name: bench_preferences}
rollout: {max_context_tokens: 64}
train: {microbatch_tokens: 4096, threads: 2}
)";

// A preference loss with what it needs here. At its usual beta of 0.1 sigmoid lowers the chosen
// answers too, and success with them.
struct Loss {
  std::string name;
  bool paired = true;
  Keys keys = {};
};

const std::vector<Loss>& losses() {
  // `desirable_weight`: a third of the answers is right, and both kinds shall weigh alike
  // (2402.01306).
  static const std::vector<Loss> all = {
      {.name = "sigmoid", .keys = {"preference.beta=0.5"}},
      {.name = "kto",
       .paired = false,
       .keys = {"preference.beta=0.5", "preference.desirable_weight=3"}},
      {.name = "ipo", .keys = {"preference.beta=0.5"}},
      {.name = "simpo", .keys = {"preference.beta=2"}}};
  return all;
}

struct Options {
  std::string out = "runs/preferences";
  int seeds = 3, first = 0, steps = 60, sampling_steps = 48, episodes = 512;
  bool resume = false;
};

struct Sample {
  MemberId member;
  std::vector<TokenId> prompt, answer;
  bool right = false;
};

// Answers that came to their end, as the last steps of a run sampled them.
std::vector<Sample> read_samples(const fs::path& run) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run / "traces")) files.push_back(entry.path());
  std::ranges::sort(files);
  std::vector<Sample> samples;
  for (const fs::path& file : files) {
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      if (parse_trace_head(line)) continue;
      auto row = parse_trace_row(line);
      if (!row) throw UserError("{}: {}", file.string(), row.failure().message);
      if (row.value().outcome != Outcome::kFinished) continue;
      const TraceSegment& segment = row.value().segments.at(0);
      const auto first =
          std::ranges::find(segment.roles, TokenRole::kSampled) - segment.roles.begin();
      Sample sample{.member = row.value().lease.member,
                    .prompt = {segment.tokens.begin(), segment.tokens.begin() + first},
                    .answer = {segment.tokens.begin() + first, segment.tokens.end()},
                    .right = row.value().reward == 1};
      // A special token in the middle of an answer is no text.
      if (std::ranges::min(sample.answer) >= text::kFirstWord) samples.push_back(std::move(sample));
    }
  }
  return samples;
}

// Each right answer to a prompt beside a wrong one; of the kind that is rarer each several times.
std::vector<PreferenceRow> pairs_of(const std::vector<Sample>& samples) {
  std::vector<PreferenceRow> rows;
  for (size_t begin = 0, end = 0; begin < samples.size(); begin = end) {
    std::vector<const Sample*> right, wrong;
    while (end < samples.size() && same_group(samples[begin].member, samples[end].member)) {
      (samples[end].right ? right : wrong).push_back(&samples[end]);
      ++end;
    }
    if (right.empty() || wrong.empty()) continue;
    for (size_t i = 0; i < std::max(right.size(), wrong.size()); ++i)
      rows.push_back({.prompt = samples[begin].prompt,
                      .chosen = right[i % right.size()]->answer,
                      .rejected = wrong[i % wrong.size()]->answer});
  }
  return rows;
}

std::vector<PreferenceRow> verdicts_of(const std::vector<Sample>& samples) {
  std::vector<PreferenceRow> rows;
  for (const Sample& sample : samples)
    rows.push_back({.prompt = sample.prompt,
                    .chosen = sample.answer,
                    .rejected = {},
                    .desirable = sample.right});
  return rows;
}

void write_lines(const fs::path& file, const std::string& lines) {
  if (auto written = write_file_atomic(file, lines); !written)
    throw UserError("{}", written.failure().message);
}

void write_ids(const fs::path& file, const std::vector<PreferenceRow>& rows) {
  std::string lines;
  for (const PreferenceRow& row : rows) lines += format_preference_row(row);
  write_lines(file, lines);
}

// The verifier of the task on texts: "numbers 3 7 target 21 >" and an answer to it.
class Judge {
 public:
  bool is_right(const std::string& prompt, const std::string& answer) const {
    std::vector<int64_t> numbers(2);
    int64_t target = 0;
    require(std::sscanf(prompt.c_str(), " numbers %ld %ld target %ld", &numbers[0], &numbers[1],
                        &target) == 3,
            "'{}' is no prompt of countdown with two numbers", prompt);
    const nlohmann::json evidence = {
        {"numbers", numbers}, {"target", target}, {"response", answer}};
    const auto score = verifier_->score(json_text(evidence), kScoreBudget);
    require(static_cast<bool>(score), "the verifier cannot score '{}'", answer);
    return score.value().reward == 1;
  }

 private:
  std::unique_ptr<Verifier> verifier_ = make_countdown_verifier();
};

// Rows of texts, as the environment hears them. `mismatched`: each right answer also beside an
// answer to another prompt that is wrong here.
std::string text_lines(const std::vector<PreferenceRow>& rows, const text::Tokenizer& tokenizer,
                       bool mismatched, uint64_t seed) {
  const Judge judge;
  Rng rng(seed);
  std::string lines;
  const auto add = [&](const std::string& prompt, const std::string& chosen,
                       const std::string& rejected) {
    lines +=
        json_text(nlohmann::json{{"prompt", prompt}, {"chosen", chosen}, {"rejected", rejected}}) +
        "\n";
  };
  for (const PreferenceRow& row : rows) {
    const std::string prompt = tokenizer.decode(row.prompt), chosen = tokenizer.decode(row.chosen);
    add(prompt, chosen, tokenizer.decode(row.rejected));
    if (!mismatched) continue;
    const PreferenceRow& other = rows[static_cast<size_t>(rng.below(std::ssize(rows)))];
    const std::string answer = tokenizer.decode(rng.below(2) == 0 ? other.chosen : other.rejected);
    if (!judge.is_right(prompt, answer)) add(prompt, chosen, answer);
  }
  return lines;
}

// The runs of one seed, all from one checkpoint.
class SeedRuns {
 public:
  SeedRuns(const Options& options, std::string config, std::string rows_config, fs::path weights,
           int seed)
      : options_(options),
        config_(std::move(config)),
        rows_config_(std::move(rows_config)),
        weights_(std::move(weights)),
        seed_(seed),
        pairs_(path("pairs.jsonl")),
        verdicts_(path("verdicts.jsonl")),
        judged_(path("judged.jsonl")),
        held_out_(path("judged_held_out.jsonl")) {}

  // Before all others. Returns how many pairs the policies learn from.
  int64_t make_rows() const {
    const std::vector<Sample> samples = sample();
    const std::vector<PreferenceRow> pairs = pairs_of(samples);
    write_ids(pairs_, pairs);
    write_ids(verdicts_, verdicts_of(samples));
    const auto tokenizer = text::load_tokenizer(weights_);
    // The last tenth is held out.
    const auto kept = pairs.begin() + std::ssize(pairs) * 9 / 10;
    const auto texts = [&](auto begin, auto end, bool mismatched) {
      return text_lines({begin, end}, *tokenizer, mismatched, static_cast<uint64_t>(seed_));
    };
    write_lines(judged_, texts(pairs.begin(), kept, true));
    write_lines(held_out_, texts(kept, pairs.end(), false));
    return std::ssize(pairs);
  }

  double start() const { return evaluate("start", weights_); }

  double learn(const Loss& loss) const {
    const fs::path run = train_rows(
        loss.name,
        joined({fmt::format("preference.data={}", (loss.paired ? pairs_ : verdicts_).string()),
                "preference.loss=" + loss.name, "preference.optim.lr=1e-3",
                "preference.optim.schedule=linear", "preference.optim.min_lr_ratio=0.1",
                "preference.optim.warmup_updates=5"},
               loss.keys));
    return evaluate(loss.name, run / "checkpoints" / "step_000000");
  }

  // Share of held-out pairs that it ranks as the verifier does.
  double train_reward_model() const {
    const fs::path run =
        train_rows("reward_model",
                   {fmt::format("reward_model.data={}", judged_.string()),
                    fmt::format("reward_model.eval_data={}", held_out_.string()),
                    "reward_model.epochs=3", "reward_model.batch_rows=64",
                    "reward_model.optim.lr=2e-3", "reward_model.optim.betas=[0.9,0.95]",
                    "reward_model.optim.weight_decay=0.1", "reward_model.optim.schedule=linear",
                    "reward_model.optim.min_lr_ratio=0.1", "reward_model.optim.warmup_updates=20"});
    std::optional<double> accuracy;
    for (const MetricsRow& row : metrics_of(run))
      if (const double* value = row.find("reward_model/eval_accuracy")) accuracy = *value;
    require(accuracy.has_value(), "{}: the reward model was not evaluated", run.string());
    return *accuracy;
  }

  double reinforce_by_verifier() const { return reinforce("rl-verifier", {}); }
  double reinforce_by_model() const {
    return reinforce("rl-reward_model",
                     {fmt::format("reward.model={}", path("reward_model/reward_model").string())});
  }

 private:
  const Options& options_;
  const std::string config_, rows_config_;
  const fs::path weights_;
  const int seed_;
  const fs::path pairs_, verdicts_, judged_, held_out_;

  fs::path path(const std::string& name) const {
    return fs::absolute(fs::path(options_.out) / fmt::format("seed-{}", seed_) / name);
  }

  void launch(const std::string& name, const std::string& config, const Keys& keys) const {
    (options_.resume ? continue_run : launch_run)(fmt::format("{}-{}", name, seed_), config,
                                                  path(name), keys);
  }

  fs::path last_checkpoint(const std::string& name) const {
    return path(name) / "checkpoints" / fmt::format("step_{:06}", options_.steps);
  }

  // Steps that leave the weights as they are.
  std::vector<Sample> sample() const {
    launch("samples", config_,
           from_weights({fmt::format("run.steps={}", options_.sampling_steps),
                         fmt::format("train.trace_steps={}", options_.sampling_steps),
                         "rollout.prompts_per_step=64", "optim.lr=0", "eval.prompts=0",
                         fmt::format("run.seed={}", seed_)},
                        weights_));
    return read_samples(path("samples"));
  }

  fs::path train_rows(const std::string& name, const Keys& keys) const {
    launch(name, rows_config_,
           joined(keys, {fmt::format("model.path={}", weights_.string()),
                         fmt::format("run.seed={}", seed_)}));
    return path(name);
  }

  double reinforce(const std::string& name, const Keys& reward) const {
    launch(name, config_,
           from_weights(joined({fmt::format("run.steps={}", options_.steps), "eval.prompts=0",
                                fmt::format("run.seed={}", seed_)},
                               reward),
                        weights_));
    return evaluate(name, last_checkpoint(name));
  }

  // Success by the verifier, on prompts that are the same for all of a seed.
  double evaluate(const std::string& name, const fs::path& model) const {
    const std::string line =
        last_line_of({"eval", "--model", model.string(), "--env", "countdown", "--settings",
                      "min_numbers=2", "max_numbers=2", "max_number=9", "max_target=81",
                      "--episodes", fmt::format("{}", options_.episodes), "--max-context-tokens",
                      "256", "--seed", fmt::format("{}", seed_), "--json"},
                     path(name + ".eval.log"));
    return parse_json(line).at("success").at("mean").get<double>();
  }
};

using Values = std::vector<double>;

// Final success beside that of the start, in pairs of one seed.
void report_learned(Report& report, const std::string& name, const Values& starts,
                    const Values& finals) {
  report.add(name, "start", "share", starts);
  report.add(name, "final", "share", finals);
  if (finals.size() < 2) return;
  const Interval gain = paired_interval(finals, starts);
  report.add(
      Row{.name = name,
          .metric = "gain (95 %)",
          .unit = "share",
          .value = {.median = gain.mean, .min = gain.low, .max = gain.high, .runs = gain.runs},
          .limit = {}});
  report.note(gain.low > 0 ? "beats the start" : "does not beat the start");
}

void measure(const Options& options, const Program& program) {
  const std::string config = write_config(options.out, "config.yaml", kConfig),
                    rows_config = write_config(options.out, "rows.yaml", kRowsConfig);
  Report report = program.report({{"steps", int64_t{options.steps}},
                                  {"sampling_steps", int64_t{options.sampling_steps}},
                                  {"episodes", int64_t{options.episodes}},
                                  {"seeds", int64_t{options.seeds}},
                                  {"first_seed", int64_t{options.first}}});
  const fs::path directory = fs::path(options.out) / "warm_up";
  const fs::path weights =
      options.resume && fs::exists(directory)
          ? fs::absolute(directory) / "checkpoints" / "step_000000"
          : warm_up("warm_up", config, directory, {fmt::format("run.seed={}", options.first)});
  Values starts, pairs, accuracy, by_verifier, by_model, ratios;
  std::map<std::string, Values> learned;
  for (int seed = options.first; seed < options.first + options.seeds; ++seed) {
    fs::create_directories(fs::path(options.out) / fmt::format("seed-{}", seed));
    const SeedRuns runs(options, config, rows_config, weights, seed);
    pairs.push_back(static_cast<double>(runs.make_rows()));
    starts.push_back(runs.start());
    for (const Loss& loss : losses()) learned[loss.name].push_back(runs.learn(loss));
    by_verifier.push_back(runs.reinforce_by_verifier());
    accuracy.push_back(runs.train_reward_model());
    by_model.push_back(runs.reinforce_by_model());
    ratios.push_back(by_model.back() / std::max(by_verifier.back(), 1e-9));
  }
  report.add("rows", "pairs", "pairs", pairs);
  for (const Loss& loss : losses())
    report_learned(report, "preference, " + loss.name, starts, learned.at(loss.name));
  report_learned(report, "grpo, verifier", starts, by_verifier);
  report.add("reward model", "held-out accuracy", "share", accuracy);
  report_learned(report, "grpo, reward model", starts, by_model);
  report.add("grpo, reward model", "final over the verifier's", "ratio", ratios);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("preferences", TAILRACE_MEASURES, "preferences --seeds 1");
  program.fix_threads(0);  // processes of their own
  Command& flags = program.flags();
  flags.option("--steps", options.steps, {.help = "of each run of RL", .min = 1, .max = 999'999});
  flags.option("--sampling-steps", options.sampling_steps,
               {.help = "steps of 64 prompts, 8 answers each, that rows are made of",
                .min = 1,
                .max = 10'000});
  flags.option("--episodes", options.episodes,
               {.help = "held-out prompts of an evaluation", .min = 1, .max = 1'000'000});
  flags.option("--seeds", options.seeds,
               {.help = "how many, from --first on", .min = 1, .max = 10000});
  flags.option("--first", options.first, {.help = "first seed", .max = 1'000'000});
  flags.option("--resume", options.resume, {.help = "go on with the runs that are in --out"});
  flags.option("--out", options.out, {.help = "where the run directories go"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
