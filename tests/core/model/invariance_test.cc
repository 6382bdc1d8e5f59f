// Rule 3 of the design: a token's hidden state and log-probability depend only on the weights and
// the tokens before it. Everything here is compared bit for bit.

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/random.h"
#include "core/model/model.h"
#include "kernels/ops/log_softmax.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

// Hidden states and next-token log-probabilities of every position, one row after another.
struct Numbers {
  std::vector<std::vector<float>> hidden;    // [sequence][position * hidden_size]
  std::vector<std::vector<float>> logprobs;  // [sequence][position], of the token that follows

  explicit Numbers(const std::vector<Tokens>& sequences, int64_t hidden_size) {
    for (const Tokens& tokens : sequences) {
      hidden.emplace_back(tokens.size() * static_cast<size_t>(hidden_size));
      logprobs.emplace_back(tokens.size());
    }
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same(const Numbers& got, const Numbers& want, const std::string& what) {
  // Where nothing was computed everything is the same.
  const auto& logprobs = want.logprobs[0];
  EXPECT_TRUE(logprobs[0] < 0 && want.hidden[0][0] != 0 && want.hidden[0][0] != want.hidden[0][1])
      << what << ": " << logprobs[0] << ", " << want.hidden[0][0];
  for (size_t s = 0; s < want.hidden.size(); ++s) {
    EXPECT_TRUE(same_bits(got.hidden[s], want.hidden[s]))
        << what << ": hidden states of sequence " << s;
    EXPECT_TRUE(same_bits(got.logprobs[s], want.logprobs[s]))
        << what << ": log-probabilities of sequence " << s;
  }
}

// A piece of a sequence in one pass.
struct Piece {
  size_t sequence;
  int32_t begin, count;
};

// How sequences are cut into passes; each pass holds at most one piece of a sequence.
using Schedule = std::vector<std::vector<Piece>>;

Schedule all_at_once(const std::vector<Tokens>& sequences) {
  Schedule schedule(1);
  for (size_t s = 0; s < sequences.size(); ++s) {
    schedule[0].push_back({s, 0, static_cast<int32_t>(sequences[s].size())});
  }
  return schedule;
}

Schedule each_alone(const std::vector<Tokens>& sequences) {
  Schedule schedule;
  for (size_t s = 0; s < sequences.size(); ++s) {
    schedule.push_back({{s, 0, static_cast<int32_t>(sequences[s].size())}});
  }
  return schedule;
}

Schedule token_by_token(const std::vector<Tokens>& sequences) {
  Schedule schedule;
  for (int32_t position = 0;; ++position) {
    std::vector<Piece> pass;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (position < static_cast<int32_t>(sequences[s].size())) pass.push_back({s, position, 1});
    }
    if (pass.empty()) return schedule;
    schedule.push_back(pass);
  }
}

// Random mates in each pass, in random order, with pieces of up to `longest` tokens.
Schedule random_cuts(const std::vector<Tokens>& sequences, int longest, uint64_t seed) {
  Rng rng(seed);
  Schedule schedule;
  std::vector<int32_t> done(sequences.size());
  while (true) {
    std::vector<size_t> open;
    for (size_t s = 0; s < sequences.size(); ++s) {
      if (done[s] < static_cast<int32_t>(sequences[s].size())) open.push_back(s);
    }
    if (open.empty()) return schedule;
    for (size_t i = open.size() - 1; i > 0; --i) {
      std::swap(open[i], open[static_cast<size_t>(rng.below(static_cast<int64_t>(i) + 1))]);
    }
    open.resize(static_cast<size_t>(1 + rng.below(static_cast<int64_t>(open.size()))));
    std::vector<Piece> pass;
    for (const size_t s : open) {
      const auto left = static_cast<int32_t>(sequences[s].size()) - done[s];
      const int32_t count = std::min(left, static_cast<int32_t>(1 + rng.below(longest)));
      pass.push_back({s, done[s], count});
      done[s] += count;
    }
    schedule.push_back(pass);
  }
}

// Block ids in random order, as a pool hands them out after a while.
std::vector<std::vector<int32_t>> scattered_blocks(const Rig& rig,
                                                   const std::vector<Tokens>& sequences,
                                                   uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(rig.kv.num_blocks()));
  std::iota(ids.begin(), ids.end(), 0);
  for (size_t i = ids.size() - 1; i > 0; --i) {
    std::swap(ids[i], ids[static_cast<size_t>(rng.below(static_cast<int64_t>(i) + 1))]);
  }
  std::vector<std::vector<int32_t>> tables;
  auto next = ids.begin();
  for (const Tokens& tokens : sequences) {
    const int64_t count =
        (static_cast<int64_t>(tokens.size()) + rig.kv.block_tokens() - 1) / rig.kv.block_tokens();
    TR_CHECK(ids.end() - next >= count);
    tables.emplace_back(next, next + count);
    next += count;
  }
  return tables;
}

