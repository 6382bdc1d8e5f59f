// Decode steps as graphs: tokens, log-probabilities, sets and reasons are those of an engine
// without them, bit for bit, whatever ends, waits, is pushed out or changes meanwhile.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/clock.h"
#include "core/base/random.h"
#include "rollout/engine/engine.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

ModelConfig graph_config(bool sparse) {
  ModelConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 61;
  config.max_positions = 512;
  config.qk_norm = true;
  if (!sparse) return config;
  config.num_experts = 6;
  config.experts_per_token = 2;
  config.expert_size = 24;
  config.sparse = {false, true};
  return config;
}

// Prompts of which some begin alike, with all that may end an answer or cut its distribution.
GenerateRequest request_for(SessionId session, Rng& rng) {
  GenerateRequest request;
  request.session = session;
  Rng words(static_cast<uint64_t>(rng.below(4)));
  request.new_tokens.resize(static_cast<size_t>(1 + rng.below(24)));
  for (TokenId& id : request.new_tokens) id = static_cast<TokenId>(words.below(61));
  request.sampling.max_new_tokens = 1 + rng.below(16);
  request.sampling.temperature = rng.chance(0.2) ? 0.0 : 0.9;
  if (rng.chance(0.4)) request.sampling.stop_tokens = {3, 4, 9};
  if (rng.chance(0.3)) request.sampling.top_k = 7;
  if (rng.chance(0.3)) request.sampling.top_p = 0.8;
  request.wants_kept = rng.chance(0.2);
  request.key = {.value = 1000 + static_cast<uint64_t>(session)};
  return request;
}

using AnswersOf = std::map<SessionId, Generation>;

void expect_equal(const AnswersOf& got, const AnswersOf& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [session, answer] : want) {
    const Generation& other = got.at(session);
    EXPECT_EQ(other.reason, answer.reason) << "session " << session;
    EXPECT_EQ(other.choices, answer.choices) << "session " << session;
    ASSERT_EQ(other.tokens.size(), answer.tokens.size()) << "session " << session;
    for (size_t i = 0; i < answer.tokens.size(); ++i) {
      const GeneratedToken &a = other.tokens[i], &b = answer.tokens[i];
      ASSERT_EQ(a.id, b.id) << "session " << session << ", token " << i;
      ASSERT_EQ(std::memcmp(&a.logprob, &b.logprob, sizeof(float)), 0)
          << "session " << session << ", token " << i << ": " << a.logprob << " and " << b.logprob;
      ASSERT_EQ(std::memcmp(&a.log_mass, &b.log_mass, sizeof(float)), 0);
      ASSERT_EQ(a.version, b.version);
      ASSERT_EQ(a.kept, b.kept);
    }
  }
}

EngineOptions options_of(bool graphs, bool overlaps) {
  EngineOptions options;
  options.max_context_tokens = 64;
  options.block_tokens = 8;
  options.max_batch_tokens = 32;
  options.max_sequences = 11;
  options.kv_cache_blocks = 24;
  options.overlaps = overlaps;
  options.keep_choices = true;          // of experts, where there are any
  if (!graphs) options.graphs = false;  // else what a GPU does by itself
  return options;
}

using Kind = std::tuple<Dtype, bool>;

class CudaGraphs : public ::testing::TestWithParam<Kind> {
 protected:
  Dtype dtype() const { return std::get<0>(GetParam()); }
  Rig rig{graph_config(std::get<1>(GetParam())), 1, 16, 512, dtype()};
  SteadyClock clock;

  std::shared_ptr<PackedWeights> pack() const {
    return std::make_shared<PackedWeights>(rig.stream(), rig.model.config(), rig.parameters,
                                           dtype());
  }
};

void collect(Engine& engine, AnswersOf& answers) {
  for (Generation& answer : engine.step()) {
    const SessionId session = answer.session;
    EXPECT_TRUE(answers.emplace(session, std::move(answer)).second) << "answered twice";
  }
}

// Caches that are too small for all.
TEST_P(CudaGraphs, ChangeNoBit) {
  for (const bool overlaps : {false, true}) {
    const auto run = [&](bool graphs) {
      Engine engine(rig.model, nullptr, options_of(graphs, overlaps), rig.stream(), clock);
      engine.install(pack(), 0);
      Rng rng(3);
      for (SessionId session = 0; session < 14; ++session) engine.submit(request_for(session, rng));
      AnswersOf answers;
      while (!engine.idle()) collect(engine, answers);
      EXPECT_EQ(engine.num_blocks(), 24);
      return std::pair(std::move(answers), engine.stats());
    };
    const auto [want, plain] = run(false);
    const auto [got, stats] = run(true);
    expect_equal(got, want);
    if (HasFatalFailure()) return;
    EXPECT_EQ(plain.graph_steps, 0);
    EXPECT_EQ(plain.captures, 0);
    EXPECT_EQ(stats.steps, plain.steps);
    EXPECT_GE(stats.graph_steps, stats.captures);
    EXPECT_LT(stats.graph_steps, stats.steps);
    // Of 1, 2, 4, 8 and 11 rows, for each step that may be in flight; not all may have come twice.
    EXPECT_GE(stats.captures, overlaps ? 3 : 2);
    EXPECT_LE(stats.captures, overlaps ? 10 : 5);
    EXPECT_GT(stats.planner.preemptions, 0);
  }
}

