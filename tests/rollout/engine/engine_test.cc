#include "rollout/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "kernels/base/memory.h"
#include "tests/rollout/engine/engine_harness.h"
#include "tests/rollout/engine/fake_tokenizer.h"

namespace tailrace {
namespace {

using Answers = std::map<SessionId, Generation>;

std::vector<TokenId> context_of(std::vector<TokenId> prompt, const Generation& answer) {
  for (const GeneratedToken& token : answer.tokens) prompt.push_back(token.id);
  return prompt;
}

void append(Generation& answer, const Generation& more) {
  answer.tokens.insert(answer.tokens.end(), more.tokens.begin(), more.tokens.end());
}

// The sampled log-probabilities are the trainer's, bit for bit.
void expect_teacher_forced(const TestModel& model, const std::vector<TokenId>& prompt,
                           const Generation& answer, float inv_temperature = 1.0f) {
  std::vector<float> expected = teacher_forced(model, context_of(prompt, answer), inv_temperature);
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    ASSERT_EQ(answer.tokens[i].logprob, expected[prompt.size() - 1 + i])
        << "session " << answer.session << ", sampled token " << i;
  }
}

void expect_equal(const Generation& a, const Generation& b) {
  ASSERT_EQ(a.tokens.size(), b.tokens.size()) << "session " << a.session;
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    ASSERT_EQ(a.tokens[i].id, b.tokens[i].id) << "session " << a.session << ", token " << i;
    ASSERT_EQ(a.tokens[i].logprob, b.tokens[i].logprob);
  }
  EXPECT_EQ(a.reason, b.reason);
}

// Prompts of several lengths, some in groups that share theirs.
std::vector<std::vector<TokenId>> mixed_prompts(int64_t vocab, int64_t longest) {
  std::vector<std::vector<TokenId>> prompts;
  // About the edges of a block of 16, which is where prefixes are shared and pages change.
  for (int64_t length : {1, 2, 15, 16, 17, 31, 40, 64}) {
    for (int member = 0; member < 3; ++member)
      prompts.push_back(random_tokens(std::min(length, longest), vocab, /*seed=*/length));
  }
  return prompts;
}

Answers generate(TestEngine& engine, const std::vector<std::vector<TokenId>>& prompts,
                 int64_t max_new_tokens, double temperature = 1.0) {
  for (size_t i = 0; i < prompts.size(); ++i)
    engine->submit(request_of(static_cast<SessionId>(i), prompts[i], max_new_tokens, temperature));
  return engine.finish();
}

TEST(Engine, SamplesWithTheTrainersLogProbabilities) {
  for (const ModelConfig& config : {tiny_config(), sparse_config(), gemma_config()}) {
    TestModel model(config);
    auto prompts = mixed_prompts(61, 64);
    TestEngine engine(model);
    Answers answers = generate(engine, prompts, 30, /*temperature=*/0.7);
    ASSERT_EQ(answers.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(answers[static_cast<SessionId>(i)].tokens.size(), 30u);
      expect_teacher_forced(model, prompts[i], answers[static_cast<SessionId>(i)],
                            static_cast<float>(1 / 0.7));
    }
  }
}

TEST(Engine, SamplesFromATrainedModelWithTheTrainersLogProbabilities) {
  TestModel model("models/stories260K");
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    prompts.push_back({1});
    for (TokenId id : random_tokens(5 + 7 * static_cast<int64_t>(seed), 512, seed % 2))
      prompts.back().push_back(id);
  }
  TestEngine engine(model, {.max_batch_tokens = 50, .max_context_tokens = 256});
  Answers answers = generate(engine, prompts, 100);
  for (size_t i = 0; i < prompts.size(); ++i)
    expect_teacher_forced(model, prompts[i], answers[static_cast<SessionId>(i)]);
}

// The ids that pad a vocabulary are the likeliest by far: an untrained row may say anything.
TEST(Engine, NeverSamplesAPaddedId) {
  for (const bool tied : {false, true}) {
    ModelConfig config = tiny_config();
    config.tie_embeddings = tied;
    config.padded_ids = 7;
    TestModel model(config);
    Matrix head = model.parameters.matrix(model.model.head_name());
    for (int64_t id = 0; id < config.vocab_size; ++id)
      for (int64_t i = 0; i < head.cols; ++i)
        if (id >= config.num_ids()) head.row(id)[i] = 50 * head.row(id - 20)[i];
    const auto prompts = mixed_prompts(config.num_ids(), 64);
    for (const double temperature : {0.0, 0.7, 5.0}) {
      TestEngine engine(model);
      Answers answers = generate(engine, prompts, 30, temperature);
      for (size_t i = 0; i < prompts.size(); ++i) {
        const Generation& answer = answers[static_cast<SessionId>(i)];
        ASSERT_EQ(answer.tokens.size(), 30u);
        for (const GeneratedToken& token : answer.tokens) ASSERT_LT(token.id, config.num_ids());
        // The trainer's softmax has the same ids.
        expect_teacher_forced(model, prompts[i], answer,
                              static_cast<float>(temperature > 0 ? 1 / temperature : 1));
      }
    }
    // Not even where truncation keeps as many as there are rows.
    TestEngine engine(model);
    GenerateRequest request = request_of(0, {1, 2, 3}, 20);
    request.sampling.top_k = config.vocab_size;
    request.sampling.min_p = 1e-30;
    request.wants_kept = true;
    engine->submit(std::move(request));
    const auto generations = engine.finish();
    for (const GeneratedToken& token : generations.at(0).tokens) {
      ASSERT_FALSE(token.kept.empty());
      ASSERT_LT(token.kept.back(), config.num_ids());
    }
  }
}

