// What `tailrace status --sample` finds in a run directory, whole and damaged.
#include "cli/view/sample_trace.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using enum TimelineWhat;
using std::chrono::milliseconds;

BodyId body(int64_t prompt, int32_t member, int32_t attempt = 1, Lane lane = Lane::kTrain) {
  return {lane, {{.prompt = prompt, .member = member}, attempt}};
}

TimelineRow lease(TimelineWhat what, int64_t from, int64_t at, const BodyId& id,
                  const std::string& worker, const std::string& end) {
  return {.what = what,
          .at = milliseconds(at),
          .from = milliseconds(from),
          .worker = worker,
          .end = end,
          .sample = id,
          .lane = id.lane,
          .verify_attempt = what == kVerify ? 1 : 0};
}

TraceRow trained(const BodyId& id) {
  TraceSegment segment{.tokens = {5, 9, 11},
                       .roles = {TokenRole::kPrompt, TokenRole::kSampled, TokenRole::kSampled},
                       .versions = {-1, 3, 4},
                       .logprobs = {0, -0.5f, -0.25f},
                       .log_masses = {},
                       .mask = {0, 0, 1},
                       .old_logprobs = {-0.25f},
                       .new_logprobs = {-0.5f},
                       .ref_logprobs = {}};
  return {.lease = id.lease, .step = 5, .reward = 1, .advantage = 0.5f, .segments = {segment}};
}

struct RunFolder {
  TemporaryDirectory folder;
  RunPaths paths{folder.path()};

  RunFolder() {
    TimelineRow failed = lease(kGenerate, 100, 200, body(12, 3), "rollout-0", "env_failed");
    TimelineRow again = lease(kGenerate, 250, 500, body(12, 3, 2), "rollout-1", "finished");
    again.tokens = 2, again.min_version = 3, again.max_version = 4;
    TimelineRow scored = lease(kVerify, 510, 530, body(12, 3, 2), "reward-0", "scored");
    scored.reward = 1;
    const std::vector<TimelineRow> rows = {
        failed,
        again,
        lease(kGenerate, 250, 510, body(12, 4), "rollout-1", "finished"),
        scored,
        lease(kGenerate, 520, 525, body(12, 3, 1, Lane::kEval), "rollout-0", "finished"),
        {.what = kTrain,
         .at = milliseconds(900),
         .from = milliseconds(600),
         .worker = "trainer-0",
         .end = "published",
         .number = 5}};
    std::string text;
    for (const TimelineRow& row : rows) text += format_timeline_row(row) + "\n";
    folder.write("timeline.jsonl", text);
    std::filesystem::create_directories(paths.traces());
    write_trace(format_trace_row(trained(body(12, 3, 2))));
  }
  void write_trace(const std::string& row) const {
    ASSERT_TRUE(write_file_atomic(paths.traces() / trace_file_name(5),
                                  format_trace_head(5, 2) + "\n" + row + "\n"));
  }
  Result<SampleTrace> find(const std::string& words) const {
    const auto query = parse_sample_query(std::vector<std::string>{words});
    EXPECT_TRUE(query);
    return find_sample(paths, query.value());
  }
  std::string failure(const std::string& words) const {
    const auto found = find(words);
    return found ? "found" : found.failure().message;
  }
};

TEST(SampleTrace, TellsOfEveryAttemptAndWait) {
  const RunFolder run;
  const auto found = run.find("prompt=12 member=3");
  ASSERT_TRUE(found) << found.failure().message;
  EXPECT_EQ(found.value().sample, body(12, 3, 2)) << "of training, its latest attempt";
  EXPECT_EQ(found.value().history.size(), 4u);
  EXPECT_EQ(found.value().tokens, trained(body(12, 3, 2)));
  const std::string text = show_sample_trace(found.value(), nullptr);
  size_t at = 0;
  for (const char* part :
       {"sample   policy=0 dataset=0 epoch=0 prompt=12 launch=0 member=3 attempt=2",
        "step     5: finished, reward 1, advantage 0.5", "0.100    0.100  generate   rollout-0",
        "env_failed", "0.200    0.050  waits to be tried again",
        "0.250    0.250  generate attempt 2 rollout-1    finished, 2 tokens of versions 3 to 4",
        "0.500    0.010  waits for a reward worker", "verify", "scored, reward 1",
        "0.070  waits for its group, its step and the trainer", "train step 5", "masked",
        "0.7788"}) {
    at = text.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << text;
  }
}