// `shared`: tokens that all sequences begin with, whole blocks, which one place in the cache holds.
Numbers run(Rig& rig, const std::vector<Tokens>& sequences, const Schedule& schedule,
            bool keep = false, int shared = 0) {
  const auto dim = static_cast<size_t>(rig.model.config().hidden_size);
  auto tables = scattered_blocks(rig, sequences, /*seed=*/rig.kv.block_tokens());
  for (auto& table : tables)
    std::copy_n(tables[0].begin(), shared / rig.kv.block_tokens(), table.begin());
  Numbers numbers(sequences, rig.model.config().hidden_size);
  for (const std::vector<Piece>& pass : schedule) {
    rig.builder.clear();
    Tokens targets;
    for (const Piece& piece : pass) {
      const Tokens& tokens = sequences[piece.sequence];
      std::vector<int32_t> wanted(static_cast<size_t>(piece.count));
      std::iota(wanted.begin(), wanted.end(), 0);
      rig.builder.add(std::span(tokens).subspan(static_cast<size_t>(piece.begin),
                                                static_cast<size_t>(piece.count)),
                      piece.begin, tables[piece.sequence], wanted);
      for (int32_t p = piece.begin; p < piece.begin + piece.count; ++p) {
        const auto next = static_cast<size_t>(p) + 1;
        targets.push_back(next < tokens.size() ? tokens[next] : 0);
      }
    }
    rig.forward(rig.builder, keep);
    const std::vector<float> logprobs = rig.head_rows(targets, 1.0f / 0.7f).logprobs;
    size_t row = 0;
    for (const Piece& piece : pass) {
      const auto begin = static_cast<size_t>(piece.begin), count = static_cast<size_t>(piece.count);
      std::copy_n(rig.hidden().row(static_cast<int64_t>(row)), count * dim,
                  numbers.hidden[piece.sequence].begin() + static_cast<int64_t>(begin * dim));
      std::copy_n(logprobs.begin() + static_cast<int64_t>(row), count,
                  numbers.logprobs[piece.sequence].begin() + static_cast<int64_t>(begin));
      row += count;
    }
  }
  return numbers;
}

enum class InvarianceShape { kRound, kBf16, kAwkward, kRich, kSparse };

class Invariance : public ::testing::TestWithParam<InvarianceShape> {
 protected:
  // A shape made of whole vectors, one with no round number in it, one with all that there is in a
  // dense layer, and one with experts.
  static ModelConfig config() {
    if (GetParam() == InvarianceShape::kAwkward) return awkward_config(/*tie_embeddings=*/true);
    if (GetParam() == InvarianceShape::kRich) return rich_config();
    if (GetParam() == InvarianceShape::kSparse) return sparse_config();
    ModelConfig config;
    config.hidden_size = 64;
    config.intermediate_size = 96;
    config.num_layers = 2;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 32;
    config.vocab_size = 1100;  // three blocks of the log-sum-exp
    config.max_positions = 256;
    return config;
  }

  // kBf16 is the round one with weights, and on a GPU operands, of that type.
  static Rig rig_of(int threads = 1, int block_tokens = 16) {
    return Rig(config(), threads, block_tokens, /*max_tokens=*/512,
               GetParam() == InvarianceShape::kBf16 ? Dtype::kBF16 : Dtype::kF32);
  }

  const std::vector<Tokens> sequences =
      random_sequences(/*count=*/7, /*longest=*/70, config().vocab_size, 11);
};

