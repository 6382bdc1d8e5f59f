#include "core/trajectory/sample_name.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

const BodyId kSample{
    Lane::kTrain,
    {{.policy = 0, .dataset = 1, .epoch = 2, .prompt = 12, .launch = 3, .member = 4}, 5}};

TEST(SampleName, ComesBackFromWhatLogsPrint) {
  for (const Lane lane : {Lane::kTrain, Lane::kEval}) {
    BodyId id = kSample;
    id.lane = lane;
    const auto back = parse_sample_name(sample_name(id));
    ASSERT_TRUE(back) << back.failure().message;
    EXPECT_EQ(back.value(), id);
  }
  EXPECT_EQ(sample_name(kSample), to_string(kSample.lease));
  EXPECT_FALSE(parse_sample_name("prompt=12 member=3"));
}

TEST(SampleName, AQueryMatchesByThePartsThatItHas) {
  const std::vector<std::string> words = {"prompt=12", " member=4 "};
  const auto query = parse_sample_query(words);
  ASSERT_TRUE(query) << query.failure().message;
  EXPECT_TRUE(query.value().matches(kSample));
  BodyId other = kSample;
  other.lease.attempt = 6;
  EXPECT_TRUE(query.value().matches(other));
  other.lease.member.member = 3;
  EXPECT_FALSE(query.value().matches(other));
  const auto held_out = parse_sample_query(std::vector<std::string>{"prompt=12 lane=eval"});
  ASSERT_TRUE(held_out);
  EXPECT_FALSE(held_out.value().matches(kSample));
}

TEST(SampleName, AMistakeIsNamed) {
  const auto message = [](const std::string& word) {
    const auto query = parse_sample_query(std::vector<std::string>{word});
    return query ? "taken" : query.failure().message;
  };
  EXPECT_NE(message("12").find("'12' is no part of a sample's name"), std::string::npos);
  EXPECT_NE(message("promt=12").find("Its parts are prompt=, member="), std::string::npos);
  for (const char* word : {"prompt=", "prompt=-1", "prompt=1x", "member=2147483648"})
    EXPECT_NE(message(word).find("must be a whole number"), std::string::npos) << word;
  EXPECT_NE(message("lane=both").find("a lane is train or eval"), std::string::npos);
}

}  // namespace
}  // namespace tailrace
