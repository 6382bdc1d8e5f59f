// On-policy distillation: a policy from random weights learns from a frozen teacher beside it, and
// from no reward.
#include "tests/cli/commands/launch_fixture.h"

namespace tailrace {
namespace {

constexpr int kTaughtSteps = 40;

class LaunchDistill : public LaunchTest {
 protected:
  // The teacher knows the demonstrations of the environment.
  fs::path teach() {
    start_run("teacher", {"run.steps=1", "checkpoint.interval_steps=1", "eval.prompts=0"});
    expect_done();
    return paths("teacher").checkpoints() / "step_000001";
  }
  // `place`: "model: DIR" or "url: ...".
  void write_student(const std::string& place) {
    std::ofstream(folder_ / "tiny.yaml") << fmt::format(
        R"(run: {{name: student, seed: 5, steps: {}}}
model:
  create: {{hidden_size: 32, intermediate_size: 64, layers: 1, heads: 2, kv_heads: 1, max_positions: 128}}
policies: [{{name: teacher, {}}}]
env: {{name: frozen_grid, settings: {{max_turns: 8}}}}
rollout: {{prompts_per_step: 8, group_size: 2, max_turns: 8, max_context_tokens: 128, workers: 2}}
optim: {{lr: 0.01}}
algo: {{distill: {{policy: teacher, rewards: false}}}}
train: {{microbatch_tokens: 1024, threads: 1}}
checkpoint: {{interval_steps: 5}}
)",
        kTaughtSteps, place);
  }
  std::vector<double> distances(const std::string& run) const {
    const auto rows = read_metrics(paths(run).metrics());
    EXPECT_TRUE(rows);
    std::vector<double> found;
    for (const MetricsRow& row : rows.value())
      if (const double* kl = row.find("distillation/teacher_kl")) found.push_back(*kl);
    return found;
  }
};

TEST_F(LaunchDistill, AStudentComesToItsTeacherAndAKilledWorkerCostsNoBit) {
  write_student("model: " + teach().string());
  start_run("other");
  expect_done();
  const std::vector<double> kl = distances("other");
  ASSERT_EQ(kl.size(), static_cast<size_t>(kTaughtSteps));
  EXPECT_GT(kl.front(), 0.5);
  EXPECT_LT(kl.back(), kl.front() / 2);
  start_run("run");
  ASSERT_TRUE(wait_until([&] {
    const auto sampling = workers("rollout", 1);
    return has_step(5) && !sampling.empty() && ::kill(sampling[0], SIGKILL) == 0;
  })) << output();
  expect_done();
  EXPECT_EQ(final_digest("run", kTaughtSteps), final_digest("other", kTaughtSteps));
  // Another teacher would teach something else from here on.
  std::fstream weights(paths("teacher").checkpoints() / "step_000001" / "model.safetensors",
                       std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-1, std::ios::end).put('\x3f');
  weights.close();
  start(command({"--run-dir", paths().root.string(), "run.steps=60"}));
  finish();
  EXPECT_NE(output().find("has changed since the run began"), std::string::npos) << output();
}

// The divergence over the teacher's likeliest tokens.
TEST_F(LaunchDistill, ADivergenceIsLearnedByAnyNumberOfRanks) {
  write_student("model: " + teach().string());
  const std::vector<std::string> jsd = {"algo.distill.loss=jsd", "algo.distill.top_k=4",
                                        "train.gradient_slots=2"};
  start_run("other", jsd);
  expect_done();
  const std::vector<double> kl = distances("other");
  ASSERT_EQ(kl.size(), static_cast<size_t>(kTaughtSteps));
  EXPECT_LT(kl.back(), kl.front() / 2);
  start_run("run", {jsd[0], jsd[1], jsd[2], "train.ranks=2"});
  expect_done();
  EXPECT_EQ(final_digest("run", kTaughtSteps), final_digest("other", kTaughtSteps));
  for (const auto& [key, told] :
       {std::pair{"algo.distill.rewards=true", "learns from the teacher alone"},
        {"algo.distill.support=student", "keeps no likeliest tokens"},
        {"algo.kl.coef=0.1", "has no advantages"},
        {"algo.distill.top_k=40000000", "algo.distill.top_k"},
        {"algo.sampling_mask=keep", "scores the whole distribution"},
        {"scheduler.replace_zero_signal=true", "no group is without a signal"}}) {
    start_run("third", {jsd[0], key});
    expect_refused(told);
  }
}

// A teacher in a process of its own gives the same bits, also when it is killed and comes back.
TEST_F(LaunchDistill, AServerOfTheTeacherIsAskedAndItsLossIsWaitedFor) {
  const fs::path teacher = teach();
  write_student("model: " + teacher.string());
  const std::vector<std::string> jsd = {"algo.distill.loss=jsd", "algo.distill.top_k=4",
                                        "run.steps=12"};
  start_run("other", jsd);
  expect_done();
  const auto serve = [&](const std::string& port) {
    auto child = ChildProcess::spawn({TAILRACE_BINARY, "serve", "--model", teacher.string(),
                                      "--port", port, "--kv-cache-mb", "8"},
                                     folder_ / "serve.txt");
    EXPECT_TRUE(child) << child.failure().message;
    EXPECT_TRUE(wait_until([&] {
      const auto said = read_file(folder_ / "serve.txt");
      return said && said.value().find("http://") != std::string::npos;
    }));
    return std::move(child).value();
  };
  std::optional<ChildProcess> server(serve("0"));
  const std::string said = read_file(folder_ / "serve.txt").value();
  std::string url = said.substr(said.find("http://"));
  url = url.substr(0, url.find_first_of(" \n"));
  write_student("url: \"" + url + "\"");
  start_run("run", jsd);
  ASSERT_TRUE(wait_until([&] { return has_step(4); })) << output();
  server->send_signal(SIGKILL);
  server.reset();
  const std::string port = url.substr(url.rfind(':') + 1, url.rfind('/') - url.rfind(':') - 1);
  fs::remove(folder_ / "serve.txt");
  server.emplace(serve(port));
  expect_done();
  EXPECT_EQ(final_digest("run", 12), final_digest("other", 12));
  server->send_signal(SIGTERM);
  server.reset();
  start_run("third", jsd);
  expect_refused("policies.teacher.url is " + url);
  start_run("third", {"policies.teacher.url=ftp://x"});
  expect_refused("is no address of a server");
  start_run("third", {"rollout.sampling.temperature=0.5"});
  expect_refused("such servers score at a temperature of 1");
}

TEST_F(LaunchDistill, ATeacherThatCannotScoreTheseTokensIsRefused) {
  const std::string stories = TAILRACE_SOURCE_DIR "/tests/data/models/stories260K";
  write_student("model: " + stories);
  start_run("run");
  expect_refused("policies.teacher.model");
  start_run("run", {"algo.distill.policy=nobody"});
  expect_refused("`policies` has teacher");
  start_run("run", {"algo.distill.policy=\"\""});
  expect_refused("is named by no key");
}

}  // namespace
}  // namespace tailrace
