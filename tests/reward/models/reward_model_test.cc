#include "reward/models/reward_model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/parameter_files.h"
#include "core/model/reward_head.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kTiny = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/models/reward-tiny";

struct Scored {
  std::vector<TokenId> ids;
  double score, exact;
};

// As transformers scored them in float32, and the same in float64.
std::vector<Scored> scored_rows() {
  std::ifstream file(kTiny / "scores.json");
  std::vector<Scored> rows;
  for (const auto& row : nlohmann::json::parse(file))
    rows.push_back({row["input_ids"].get<std::vector<TokenId>>(), row["score"].get<double>(),
                    row["exact"].get<double>()});
  return rows;
}

class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "reward_model_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

TEST(RewardModel, ScoresAsTransformersDoes) {
  RewardModel model(kTiny, /*threads=*/2);
  EXPECT_EQ(model.config().architecture, "LlamaForSequenceClassification");
  EXPECT_EQ(model.max_tokens(), 1024);
  const std::vector<Scored> rows = scored_rows();
  ASSERT_EQ(rows.size(), 9u);
  for (const auto& [ids, score, exact] : rows) {
    const auto found = model.score(ids);
    ASSERT_TRUE(found) << found.failure().message;
    EXPECT_NEAR(found.value(), exact, 5e-6 * std::max(1.0, std::abs(exact))) << ids.size();
    // transformers has angles of positions in float32, an error that grows with the length.
    const double bound = ids.size() <= 512 ? 1e-5 : 2e-5;
    EXPECT_NEAR(found.value(), score, bound * std::max(1.0, std::abs(score))) << ids.size();
  }
}

// Each text by itself, whatever came before it and however many threads there are.
TEST(RewardModel, GivesTheSameBitsInAnyOrder) {
  const std::vector<Scored> rows = scored_rows();
  RewardModel one(kTiny, 1), three(kTiny, 3);
  std::vector<double> forward, backward;
  for (const Scored& row : rows) forward.push_back(one.score(row.ids).value());
  for (size_t i = rows.size(); i-- > 0;) backward.push_back(three.score(rows[i].ids).value());
  std::ranges::reverse(backward);
  EXPECT_EQ(forward, backward);
}

TEST(RewardModel, AFolderOfOursScoresTheSame) {
  const ModelConfig config = read_reward_config(kTiny);
  const ParameterLayout layout(config);
  Parameters parameters(layout);
  load_parameters(kTiny, config, parameters);
  Folder folder;
  // Without the form: as a model that is made here.
  save_model(folder.path(), config, parameters);
  RewardModel theirs(kTiny, 1), ours(folder.path(), 1);
  for (const Scored& row : scored_rows()) {
    // The two name other padding.
    if (std::ranges::count(row.ids, 0) > 0 || row.ids.back() == 1) continue;
    EXPECT_EQ(ours.score(row.ids).value(), theirs.score(row.ids).value());
  }
}

TEST(RewardModel, WhatHasNoScoreIsAFailure) {
  RewardModel model(kTiny, 1, /*max_tokens=*/4);
  EXPECT_EQ(model.max_tokens(), 4);
  const auto refusal = [&](const std::vector<TokenId>& ids) {
    const auto score = model.score(ids);
    if (score) return std::string("a score");
    EXPECT_TRUE(score.failure().is_final);
    return score.failure().message;
  };
  EXPECT_EQ(refusal({5, 6, 7, 8}), "a score");
  EXPECT_EQ(refusal({}), "a text of no tokens has no score");
  EXPECT_EQ(refusal({5, 6, 7, 8, 9}), "a text of 5 tokens, and the reward model takes 4");
  EXPECT_EQ(refusal({5, 512}), "the id 512 is no token of the reward model, which has 512");
  EXPECT_EQ(refusal({-1}), "the id -1 is no token of the reward model, which has 512");

  const ModelConfig config = read_reward_config(kTiny);
  const ParameterLayout layout(config);
  Parameters parameters(layout);
  load_parameters(kTiny, config, parameters);
  // Finite weights whose products are not.
  std::ranges::fill(parameters.vector(kFinalNormName), 3e38f);
  Folder folder;
  save_model(folder.path(), config, parameters);
  const auto score = RewardModel(folder.path(), 1).score(std::vector<TokenId>{5, 6});
  ASSERT_FALSE(score);
  EXPECT_THAT(score.failure().message, HasSubstr("the reward model's score is"));
}

TEST(RewardModel, OtherModelsAreRefused) {
  const auto refusal = [](const fs::path& folder, int64_t max_tokens) {
    try {
      RewardModel(folder, 1, max_tokens);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(kTiny.parent_path() / "stories260K", 0), HasSubstr("is no reward model"));
  EXPECT_THAT(refusal(kTiny, 1025),
              HasSubstr("a text may have 1025 tokens, and the model has 1024 positions"));
}

}  // namespace
}  // namespace tailrace