// Each of them without and with a step in flight.
std::vector<EngineSetup> in_both_orders(std::span<const EngineSetup> setups) {
  std::vector<EngineSetup> all;
  for (EngineSetup setup : setups) {
    for (const bool overlaps : {false, true}) {
      setup.overlaps = overlaps;
      all.push_back(setup);
    }
  }
  return all;
}

std::string description(const EngineSetup& setup) {
  return fmt::format(
      "block_tokens {} max_batch_tokens {} max_sequences {} kv_blocks {} overlaps {}",
      setup.block_tokens, setup.max_batch_tokens, setup.max_sequences, setup.kv_blocks,
      setup.overlaps);
}

class EngineBits : public ::testing::TestWithParam<ModelConfig (*)()> {};
INSTANTIATE_TEST_SUITE_P(Models, EngineBits,
                         ::testing::Values(tiny_config, sparse_config, gemma_config));

TEST_P(EngineBits, AreTheSameUnderAnyBatchingAndPaging) {
  TestModel model(GetParam()());
  auto prompts = mixed_prompts(61, 64);
  TestEngine plain(model, {.max_batch_tokens = 4096});
  Answers expected = generate(plain, prompts, 20);
  const EngineSetup setups[] = {
      // Prefill in small pieces, down to one token at a time.
      {.max_batch_tokens = 7},
      {.max_batch_tokens = 1, .max_sequences = 1},
      // Other pages.
      {.block_tokens = 8},
      {.block_tokens = 128},
      // Small batches.
      {.max_sequences = 3},
      // With preemption; of the second, one long sequence fits.
      {.block_tokens = 8, .max_batch_tokens = 33, .kv_blocks = 17},
      {.max_batch_tokens = 64, .kv_blocks = 8},
      {.block_tokens = 8, .kv_blocks = 16},
  };
  for (const EngineSetup& setup : in_both_orders(setups)) {
    SCOPED_TRACE(description(setup));
    TestEngine engine(model, setup);
    Answers answers = generate(engine, prompts, 20);
    ASSERT_EQ(answers.size(), expected.size());
    for (auto& [session, answer] : answers) expect_equal(answer, expected[session]);
    // Else the setups that are meant to preempt would test nothing.
    EXPECT_EQ(engine->stats().planner.preemptions > 0, setup.kv_blocks > 0);
  }
}

// What the engine has told of a context's experts is what training would choose, for all of its
// tokens but the last, of which nothing was computed.
void expect_trainers_choices(const TestModel& model, const std::vector<TokenId>& context,
                             const std::vector<uint16_t>& told) {
  std::vector<uint16_t> expected = teacher_choices(model, context);
  expected.resize(expected.size() / context.size() * (context.size() - 1));
  EXPECT_EQ(told, expected) << context.size() << " tokens";
}

TEST(EngineChoices, AreTheTrainersUnderAnyBatchingAndPaging) {
  TestModel model(sparse_config());
  const auto prompts = mixed_prompts(61, 64);
  const EngineSetup setups[] = {
      {},
      {.max_batch_tokens = 7},
      {.block_tokens = 8},
      {.max_sequences = 3, .num_threads = 3},
      {.block_tokens = 8, .max_batch_tokens = 33, .kv_blocks = 17},
  };
  for (EngineSetup setup : in_both_orders(setups)) {
    SCOPED_TRACE(description(setup));
    setup.keep_choices = true;
    TestEngine engine(model, setup);
    Answers answers = generate(engine, prompts, 20);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Generation& answer = answers[static_cast<SessionId>(i)];
      expect_trainers_choices(model, context_of(prompts[i], answer), answer.choices);
    }
    EXPECT_GT(engine->stats().planner.prefix_hit_tokens, 0);
    EXPECT_EQ(engine->stats().planner.preemptions > 0, setup.kv_blocks > 0);
  }
}

TEST(EngineChoices, GoOnFromTurnToTurn) {
  TestModel model(sparse_config());
  TestEngine engine(model, {.max_batch_tokens = 5, .keep_choices = true});
  std::vector<TokenId> context;
  std::vector<uint16_t> told;
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<TokenId> observation = random_tokens(7, 61, 100 + turn);
    engine->submit(request_of(1, observation, 5));
    context.insert(context.end(), observation.begin(), observation.end());
    const Generation answer = engine.finish()[1];
    context = context_of(context, answer);
    told.insert(told.end(), answer.choices.begin(), answer.choices.end());
    expect_trainers_choices(model, context, told);
  }
  // Whoever ends a session in the middle of an answer hears what there is: the last token was
  // computed in the first of two steps.
  engine->submit(request_of(1, {}, 5));
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(engine->step().empty());
  engine->release(1);
  const std::vector<Generation> aborted = engine->step();
  ASSERT_EQ(aborted.size(), 1u);
  told.insert(told.end(), aborted[0].choices.begin(), aborted[0].choices.end());
  expect_trainers_choices(model, context_of(context, aborted[0]), told);
}