TEST_P(Invariance, KeepingActivationsChangesNothing) {
  Rig rig = rig_of();
  expect_same(run(rig, sequences, all_at_once(sequences), /*keep=*/false),
              run(rig, sequences, all_at_once(sequences), /*keep=*/true), "kept");
}

TEST_P(Invariance, DecodePrefillCutsAndBatchMatesChangeNothing) {
  Rig rig = rig_of();
  const Numbers want = run(rig, sequences, all_at_once(sequences), /*keep=*/true);
  expect_same(run(rig, sequences, token_by_token(sequences)), want, "token by token");
  expect_same(run(rig, sequences, each_alone(sequences)), want, "each alone");
  for (uint64_t seed = 0; seed < (rig_device().kind == DeviceKind::kCpu ? 6 : 3); ++seed) {
    const int longest = seed % 2 == 0 ? 5 : 40;
    expect_same(run(rig, sequences, random_cuts(sequences, longest, seed)), want,
                fmt::format("random cuts, seed {}", seed));
  }
}

TEST_P(Invariance, BlockSizesAndThreadsChangeNothing) {
  Rig first = rig_of();
  const Numbers want = run(first, sequences, all_at_once(sequences), /*keep=*/true);
  // Threads are the CPU's, and an emulation takes its time.
  const bool on_cpu = rig_device().kind == DeviceKind::kCpu;
  for (const int block_tokens : on_cpu ? std::vector{8, 16, 64} : std::vector{8, 64}) {
    for (int threads = 1; threads <= (on_cpu ? 3 : 1); ++threads) {
      Rig rig = rig_of(threads, block_tokens);
      const std::string what = fmt::format("{} tokens a block, {} threads", block_tokens, threads);
      expect_same(run(rig, sequences, all_at_once(sequences), /*keep=*/true), want,
                  what + ", whole");
      expect_same(run(rig, sequences, random_cuts(sequences, 9, 21)), want, what + ", cut");
      expect_same(run(rig, sequences, token_by_token(sequences)), want, what + ", token by token");
    }
  }
}

TEST_P(Invariance, ASharedPrefixAndACopiedBlockChangeNothing) {
  Rig rig = rig_of();
  Tokens prompt(21), a, b;
  std::iota(prompt.begin(), prompt.end(), 1);
  a = b = prompt;
  for (int32_t i = 0; i < 20; ++i) {
    a.push_back(2 + i);
    b.push_back(40 - i);
  }
  const Numbers want = run(rig, {a, b}, each_alone({a, b}));

  // One prefill; `b` reads its first block and writes on in a copy of its half-filled second one.
  const std::vector<int32_t> blocks_a = {5, 9, 2}, blocks_b = {5, 7, 3};
  rig.builder.clear();
  rig.builder.add(prompt, 0, blocks_a, {});
  rig.forward(rig.builder);
  rig.kv.copy_block(rig.stream(), 9, 7, 21 - 16);
  rig.builder.clear();
  std::vector<int32_t> wanted(20);
  std::iota(wanted.begin(), wanted.end(), 0);
  rig.builder.add(std::span(a).subspan(21), 21, blocks_a, wanted);
  rig.builder.add(std::span(b).subspan(21), 21, blocks_b, wanted);
  rig.forward(rig.builder);
  const auto dim = static_cast<size_t>(rig.model.config().hidden_size);
  for (size_t s = 0; s < 2; ++s) {
    const float* got = rig.hidden().row(static_cast<int64_t>(20 * s));
    EXPECT_EQ(std::memcmp(got, want.hidden[s].data() + 21 * dim, 20 * dim * sizeof(float)), 0) << s;
  }
}

TEST_P(Invariance, GradientsAreTheSameForEveryThreadCount) {
  std::vector<float> want;
  for (const int threads : {1, 2, 3}) {
    Rig rig = rig_of(threads);
    Parameters gradients(rig.model.layout());
    cross_entropy(rig, sequences, {}, &gradients);
    const std::vector<float> got(gradients.flat().begin(), gradients.flat().end());
    if (want.empty()) want = got;
    EXPECT_TRUE(same_bits(got, want)) << threads << " threads";
  }
}

