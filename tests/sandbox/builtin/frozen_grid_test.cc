#include <set>
#include <sstream>

#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

// Reads "SW wall ice hole ice >", the prefix of an invalid action taken off.
struct View {
  std::string compass;
  std::array<std::string, 4> cells;  // up right down left

  explicit View(std::string text) {
    if (text.starts_with("what ? ")) text = text.substr(7);
    std::istringstream in(text);
    std::string end;
    in >> compass >> cells[0] >> cells[1] >> cells[2] >> cells[3] >> end;
    EXPECT_EQ(end, ">") << text;
  }
};

constexpr std::array<const char*, 4> kNames = {"up", "right", "down", "left"};

// Steps toward the goal onto ice or the goal; remembers nothing.
std::string careful_step(const std::string& text) {
  View view(text);
  std::array<bool, 4> toward = {view.compass[0] == 'N', view.compass[1] == 'E',
                                view.compass[0] == 'S', view.compass[1] == 'W'};
  for (int d : {0, 2, 1, 3}) {
    if (toward[d] && (view.cells[d] == "ice" || view.cells[d] == "goal"))
      return std::string(kNames[d]) + "\n";
  }
  return "wait\n";
}

double walk(Environment& environment, const Task& task, int64_t* turns = nullptr) {
  Result<Observation> seen = environment.reset(task);
  std::string text = seen.value().text;
  for (int64_t turn = 1;; ++turn) {
    StepResult result = environment.step(careful_step(text)).value();
    if (turns != nullptr) *turns = turn;
    if (result.terminated || result.truncated) return result.reward;
    text = result.observation.text;
  }
}

TEST(FrozenGrid, KeepsTheContract) {
  check_environment({.make = [] { return built_in("frozen_grid"); }});
}

// By whatever way one comes, and whatever was said on it: the cell is the state.
TEST(FrozenGrid, NamesTheCellAsItsState) {
  auto environment = built_in("frozen_grid");
  int64_t num_returns = 0;
  for (int i = 0; i < 50; ++i) {
    const Observation first = environment->reset({.seed = task_seed(3, false, i)}).value();
    ASSERT_FALSE(first.state.empty());
    const StepResult invalid = environment->step("jump\n").value();
    EXPECT_NE(invalid.observation.text, first.text);
    EXPECT_EQ(invalid.observation.state, first.state);
    for (const auto& [there, back] :
         {std::pair{"up\n", "down\n"}, std::pair{"left\n", "right\n"}}) {
      const StepResult away = environment->step(there).value();
      if (away.terminated) break;
      if (away.observation.state == first.state) continue;  // a wall
      const StepResult home = environment->step(back).value();
      EXPECT_EQ(home.observation.state, first.state);
      EXPECT_EQ(home.observation.text, first.text);
      ++num_returns;
    }
  }
  EXPECT_GT(num_returns, 10);
}

TEST(FrozenGrid, KnowsFortyFourWordsWithTheSpecialTokens) {
  auto environment = built_in("frozen_grid");
  std::set<std::string> words(environment->info().vocabulary.begin(),
                              environment->info().vocabulary.end());
  EXPECT_EQ(words.size(), environment->info().vocabulary.size());
  EXPECT_EQ(words.size() + 3, 44u);
}

TEST(FrozenGrid, AMemorylessCarefulWalkerAlwaysArrives) {
  auto environment = built_in("frozen_grid");
  for (int i = 0; i < 2000; ++i) {
    int64_t turns = 0;
    ASSERT_EQ(walk(*environment, {.seed = task_seed(3, i % 2 == 1, i)}, &turns), 1.0) << i;
    ASSERT_TRUE(turns >= 4 && turns <= 9)
        << "start and goal are 4 to 9 apart, and it never turns back";
  }
}

// A prototype of the same rules gave 0.39 to 0.41; the bound adds the noise of 20,000 episodes to
// it.
TEST(FrozenGrid, DemonstrationsSucceedFourTimesInTen) {
  auto environment = built_in("frozen_grid");
  constexpr int kEpisodes = 20000;
  EXPECT_NEAR(demonstrated_success(*environment, kEpisodes), 0.40,
              0.01 + share_bound(0.4, kEpisodes));
}