// A token's experts are those of the pass that the next token was drawn from.
TEST(EngineChoices, StayThoseThatSampledWhenWeightsChange) {
  TestModel before(sparse_config(), 1), after(sparse_config(), 2);
  TestEngine engine(before, {.keep_choices = true});
  const std::vector<TokenId> prompt = random_tokens(20, 61, 1);
  engine->submit(request_of(1, prompt, 20));
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(engine->step().empty());
  engine->install(after.pack(), /*version=*/1);
  const Generation answer = engine.finish()[1];
  const std::vector<TokenId> context = context_of(prompt, answer);
  // Experts of new weights hang on what the new weights made of the tokens in front as well: that
  // is what the engine computed too.
  const std::vector<uint16_t> by_old = teacher_choices(before, context),
                              by_new = teacher_choices(after, context);
  const size_t per_token = by_old.size() / context.size();
  ASSERT_EQ(answer.choices.size(), (context.size() - 1) * per_token);
  EXPECT_NE(by_old, by_new);
  for (size_t i = 0; i < answer.choices.size(); ++i) {
    const size_t next = i / per_token + 1;  // the token that it was computed for
    const bool is_old = next < prompt.size() || answer.tokens[next - prompt.size()].version == 0;
    ASSERT_EQ(answer.choices[i], (is_old ? by_old : by_new)[i]) << next;
  }
}

// New weights in the middle of a prefill, of a prompt and of an observation: nothing was drawn from
// what the old ones chose.
TEST(EngineChoices, AreOfTheWeightsThatDrawFromAPrefill) {
  TestModel before(sparse_config(), 1), after(sparse_config(), 2);
  for (const bool later_turn : {false, true}) {
    TestEngine engine(before, {.max_batch_tokens = 5, .keep_choices = true});
    std::vector<TokenId> context;
    std::vector<uint16_t> told;
    if (later_turn) {
      context = random_tokens(7, 61, 2);
      engine->submit(request_of(1, context, 3));
      const Generation answer = engine.finish()[1];
      context = context_of(context, answer);
      told = answer.choices;
    }
    const std::vector<TokenId> seen = random_tokens(20, 61, 1);
    engine->submit(request_of(1, seen, 4));
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(engine->step().empty());
    engine->install(after.pack(), /*version=*/1);
    const size_t num_old = told.size();
    context.insert(context.end(), seen.begin(), seen.end());
    const Generation answer = engine.finish()[1];
    context = context_of(context, answer);
    told.insert(told.end(), answer.choices.begin(), answer.choices.end());
    const std::vector<uint16_t> by_new = teacher_choices(after, context);
    const size_t per_token = by_new.size() / context.size();
    ASSERT_EQ(told.size(), (context.size() - 1) * per_token);
    for (size_t i = num_old; i < told.size(); ++i) ASSERT_EQ(told[i], by_new[i]) << i;
  }
}

TEST(EngineChoices, AreThereWhenAskedForAlone) {
  TestModel sparse(sparse_config()), dense(tiny_config());
  TestEngine silent(sparse), without(dense, {.keep_choices = true});
  EXPECT_TRUE(generate(silent, {{1, 2, 3}}, 4)[0].choices.empty());
  EXPECT_TRUE(generate(without, {{1, 2, 3}}, 4)[0].choices.empty());
}

// Of a model whose ops are worth a second thread: in prefill, and in a decode step of one sequence.
TEST(Engine, GivesTheSameBitsForEveryNumberOfThreads) {
  TestModel model(wide_config());
  const EngineSetup plain{.max_batch_tokens = 1024, .max_context_tokens = 1024};
  const std::vector<TokenId> long_prompt = random_tokens(700, 4099, /*seed=*/1);
  const std::vector<std::vector<TokenId>> prompts = {long_prompt, random_tokens(33, 4099, 2),
                                                     random_tokens(1, 4099, 3)};
  TestEngine first(model, plain);
  Answers expected = generate(first, prompts, 12);
  for (size_t i = 0; i < prompts.size(); ++i)
    expect_teacher_forced(model, prompts[i], expected[static_cast<SessionId>(i)]);
  for (const int threads : {2, 3}) {
    EngineSetup setup = plain;
    setup.num_threads = threads;
    TestEngine engine(model, setup);
    Answers answers = generate(engine, prompts, 12);
    for (auto& [session, answer] : answers) expect_equal(answer, expected[session]);
    EXPECT_GT(engine.num_divided(), 0) << threads;

    TestEngine alone(model, setup);
    alone->submit(request_of(0, long_prompt, 12));
    EXPECT_TRUE(alone->step().empty());  // the prompt
    const int64_t before = alone.num_divided();
    Answers one = alone.finish();
    expect_equal(one[0], expected[0]);
    EXPECT_GT(alone.num_divided(), before) << "no decode step of one row was divided";
  }
}

TEST(Engine, ComputesThePromptOfAGroupOnce) {
  TestModel model(tiny_config());
  constexpr int64_t kMembers = 8;
  for (int64_t length : {5, 16, 17, 40, 48}) {
    SCOPED_TRACE(length);
    TestEngine engine(model, {.max_batch_tokens = 16});
    std::vector<TokenId> prompt = random_tokens(length, 61, 3);
    for (SessionId member = 0; member < kMembers; ++member)
      engine->submit(request_of(member, prompt, 4));
    Answers answers = engine.finish();
    // The first member computes all of it, each other one its last token.
    EXPECT_EQ(engine->stats().prefill_tokens, length + kMembers - 1);
    EXPECT_EQ(engine->stats().planner.prefix_hit_tokens, (kMembers - 1) * (length - 1));
    for (auto& [session, answer] : answers) expect_teacher_forced(model, prompt, answer);
    std::set<std::vector<TokenId>> distinct;
    for (auto& [session, answer] : answers) distinct.insert(context_of(prompt, answer));
    EXPECT_GT(distinct.size(), 4u) << "members must not share their random numbers";
  }
}

