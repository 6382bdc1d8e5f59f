// One page an environment, tests/golden/environments/NAME.txt: what it says of itself, an episode
// by its demonstrator, one of nonsense, one that is cut. Read it to see what a policy sees.
#include "reward/verifiers/built_in.h"
#include "sandbox/builtin/built_in.h"
#include "tests/golden/golden.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

// For environments that need a dataset.
constexpr const char* kRow =
    R"({"prompt": "One day, Daisy went to the house.", "words": ["house"], "min_words": 3})";

std::string quoted(const std::string& text) { return fmt::format("{:?}", text); }

std::string metrics_text(const MetricList& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += fmt::format(" {}={:.6g}", name, value);
  return text;
}

std::string result_text(const StepResult& result, const VerifierRegistry& verifiers) {
  if (!result.terminated && !result.truncated)
    return fmt::format("reward {:g}\nobserve {}\n", result.reward, quoted(result.observation.text));
  std::string text =
      fmt::format("reward {:g}, {}{}\n", result.reward,
                  result.terminated ? "terminated" : "truncated", metrics_text(result.metrics));
  if (result.verifier.empty()) return text;
  text += fmt::format("evidence {}\n", result.evidence);
  const Score score = verifiers.at(result.verifier).score(result.evidence, kScoreBudget).value();
  return text + fmt::format("verifier {} gives {:g}{}\n", result.verifier, score.reward,
                            metrics_text(score.metrics));
}

std::string words_of(const std::vector<std::string>& vocabulary) {
  std::string words;
  for (const std::string& word : vocabulary) words += (word == "\n" ? "\\n" : word) + " ";
  words.pop_back();
  return words;
}

std::string page_of(const std::string& name, const std::string& help) {
  const VerifierRegistry verifiers = built_in_verifiers();
  auto environment = built_in_environments().make(name, least_settings(name));
  const EnvironmentInfo& info = environment->info();
  std::string page = fmt::format("{}: {}\n", name, help);
  page += fmt::format("at most {} turns of {} tokens\n", info.max_turns, info.max_action_tokens);
  if (!info.verifier.empty()) page += fmt::format("scored by {}\n", info.verifier);
  for (const std::string& stop : info.stop_strings)
    page += fmt::format("an action ends at {}\n", quoted(stop));
  if (!info.vocabulary.empty())
    page += fmt::format("{} words: {}\n", info.vocabulary.size(), words_of(info.vocabulary));

  const auto task = [&](int episode) {
    return Task{.seed = task_seed(0, /*held_out=*/true, episode),
                .data = info.needs_dataset ? kRow : ""};
  };
  Rng rng(5);
  const auto begin = [&](std::string_view title, int episode) {
    page += fmt::format("\n== {}\nobserve {}\n", title,
                        quoted(environment->reset(task(episode)).value().text));
  };
  const auto act = [&](const std::string& action) {
    const StepResult result = environment->step(action).value();
    page += fmt::format("act {}\n{}", quoted(action), result_text(result, verifiers));
    return !result.terminated && !result.truncated;
  };
  for (int episode = 0; episode < (info.needs_dataset ? 1 : 4); ++episode) {
    begin(info.needs_dataset ? "an answer" : "the demonstrator", episode);
    for (bool going = true; going;)
      going = act(environment->demonstrate(rng).value_or("The house was big and red."));
  }
  begin("nonsense", 0);
  while (act("%$ what\n")) {
  }
  begin("cut at once", 0);
  page += result_text(environment->cut().value(), verifiers);
  return page;
}

TEST(Playthrough, OfEachEnvironmentIsAsItWasRead) {
  const auto environments = built_in_environments().list();
  EXPECT_GE(environments.size(), 4u);
  for (const auto& [name, help, settings] : environments)
    expect_golden("environments/" + name + ".txt", page_of(name, help));
}

}  // namespace
}  // namespace tailrace::sandbox