// Of a sample of two turns, the second of which `anchor` names the state of.
TraceRow two_turns(int32_t member, uint64_t anchor) {
  using enum TokenRole;
  TraceRow row = trained(body(12, member, 2));
  row.segments = {{.tokens = {5, 9, 11, 6, 7},
                   .roles = {kPrompt, kSampled, kSampled, kObservation, kSampled},
                   .versions = {-1, 3, 3, -1, 3},
                   .logprobs = {0, -0.5f, -0.25f, 0, -1},
                   .log_masses = {},
                   .mask = {0, 0, 1, 0, 1},
                   .left_out = {{LeftOut::kRejected, {1}}},
                   .turn_begins = {1, 4},
                   .turn_numbers = {0, 1},
                   .old_logprobs = {-0.25f, -1},
                   .new_logprobs = {-0.5f, -1},
                   .ref_logprobs = {},
                   .advantages = {-0.5f, 0.75f}}};
  row.turns = {{.number = 0,
                .reward = 0.25,
                .anchor = 0xabcdef0123456789,
                .tokens = 2,
                .trained = 1,
                .left_out = {{LeftOut::kRejected, 1}},
                .advantage = -0.5f,
                .first = -0.5f,
                .last = -0.5f,
                .turn_return = 0.625},
               {.number = 1,
                .reward = 0,
                .anchor = anchor,
                .tokens = 1,
                .trained = 1,
                .advantage = 0.75f,
                .first = 1,
                .last = 0.5f,
                .turn_return = 0.5}};
  row.shaped_reward = 0.9;
  return row;
}

