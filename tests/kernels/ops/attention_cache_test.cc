// A cache of bfloat16 has the bits of one of floats that were rounded before.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/ops/attention.h"
#include "tests/kernels/ops/attention_testing.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

Geometry rounded(Geometry g) {
  g.cache = Dtype::kBF16;
  return g;
}

void round_all(std::vector<GuardedMatrix>& matrices) {
  for (GuardedMatrix& m : matrices) {
    for (int64_t r = 0; r < m.rows(); ++r) {
      for (int64_t c = 0; c < m.cols(); ++c) m.at(r, c) = to_float(to_bf16(m.at(r, c)));
    }
  }
}

bool same_elements(const std::vector<Bf16>& actual, const std::vector<float>& expected) {
  return std::equal(
      actual.begin(), actual.end(), expected.begin(), expected.end(),
      [](Bf16 a, float b) { return std::isnan(b) ? std::isnan(to_float(a)) : to_float(a) == b; });
}

TEST(RoundedCache, HasTheBitsOfRoundedFloats) {
  Rng rng(31);
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(testing::Message()
                 << g.heads << " heads of " << g.head_dim << ", " << g.block_tokens);
    const Case c(g, kLengths, rng);
    Case before = c;
    round_all(before.k);
    round_all(before.v);
    // The same shuffle of the blocks for both.
    Rng blocks = rng, same_blocks = rng;
    PagedCache floats(g, kLengths, blocks), narrow(rounded(g), kLengths, same_blocks);
    const auto both = [&](int threads, const std::vector<Piece>& pieces) {
      const Output expected = forward(TestStream(threads).get(), before, floats, pieces);
      const Output actual = forward(TestStream(threads).get(), c, narrow, pieces);
      expect_same_bits(actual.out.view(), expected.out.view(), "out");
      expect_same_bits(actual.lse.view(), expected.lse.view(), "lse");
      // What kv_write must leave alone is still NaN.
      EXPECT_TRUE(same_elements(narrow.rounded_keys(), floats.keys()));
      EXPECT_TRUE(same_elements(narrow.rounded_values(), floats.values()));
    };
    // Prompts, then a row of each, then all at once.
    std::vector<Piece> prompts, last;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      prompts.push_back({s, 0, kLengths[s] - 1});
      last.push_back({s, kLengths[s] - 1, kLengths[s]});
    }
    for (int threads : {1, 3}) {
      both(threads, prompts);
      both(threads, last);
      both(threads, c.whole());
    }
    GuardedMatrix dout = Case::rows_of(c.q, c.whole());
    std::shuffle(dout.view().data, dout.view().data + dout.cols(), rng);
    const Grads expected = backward(TestStream(2).get(), before, floats, dout);
    const Grads actual = backward(TestStream(2).get(), c, narrow, dout);
    expect_same_bits(actual.dq.view(), expected.dq.view(), "dq");
    expect_same_bits(actual.dk.view(), expected.dk.view(), "dk");
    expect_same_bits(actual.dv.view(), expected.dv.view(), "dv");
  }
}

TEST(RoundedCache, IsCopiedByItsOwnElements) {
  for (const auto& [kv_heads, head_dim, block_tokens] :
       {std::tuple{1, 2, 8}, {3, 5, 16}, {2, 64, 32}}) {
    const int64_t block = int64_t{kv_heads} * head_dim * block_tokens;
    for (const int tokens : {0, 1, block_tokens - 3, block_tokens}) {
      std::vector<Bf16> keys(static_cast<size_t>(4 * block)), values = keys;
      for (size_t i = 0; i < keys.size(); ++i) {
        keys[i].bits = static_cast<uint16_t>(i);
        values[i].bits = static_cast<uint16_t>(~i);
      }
      const std::vector<Bf16> old_keys = keys, old_values = values;
      kv_copy(Stream{}, {.kv = {.keys = keys.data(),
                                .values = values.data(),
                                .block_tokens = block_tokens,
                                .num_kv_heads = kv_heads,
                                .head_dim = head_dim,
                                .dtype = Dtype::kBF16},
                         .from = 3,
                         .to = 1,
                         .tokens = tokens});
      for (int64_t i = 0; i < 4 * block; ++i) {
        const auto at = static_cast<size_t>(i);
        const bool in_target = i / block == 1;
        const bool takes_key = in_target && i % block_tokens < tokens;
        const bool takes_value = in_target && i / head_dim % block_tokens < tokens;
        const size_t from = at + static_cast<size_t>(2 * block);
        ASSERT_EQ(keys[at].bits, old_keys[takes_key ? from : at].bits) << i << ", " << tokens;
        ASSERT_EQ(values[at].bits, old_values[takes_value ? from : at].bits) << i << ", " << tokens;
      }
    }
  }
}

}  // namespace
}  // namespace tailrace
