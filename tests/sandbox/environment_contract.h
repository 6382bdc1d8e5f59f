// What every environment must do. Each environment's test calls check_environment(); so should a
// plugin's.
#pragma once

#include <cmath>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "core/text/tokenizer.h"
#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"
#include "sandbox/environment.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::sandbox {

inline std::unique_ptr<Environment> built_in(const std::string& name,
                                             const EnvironmentSettings& settings = {}) {
  return built_in_environments().make(name, settings);
}

// What a built-in environment cannot be made without.
inline EnvironmentSettings least_settings(const std::string& name) {
  return name == "text" ? EnvironmentSettings{{"verifier", "text_rules"}} : EnvironmentSettings{};
}

struct ContractOptions {
  std::function<std::unique_ptr<Environment>()> make;
  // Task::data.
  std::function<std::string(uint64_t seed)> data = [](uint64_t) { return std::string(); };
  uint64_t seed = 1;
  int episodes = 40;
  // Who scores, where the environment names a verifier; it gives a metric `success`.
  std::shared_ptr<const VerifierRegistry> verifiers =
      std::make_shared<const VerifierRegistry>(built_in_verifiers());
};

// One episode by `act`; what happened, as text, so that two episodes can be compared.
struct Episode {
  std::string transcript;
  std::vector<std::string> observations;  // all that the policy saw
  std::vector<std::string> actions;
  double reward = 0;
  bool ended = false;
  int64_t turns = 0;
  std::map<std::string, double> metrics;
  std::string verifier, evidence;
};

inline Episode play(Environment& environment, const Task& task,
                    const std::function<std::string(int64_t turn)>& act) {
  Episode episode;
  Result<Observation> first = environment.reset(task);
  EXPECT_TRUE(first.ok()) << first.failure().message;
  if (!first.ok()) return episode;
  episode.observations.push_back(first.value().text);
  episode.transcript = first.value().text;
  while (!episode.ended && episode.turns < environment.info().max_turns) {
    std::string action = act(episode.turns);
    Result<StepResult> step = environment.step(action);
    EXPECT_TRUE(step.ok()) << step.failure().message;
    if (!step.ok()) return episode;
    if (step.value().pending) continue;
    const StepResult& result = step.value();
    ++episode.turns;
    episode.actions.push_back(action);
    episode.reward += result.reward;
    episode.ended = result.terminated || result.truncated;
    episode.transcript +=
        fmt::format("[{}]{}({:a})", action, result.observation.text, result.reward);
    if (!episode.ended) episode.observations.push_back(result.observation.text);
    for (const auto& [name, value] : result.metrics) episode.metrics[name] = value;
    episode.verifier = result.verifier;
    episode.evidence = result.evidence;
    EXPECT_TRUE(std::isfinite(result.reward));
    EXPECT_FALSE(result.terminated && result.truncated);
  }
  EXPECT_TRUE(episode.ended) << "it did not end within max_turns:\n" << episode.transcript;
  return episode;
}

// 1 or 0, from the metrics or from the verifier that the episode names.
inline double success_of(const Episode& episode, const VerifierRegistry& verifiers) {
  if (episode.verifier.empty()) return episode.metrics.at("success");
  Result<Score> score = verifiers.at(episode.verifier).score(episode.evidence, kScoreBudget);
  EXPECT_TRUE(score.ok()) << score.failure().message;
  for (const auto& [name, value] : score.value().metrics) {
    if (name == "success") return value;
  }
  ADD_FAILURE() << "the verifier gives no metric `success`";
  return 0;
}