TEST(Engine, SharesFullBlocksBetweenPromptsThatBeginAlike) {
  TestModel model(tiny_config());
  TestEngine engine(model);
  std::vector<TokenId> first = random_tokens(50, 61, 1), second = first;
  second[40] = (second[40] + 1) % 61;
  engine->submit(request_of(1, first, 3));
  engine.finish();
  engine->submit(request_of(2, second, 3));
  Answers answers = engine.finish();
  // They differ at 40: two whole blocks of 16 are alike.
  EXPECT_EQ(engine->stats().planner.prefix_hit_tokens, 32);
  expect_teacher_forced(model, second, answers[2]);
}

TEST(Engine, KeepsKvAcrossTurns) {
  TestModel model(tiny_config());
  TestEngine engine(model);
  std::vector<TokenId> context;
  int64_t computed = 0;
  for (int turn = 0; turn < 5; ++turn) {
    std::vector<TokenId> observation = random_tokens(7, 61, 100 + turn);
    engine->submit(request_of(1, observation, 5));
    for (TokenId token : observation) context.push_back(token);
    Answers answers = engine.finish();
    expect_teacher_forced(model, context, answers[1]);
    context = context_of(context, answers[1]);
    EngineStats stats = engine->stats();
    // All but the last token of the context have been computed, each once.
    computed = static_cast<int64_t>(context.size()) - 1;
    EXPECT_EQ(stats.prefill_tokens + stats.decode_tokens, computed);
  }
  EXPECT_EQ(engine->stats().planner.lost_tokens, 0);
}

// Sizes of a real model, in each kind of elements: what a session leaves behind when it ends serves
// those that come after it, whole blocks and a tail that is copied, and changes no bit.
TEST(Engine, WhatAReleasedSessionLeavesInTheCacheChangesNoBit) {
  for (const Elements& elements :
       {Elements(Dtype::kF32), Elements(Dtype::kBF16), Elements(Dtype::kBF16, Dtype::kBF16)}) {
    const TestModel model(smol_config(), 1, elements);
    for (const int threads : {1, 2}) {
      const EngineSetup setup{
          .max_batch_tokens = 200, .max_context_tokens = 600, .num_threads = threads};
      TestEngine engine(model, setup);
      std::vector<TokenId> prompt = random_tokens(437, 700, 3);
      engine->submit(request_of(1, prompt, 40));
      const Generation first = engine.finish().at(1);
      engine->release(1);
      ASSERT_GT(engine->num_cached_blocks(), 0);
      // The same prompt, the whole conversation and more, and one that parts within a block.
      std::vector<TokenId> longer = prompt;
      for (const GeneratedToken& token : first.tokens) longer.push_back(token.id);
      longer.push_back(5);
      std::vector<TokenId> other(prompt.begin(), prompt.begin() + 395);
      other.push_back(7);
      std::map<SessionId, std::vector<TokenId>> all = {{2, prompt}, {3, longer}, {4, other}};
      const int64_t before = engine->stats().planner.prefix_hit_tokens;
      for (const auto& [session, tokens] : all) engine->submit(request_of(session, tokens, 24));
      const auto hit = engine.finish();
      EXPECT_GE(engine->stats().planner.prefix_hit_tokens - before, 3 * 395 - 3);
      for (const auto& [session, tokens] : all) {
        TestEngine fresh(model, setup);
        fresh->submit(request_of(session, tokens, 24));
        const Generation alone = fresh.finish().at(session);
        std::vector<TokenId> whole = tokens;
        for (size_t i = 0; i < alone.tokens.size(); ++i) {
          EXPECT_EQ(hit.at(session).tokens[i].id, alone.tokens[i].id);
          EXPECT_EQ(hit.at(session).tokens[i].logprob, alone.tokens[i].logprob);
          whole.push_back(alone.tokens[i].id);
        }
        const std::vector<float> trained = teacher_forced(model, whole, 1);
        for (size_t i = 0; i < alone.tokens.size(); ++i)
          EXPECT_EQ(trained[tokens.size() - 1 + i], alone.tokens[i].logprob) << i;
      }
      if (threads > 1) {
        EXPECT_GT(engine.num_divided(), 0);
      }
    }
  }
}

TEST(Engine, ContinuesASessionWithoutNewTokens) {
  TestModel model(tiny_config());
  std::vector<TokenId> prompt = random_tokens(9, 61, 1);
  TestEngine whole(model), pieces(model);
  whole->submit(request_of(1, prompt, 12));
  pieces->submit(request_of(1, prompt, 5));
  Generation expected = whole.finish()[1], answer = pieces.finish()[1];
  pieces->submit(request_of(1, {}, 7));
  append(answer, pieces.finish()[1]);
  expect_equal(answer, expected);
}

TEST(Engine, ContinuesAnAbortedSequenceWithTheSameBits) {
  TestModel model(tiny_config());
  std::vector<TokenId> prompt = random_tokens(20, 61, 1);
  TestEngine whole(model);
  whole->submit(request_of(1, prompt, 30));
  Generation expected = whole.finish()[1];
  // Before it runs, in the middle of its prefill of 8 tokens a pass, after it, and among the
  // sampled tokens.
  for (int steps : {0, 1, 3, 17}) {
    TestEngine engine(model, {.max_batch_tokens = 8});
    engine->submit(request_of(1, prompt, 30));
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(engine->step().empty());
    engine->release(1);
    std::vector<Generation> aborted = engine->step();
    ASSERT_EQ(aborted.size(), 1u);
    EXPECT_EQ(aborted[0].reason, FinishReason::kAborted);
    EXPECT_TRUE(engine->idle());

    auto left = static_cast<int64_t>(30 - aborted[0].tokens.size());
    GenerateRequest request = request_of(2, context_of(prompt, aborted[0]), left);
    request.key = request_of(1, {}, 1).key;  // attempts share it
    engine->submit(request);
    Generation answer = aborted[0];
    append(answer, engine.finish()[2]);
    answer.reason = expected.reason;
    expect_equal(answer, expected);
  }
}