// train.recompute
TEST_P(Invariance, LayersThatAreComputedAgainChangeNoGradient) {
  const auto gradients_of = [&](bool again) {
    Rig rig = rig_of();
    if (again) rig.recompute();
    Parameters gradients(rig.model.layout());
    // Twice: what the first pass leaves behind is another one's.
    cross_entropy(rig, {sequences.front()}, {}, &gradients);
    cross_entropy(rig, sequences, {}, &gradients);
    return std::vector<float>(gradients.flat().begin(), gradients.flat().end());
  };
  EXPECT_TRUE(same_bits(gradients_of(true), gradients_of(false)));
}

TEST_P(Invariance, ATokenDoesNotSeeWhatFollows) {
  Rig rig = rig_of();
  const Tokens whole = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
  const Tokens other(whole.begin(), whole.begin() + 11);
  const Numbers a = run(rig, {whole}, all_at_once({whole})),
                b = run(rig, {other}, all_at_once({other}));
  const auto dim = static_cast<size_t>(rig.model.config().hidden_size);
  EXPECT_EQ(std::memcmp(a.hidden[0].data(), b.hidden[0].data(), 11 * dim * sizeof(float)), 0);
  // And it does see what came before: the test could not fail otherwise.
  Tokens changed = other;
  changed[0] = 2;
  const Numbers c = run(rig, {changed}, all_at_once({changed}));
  EXPECT_NE(std::memcmp(c.hidden[0].data() + 10 * dim, b.hidden[0].data() + 10 * dim,
                        dim * sizeof(float)),
            0);
}

// What people run: heads of 64 and 128, groups of 3 and 7, widths to 4,096, a context of thousands,
// 1 to 200 rows. One long sequence is prefilled in pieces and then decoded among mates.
struct RealSize {
  int64_t hidden, ffn;
  int heads, kv_heads, head_dim;
  Elements elements;
};

class RealSizes : public ::testing::TestWithParam<RealSize> {
 protected:
  static constexpr int32_t kLong = 2100, kDecoded = 9;
  static constexpr std::array<int, kDecoded> kRows = {1, 2, 3, 5, 12, 13, 25, 64, 200};

  static ModelConfig config() {
    const RealSize& size = GetParam();
    ModelConfig config;
    config.hidden_size = size.hidden;
    config.intermediate_size = size.ffn;
    config.num_layers = 1;
    config.num_heads = size.heads;
    config.num_kv_heads = size.kv_heads;
    config.head_dim = size.head_dim;
    config.vocab_size = 700;
    config.max_positions = kLong;
    return config;
  }
  static Rig rig_of(int threads, int block_tokens) {
    return Rig(config(), threads, block_tokens, /*max_tokens=*/4096, GetParam().elements);
  }

  // Mates of one token, but for one of 149 in the last pass.
  static std::vector<Tokens> make_sequences() {
    std::vector<Tokens> sequences = random_sequences(1, 1, config().vocab_size, 5);
    Rng rng(6);
    while (sequences[0].size() < kLong)
      sequences[0].push_back(static_cast<int32_t>(rng.below(config().vocab_size)));
    for (const int rows : kRows)
      for (int mate = 1; mate < rows - (rows == 200 ? 149 : 0); ++mate)
        sequences.push_back({static_cast<int32_t>(rng.below(config().vocab_size))});
    sequences.push_back(Tokens(sequences[0].begin(), sequences[0].begin() + 149));
    return sequences;
  }
  // The long one in pieces of up to `piece`, and its last tokens one at a time: pass i has kRows[i]
  // rows.
  static Schedule cut(const std::vector<Tokens>& sequences, int32_t piece) {
    Schedule schedule;
    for (int32_t begin = 0; begin < kLong - kDecoded; begin += piece)
      schedule.push_back({{0, begin, std::min(piece, kLong - kDecoded - begin)}});
    size_t next = 1;
    for (int32_t i = 0; i < kDecoded; ++i) {
      std::vector<Piece> pass = {{0, kLong - kDecoded + i, 1}};
      int64_t rows = 1;
      while (rows < kRows[static_cast<size_t>(i)]) {
        const auto count = static_cast<int32_t>(sequences[next].size());
        pass.push_back({next++, 0, count});
        rows += count;
      }
      EXPECT_EQ(rows, kRows[static_cast<size_t>(i)]);
      schedule.push_back(pass);
    }
    EXPECT_EQ(next, sequences.size());
    return schedule;
  }
};