inline void check_environment(const ContractOptions& options) {
  auto environment = options.make();
  auto twin = options.make();
  const EnvironmentInfo& info = environment->info();
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.max_turns, 1);
  EXPECT_GE(info.max_action_tokens, 1);
  auto task_of = [&](int episode) {
    uint64_t seed = task_seed(options.seed, /*held_out=*/false, episode);
    return Task{.seed = seed, .data = options.data(seed)};
  };

  // A step before reset() and after the end is a Failure, not a crash and not a reward.
  EXPECT_FALSE(environment->step("anything\n").ok());

  // Determinism: the twin plays another episode in between, so that neither sees the other's state.
  std::vector<Episode> sampled;
  for (int i = 0; i < options.episodes; ++i) {
    Rng rng(mix({options.seed, static_cast<uint64_t>(i)}));
    Episode first =
        play(*environment, task_of(i), [&](int64_t) { return environment->sample_action(rng); });
    EXPECT_FALSE(environment->step(first.actions.back()).ok()) << "a step after the end";
    auto replay = [&](Environment& e) {
      return play(e, task_of(i), [&](int64_t turn) { return first.actions[turn]; });
    };
    EXPECT_EQ(replay(*twin).transcript, first.transcript);
    EXPECT_EQ(replay(*environment).transcript, first.transcript);
    EXPECT_EQ(replay(*environment).evidence, first.evidence);
    EXPECT_EQ(first.verifier, info.verifier);  // what a run checks before it starts
    sampled.push_back(first);
  }

  // Two instances interleaved do not disturb each other.
  {
    Episode alone = sampled[0];
    ASSERT_TRUE(environment->reset(task_of(0)).ok());
    ASSERT_TRUE(twin->reset(task_of(1)).ok());
    for (size_t turn = 0; turn < alone.actions.size(); ++turn) {
      Result<StepResult> step = environment->step(alone.actions[turn]);
      ASSERT_TRUE(step.ok());
      bool last = turn + 1 == alone.actions.size();
      if (!last) {
        EXPECT_EQ(step.value().observation.text, alone.observations[turn + 1]);
      }
      (void)twin->step("?\n");  // may have ended already
    }
  }

  // A player may cut the episode after any turn: it is truncated, names the verifier that the whole
  // episode names, and its evidence can be read.
  for (int i = 0; i < options.episodes; ++i) {
    const Episode& whole = sampled[i];
    for (size_t turns = 0; turns < whole.actions.size(); ++turns) {
      auto cut_after = [&](Environment& e) {
        EXPECT_TRUE(e.reset(task_of(i)).ok());
        for (size_t turn = 0; turn < turns; ++turn) EXPECT_TRUE(e.step(whole.actions[turn]).ok());
        return e.cut();
      };
      Result<StepResult> cut = cut_after(*environment);
      ASSERT_TRUE(cut.ok()) << cut.failure().message;
      EXPECT_TRUE(cut.value().truncated);
      EXPECT_FALSE(cut.value().terminated || cut.value().pending);
      EXPECT_TRUE(std::isfinite(cut.value().reward));
      EXPECT_EQ(cut.value().verifier, whole.verifier);
      EXPECT_EQ(cut_after(*twin).value().evidence, cut.value().evidence);
      if (cut.value().verifier.empty()) continue;
      Episode part;
      part.verifier = cut.value().verifier;
      part.evidence = cut.value().evidence;
      success_of(part, *options.verifiers);
    }
  }

  // Whatever a policy writes is data.
  std::vector<std::string> rubbish = {"",
                                      "\n",
                                      " \n",
                                      std::string("\0\0", 2),
                                      "\xFF\xFE\n",
                                      std::string(1 << 20, 'x'),
                                      std::string(1 << 16, '(') + "\n",
                                      "\n\n\n",
                                      "\xF0\x9F\x98\x80",
                                      "calc " + std::string(5000, '9') + "\n",
                                      "answer 99999999999999999999\n",
                                      "<answer></answer>",
                                      "<answer>(((</answer>"};
  for (const std::string& action : rubbish) {
    Episode episode = play(*environment, task_of(0), [&](int64_t) { return action; });
    // The evidence that is made from rubbish is sound too.
    if (!episode.verifier.empty()) success_of(episode, *options.verifiers);
  }

  // Every word that the policy sees, or is shown by the demonstrator, has a token, and comes back
  // the same.
  if (!info.vocabulary.empty()) {
    const TemporaryDirectory folder;
    const std::filesystem::path& dir = folder.path();
    text::write_word_tokenizer(dir, info.vocabulary);
    auto tokenizer = text::load_tokenizer(dir);
    auto check_text = [&](const std::string& text) {
      std::vector<TokenId> ids = tokenizer->encode(text);  // throws on an unknown word
      EXPECT_FALSE(ids.empty()) << "an empty observation: the policy would have nothing to read";
      EXPECT_EQ(tokenizer->encode(tokenizer->decode(ids)), ids) << text;
    };
    for (const Episode& episode : sampled) {
      for (const std::string& text : episode.observations) check_text(text);
    }
    for (int i = 0; i < options.episodes; ++i) {
      auto show = [&](Environment& e) {
        Rng rng(mix({options.seed, static_cast<uint64_t>(i), 1}));
        return play(e, task_of(i), [&](int64_t) {
          const auto shown = e.demonstrate(rng);
          return shown ? *shown : e.sample_action(rng);
        });
      };
      Episode shown = show(*environment);
      EXPECT_EQ(show(*environment).transcript, shown.transcript) << "the demonstrator remembers";
      for (const std::string& text : shown.observations) check_text(text);
      for (const std::string& text : shown.actions) {
        std::vector<TokenId> ids = tokenizer->encode(text);
        EXPECT_LE(static_cast<int64_t>(ids.size()), info.max_action_tokens) << text;
        EXPECT_EQ(tokenizer->decode(ids), text) << "the environment would read another action";
      }
    }
    Episode lost = play(*environment, task_of(0), [](int64_t) { return "?\n"; });
    for (const std::string& text : lost.observations) check_text(text);
  }
  environment->close();
  EXPECT_FALSE(environment->step("anything\n").ok());
}

// Share of demonstrations that succeed, over episodes of training seeds.
inline double demonstrated_success(Environment& environment, int episodes, uint64_t seed = 1) {
  const VerifierRegistry verifiers = built_in_verifiers();
  Rng rng(seed);
  double total = 0;
  for (int i = 0; i < episodes; ++i) {
    Task task{.seed = task_seed(seed, /*held_out=*/false, i), .data = {}};
    total += success_of(
        play(environment, task, [&](int64_t) { return *environment.demonstrate(rng); }), verifiers);
  }
  return total / episodes;
}

// Four standard errors of a share p of n episodes: fails by chance once in 16,000 runs of other
// seeds, and seeds are fixed.
inline double share_bound(double p, int n) { return 4 * std::sqrt(p * (1 - p) / n); }

}  // namespace tailrace::sandbox