// Sessions that are given up, and other weights: in the same memory and elsewhere.
TEST_P(CudaGraphs, AbortsAndInstallsFindThePresentWeights) {
  const auto run = [&](bool graphs) {
    rig.init(1);
    const std::shared_ptr<PackedWeights> home = pack();
    Engine engine(rig.model, nullptr, options_of(graphs, /*overlaps=*/true), rig.stream(), clock);
    engine.install(home, 0);
    Rng rng(5);
    for (SessionId session = 0; session < 12; ++session) engine.submit(request_for(session, rng));
    AnswersOf answers;
    bool is_home = true;
    int64_t version = 0;
    for (int step = 1; !engine.idle(); ++step) {
      collect(engine, answers);
      const SessionId session = rng.below(12);
      if (rng.chance(0.1) && !answers.contains(session)) engine.release(session);
      if (step % 5 != 0) continue;
      rig.init(static_cast<uint64_t>(++version));
      engine.gate().close();
      engine.gate().freeze();
      collect(engine, answers);  // what is in flight, which reads the old weights
      // At home twice, elsewhere, at home again.
      is_home = version % 3 != 0;
      if (is_home) home->repack(rig.stream(), rig.parameters);
      engine.install(is_home ? home : pack(), version);
    }
    EXPECT_GT(version, 3);
    return std::pair(std::move(answers), engine.stats());
  };
  const auto [want, plain] = run(false);
  const auto [got, stats] = run(true);
  expect_equal(got, want);
  EXPECT_EQ(plain.graph_steps, 0);
  EXPECT_GT(stats.graph_steps, stats.captures);
}

// Versions come to two places in turn.
TEST_P(CudaGraphs, InstallsInAThirdPlaceAloneEndThem) {
  const std::shared_ptr<PackedWeights> home = pack(), away = pack(), third = pack();
  Engine engine(rig.model, nullptr, options_of(/*graphs=*/true, /*overlaps=*/true), rig.stream(),
                clock);
  engine.install(home, 0);
  GenerateRequest request;
  request.session = 1;
  request.new_tokens = {1, 2, 3};
  request.sampling.max_new_tokens = 50;
  engine.submit(std::move(request));
  const auto captures_behind = [&](int steps) {
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(engine.step().empty());
    return engine.stats().captures;
  };
  // One sequence in each of the two steps in flight.
  EXPECT_EQ(captures_behind(6), 2);
  engine.install(home, 1);
  EXPECT_EQ(captures_behind(6), 2);
  engine.install(away, 2);
  EXPECT_EQ(captures_behind(6), 4);
  engine.install(home, 3);
  EXPECT_EQ(captures_behind(6), 4);
  engine.install(third, 4);
  EXPECT_EQ(captures_behind(6), 6);
  engine.install(away, 5);
  EXPECT_EQ(captures_behind(6), 8);
  // All that decode, but for the very first.
  EXPECT_EQ(engine.stats().graph_steps, 6 * 5 - 1);
}

// A context that outgrows its graph, whose attention has one piece more then.
TEST_P(CudaGraphs, ALongerContextHasAnotherGraph) {
  const auto run = [&](bool graphs) {
    EngineOptions options = options_of(graphs, /*overlaps=*/true);
    options.max_context_tokens = 300;
    options.kv_cache_blocks = 60;
    options.max_batch_tokens = 128;
    Engine engine(rig.model, nullptr, options, rig.stream(), clock);
    engine.install(pack(), 0);
    for (SessionId session = 0; session < 2; ++session) {
      GenerateRequest request;
      request.session = session;
      request.key = {.value = 7};
      for (int64_t i = 0; i < (session == 0 ? 251 : 5); ++i)
        request.new_tokens.push_back(static_cast<TokenId>((i * i + 3 * i) % 61));
      request.sampling.max_new_tokens = 12;
      engine.submit(request);
    }
    AnswersOf answers;
    while (!engine.idle()) collect(engine, answers);
    return std::pair(std::move(answers), engine.stats());
  };
  const auto [want, plain] = run(false);
  const auto [got, stats] = run(true);
  expect_equal(got, want);
  // Two rows, two contexts, two steps in flight; at the end one sequence may be alone.
  EXPECT_GE(stats.captures, 4);
  EXPECT_EQ(plain.steps, stats.steps);
}

TEST_P(CudaGraphs, TakeTheMemoryThatIsSaid) {
  for (const bool graphs : {false, true}) {
    const EngineOptions options = options_of(graphs, /*overlaps=*/true);
    const int64_t before = Buffer::total_bytes();
    const Engine engine(rig.model, nullptr, options, rig.stream(), clock);
    const PlacedMemory memory =
        engine_memory(rig.model.config(), options, 1, rig.model.placement());
    EXPECT_EQ(Buffer::total_bytes() - before,
              total_bytes(memory.host) + total_bytes(memory.device));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaGraphs,
                         ::testing::Combine(::testing::Values(Dtype::kF32, Dtype::kBF16),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == Dtype::kF32 ? "F32"
                                                                                     : "Bf16") +
                                  (std::get<1>(test.param) ? "Experts" : "Dense");
                         });

}  // namespace
}  // namespace tailrace
