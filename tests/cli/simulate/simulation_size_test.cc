// What a simulation takes is told before it is played.
#include "cli/simulate/simulation_size.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Of a size that a laptop plays in a second.
Simulation usual(double turns = 4) {
  Simulation simulation;
  simulation.law.datasets = {{.prompts_per_step = 128}};
  simulation.law.group_size = 16;
  simulation.law.steps = 40;
  simulation.seconds = 1e9;
  simulation.cluster.pools = {{.workers = 32, .slots = 128}};
  const simulator::EpisodeModel model{.turns = {simulator::Distribution::Kind::kConstant, turns}};
  simulation.episodes = std::make_shared<simulator::DrawnEpisodes>(
      std::vector<simulator::EpisodeModel>{model}, uint64_t{1});
  return simulation;
}

std::string refusal_of(const Simulation& simulation, int64_t available) {
  try {
    require_size(size_of(simulation), {.available_bytes = available});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(SimulationSize, OfWhatALaptopPlaysNothingIsSaid) {
  EXPECT_EQ(size_note(size_of(usual())), "");
  EXPECT_EQ(refusal_of(usual(), kGiB / 2), "");
}

TEST(SimulationSize, NamesWhatMakesTheMostOfIt) {
  Simulation prompts = usual(), groups = usual(), workers = usual();
  prompts.law.datasets[0].prompts_per_step = 1'000'000;
  groups.law.group_size = 65536;
  workers.cluster.pools[0].workers = 100'000;
  const std::string members = "Try a smaller rollout.prompts_per_step or rollout.group_size.";
  for (const auto& [simulation, cure] :
       {std::pair{prompts, members}, std::pair{groups, members},
        std::pair{usual(1e6), std::string("Try a smaller hardware.episodes.turns.")}}) {
    const std::string refusal = refusal_of(simulation, 2 * kGiB);
    EXPECT_NE(refusal.find("of memory at its largest, and 2.0 GiB are free"), std::string::npos)
        << refusal;
    EXPECT_NE(refusal.find(cure), std::string::npos) << refusal;
    EXPECT_NE(size_note(size_of(simulation)), "");
  }
  // Its memory is little; it has long to go.
  EXPECT_EQ(refusal_of(workers, 2 * kGiB), "");
  EXPECT_NE(refusal_of(workers, kGiB / 4).find("hardware.workers"), std::string::npos);
}

// A limit of steps that the time does not reach is no size.
TEST(SimulationSize, EndsWithTheTimeThatIsSimulated) {
  Simulation simulation = usual();
  simulation.law.steps = 1'000'000;
  simulation.cluster.trainer.update = 10;
  EXPECT_EQ(size_of(simulation).steps, 1e6);
  simulation.seconds = 86400;
  EXPECT_EQ(size_of(simulation).steps, 8640);
}

TEST(SimulationSize, SaysOfMuchTimeHowMuch) {
  Simulation simulation = usual();
  simulation.law.steps = 100'000;
  const std::string note = size_note(size_of(simulation));
  EXPECT_NE(note.find("up to 2 h"), std::string::npos) << note;
  EXPECT_NE(note.find("100k steps"), std::string::npos) << note;
  EXPECT_EQ(refusal_of(simulation, kGiB / 2), "");
}

// The largest values that a config may have: no number that it is made of overflows.
TEST(SimulationSize, IsFiniteForAllThatAConfigMaySay) {
  Simulation simulation = usual(1e6);
  simulation.law.datasets[0].prompts_per_step = 1'000'000'000;
  simulation.law.group_size = 1'000'000'000;
  simulation.law.steps = 0;
  simulation.law.save.interval_steps = 1'000'000'000;
  simulation.cluster.pools[0] = {.workers = 100'000, .slots = 1'000'000'000};
  EXPECT_NE(refusal_of(simulation, kGiB).find("would take about"), std::string::npos);
  // A machine that does not say how much it has.
  EXPECT_EQ(refusal_of(simulation, 0), "");
}

}  // namespace
}  // namespace tailrace