TEST(Engine, ContinuesSessionsUnderNewWeights) {
  TestModel old_model(tiny_config(), 1), new_model(tiny_config(), 2);
  TestEngine engine(old_model, {.max_batch_tokens = 24});
  std::vector<TokenId> prompt = random_tokens(20, 61, 1), idle_prompt = random_tokens(10, 61, 2);
  engine->submit(request_of(9, idle_prompt, 4));
  Generation first_turn = engine.finish()[9];
  for (SessionId member = 0; member < 4; ++member) engine->submit(request_of(member, prompt, 20));
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(engine->step().empty());
  engine->install(new_model.pack(), /*version=*/1);
  EXPECT_EQ(engine->version(), 1);
  engine->submit(request_of(9, random_tokens(3, 61, 3), 4));
  Answers answers = engine.finish();
  for (SessionId member = 0; member < 4; ++member) {
    std::vector<TokenId> context = context_of(prompt, answers[member]);
    std::vector<float> before = teacher_forced(old_model, context, 1),
                       after = teacher_forced(new_model, context, 1);
    size_t switched = 0;
    for (size_t i = 0; i < answers[member].tokens.size(); ++i) {
      const GeneratedToken& token = answers[member].tokens[i];
      if (token.version == 0) switched = i + 1;
      ASSERT_EQ(token.logprob, (token.version == 0 ? before : after)[prompt.size() - 1 + i]);
    }
    // Each has tokens of both versions: the install was in the middle of the answers.
    EXPECT_GT(switched, 2u);
    EXPECT_LT(switched, 20u);
    for (size_t i = switched; i < 20; ++i) EXPECT_EQ(answers[member].tokens[i].version, 1);
  }
  std::vector<TokenId> context = context_of(idle_prompt, first_turn);
  for (TokenId token : random_tokens(3, 61, 3)) context.push_back(token);
  expect_teacher_forced(new_model, context, answers[9]);
}

// Who takes turns with it writes there (Colocation).
TEST(Engine, ItsMemoryMayHoldAnythingWhenWeightsAreInstalled) {
  const TestModel model(tiny_config());
  const auto answers = [&](TestEngine& engine) {
    for (SessionId id = 0; id < 5; ++id)
      engine->submit(request_of(id, random_tokens(7 + 9 * id, 61, static_cast<uint64_t>(id)), 20));
    Answers finished = engine.finish();
    for (SessionId id = 0; id < 5; ++id) engine->release(id);
    return finished;
  };
  TestEngine apart(model);
  const auto expected = answers(apart);
  Buffer memory(size_t{16} << 20);
  std::ranges::fill(memory.as<uint8_t>(), uint8_t{0xff});
  std::optional<ArenaScope> turn(memory.bytes());
  ThreadPool pool(1);
  const SteadyClock clock;
  {
    // Nothing is written before its first turn: the trainer may have the memory by then.
    const Engine made(model.model, nullptr, engine_options({}), Stream{.device = {}, .pool = &pool},
                      clock);
    EXPECT_EQ(std::ranges::count(memory.as<uint8_t>(), uint8_t{0xff}),
              std::ssize(memory.as<uint8_t>()));
  }
  turn.reset();
  turn.emplace(memory.bytes());
  TestEngine in_turn(model);
  turn.reset();
  for (int64_t version = 1; version < 3; ++version) {
    std::ranges::fill(memory.as<uint8_t>(), uint8_t{0xff});  // NaN in each dtype
    in_turn->install(model.pack(), version);
    const auto finished = answers(in_turn);
    for (const auto& [id, answer] : expected) {
      const Generation& other = finished.at(id);
      ASSERT_EQ(other.tokens.size(), answer.tokens.size());
      for (size_t i = 0; i < answer.tokens.size(); ++i) {
        EXPECT_EQ(other.tokens[i].id, answer.tokens[i].id);
        EXPECT_EQ(other.tokens[i].logprob, answer.tokens[i].logprob);
      }
    }
  }
}

TEST(Engine, SharesAPromptAgainAfterAnInstall) {
  TestModel model(tiny_config());
  TestEngine engine(model);
  std::vector<TokenId> prompt = random_tokens(40, 61, 1);
  for (SessionId member = 0; member < 4; ++member) engine->submit(request_of(member, prompt, 20));
  for (int i = 0; i < 6; ++i) (void)engine->step();
  int64_t before = engine->stats().prefill_tokens;
  engine->install(model.pack(), 1);
  Answers answers = engine.finish();
  // 40 for one member; the others only what they sampled since (at most 6 tokens each).
  EXPECT_LE(engine->stats().prefill_tokens - before, 40 + 4 * 6);
  for (auto& [session, answer] : answers) expect_teacher_forced(model, prompt, answer);
}

TEST(Engine, DoesNotSampleBeforeWeightsAreInstalled) {
  TestModel model(tiny_config());
  SteadyClock clock;
  Engine engine(model.model, nullptr, engine_options({}), {}, clock);
  engine.submit(request_of(1, {1, 2, 3}, 2));
  EXPECT_TRUE(engine.step().empty());
  EXPECT_FALSE(engine.idle());
  EXPECT_EQ(engine.stats().steps, 0);
  engine.install(model.pack(), 5);
  std::vector<Generation> done;
  while (done.empty()) done = engine.step();
  EXPECT_EQ(done[0].tokens[0].version, 5);
}

