#include "cli/view/segment_tree.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

using enum TokenRole;

struct Made {
  int32_t parent = -1, parent_tokens = 0;
  std::vector<TokenRole> roles;
};

std::vector<std::string> described(const std::vector<Made>& segments) {
  std::vector<SegmentShape> shapes;
  for (const Made& made : segments) shapes.push_back({made.parent, made.parent_tokens, made.roles});
  std::vector<std::string> lines;
  for (const SegmentLine& line : describe_segments(shapes))
    lines.push_back(std::string(static_cast<size_t>(line.depth), '>') + line.text);
  return lines;
}

TEST(SegmentTree, SaysWhichGoesOnBehindWhatOfWhich) {
  EXPECT_EQ(
      described({{.roles = {kPrompt, kSampled, kObservation, kSampled}},
                 {.parent = 0, .parent_tokens = 4, .roles = {kObservation, kSampled}},
                 {.parent = 1, .parent_tokens = 2, .roles = {kObservation, kSampled}},
                 {.parent = 1, .parent_tokens = 5, .roles = {kSampled}},
                 {.roles = {kPrompt, kSampled, kSampled}}}),
      (std::vector<std::string>{"segment 0 begins: 4 tokens, turns 1 to 2",
                                ">segment 1 goes on behind turn 2: 2 tokens, turn 3",
                                // Within what its parent had inherited.
                                ">>segment 2 goes on behind turn 1: 2 tokens, turn 4",
                                ">>segment 3 answers again what turn 3 answers: 1 token, turn 5",
                                "segment 4 begins anew: 3 tokens, turn 6"}));
}

TEST(SegmentTree, SaysWhatNoGatewayMakesToo) {
  EXPECT_EQ(
      described({{.roles = {kPrompt, kPrompt, kSampled, kSampled}},
                 {.parent = 0, .parent_tokens = 3, .roles = {kSampled}},
                 {.parent = 0, .parent_tokens = 1, .roles = {kObservation}},
                 {.parent = 0, .parent_tokens = 0, .roles = {}}}),
      (std::vector<std::string>{
          "segment 0 begins: 4 tokens, turn 1", ">segment 1 goes on within turn 1: 1 token, turn 2",
          ">segment 2 goes on behind token 1 of segment 0: 1 token, no turn",
          ">segment 3 goes on behind token 0 of segment 0: 0 tokens, no turn"}));
  EXPECT_TRUE(described({}).empty());
}

}  // namespace
}  // namespace tailrace
