// A step in flight while the next one is planned: tokens, log-probabilities, sets, experts and
// answers are those of an engine that reads each step before it plans the next.
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "tests/rollout/engine/engine_harness.h"
#include "tests/rollout/engine/fake_tokenizer.h"

namespace tailrace {
namespace {

using AnswersOf = std::map<SessionId, Generation>;

std::vector<TokenId> ids_of(const Generation& answer) {
  std::vector<TokenId> ids;
  for (const GeneratedToken& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

// The first `count` tokens, or all of them.
void expect_same_tokens(const Generation& got, const Generation& want, size_t count) {
  ASSERT_LE(count, want.tokens.size()) << "session " << got.session;
  ASSERT_GE(got.tokens.size(), count) << "session " << got.session;
  for (size_t i = 0; i < count; ++i) {
    const GeneratedToken &a = got.tokens[i], &b = want.tokens[i];
    ASSERT_EQ(a.id, b.id) << "session " << got.session << ", token " << i;
    ASSERT_EQ(a.logprob, b.logprob);
    ASSERT_EQ(a.version, b.version);
    ASSERT_EQ(a.log_mass, b.log_mass);
    ASSERT_EQ(a.kept, b.kept);
  }
}

void expect_same_answers(const AnswersOf& got, const AnswersOf& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [session, answer] : want) {
    const Generation& other = got.at(session);
    ASSERT_EQ(other.tokens.size(), answer.tokens.size()) << "session " << session;
    expect_same_tokens(other, answer, answer.tokens.size());
    EXPECT_EQ(other.reason, answer.reason) << "session " << session;
    EXPECT_EQ(other.choices, answer.choices) << "session " << session;
  }
}

// Prompts of which some begin alike, with all that may end an answer or cut its distribution.
GenerateRequest random_request(SessionId session, Rng& rng, int64_t vocab) {
  const int64_t length = 1 + rng.below(40);
  GenerateRequest request =
      request_of(session, random_tokens(length, vocab, static_cast<uint64_t>(rng.below(4))),
                 1 + rng.below(30), rng.chance(0.2) ? 0.0 : 0.9);
  if (rng.chance(0.4)) request.sampling.stop_strings = {"\n", "AB", "k"};
  if (rng.chance(0.4)) request.sampling.stop_tokens = {3, 4, 9};
  if (rng.chance(0.3)) request.sampling.top_k = 7;
  if (rng.chance(0.3)) request.sampling.top_p = 0.8;
  request.wants_kept = rng.chance(0.5);
  return request;
}

EngineSetup random_setup(Rng& rng) {
  return {.block_tokens = rng.chance(0.5) ? 8 : 16,
          .max_batch_tokens = 4 + rng.below(40),
          .max_sequences = 1 + rng.below(12),
          .max_context_tokens = 64,
          .kv_blocks = 8 + rng.below(12),
          .keep_choices = true};
}

TestEngine engine_of(const TestModel& model, EngineSetup setup, bool overlaps,
                     const text::Tokenizer* tokenizer = nullptr) {
  setup.overlaps = overlaps;
  return TestEngine(model, setup, tokenizer);
}

// Two turns of each session, in caches that are too small for all.
TEST(EngineOverlap, ChangesNoTokenAndNoAnswer) {
  const FakeTokenizer tokenizer = letters();
  std::set<FinishReason> reasons;
  int64_t preemptions = 0, hits = 0;
  for (const ModelConfig& config : {tiny_config(), sparse_config()}) {
    const TestModel model(config);
    for (uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(seed);
      Rng setup_rng(seed);
      const EngineSetup setup = random_setup(setup_rng);
      AnswersOf want;
      int64_t sampled = 0;
      for (const bool overlaps : {false, true}) {
        TestEngine engine = engine_of(model, setup, overlaps, &tokenizer);
        Rng rng(100 + seed);
        AnswersOf got;
        for (SessionId session = 0; session < 15; ++session)
          engine->submit(random_request(session, rng, 61));
        for (auto& [session, answer] : engine.finish()) {
          GenerateRequest more = random_request(session, rng, 61);
          more.new_tokens.resize(1);
          more.key.value += 1;
          got[session] = std::move(answer);
          engine->submit(std::move(more));
        }
        for (auto& [session, answer] : engine.finish()) got[session + 100] = std::move(answer);
        const EngineStats stats = engine->stats();
        if (!overlaps) {
          want = std::move(got);
          sampled = stats.sampled_tokens;
          for (const auto& [session, answer] : want) reasons.insert(answer.reason);
          continue;
        }
        expect_same_answers(got, want);
        if (HasFatalFailure()) return;
        EXPECT_EQ(stats.sampled_tokens, sampled);
        preemptions += stats.planner.preemptions;
        hits += stats.planner.prefix_hit_tokens;
        for (SessionId session = 0; session < 15; ++session) engine->release(session);
        EXPECT_EQ(engine->num_free_blocks() + engine->num_cached_blocks(), engine->num_blocks());
      }
    }
  }
  // Else nothing was tested.
  EXPECT_EQ(reasons.size(), 4u);
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(hits, 100);
}

// Sessions that are ended in the middle: what they said is how an undisturbed answer begins, and
// the others go on. Installs of the same weights under another version change no token either.
TEST(EngineOverlap, AbortsAndInstallsChangeNoToken) {
  const FakeTokenizer tokenizer = letters();
  const TestModel model(sparse_config());
  int64_t aborted = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const EngineSetup setup = random_setup(rng);
    std::vector<GenerateRequest> requests;
    for (SessionId session = 0; session < 12; ++session)
      requests.push_back(random_request(session, rng, 61));
    TestEngine plain = engine_of(model, setup, /*overlaps=*/false, &tokenizer);
    for (const GenerateRequest& request : requests) plain->submit(request);
    AnswersOf want = plain.finish();

    TestEngine engine = engine_of(model, setup, /*overlaps=*/true, &tokenizer);
    for (const GenerateRequest& request : requests) engine->submit(request);
    AnswersOf got;
    std::set<SessionId> given_up;
    int64_t version = 0;
    while (!engine->idle()) {
      for (Generation& answer : engine->step()) {
        EXPECT_FALSE(got.contains(answer.session)) << "answered twice: " << answer.session;
        got[answer.session] = std::move(answer);
      }
      const SessionId session = rng.below(12);
      if (rng.chance(0.1) && !got.contains(session)) {
        engine->release(session);
        given_up.insert(session);
      }
      if (rng.chance(0.04)) engine->install(model.pack(), ++version);
    }
    ASSERT_EQ(got.size(), requests.size());
    for (auto& [session, answer] : got) {
      Generation& whole = want.at(session);
      for (size_t i = 0; i < std::min(whole.tokens.size(), answer.tokens.size()); ++i)
        whole.tokens[i].version = answer.tokens[i].version;
      if (given_up.contains(session)) {
        EXPECT_EQ(answer.reason, FinishReason::kAborted);
        ++aborted;
      } else {
        EXPECT_EQ(answer.reason, whole.reason);
        EXPECT_EQ(answer.tokens.size(), whole.tokens.size());
      }
      expect_same_tokens(answer, whole, answer.tokens.size());
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(aborted, 20);
}

TEST(EngineOverlap, KeepsOneStepInFlight) {
  const TestModel model(tiny_config());
  TestEngine engine = engine_of(model, {}, /*overlaps=*/true);
  engine->submit(request_of(1, {5, 6}, 3));
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(engine->step().empty());
    EXPECT_EQ(engine->stats().steps, step);
    EXPECT_EQ(engine->stats().sampled_tokens, step - 1);
    EXPECT_EQ(engine->so_far(1).size(), static_cast<size_t>(step - 1));
    EXPECT_FALSE(engine->idle());
  }
  // The length of an answer is known: there is no fourth step.
  EXPECT_EQ(engine->step().size(), 1u);
  EXPECT_EQ(engine->stats().steps, 3);
  EXPECT_TRUE(engine->idle());
}

// A stop token is seen one step late: of the step too many nothing counts, and the next turn goes
// on from the answer.
TEST(EngineOverlap, NothingOfAStepTooManyIsCounted) {
  const TestModel model(sparse_config());
  TestEngine engine = engine_of(model, {.keep_choices = true}, /*overlaps=*/true);
  std::vector<TokenId> context;
  std::vector<uint16_t> told;
  for (int turn = 0; turn < 4; ++turn) {
    GenerateRequest request = request_of(1, random_tokens(7, 61, 100 + turn), 20);
    for (const TokenId id : request.new_tokens) context.push_back(id);
    // The same answer, ended by its fifth token or by an equal one before it.
    TestEngine plain(model);
    plain->submit(request_of(1, context, 5));
    request.sampling.stop_tokens = {ids_of(plain.finish()[1]).back()};
    engine->submit(request);
    const Generation answer = engine.finish()[1];
    EXPECT_EQ(answer.reason, FinishReason::kStopToken);
    ASSERT_LE(answer.tokens.size(), 5u);
    for (const TokenId id : ids_of(answer)) context.push_back(id);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.prefill_tokens + stats.decode_tokens, std::ssize(context) - 1);
    told.insert(told.end(), answer.choices.begin(), answer.choices.end());
    std::vector<uint16_t> expected = teacher_choices(model, context);
    expected.resize(expected.size() / context.size() * (context.size() - 1));
    EXPECT_EQ(told, expected);
    const std::vector<float> logprobs = teacher_forced(model, context, 1);
    for (size_t i = 0; i < answer.tokens.size(); ++i)
      EXPECT_EQ(answer.tokens[i].logprob, logprobs[context.size() - answer.tokens.size() - 1 + i]);
  }
}

// Whoever gives a session up hears of it once, though it ends with what is in flight.
TEST(EngineOverlap, AReleasedSessionIsAbortedThoughItHasEnded) {
  const TestModel model(tiny_config());
  TestEngine engine = engine_of(model, {}, /*overlaps=*/true);
  engine->submit(request_of(1, {5, 6}, 1));
  engine->submit(request_of(2, {7, 8}, 3));
  engine->submit(request_of(3, {9, 8}, 1));
  EXPECT_TRUE(engine->step().empty());
  engine->release(1);
  engine->release(3);  // which has ended with the same step
  EXPECT_FALSE(engine->idle());
  const std::vector<Generation> answers = engine->step();
  ASSERT_EQ(answers.size(), 2u);
  for (const Generation& answer : answers) {
    EXPECT_NE(answer.session, 2);
    EXPECT_EQ(answer.reason, FinishReason::kAborted);
    EXPECT_EQ(answer.tokens.size(), 1u);
  }
  EXPECT_EQ(engine->so_far(2).size(), 1u);
  EXPECT_EQ(engine.finish().size(), 1u);
}

TEST(EngineOverlap, AFrozenGateCollectsWhatIsInFlight) {
  const TestModel model(tiny_config());
  TestEngine engine = engine_of(model, {}, /*overlaps=*/true);
  engine->submit(request_of(1, {5, 6}, 4));
  EXPECT_TRUE(engine->step().empty());
  engine->gate().close();
  engine->gate().freeze();
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(engine->step().empty());
    EXPECT_EQ(engine->so_far(1).size(), 1u);
    EXPECT_EQ(engine->stats().steps, 1);
  }
  engine->install(model.pack(), 1);
  const Generation answer = engine.finish()[1];
  ASSERT_EQ(answer.tokens.size(), 4u);
  EXPECT_EQ(answer.tokens[0].version, 0);
  EXPECT_EQ(answer.tokens[1].version, 1);
}

// The step behind the one that is refused looks up what nobody drew; then other weights go on.
TEST(EngineOverlap, RefusesLogitsThatAreNotFiniteAndGoesOn) {
  TestModel good(tiny_config()), bad(tiny_config());
  bad.parameters.vector(kFinalNormName)[0] = std::numeric_limits<float>::quiet_NaN();
  TestEngine engine = engine_of(good, {}, /*overlaps=*/true);
  engine->install(bad.pack(), 1);
  engine->submit(request_of(1, {0, 1, 2}, 4));
  EXPECT_TRUE(engine->step().empty());
  for (int time = 0; time < 2; ++time) {
    try {
      for (int step = 0; step < 2; ++step) (void)engine->step();
      FAIL() << "it drew a token";
    } catch (const UserError& error) {
      EXPECT_STREQ(error.what(),
                   "the weights of version 1 give logits that are not finite (at position 3)");
    }
  }
  engine->install(good.pack(), 2);
  TestEngine plain = engine_of(good, {}, /*overlaps=*/false);
  plain->submit(request_of(1, {0, 1, 2}, 4));
  const Generation got = engine.finish()[1], want = plain.finish()[1];
  EXPECT_EQ(ids_of(got), ids_of(want));
}

}  // namespace
}  // namespace tailrace
