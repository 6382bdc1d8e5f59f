#include "core/trajectory/trace_rows.h"

#include <bit>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/random.h"

namespace tailrace {
namespace {

TraceRow example() {
  TraceSegment segment{.tokens = {5, 9, 11, 7},
                       .roles = {TokenRole::kPrompt, TokenRole::kSampled, TokenRole::kObservation,
                                 TokenRole::kSampled},
                       .versions = {-1, 11, -1, 12},
                       .logprobs = {0, -0.6931472f, 0, -2},
                       .log_masses = {0, -0.125f, 0, 0},
                       .mask = {0, 1, 0, 0},
                       .left_out = {{LeftOut::kRejected, {3}}},
                       .turn_begins = {1, 3},
                       .turn_numbers = {0, 2},
                       .old_logprobs = {-0.0f},
                       .new_logprobs = {-0.7f},
                       .ref_logprobs = {-1e-9f},
                       .advantages = {0.70710677f}};
  TraceSegment child;
  child.parent = 0;
  child.parent_tokens = 2;
  return {.lease = {{.epoch = 1, .prompt = 12, .member = 3}, 2},
          .step = 12,
          .outcome = Outcome::kTruncated,
          .reward = 0.1,
          .shaped_reward = -0.1,
          .advantage = 0.70710677f,
          .temperature = 0.7,
          .turns = {{.number = 0,
                     .reward = 0.1,
                     .anchor = 0x00f3000000000001,
                     .tokens = 1,
                     .trained = 1,
                     .advantage = 0.70710677f,
                     .first = 0.70710677f,
                     .last = 0.70710677f,
                     .value = -0.3,
                     .turn_return = 1.0 / 3},
                    {.number = 2, .tokens = 1}},
          .segments = {segment, child}};
}

TEST(TraceRows, ARowComesBack) {
  const std::string line = format_trace_row(example());
  const auto back = parse_trace_row(line);
  ASSERT_TRUE(back) << line << "\n" << back.failure().message;
  EXPECT_EQ(back.value(), example());
  EXPECT_TRUE(std::signbit(back.value().segments[0].old_logprobs[0]));
  EXPECT_EQ(sample_of_trace_line(line), to_string(example().lease));
  TraceRow untrained = example();
  untrained.advantage.reset();
  EXPECT_EQ(parse_trace_row(format_trace_row(untrained)).value(), untrained);
}

TEST(TraceRows, EveryFloatComesBackWithItsBits) {
  Rng rng(7);
  TraceRow row = example();
  std::vector<float>& values = row.segments[0].old_logprobs;
  values.clear();
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(rng.below(int64_t{1} << 32)));
    if (std::isfinite(value)) values.push_back(value);
  }
  values.push_back(std::numeric_limits<float>::denorm_min());
  row.segments[0].advantages = values;
  row.segments[0].new_logprobs = values;
  row.segments[0].ref_logprobs.clear();
  TraceSegment& segment = row.segments[0];
  segment.tokens.assign(values.size(), 1);
  segment.roles.assign(values.size(), TokenRole::kSampled);
  segment.versions.assign(values.size(), 3);
  segment.mask.assign(values.size(), 1);
  segment.logprobs = values;
  segment.log_masses.clear();
  segment.left_out.clear();
  segment.turn_begins = {0, 3};
  const auto back = parse_trace_row(format_trace_row(row));
  ASSERT_TRUE(back) << back.failure().message;
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(back.value().segments[0].logprobs[i]),
              std::bit_cast<uint32_t>(values[i]))
        << values[i];
    EXPECT_EQ(std::bit_cast<uint32_t>(back.value().segments[0].advantages[i]),
              std::bit_cast<uint32_t>(values[i]));
  }
}

TEST(TraceRows, WhatIsNotFiniteIsNull) {
  TraceRow row = example();
  row.segments[0].new_logprobs = {std::numeric_limits<float>::quiet_NaN()};
  const auto back = parse_trace_row(format_trace_row(row));
  ASSERT_TRUE(back) << back.failure().message;
  EXPECT_TRUE(std::isnan(back.value().segments[0].new_logprobs[0]));
}

