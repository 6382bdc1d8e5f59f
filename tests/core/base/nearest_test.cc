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

TEST(NearestKeys, FindsThoseThatTheNameIsAPartOf) {
  using Keys = std::vector<std::string>;
  const Keys names = {"algo",          "algo.whiten_advantages", "algo.clip_low", "algo.clip_high",
                      "algo.clip_c",   "critic.value_clip",      "run.max_turns", "run.max_tokens",
                      "run.max_batch", "run.max_rows",           "run.max_bytes"};
  EXPECT_EQ(nearest_keys("algo.whiten", names), Keys{"algo.whiten_advantages"});
  EXPECT_EQ(nearest_keys("algo.advantage", names), Keys{"algo.whiten_advantages"});
  EXPECT_EQ(nearest_keys("algo.whit", names), Keys{"algo.whiten_advantages"});
  EXPECT_EQ(nearest_keys("whiten", names), Keys{"algo.whiten_advantages"});
  // The section that was named comes first; a letter too few is a slip of the pen for one.
  EXPECT_EQ(nearest_keys("algo.clip", names),
            (Keys{"algo.clip_low", "algo.clip_high", "algo.clip_c"}));
  EXPECT_EQ(nearest_keys("critic.clip", names), Keys{"critic.value_clip"});
  EXPECT_EQ(nearest_keys("algo.clip_lo", names), Keys{"algo.clip_low"});
  // Not in the middle of a word, nor by two letters, nor where the part is in every other key.
  EXPECT_EQ(nearest_keys("algo.vantages", names), Keys{});
  EXPECT_EQ(nearest_keys("critic.va", names), Keys{});
  EXPECT_EQ(nearest_keys("run.max", names), Keys{});
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

TEST(MissingFileHint, SaysWhatToDoWhereNothingIsNear) {
  TemporaryDirectory folder;
  folder.write("rows.jsonl", "");
  EXPECT_EQ(missing_file_hint(folder / "row.jsonl"), nearest_path_hint(folder / "row.jsonl"));
  EXPECT_EQ(missing_file_hint(folder / "none"), "; correct the path, or put the file there");
  EXPECT_EQ(missing_file_hint(folder / "none", "; write it"), "; write it");
  EXPECT_EQ(missing_file_hint(folder / "rows.jsonl"), "") << "it is there";
}

}  // namespace
}  // namespace tailrace
