#include "core/base/nearest.h"

#include <vector>

#include <gtest/gtest.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(EditDistance, CountsEditsAndSwapsOfNeighbours) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "ab"), 2);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("gruop", "group"), 1);
}

TEST(NearestName, FindsTyposAndKeysOfTheWrongSection) {
  std::vector<std::string> names = {"rollout", "rollout.group_size", "rollout.max_turns",
                                    "optim.lr", "train.ppo_epochs"};
  EXPECT_EQ(nearest_name("rollout.gruop_size", names), "rollout.group_size");
  EXPECT_EQ(nearest_name("trainer.ppo_epochs", names), "train.ppo_epochs");
  EXPECT_EQ(nearest_name("group_size", names), "rollout.group_size");
  EXPECT_EQ(nearest_name("scheduler.lr", names), "optim.lr");
  EXPECT_EQ(nearest_name("lr", names), "optim.lr");
  EXPECT_EQ(nearest_name("anything", {}), "");
}

// Another name would mislead: "Try gspo" for a person who wrote cispo.
TEST(NearestName, NamesNothingWhereNoneIsNear) {
  const std::vector<std::string> names = {"grpo", "dapo", "gspo", "topr", "frozen_grid"};
  EXPECT_EQ(nearest_name("grop", names), "grpo");
  EXPECT_EQ(nearest_name("gsp", names), "gspo");
  EXPECT_EQ(nearest_name("cispo", names), "");
  EXPECT_EQ(nearest_name("ppo", names), "");
  EXPECT_EQ(nearest_name("rloo", names), "");
  EXPECT_EQ(nearest_name("reinforce", names), "");
  EXPECT_EQ(nearest_name("frozengird", names), "frozen_grid");
  EXPECT_EQ(nearest_name("colour", std::vector<std::string>{"demo_look"}), "");
  EXPECT_EQ(did_you_mean("grop", names), "; did you mean 'grpo'?");
  EXPECT_EQ(did_you_mean("cispo", names), ".");
}

TEST(NearestPathHint, FindsTheFirstPartThatIsMissing) {
  TemporaryDirectory folder;
  folder.write("models/stories260K/config.json", "{}");
  EXPECT_EQ(nearest_path_hint(folder / "model/stories260K"),
            "; the nearest is " + (folder / "models").string());
  EXPECT_EQ(nearest_path_hint(folder / "models/stories260k/"),
            "; the nearest is " + (folder / "models/stories260K").string());
  EXPECT_EQ(nearest_path_hint(folder / "models/llama"), "");
  folder.write("rows.jsonl", "");
  EXPECT_EQ(nearest_path_hint(folder / "row.jsonl"),
            "; the nearest is " + (folder / "rows.jsonl").string());
  EXPECT_EQ(nearest_path_hint(folder / "none.jsonl"), "") << "the ending alone is no likeness";
  EXPECT_EQ(nearest_path_hint(folder / "models"), "") << "it exists";
  EXPECT_EQ(nearest_path_hint("no such folder"), "");
}

}  // namespace
}  // namespace tailrace