TEST(FrozenGrid, ACarefulDemonstratorIsAlwaysRight) {
  auto environment =
      built_in("frozen_grid", {{"demo_invalid", "0"}, {"demo_random", "0"}, {"demo_look", "1"}});
  EXPECT_GT(demonstrated_success(*environment, 500), 0.99);
}

TEST(FrozenGrid, InvalidTextStaysPutAndCosts) {
  auto environment = built_in("frozen_grid");
  Task task{.seed = 5};
  for (const char* action :
       {"jump\n", "left", "left up\n", "left up down", "LEFT\n", "leftx\n", "left \n", "", "\n"}) {
    std::string before = environment->reset(task).value().text;
    StepResult result = environment->step(action).value();
    EXPECT_EQ(result.observation.text, "what ? " + before) << action;
    EXPECT_EQ(result.reward, -0.05) << action;
    EXPECT_EQ(result.metrics[1], (std::pair<std::string, double>("invalid_actions", 1))) << action;
  }
}

TEST(FrozenGrid, ThePenaltyIsASetting) {
  auto environment = built_in("frozen_grid", {{"invalid_penalty", "0"}});
  environment->reset({.seed = 5}).value();
  EXPECT_EQ(environment->step("jump\n").value().reward, 0);
}

TEST(FrozenGrid, AWallIsBumpedIntoWithoutPenalty) {
  auto environment = built_in("frozen_grid");
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::string text = environment->reset({.seed = seed}).value().text;
    View view(text);
    for (int d = 0; d < 4; ++d) {
      if (view.cells[d] != "wall") continue;
      StepResult result = environment->step(std::string(kNames[d]) + "\n").value();
      EXPECT_EQ(result.observation.text, text);
      EXPECT_EQ(result.reward, 0);
      return;
    }
  }
  FAIL() << "no start at a wall in 200 maps";
}

TEST(FrozenGrid, AHoleEndsTheEpisodeWithNothing) {
  auto environment = built_in("frozen_grid");
  int holes = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    View view(environment->reset({.seed = seed}).value().text);
    for (int d = 0; d < 4; ++d) {
      if (view.cells[d] != "hole") continue;
      StepResult result = environment->step(std::string(kNames[d]) + "\n").value();
      EXPECT_TRUE(result.terminated);
      EXPECT_EQ(result.reward, 0);
      EXPECT_EQ(result.metrics[0].second, 0);
      ++holes;
      break;
    }
  }
  EXPECT_GT(holes, 10);
}

TEST(FrozenGrid, FourteenTurnsAreTheLimit) {
  auto environment = built_in("frozen_grid");
  environment->reset({.seed = 1}).value();
  for (int turn = 1; turn <= 14; ++turn) {
    StepResult result = environment->step("wait\n").value();
    EXPECT_EQ(result.truncated, turn == 14);
    EXPECT_FALSE(result.terminated);
  }
}

TEST(FrozenGrid, MapsAreOfManyKinds) {
  auto environment = built_in("frozen_grid");
  std::set<std::string> views;
  for (uint64_t i = 0; i < 500; ++i) views.insert(environment->reset({.seed = i}).value().text);
  EXPECT_GT(views.size(), 60u);
}

TEST(TaskSeed, HeldOutAndTrainingSeedsAreDisjointForAnyRun) {
  std::set<uint64_t> training, held_out;
  for (uint64_t run = 0; run < 20; ++run) {
    for (int64_t prompt = 0; prompt < 500; ++prompt) {
      training.insert(task_seed(run, false, prompt));
      held_out.insert(task_seed(run, true, prompt));
    }
  }
  EXPECT_EQ(training.size(), 10000u);
  EXPECT_EQ(held_out.size(), 10000u);
  for (uint64_t seed : held_out) EXPECT_FALSE(training.contains(seed));
}

}  // namespace
}  // namespace tailrace::sandbox