TEST(Engine, AClosedGateLetsWhatRunsGoOnAndAdmitsNothing) {
  TestModel model(tiny_config());
  TestEngine engine(model);
  engine->submit(request_of(1, {1, 2, 3}, 4));
  (void)engine->step();
  engine->gate().close();
  engine->submit(request_of(2, {1, 2, 3}, 4));
  std::set<SessionId> done;
  for (int i = 0; i < 20; ++i)
    for (const Generation& answer : engine->step()) done.insert(answer.session);
  EXPECT_EQ(done, std::set<SessionId>({1}));
  engine->gate().freeze();
  engine->gate().begin_install();
  engine->gate().verified(1);
  engine->gate().open();
  EXPECT_EQ(engine.finish().size(), 1u);
}

TEST(Engine, AnswersAPromptThatIsTooLongWithoutTokens) {
  TestModel model(tiny_config());
  TestEngine engine(model, {.max_context_tokens = 32});
  engine->submit(request_of(1, random_tokens(32, 61, 1), 4));
  engine->submit(request_of(2, random_tokens(31, 61, 1), 4));
  Answers answers = engine.finish();
  EXPECT_EQ(answers[1].reason, FinishReason::kContextFull);
  EXPECT_TRUE(answers[1].tokens.empty());
  EXPECT_EQ(answers[2].reason, FinishReason::kContextFull);
  // 31 and one sampled token fill the context.
  EXPECT_EQ(answers[2].tokens.size(), 1u);
  // A session whose observation does not fit stays as it was.
  engine->submit(request_of(3, random_tokens(10, 61, 1), 4));
  engine.finish();
  // 10 and the 4 that were sampled leave room for 17 and an answer.
  engine->submit(request_of(3, random_tokens(18, 61, 1), 4));
  EXPECT_TRUE(engine.finish()[3].tokens.empty());
  engine->submit(request_of(3, random_tokens(2, 61, 1), 4));
  EXPECT_EQ(engine.finish()[3].tokens.size(), 4u);
}

TEST(Engine, StopsAtAStopTokenAndKeepsIt) {
  TestModel model(tiny_config());
  TestEngine engine(model);
  engine->submit(request_of(1, {5, 6}, 40));
  std::vector<GeneratedToken> free_run = engine.finish()[1].tokens;
  engine->release(1);
  GenerateRequest request = request_of(1, {5, 6}, 40);
  request.sampling.stop_tokens = {free_run[10].id};
  engine->submit(request);
  Generation answer = engine.finish()[1];
  EXPECT_EQ(answer.reason, FinishReason::kStopToken);
  // The same random numbers give the same tokens; the id may come before place 10 as well.
  EXPECT_LE(answer.tokens.size(), 11u);
  EXPECT_EQ(answer.tokens.back().id, free_run[10].id);
}

TEST(Engine, StopsAtAStopStringThatSpansTokens) {
  TestModel model(tiny_config());
  FakeTokenizer tokenizer = letters();
  TestEngine engine(model, {}, &tokenizer);
  engine->submit(request_of(1, {5, 6}, 40));
  std::vector<TokenId> ids = context_of({}, engine.finish()[1]);
  engine->release(1);
  std::string text = tokenizer.decode(ids, false);
  std::string stop = text.substr(20, 3);
  GenerateRequest request = request_of(1, {5, 6}, 40);
  request.sampling.stop_strings = {"never seen", stop};
  engine->submit(request);
  Generation answer = engine.finish()[1];
  EXPECT_EQ(answer.reason, FinishReason::kStopString);
  EXPECT_EQ(answer.tokens.size(), text.find(stop) + 3);
}

SamplingParams truncated(double temperature, int64_t top_k, double top_p, double min_p) {
  SamplingParams sampling;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  sampling.top_p = top_p;
  sampling.min_p = min_p;
  sampling.max_new_tokens = 20;
  return sampling;
}

// Each token says what it was drawn from: with the set, the trainer has the draw's log-probability
// to the bit, and without it still that of the whole distribution (design rule 2).
TEST(Engine, RecordsWhatTruncationKept) {
  TestModel model(tiny_config());
  const SamplingParams all[] = {truncated(0.7, 8, 1, 0),      truncated(0.7, -1, 0.6, 0),
                                truncated(1.5, -1, 1, 0.3),   truncated(1.5, 20, 0.9, 0.05),
                                truncated(1.5, 1, 1, 0),      truncated(1.0, 61, 1, 0),
                                truncated(1.0, 1000, 0.5, 0), truncated(0, 5, 0.5, 0)};
  TestEngine engine(model, {.num_threads = 2});
  std::vector<TokenId> prompt = random_tokens(12, 61, 1);
  for (SessionId session = 0; session < std::ssize(all); ++session) {
    GenerateRequest request = request_of(session, prompt, 20);
    request.sampling = all[session];
    request.wants_kept = true;
    engine->submit(request);
    request.session += 100;  // the same member, without its sets
    request.wants_kept = false;
    engine->submit(request);
  }
  Answers answers = engine.finish();
  for (SessionId session = 0; session < std::ssize(all); ++session) {
    SCOPED_TRACE(session);
    const Generation &answer = answers[session], &without = answers[session + 100];
    const float inv_temperature = inverse_temperature(all[session]);
    expect_teacher_forced(model, prompt, answer, inv_temperature);
    std::vector<int64_t> offsets(prompt.size());  // those of the prompt have no sets
    std::vector<TokenId> ids;
    for (const GeneratedToken& token : answer.tokens) {
      ids.insert(ids.end(), token.kept.begin(), token.kept.end());
      offsets.push_back(std::ssize(ids));
    }
    const std::vector<float> drawn =
        teacher_forced(model, context_of(prompt, answer), inv_temperature, {offsets, ids});
    const bool cuts = truncates(all[session], 61);
    EXPECT_EQ(cuts, session < 5 || session == 6);
    double cut = 0;
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const GeneratedToken& token = answer.tokens[i];
      ASSERT_EQ(token.logprob - token.log_mass, drawn[prompt.size() - 1 + i]);
      EXPECT_EQ(token.kept.empty(), !cuts);
      if (all[session].top_k == 8) {
        EXPECT_EQ(token.kept.size(), 8u);
      }
      EXPECT_TRUE(std::ranges::is_sorted(token.kept));
      EXPECT_LE(token.log_mass, 0);
      cut += 1 - std::exp(double{token.log_mass});
      EXPECT_EQ(without.tokens[i].id, token.id);
      EXPECT_EQ(without.tokens[i].log_mass, token.log_mass);
      EXPECT_TRUE(without.tokens[i].kept.empty());
    }
    EXPECT_EQ(cut > 0, cuts);
  }
}

