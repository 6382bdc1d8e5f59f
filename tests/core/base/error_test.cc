#include "core/base/error.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(UserError, CarriesTheKeyThatItIsAbout) {
  const UserError error = UserError::at("rollout.group_size", "is {}; try {{8}}", 1);
  EXPECT_EQ(std::string(error.what()), "rollout.group_size is 1; try {8}");
  EXPECT_EQ(error.key(), "rollout.group_size");
  EXPECT_EQ(UserError("a disk is full").key(), "");
}

TEST(UserError, TheFirstKeyStays) {
  const UserError error = UserError("no verifier '{}'", "x").about("env.settings.verifier");
  EXPECT_EQ(error.about("env.name").key(), "env.settings.verifier");
  EXPECT_EQ(std::string(error.what()), "no verifier 'x'");
}

TEST(UserError, ANulEndsNoMessage) {
  using namespace std::string_literals;
  const UserError error("{} has no shard '{}'", "index.json", "a\0b\0"s);
  EXPECT_EQ(std::string(error.what()), "index.json has no shard 'a\\x00b\\x00'");
}

}  // namespace
}  // namespace tailrace
