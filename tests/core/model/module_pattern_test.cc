#include "core/model/module_pattern.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tailrace {
namespace {

std::string fault_of(const std::string& pattern) {
  try {
    (void)ModulePattern(pattern);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(ModulePattern, MatchesTheWholeName) {
  const ModulePattern pattern(R"(model\.layers\.(?:[0-9]|1[0-5])\.mlp\.(up|down)_proj)");
  EXPECT_TRUE(pattern.matches("model.layers.15.mlp.up_proj"));
  EXPECT_FALSE(pattern.matches("model.layers.16.mlp.up_proj"));
  EXPECT_FALSE(pattern.matches("base.model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(pattern.matches("model.layers.1.mlp.up_proj.x"));
}

// Each of these means something else in PCRE2, or is not there.
TEST(ModulePattern, WhatPythonReadsOtherwiseIsRefused) {
  for (const auto& [pattern, told] :
       {std::pair{"\\Aq_proj", "has \\A, which is not read"},
        {"q_proj\\Z", "has \\Z, which is not read"},
        {"(q)\\1", "has \\1, which is not read"},
        {"(?P<name>q_proj)", "has (?P, which is not read"},
        {"(?<!k)q_proj", "has (?<, which is not read"},
        {"q*+_proj", "repeats a repetition, which is not read"},
        {"q{2}{2}", "repeats a repetition, which is not read"},
        {"q{,3}", "has {,3}, which is not read; write \\{"},
        {"q{b}", "has {b}, which is not read; write \\{"},
        {"q{2", "has {2, which is not read; write \\{"},
        {"[]q]_proj", "has ] in brackets, which is not read; write \\]"},
        {"[[:alpha:]]_proj", "has [ in brackets, which is not read; write \\["},
        {"(?=q(?!k))q_proj", "has a lookahead in a lookahead, which is not read"}})
    EXPECT_EQ(fault_of(pattern), told) << pattern;
  for (const char* pattern : {"(q_proj", "*q", "[q", "q\\"})
    EXPECT_TRUE(fault_of(pattern).starts_with("cannot be read as a regular expression (") ||
                fault_of(pattern).find("not read") != std::string::npos)
        << pattern << ": " << fault_of(pattern);
  EXPECT_EQ(fault_of("q*?_proj|k+?|[\\]a]{1,}"), "");
}

// A pattern comes from outside: its work is bounded before it is compiled.
TEST(ModulePattern, ItsWorkIsBounded) {
  EXPECT_EQ(fault_of(std::string(2001, 'a')), "has 2001 bytes, more than 2000");
  EXPECT_EQ(fault_of("((a?){3}){3}"), "repeats parts 9 times or more; at most 4 are read");
  EXPECT_EQ(fault_of("a{99999999999999999999}"),
            "repeats parts 5 times or more; at most 4 are read");
  const std::string name = "model.layers.0.self_attn." + std::string(60, 'a');
  std::string optional, groups;
  for (int i = 0; i < 990; ++i) optional += "a?";
  for (int i = 0; i < 990; ++i) groups += "(";
  groups += "a" + std::string(990, ')');
  for (const std::string& pattern : {std::string("(.*)*b"), std::string("((a*)*)*b"),
                                     "(?:" + optional + "){4}b", std::string("(?=.*x)(?!.*y).*b")})
    EXPECT_FALSE(ModulePattern(pattern).matches(name)) << pattern.substr(0, 20);
  EXPECT_TRUE(fault_of(groups).starts_with("cannot be read as a regular expression ("));
  try {
    (void)ModulePattern("model(.*)*[xy]").matches(name);
    FAIL() << "a search that goes back 2^80 times";
  } catch (const UserError& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("takes more than 1000000 steps to match "))
        << error.what();
  }
}

// What is behind the last character is no part of a name.
TEST(ModulePattern, EndsWhereTheNameEnds) {
  EXPECT_FALSE(ModulePattern("q_proj$").matches("q_proj\n"));
  EXPECT_TRUE(ModulePattern("^q_proj$").matches("q_proj"));
  EXPECT_TRUE(ModulePattern("q|q_proj").matches("q_proj"));
  EXPECT_TRUE(ModulePattern("q_\\w+?").matches("q_proj"));
}

}  // namespace
}  // namespace tailrace