TEST_P(RealSizes, ATokenHasItsBitsInEveryCutBatchAndNumberOfThreads) {
  if (rig_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "hours on a device that is emulated";
  const std::vector<Tokens> sequences = make_sequences();
  Rig first = rig_of(/*threads=*/1, /*block_tokens=*/32);
  const Numbers want = run(first, sequences, all_at_once(sequences), /*keep=*/true);
  expect_same(run(first, sequences, cut(sequences, 977)), want, "one thread, cut");
  Rig second = rig_of(/*threads=*/2, /*block_tokens=*/8);
  expect_same(run(second, sequences, cut(sequences, 1024)), want, "two threads, cut");
  const int64_t divided = second.stream().pool->num_divided();
  EXPECT_GT(divided, 0);
  expect_same(run(second, sequences, all_at_once(sequences), /*keep=*/true), want, "two threads");
  EXPECT_GT(second.stream().pool->num_divided(), divided);
}

// A group that is decoded over the blocks of one prompt, which attention reads once for all.
TEST_P(RealSizes, AGroupOverOnePromptHasTheBitsOfEachAlone) {
  if (rig_device().kind != DeviceKind::kCpu) GTEST_SKIP() << "hours on a device that is emulated";
  constexpr int32_t kPrompt = 192, kMembers = 8, kNew = 5;
  Rng rng(7);
  const auto draw = [&] { return static_cast<int32_t>(rng.below(config().vocab_size)); };
  Tokens prompt(kPrompt);
  std::ranges::generate(prompt, draw);
  std::vector<Tokens> sequences(kMembers, prompt);
  Schedule schedule;
  for (size_t s = 0; s < kMembers; ++s) {
    for (int i = 0; i < kNew; ++i) sequences[s].push_back(draw());
    schedule.push_back({{s, 0, kPrompt}});
  }
  for (int32_t i = 0; i < kNew; ++i) {
    schedule.emplace_back();
    for (size_t s = 0; s < kMembers; ++s) schedule.back().push_back({s, kPrompt + i, 1});
  }
  Rig alone = rig_of(/*threads=*/1, /*block_tokens=*/16);
  const Numbers want = run(alone, sequences, each_alone(sequences));
  for (const int threads : {1, 2}) {
    Rig rig = rig_of(threads, /*block_tokens=*/16);
    expect_same(run(rig, sequences, schedule, /*keep=*/false, /*shared=*/kPrompt), want, "group");
    for (size_t s = 1; s < kMembers; ++s)
      EXPECT_EQ(rig.builder.batch().sequences.common_blocks[s], kPrompt / 16);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RealSizes,
    ::testing::Values(RealSize{576, 1536, 9, 3, 64, Dtype::kBF16},    // SmolLM2-135M
                      RealSize{896, 4864, 14, 2, 64, Dtype::kBF16},   // Qwen2.5-0.5B
                      RealSize{4096, 1000, 7, 1, 128, Dtype::kBF16},  // a part of one of 7B
                      RealSize{1536, 1000, 12, 4, 128, Dtype::kF32},  // in float32
                      // With a KV cache of bfloat16.
                      RealSize{576, 1536, 9, 3, 64, {Dtype::kBF16, Dtype::kBF16}},
                      RealSize{1536, 1000, 7, 1, 128, {Dtype::kF32, Dtype::kBF16}}),
    [](const auto& test) {
      const RealSize& size = test.param;
      const bool bf16 = size.elements.weights == Dtype::kBF16;
      return fmt::format("Width{}Heads{}x{}Of{}{}{}", size.hidden, size.kv_heads,
                         size.heads / size.kv_heads, size.head_dim, bf16 ? "Bf16" : "",
                         size.elements.kv_cache ? "Cache16" : "");
    });

std::string name_of_invariance(const ::testing::TestParamInfo<InvarianceShape>& test) {
  return std::array{"Round", "Bf16", "Awkward", "Rich", "Sparse"}.at(
      static_cast<size_t>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Shapes, Invariance,
                         ::testing::Values(InvarianceShape::kRound, InvarianceShape::kBf16,
                                           InvarianceShape::kAwkward, InvarianceShape::kRich,
                                           InvarianceShape::kSparse),
                         name_of_invariance);

}  // namespace
}  // namespace tailrace