// With 29 rows of logits at a time, as a large vocabulary has them.
TEST(Engine, DrawsTheSameWhateverChunkOfLogitsARowIsIn) {
  ModelConfig config = tiny_config();
  config.vocab_size = 140'000;
  TestModel model(config);
  const auto answers_of = [&](const EngineSetup& setup) {
    TestEngine engine(model, setup);
    for (SessionId session = 0; session < 70; ++session) {
      GenerateRequest request =
          request_of(session, random_tokens(3, config.vocab_size, session + 1), 3);
      if (session % 3 == 1) request.sampling = truncated(0.7, 8, 1, 0);
      if (session % 3 == 2) request.sampling = truncated(1.5, 20, 0.9, 0.05);
      request.sampling.max_new_tokens = 3;
      request.wants_kept = session % 2 == 0;
      engine->submit(request);
    }
    return engine.finish();
  };
  Answers together = answers_of({.max_batch_tokens = 256, .max_sequences = 70, .num_threads = 2});
  Answers apart = answers_of({.max_batch_tokens = 16, .max_sequences = 5});
  for (SessionId session = 0; session < 70; ++session) {
    SCOPED_TRACE(session);
    expect_equal(together[session], apart[session]);
    for (size_t i = 0; i < together[session].tokens.size(); ++i) {
      const GeneratedToken &a = together[session].tokens[i], &b = apart[session].tokens[i];
      EXPECT_EQ(a.log_mass, b.log_mass);
      EXPECT_EQ(a.log_mass < 0, session % 3 != 0);
      EXPECT_EQ(a.kept, b.kept);
      EXPECT_EQ(a.kept.empty(), session % 2 != 0 || session % 3 == 0);
    }
  }
}

TEST(Engine, AnswersGreedilyAtTemperatureZero) {
  TestModel model(tiny_config());
  TestEngine engine(model);
  std::vector<TokenId> prompt = random_tokens(12, 61, 1);
  engine->submit(request_of(1, prompt, 10, /*temperature=*/0));
  Generation answer = engine.finish()[1];
  expect_teacher_forced(model, prompt, answer, 1.0f);
  // No other token would have had a higher log-probability.
  std::vector<TokenId> context = prompt;
  for (const GeneratedToken& token : answer.tokens) {
    for (TokenId other = 0; other < 61; ++other) {
      context.push_back(other);
      EXPECT_LE(teacher_forced(model, context, 1).back(), token.logprob);
      context.pop_back();
    }
    context.push_back(token.id);
  }
}