TEST(SampleTrace, ShowsRewardReturnStateAndAdvantageOfEachTurn) {
  const RunFolder run;
  TraceRow stranger = two_turns(5, 0x22);
  stranger.lease.member.prompt = 13;
  run.write_trace(format_trace_row(two_turns(3, 0x11)) + "\n" +
                  format_trace_row(two_turns(4, 0x22)) + "\n" + format_trace_row(stranger));
  const auto found = run.find("prompt=12 member=3");
  ASSERT_TRUE(found) << found.failure().message;
  ASSERT_TRUE(found.value().tokens) << found.value().notes.back();
  EXPECT_EQ(found.value().met, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(found.value().group_members, 2);
  const std::string text = show_sample_trace(found.value(), nullptr);
  size_t at = 0;
  for (const char* part :
       {"step     5: finished, reward 1, advantages -0.5 to 0.75\n", "history",
        "how many of the group's 2 traced members met it)\n",
        "  turn    reward    return  state      met by   tokens  advantage\n",
        "     1      0.25     0.625  abcdef01        2   1 of 2  -0.5, without 1 rejected\n",
        "     2         0       0.5  00000000        1        1  0.75 (1 to 0.5)\n",
        "             0.75  for the episode as a whole\n", "             -0.1  for its length\n",
        "tokens (natural logs",
        "sampled         1       3   -0.50000                              rejected",
        "0.7788   -0.50000", "sampled         2 ", "1.0000    0.75000"}) {
    at = text.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << text;
  }
  const auto json = nlohmann::json::parse(sample_trace_json(found.value()));
  EXPECT_EQ(json.at("met"), (std::vector<int>{2, 1}));
  EXPECT_EQ(json.at("tokens").at("turns").at(1).at("anchor"), "0000000000000011");
  EXPECT_EQ(json.at("tokens").at("turns").at(0).at("return"), 0.625);
  EXPECT_FALSE(json.at("tokens").at("turns").at(0).contains("value"));
}

TEST(SampleTrace, WhatTheTurnsEarnedIsTheRewardButForRounding) {
  const RunFolder run;
  const auto tells_of_more = [&](double more) {
    TraceRow row = two_turns(3, 0x11);
    row.reward = 0.25 + more;
    run.write_trace(format_trace_row(row));
    return show_sample_trace(run.find("prompt=12 member=3").value(), nullptr)
               .find("for the episode as a whole") != std::string::npos;
  };
  EXPECT_FALSE(tells_of_more(3e-8));
  EXPECT_TRUE(tells_of_more(1e-5));
}

TEST(SampleTrace, SaysWhichReasonLeftATurnAndATokenOutOfTheLoss) {
  const RunFolder run;
  const auto shown = [&](std::map<LeftOut, std::vector<int32_t>> left_out,
                         std::map<LeftOut, int64_t> of_turn) {
    TraceRow row = two_turns(3, 0x11);
    row.advantage.reset();
    TraceSegment& segment = row.segments[0];
    segment.mask.assign(5, 0);
    segment.left_out = std::move(left_out);
    segment.old_logprobs.clear(), segment.new_logprobs.clear(), segment.advantages.clear();
    for (TraceTurn& turn : row.turns)
      turn.trained = 0, turn.advantage = turn.first = turn.last = {}, turn.left_out = of_turn;
    run.write_trace(format_trace_row(row));
    const auto found = run.find("prompt=12 member=3");
    EXPECT_TRUE(found.value().tokens);
    const auto json = nlohmann::json::parse(sample_trace_json(found.value()));
    return show_sample_trace(found.value(), nullptr) +
           json.at("tokens").at("segments").at(0).value("left_out", nlohmann::json()).dump();
  };
  std::string text = shown({{LeftOut::kTruncated, {1, 2, 4}}}, {{LeftOut::kTruncated, 2}});
  EXPECT_NE(text.find("reward 1, not in the loss: truncated (its sample was cut "
                      "(algo.truncated: mask))\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("no_signal"), std::string::npos) << text;
  EXPECT_EQ(text.find("greedy"), std::string::npos) << text;
  EXPECT_EQ(text.find("masked"), std::string::npos) << text;
  EXPECT_NE(text.find("{\"truncated\":[1,2,4]}"), std::string::npos) << text;

  text = shown({{LeftOut::kTooOld, {1, 2}}, {LeftOut::kRejected, {4}}}, {{LeftOut::kTooOld, 2}});
  EXPECT_NE(text.find("not in the loss: 2 too_old (older than scheduler.max_staleness), 1 rejected "
                      "(algo.correction rejected it)\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("  not in the loss: too_old (older than"), std::string::npos) << text;

  // An older build kept no reason.
  text = shown({}, {});
  EXPECT_NE(text.find("not in the loss: the rewards in its group are all equal, its tokens are"),
            std::string::npos)
      << text;

  const auto no_signal = [&] {
    return shown({{LeftOut::kNoSignal, {1, 2, 4}}}, {{LeftOut::kNoSignal, 2}});
  };
  EXPECT_NE(no_signal().find("no_signal (the rewards in its group are all equal)\n"),
            std::string::npos);
  // Which need not be equal where another metric judges.
  run.folder.write("config.yaml", "algo: {filter_metric: correct}\n");
  text = no_signal();
  EXPECT_NE(
      text.find("reward 1, not in the loss: no_signal (the values of correct in its group are "
                "all equal)\n"),
      std::string::npos)
      << text;
  EXPECT_EQ(text.find("the rewards in its group"), std::string::npos) << text;
}

// A conversation of two turns, what goes on behind it, another answer to its first prompt, and a
// sub-agent.
TEST(SampleTrace, ShowsATreeOfSegments) {
  using enum TokenRole;
  const auto segment = [](int32_t parent, int32_t parent_tokens, std::vector<TokenRole> roles) {
    TraceSegment made;
    made.parent = parent;
    made.parent_tokens = parent_tokens;
    for (const TokenRole role : roles) {
      const bool sampled = role == kSampled;
      made.tokens.push_back(5);
      made.versions.push_back(sampled ? 3 : -1);
      made.logprobs.push_back(sampled ? -0.5f : 0);
      made.mask.push_back(sampled);
      if (!sampled) continue;
      made.old_logprobs.push_back(-0.5f);
      made.new_logprobs.push_back(-0.5f);
    }
    made.roles = std::move(roles);
    return made;
  };
  const RunFolder run;
  TraceRow row = trained(body(12, 3, 2));
  row.segments = {segment(-1, 0, {kPrompt, kPrompt, kSampled, kObservation, kSampled}),
                  segment(0, 5, {kObservation, kSampled}), segment(0, 2, {kSampled, kSampled}),
                  segment(-1, 0, {kPrompt, kSampled})};
  run.write_trace(format_trace_row(row));
  const auto found = run.find("prompt=12 member=3");
  ASSERT_TRUE(found) << found.failure().message;
  ASSERT_TRUE(found.value().tokens) << found.value().notes.front();
  EXPECT_EQ(*found.value().tokens, row);
  const std::string text = show_sample_trace(found.value(), nullptr);
  size_t at = 0;
  for (const char* part :
       {"\n  segment 0 begins: 5 tokens, turns 1 to 2\n"
        "    segment 1 goes on behind turn 2: 2 tokens, turn 3\n"
        "    segment 2 answers again what turn 1 answers: 2 tokens, turn 4\n"
        "  segment 3 begins anew: 2 tokens, turn 5\n",
        "\n  segment 1 goes on behind turn 2", "\n       5       5 observation",
        "\n       6       5 sampled", "\n  segment 2 answers again", "\n       2       5 sampled",
        "\n  segment 3 begins anew", "\n       0       5 prompt"}) {
    at = text.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\n" << text;
    at += 1;
  }
  const auto json = nlohmann::json::parse(sample_trace_json(found.value()));
  EXPECT_EQ(json.at("tokens").at("segments").at(2).at("parent_tokens"), 2);

  // What continues more than there is was damaged, and nothing of it is shown.
  row.segments[1].parent_tokens = 6;
  run.write_trace(format_trace_row(row));
  const auto damaged = run.find("prompt=12 member=3");
  EXPECT_FALSE(damaged.value().tokens);
  EXPECT_NE(damaged.value().notes.back().find("a segment continues more than its parent has"),
            std::string::npos)
      << damaged.value().notes.back();
}

TEST(SampleTrace, ShowsSpecialTokens) {
  const RunFolder run;
  TraceRow row = trained(body(12, 3, 2));
  row.segments[0].tokens = {3, 4, text::kEosWord};
  run.write_trace(format_trace_row(row));
  text::write_word_tokenizer(run.folder / "words", std::array<std::string, 2>{"up", "down"});
  const auto tokenizer = text::load_tokenizer(run.folder / "words");
  const std::string text =
      show_sample_trace(run.find("prompt=12 member=3").value(), tokenizer.get());
  EXPECT_NE(text.find("  down\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  </s>\n"), std::string::npos) << text;
}

TEST(SampleTrace, JsonHoldsTheRowsWithEveryDigit) {
  const RunFolder run;
  const auto json =
      nlohmann::json::parse(sample_trace_json(run.find("prompt=12 member=3").value()));
  EXPECT_EQ(json.at("sample"), sample_name(body(12, 3, 2)));
  EXPECT_EQ(json.at("history").size(), 4u);
  EXPECT_EQ(json.at("tokens").at("advantage"), 0.5);
  EXPECT_EQ(json.at("tokens").at("segments").at(0).at("mask"), (std::vector<int>{0, 0, 1}));
  EXPECT_FALSE(json.at("tokens").contains("proof"));
}

TEST(SampleTrace, SaysWhatItKnowsInsteadAndWhatItMisses) {
  const RunFolder run;
  EXPECT_NE(run.failure("prompt=12")
                .find("2 samples have this name; say more of it:\n         "
                      "policy=0 dataset=0 epoch=0 prompt=12 launch=0 member=3"),
            std::string::npos)
      << run.failure("prompt=12");
  EXPECT_NE(run.failure("prompt=99")
                .find("knows no such sample. It knows 5 leases and traces, for "
                      "example \"policy=0"),
            std::string::npos)
      << run.failure("prompt=99");
  const auto untraced = run.find("prompt=12 member=4");
  ASSERT_TRUE(untraced);
  EXPECT_FALSE(untraced.value().tokens);
  ASSERT_FALSE(untraced.value().notes.empty());
  EXPECT_NE(untraced.value().notes.back().find("its tokens are not kept"), std::string::npos);
  EXPECT_NE(untraced.value().notes.back().find("traces/ holds steps 5"), std::string::npos);
  const auto held_out = run.find("prompt=12 member=3 lane=eval");
  ASSERT_TRUE(held_out);
  EXPECT_NE(held_out.value().notes.back().find("it is held out"), std::string::npos);
  // Of a step's two samples one is there.
  EXPECT_NE(held_out.value().notes.front().find("has 1 of the step's 2 samples"),
            std::string::npos);

  const RunFolder empty;
  std::filesystem::remove(empty.paths.timeline());
  std::filesystem::remove_all(empty.paths.traces());
  EXPECT_NE(empty.failure("prompt=1").find("knows of no sample yet"), std::string::npos);
}

TEST(SampleTrace, DamagedRowsAreNamedAndTheRestIsShown) {
  RunFolder run;
  std::string row = format_trace_row(trained(body(12, 3, 2)));
  row[row.find("\"mask\"") + 8] ^= 1;
  run.write_trace(row);
  const auto found = run.find("prompt=12 member=3");
  ASSERT_TRUE(found) << found.failure().message;
  EXPECT_FALSE(found.value().tokens);
  EXPECT_EQ(found.value().history.size(), 3u);
  bool named = false;
  for (const std::string& note : found.value().notes)
    named = named || note.find("step_000005.jsonl:2: the row was changed or damaged") != note.npos;
  EXPECT_TRUE(named) << found.value().notes.front();

  std::string text = read_file(run.paths.timeline()).value();
  text[3] ^= 1;
  run.folder.write("timeline.jsonl", text + "{\"at_ns\":");
  const auto later = run.find("prompt=12 member=3");
  ASSERT_TRUE(later);
  EXPECT_EQ(later.value().history.size(), 2u);
  EXPECT_NE(later.value().notes.front().find("timeline.jsonl:1: the row was changed or damaged"),
            std::string::npos);
}

TEST(SampleTrace, OfDamagedRowsTheFirstIsNamedAndAllAreCounted) {
  const RunFolder run;
  run.write_trace(format_trace_row(trained(body(12, 3, 2))) + "\n{}\n[1]");
  const std::string rows = (run.paths.traces() / "step_000005.jsonl").string() +
                           ":3: no sample's row; 2 damaged rows of this file are passed over";
  const auto found = run.find("prompt=12 member=3");
  ASSERT_TRUE(found && found.value().tokens);
  EXPECT_NE(std::ranges::find(found.value().notes, rows), found.value().notes.end());
  // They may be why a sample is not known.
  EXPECT_NE(run.failure("prompt=99").find("\n       " + rows), std::string::npos)
      << run.failure("prompt=99");
  // A damaged member of the group is missed where its members are counted.
  std::string other = format_trace_row(trained(body(12, 4, 2)));
  other[other.find("\"mask\"") + 8] ^= 1;
  run.write_trace(format_trace_row(trained(body(12, 3, 2))) + "\n" + other);
  const std::string note = run.find("prompt=12 member=3").value().notes.back();
  EXPECT_NE(note.find("step_000005.jsonl:3: the row was changed or damaged"), std::string::npos);
  EXPECT_TRUE(note.ends_with("; the row is passed over")) << note;
}

}  // namespace
}  // namespace tailrace