TEST(TraceRows, AlteredAndCutLinesAreRefused) {
  const std::string line = format_trace_row(example());
  for (size_t i = 0; i < line.size(); ++i) {
    std::string altered = line;
    altered[i] = static_cast<char>(altered[i] ^ 0x11);
    if (i < line.rfind(",\"proof\"")) {
      EXPECT_FALSE(parse_trace_row(altered)) << altered;
    }
    EXPECT_FALSE(parse_trace_row(line.substr(0, i)));
  }
  // Without a proof the lists themselves must fit.
  std::string bare = line.substr(0, line.rfind(",\"proof\"")) + "}";
  ASSERT_TRUE(parse_trace_row(bare));
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string other = bare;
    other.replace(other.find(from), from.size(), to);
    return parse_trace_row(other);
  };
  EXPECT_FALSE(with("\"mask\":[0,1,0,0]", "\"mask\":[0,1,1,0]"));
  EXPECT_FALSE(with("\"roles\":[0,1,2,1]", "\"roles\":[0,1,3,1]"));
  EXPECT_FALSE(with("\"tokens\":[5,9,11,7]", "\"tokens\":[5,9,11]"));
  EXPECT_FALSE(with("\"tokens\":[5,9,11,7]", "\"tokens\":[5,9,-1,7]"));
  EXPECT_FALSE(with("truncated", "cut"));
  EXPECT_TRUE(with("\"reward\":0.1", "\"reward\":0.2"));
  EXPECT_FALSE(with("\"advantages\":[0.7", "\"advantages\":[1,0.7"));
  EXPECT_FALSE(with("{\"rejected\":[3]}", "{\"forgotten\":[3]}"));
  const auto older = with("\"left_out\":{\"rejected\":[3]}", "\"rejected\":[3]");
  ASSERT_TRUE(older) << older.failure().message;
  EXPECT_EQ(older.value(), example()) << "as older builds wrote it";
  EXPECT_FALSE(with("\"rejected\":[3]", "\"rejected\":[1]")) << "the loss is made of it";
  EXPECT_FALSE(with("\"rejected\":[3]", "\"rejected\":[4]"));
  EXPECT_FALSE(with("\"rejected\":[3]", "\"rejected\":[-1]"));
  EXPECT_FALSE(with("\"turn_begins\":[1,3]", "\"turn_begins\":[3,1]"));
  EXPECT_FALSE(with("\"turn_begins\":[1,3]", "\"turn_begins\":[1,2]")) << "an observation";
  EXPECT_FALSE(with("\"turn_begins\":[1,3]", "\"turn_begins\":[1,4]"));
  EXPECT_FALSE(with("\"turn_numbers\":[0,2]", "\"turn_numbers\":[0]"));
  EXPECT_FALSE(with("\"turn_numbers\":[0,2]", "\"turn_numbers\":[0,1]")) << "no such turn";
  EXPECT_FALSE(with("\"turn\":2", "\"turn\":0"));
  EXPECT_FALSE(with("\"turn\":0", "\"turn\":-1"));
  EXPECT_FALSE(with("\"anchor\":\"00f3", "\"anchor\":\"f3"));
  EXPECT_FALSE(with("\"anchor\":\"00f3", "\"anchor\":\"0x00f3"));
  EXPECT_FALSE(with("\"tokens\":1,\"trained\":1", "\"tokens\":1,\"trained\":2"));
  EXPECT_FALSE(with("\"tokens\":1,\"trained\":0", "\"tokens\":1,\"trained\":1"));
}

// What builds before turns wrote: a run keeps its files.
TEST(TraceRows, ARowWithoutTurnsIsRead) {
  const auto row = parse_trace_row(
      R"({"sample":"policy=0 dataset=0 epoch=0 prompt=12 launch=0 member=3 attempt=1","step":12,)"
      R"("outcome":"finished","reward":1,"advantage":0.5,"temperature":1,"segments":[{"parent":-1,)"
      R"("parent_tokens":0,"tokens":[5,9],"roles":[0,1],"versions":[-1,11],"logprobs":[0,-0.5],)"
      R"("mask":[0,1],"old":[-0.5],"new":[-0.25]}]})");
  ASSERT_TRUE(row) << row.failure().message;
  EXPECT_EQ(row.value().advantage, 0.5f);
  EXPECT_TRUE(row.value().turns.empty());
  EXPECT_TRUE(row.value().segments[0].advantages.empty());
  EXPECT_FALSE(row.value().shaped_reward);
}

TEST(TraceRows, FilesAndHeadsAreNamed) {
  EXPECT_EQ(trace_file_step(trace_file_name(12)), 12);
  EXPECT_FALSE(trace_file_step("step_000012.jsonl.unfinished.7"));
  EXPECT_FALSE(trace_file_step("step_x.jsonl"));
  EXPECT_EQ(parse_trace_head(format_trace_head(3, 64)), 64);
  EXPECT_FALSE(parse_trace_head(format_trace_row(example())));
}

}  // namespace
}  // namespace tailrace
