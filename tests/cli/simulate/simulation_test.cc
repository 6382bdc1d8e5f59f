// The keys of a hardware file, and what becomes of a run with it.
#include "cli/simulate/simulation.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "cli/config/hardware_file.h"
#include "cli/inputs/load.h"
#include "cli/inputs/registries.h"
#include "cli/inputs/rules.h"
#include "core/base/error.h"
#include "core/config/yaml_config.h"

namespace tailrace {
namespace {

constexpr const char* kSimulationExample =
    "run: {steps: 4}\n"
    "rollout: {prompts_per_step: 4, group_size: 2, max_response_tokens: 1000, workers: 3}\n"
    "train: {ppo_epochs: 2, minibatches_per_step: 3}\n";
constexpr const char* kHardwareExample =
    "hardware:\n"
    "  - {name: slow, tokens_per_s: 100, at_sequences: 10, at_context_tokens: 1000, step_ms: 40,\n"
    "     kv_read_tokens_per_s: 1000000, train_tokens_per_s: 500}\n"
    "  - {name: fast, devices: 8, price_per_hour: 2}\n";

// Overrides of both: sets_hardware() says of which.
RunOptions read_simulation(std::vector<std::string> overrides = {}, const std::string& more = "") {
  const auto of_hardware =
      std::stable_partition(overrides.begin(), overrides.end(),
                            [](const std::string& text) { return !sets_hardware(text); });
  const std::vector<std::string> of_run(overrides.begin(), of_hardware);
  RunOptions options;
  ConfigKeys keys = bind_config(parse_config(kSimulationExample + more, "a.yaml", of_run), options);
  options.simulate =
      parse_hardware(kHardwareExample, "h.yaml", std::vector(of_hardware, overrides.end())).section;
  validate_simulated(options, keys, built_in_registries());
  return options;
}
Simulation simulation_of(const RunOptions& options) {
  return make_simulation(resolve(options), built_in_registries().environments);
}
std::string simulation_error(std::vector<std::string> overrides, const std::string& more = "") {
  try {
    simulation_of(read_simulation(overrides, more));
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

// 10 sequences of 1000 tokens: 40 ms for the weights, 10 ms for the KV, and the rest of the 100 ms
// that 10 tokens take at 100 tokens/s for the sequences.
TEST(SimulatedHardware, DecodesAsItWasMeasured) {
  const simulator::Hardware slow = hardware_of(read_simulation().simulate, "slow");
  EXPECT_DOUBLE_EQ(slow.decode.step, 0.04);
  EXPECT_DOUBLE_EQ(slow.decode.context, 1e-6);
  EXPECT_NEAR(slow.decode.sequence, 0.005, 1e-12);
  EXPECT_NEAR(10 / slow.decode.seconds(10, 10 * 1000), 100, 1e-9);
}

TEST(SimulatedHardware, TheFirstOneIsMeantWhereNoneIsNamed) {
  const RunOptions options = read_simulation();
  EXPECT_EQ(hardware_of(options.simulate, "").name, "slow");
  EXPECT_EQ(hardware_of(SimulateSection(), "").name, "default");
  EXPECT_DOUBLE_EQ(hardware_of(options.simulate, "fast").price_per_hour, 16);
}

TEST(Simulations, HaveTheLawAndTheWorkersOfTheRun) {
  const Simulation simulation = simulation_of(read_simulation({"hardware.trainer.workers=2"}));
  EXPECT_EQ(simulation.law.steps, 4);
  EXPECT_EQ(simulation.law.group_size, 2);
  ASSERT_EQ(simulation.cluster.pools.size(), 1u);
  EXPECT_EQ(simulation.cluster.pools[0].workers, 3);
  EXPECT_EQ(simulation.rollout_workers(), 3);
  // Two passes over the tokens, at twice 500 tokens/s; six updates of a second.
  EXPECT_DOUBLE_EQ(simulation.cluster.trainer.token, 2.0 / (2 * 500));
  EXPECT_DOUBLE_EQ(simulation.cluster.trainer.update, 6);
  const simulator::Episode episode = simulation.episodes->draw(Lane::kTrain, {}, 1);
  EXPECT_LE(episode.tokens(), 1000);
}

TEST(Simulations, MayHaveMoreWorkersThanTheRunAndFewerSteps) {
  const Simulation simulation = simulation_of(
      read_simulation({"hardware.workers=5000", "hardware.steps=2",
                       "hardware.rollout_hardware=fast", "hardware.trainer.hardware=slow"}));
  EXPECT_EQ(simulation.law.steps, 2);
  EXPECT_EQ(simulation.cluster.pools[0].workers, 5000);
  EXPECT_EQ(simulation.rollout_devices(), 40000);
  EXPECT_EQ(simulation.cluster.pools[0].hardware.name, "fast");
}

TEST(Simulations, GiveEachPoolItsHardware) {
  const Simulation simulation =
      simulation_of(read_simulation({"rollout.pools=[{name: a, workers: 2}, {name: b, workers: 3}]",
                                     "hardware.pools=[{name: b, hardware: fast, workers: 7}]"}));
  ASSERT_EQ(simulation.cluster.pools.size(), 2u);
  EXPECT_EQ(simulation.cluster.pools[0].hardware.name, "slow");
  EXPECT_EQ(simulation.cluster.pools[1].hardware.name, "fast");
  EXPECT_EQ(simulation.rollout_workers(), 9);
  EXPECT_EQ(simulation.rollout_devices(), 2 + 7 * 8);
}

TEST(Simulations, TakeTheSizeOfTheWeightsFromTheModel) {
  const std::string model =
      "model: {path: \"" + std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K\"}\n";
  const double bytes =
      simulation_of(read_simulation({}, model)).cluster.pools[0].transfer.payload_bytes;
  EXPECT_GT(bytes, 4 * 250e3);
  EXPECT_LT(bytes, 4 * 300e3);
  const Simulation given =
      simulation_of(read_simulation({"hardware.weights.payload_bytes=7"}, model));
  EXPECT_EQ(given.cluster.pools[0].transfer.payload_bytes, 7);
  // A model that is not on this machine is no mistake, but a link then carries nothing.
  const Simulation none = simulation_of(
      read_simulation({"hardware.weights.link_mbit=100"}, "model: {path: /nowhere/at/all}\n"));
  EXPECT_EQ(none.cluster.pools[0].transfer.payload_bytes, 0);
  ASSERT_EQ(none.notes.size(), 1u);
  EXPECT_NE(none.notes[0].find("hardware.weights.payload_bytes"), std::string::npos);
}

TEST(Simulations, RefuseWhatCannotBe) {
  EXPECT_NE(simulation_error({"hardware.rollout_hardware=fsat"})
                .find("rollout_hardware is fsat, and hardware has slow, fast. "
                      "Try fast."),
            std::string::npos);
  EXPECT_NE(simulation_error({"hardware.slow.tokens_per_s=1000"})
                .find("hardware.slow.tokens_per_s is 1000, but step_ms (40)"),
            std::string::npos);
  EXPECT_NE(simulation_error({"hardware.slow.tokens_per_s=0", "hardware.slow.step_ms=0"})
                .find("decoding would take no time"),
            std::string::npos);
  EXPECT_NE(simulation_error({"hardware.pools=[{name: b}]"}).find("rollout.pools lists no pools"),
            std::string::npos);
  EXPECT_NE(
      simulation_error({"hardware.hardware=[{name: a}, {name: a}]"}).find("name is a, as that of"),
      std::string::npos);
  EXPECT_NE(simulation_error({"hardware.days=0"}).find("days"), std::string::npos);
  EXPECT_NE(
      simulation_error({}, "sft: {data: rows.jsonl}\n").find("sft.data is all that the run learns"),
      std::string::npos);
}

TEST(Simulations, EpisodesFitWhatTheRunAllows) {
  const auto longest = [&](std::vector<std::string> overrides) {
    const Simulation simulation = simulation_of(read_simulation(std::move(overrides)));
    int64_t context = 0, sampled = 0;
    for (int64_t prompt = 0; prompt < 200; ++prompt) {
      const auto episode = simulation.episodes->draw(Lane::kTrain, {.prompt = prompt}, 1);
      context = std::max(context, episode.context());
      sampled = std::max(sampled, episode.tokens());
    }
    return std::pair{context, sampled};
  };
  const std::string endless = "hardware.episodes.endless_ratio=0.5";
  EXPECT_EQ(longest({endless}), (std::pair<int64_t, int64_t>{1500, 1000}));
  // A context of 3072 leaves 172 of the 1000.
  EXPECT_EQ(
      longest({endless, "rollout.max_context_tokens=3072", "hardware.episodes.prompt_tokens=2900"}),
      (std::pair<int64_t, int64_t>{3072, 172}));
  EXPECT_LE(longest({"hardware.episodes.turns=5000"}).second, 1000);
  EXPECT_LE(longest({"hardware.episodes.turns=20", "hardware.episodes.env_tokens=600"}).first,
            1500);
  const Simulation noted = simulation_of(read_simulation({"hardware.episodes.turns=5000"}));
  ASSERT_EQ(noted.notes.size(), 1u);
  EXPECT_NE(noted.notes[0].find("hardware.episodes.turns"), std::string::npos);
}

TEST(Simulations, RefuseEpisodesThatNoWorkerHolds) {
  EXPECT_NE(simulation_error({"hardware.slow.kv_tokens=1400"})
                .find("hardware.slow.kv_tokens is 1400, and one episode may need 1500"),
            std::string::npos);
  EXPECT_EQ(simulation_error({"hardware.slow.kv_tokens=1500"}), "(no error)");
  EXPECT_EQ(simulation_error({"hardware.slow.kv_tokens=0"}), "(no error)");
  EXPECT_EQ(simulation_error({"hardware.fast.kv_tokens=10"}), "(no error)") << "nobody has it";
  // Without limits an episode goes on until the KV is full.
  EXPECT_EQ(simulation_error({"rollout.max_response_tokens=0", "hardware.slow.kv_tokens=600"}),
            "(no error)");
  EXPECT_NE(simulation_error({"rollout.max_response_tokens=0", "hardware.slow.kv_tokens=500"})
                .find("nothing is left"),
            std::string::npos);
  EXPECT_NE(simulation_error({"hardware.episodes.prompt_tokens=1048576"}).find("need 1049576"),
            std::string::npos);
}

TEST(Simulations, RefuseFaultsWithoutEnd) {
  EXPECT_NE(simulation_error({"hardware.faults.worker_mtbf_hours=1e-6"})
                .find("faults.worker_mtbf_hours is 1e-06, less than 3.6 seconds"),
            std::string::npos);
  EXPECT_EQ(simulation_error({"hardware.faults.worker_mtbf_hours=1e7"}), "(no error)");
}

}  // namespace
}  // namespace tailrace