TEST(Engine, RefusesOptionsThatCannotWork) {
  TestModel model(tiny_config());
  SteadyClock clock;
  auto message = [&](const EngineOptions& options) -> std::string {
    try {
      Engine engine(model.model, nullptr, options, {}, clock);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EngineOptions options = engine_options({});
  options.max_context_tokens = 129;
  EXPECT_NE(message(options).find("max_context_tokens is 129; the model knows positions 0 to 127"),
            std::string::npos);
  options = engine_options({.kv_blocks = 7});
  EXPECT_NE(message(options).find("kv_cache_blocks is 7, but one sequence of max_context_tokens = "
                                  "128 needs 8 blocks of 16 tokens"),
            std::string::npos);
  EXPECT_EQ(message(engine_options({.kv_blocks = 8})), "");

  ModelConfig large = tiny_config();
  large.num_layers = 4;
  large.num_kv_heads = 4;
  large.head_dim = 64;
  large.max_positions = 1024;
  TestModel wide(large);
  options = engine_options({.max_context_tokens = 1024});
  options.kv_cache_mb = 1;
  try {
    Engine engine(wide.model, nullptr, options, {}, clock);
    FAIL() << "a cache that is too small was accepted";
  } catch (const UserError& error) {
    // 4 layers x K and V x 4 heads of 64 x 4 bytes are 8 KiB a token, so 1024 tokens are 8 MiB.
    EXPECT_NE(std::string(error.what()).find("Try rollout.kv_cache_mb = 8"), std::string::npos)
        << error.what();
  }
}

class EngineStress : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Overlaps, EngineStress, ::testing::Bool());

// Random submits, follow-up turns, releases and installs in a cache that is far too small.
TEST_P(EngineStress, LosesNoBlockAndNoAnswer) {
  FakeTokenizer tokenizer = letters();
  for (uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    std::vector<std::unique_ptr<TestModel>> models;
    models.push_back(std::make_unique<TestModel>(tiny_config(), 1));
    TestEngine engine(*models[0],
                      {.block_tokens = rng.chance(0.5) ? 8 : 16,
                       .max_batch_tokens = 5 + rng.below(40),
                       .max_sequences = 1 + rng.below(12),
                       .max_context_tokens = 64,
                       .kv_blocks = 8 + rng.below(16),
                       .overlaps = GetParam()},
                      &tokenizer);
    struct Live {
      std::vector<TokenId> context;  // without the running answer
      bool busy = false;
    };
    // What the answers must be is known from outside: sessions and their contexts are kept here as
    // well.
    std::map<SessionId, Live> live;
    SessionId next = 0;
    int64_t checked = 0;
    auto take_answers = [&] {
      for (const Generation& answer : engine->step()) {
        if (answer.reason == FinishReason::kAborted) continue;  // of a released session
        Live& session = live.at(answer.session);
        ASSERT_TRUE(session.busy);
        session.busy = false;
        std::vector<TokenId> whole = context_of(session.context, answer);
        for (size_t i = 0; i < answer.tokens.size(); ++i) {
          const GeneratedToken& token = answer.tokens[i];
          std::vector<TokenId> so_far(
              whole.begin(),
              whole.begin() + static_cast<std::ptrdiff_t>(session.context.size() + i + 1));
          // A teacher-forced pass over the whole context for every token would take most of the
          // time.
          if (rng.chance(0.1)) {
            ++checked;
            ASSERT_EQ(
                token.logprob,
                teacher_forced(*models[static_cast<size_t>(token.version)], so_far, 1).back());
          }
        }
        session.context = std::move(whole);
      }
    };
    for (int event = 0; event < 250; ++event) {
      double kind = rng.uniform();
      if (kind < 0.25) {
        std::vector<TokenId> prompt =
            random_tokens(1 + rng.below(50), 61, static_cast<uint64_t>(rng.below(6)));
        GenerateRequest request = request_of(next, prompt, 1 + rng.below(20));
        if (rng.chance(0.3)) request.sampling.stop_strings = {"\n", "AB"};
        if (rng.chance(0.3)) request.sampling.stop_tokens = {3, 4};
        live[next++] = {std::move(prompt), true};
        engine->submit(std::move(request));
      } else if (kind < 0.4 && !live.empty()) {
        auto at = std::next(live.begin(), rng.below(static_cast<int64_t>(live.size())));
        if (at->second.busy) continue;
        std::vector<TokenId> more = random_tokens(1 + rng.below(8), 61, rng.next_u32());
        if (at->second.context.size() + more.size() >= 64) continue;
        at->second.busy = true;
        at->second.context.insert(at->second.context.end(), more.begin(), more.end());
        engine->submit(request_of(at->first, more, 1 + rng.below(20)));
      } else if (kind < 0.45 && !live.empty()) {
        auto at = std::next(live.begin(), rng.below(static_cast<int64_t>(live.size())));
        engine->release(at->first);
        live.erase(at);
      } else if (kind < 0.46) {
        models.push_back(std::make_unique<TestModel>(tiny_config(), models.size() + 1));
        engine->install(models.back()->pack(), static_cast<int64_t>(models.size()) - 1);
      } else {
        take_answers();
        if (HasFatalFailure()) return;
      }
    }
    for (int step = 0; !engine->idle(); ++step) {
      ASSERT_LT(step, 10000) << "the engine stands still";
      take_answers();
      if (HasFatalFailure()) return;
    }
    EXPECT_GT(checked, 0);
    for (auto& [session, state] : live) {
      EXPECT_FALSE(state.busy) << "session " << session << " was never answered";
      engine->release(session);
    }
    // With all sessions released, only prefixes hold blocks.
    EXPECT_EQ(engine->num_free_blocks() + engine->num_cached_blocks(), engine->num_blocks());
  }
}

// What finish() is refused with.
std::string refusal_of(TestEngine& engine) {
  try {
    engine.finish();
  } catch (const UserError& error) {
    return error.what();
  }
  return "it drew a token";
}

TEST(Engine, RefusesToDrawFromLogitsThatAreNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    TestModel model(tiny_config());
    model.parameters.vector(kFinalNormName)[0] = bad;
    TestEngine engine(model);
    engine->submit(request_of(1, {0, 1, 2}, 4));
    EXPECT_EQ(refusal_of(engine),
              "the weights of version 0 give logits that are not finite (at position 3)");
  }
}

// One row of several, whose neighbours are drawn from sets.
TEST(Engine, RefusesARowThatIsNotFiniteAmongOthers) {
  TestModel model(tiny_config());
  std::ranges::fill(std::span(model.parameters.matrix(kEmbeddingName).row(60), 32),
                    std::numeric_limits<float>::quiet_NaN());
  TestEngine engine(model);
  for (SessionId session = 0; session < 5; ++session) {
    GenerateRequest request = request_of(session, {0, 1, 2}, 4);
    if (session == 2) request.new_tokens = {0, 60};
    request.sampling = truncated(0.7, 8, 1, 0);
    engine->submit(request);
  }
  EXPECT_EQ(refusal_of(engine),
            "the weights of version 0 give logits that are not finite (at position 2)");
}

}  // namespace
}  // namespace tailrace
