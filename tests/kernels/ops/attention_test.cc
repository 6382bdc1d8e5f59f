#include "kernels/ops/attention.h"

#include <algorithm>
#include <numeric>

#include "kernels/ref/ref.h"
#include "tests/kernels/ops/attention_testing.h"
#include "tests/kernels/ops/op_testing.h"

namespace tailrace {
namespace {

using namespace op_testing;

TEST(KvCopy, TakesThePositionsOfABlockAndNoOthers) {
  Rng rng(21);
  for (const auto& [kv_heads, head_dim, block_tokens] :
       {std::tuple{1, 2, 8}, {3, 5, 16}, {2, 64, 32}, {1, 128, 128}}) {
    const size_t floats = static_cast<size_t>(4 * kv_heads * head_dim * block_tokens);
    for (const int tokens : {0, 1, block_tokens - 3, block_tokens}) {
      std::vector<float> keys(floats), values(floats);
      for (size_t i = 0; i < floats; ++i) {
        keys[i] = static_cast<float>(rng() % 1000);
        values[i] = static_cast<float>(rng() % 1000);
      }
      std::vector<float> expected_keys = keys, expected_values = values;
      KvLayer kv{.keys = keys.data(),
                 .values = values.data(),
                 .block_tokens = block_tokens,
                 .num_kv_heads = kv_heads,
                 .head_dim = head_dim};
      KvCopy copied{.kv = kv, .from = 3, .to = 1, .tokens = tokens};
      kv_copy(Stream{}, copied);
      copied.kv.keys = expected_keys.data();
      copied.kv.values = expected_values.data();
      ref::kv_copy(copied);
      EXPECT_EQ(keys, expected_keys) << head_dim << ", " << tokens;
      EXPECT_EQ(values, expected_values) << head_dim << ", " << tokens;
    }
  }
}

TEST(Attention, AgreesWithTheReference) {
  Rng rng(1);
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(testing::Message()
                 << g.heads << " heads of " << g.head_dim << ", " << g.block_tokens);
    Case c(g, kLengths, rng);
    PagedCache cache(g, kLengths, rng), ref_cache = cache;
    auto pieces = c.whole();
    GuardedMatrix q = Case::rows_of(c.q, pieces), k = Case::rows_of(c.k, pieces),
                  v = Case::rows_of(c.v, pieces);
    BatchData batch(cache, pieces);
    GuardedMatrix out(q.rows(), q.cols()), lse(q.rows(), g.heads);
    ref::kv_write(k.view(), v.view(), batch.get(), ref_cache.layer());
    ref::attention(q.view(), g.args(), batch.get(), ref_cache.layer(), out.view(), lse.view());
    for (int threads : {1, 2, 3}) {
      Output actual = forward(TestStream(threads).get(), c, cache, pieces);
      // By bits, and over the whole memory: what kv_write must leave alone is still NaN.
      EXPECT_TRUE(cache.same_as(ref_cache)) << "kv_write";
      expect_close(actual.out.view(), out.view(), output_tolerance(c, 131), "out");
      expect_close(actual.lse.view(), lse.view(), output_tolerance(c, 131), "lse");
    }
  }
}

TEST(Attention, AllowsNoRowsAndSequencesWithoutRows) {
  Rng rng(2);
  Geometry g;
  Case c(g, {5, 7}, rng);
  PagedCache cache(g, c.lengths, rng);
  EXPECT_EQ(forward(Stream{}, c, cache, {}).out.rows(), 0);
  auto alone = forward(Stream{}, c, cache, {{0, 0, 5}});
  // Sequences without rows come before and after, since offsets repeat there.
  auto with_empty = forward(Stream{}, c, cache, {{1, 0, 0}, {0, 0, 5}, {1, 0, 0}});
  expect_same_bits(with_empty.out.view(), alone.out.view(), "out");
}

TEST(Attention, MayOverwriteItsQueries) {
  Rng rng(3);
  Geometry g;
  Case c(g, {33, 4}, rng);
  PagedCache cache(g, c.lengths, rng);
  auto apart = forward(Stream{}, c, cache, c.whole());
  GuardedMatrix q = Case::rows_of(c.q, c.whole());
  BatchData batch(cache, c.whole());
  TestWorkspace workspace(attention_workspace_bytes(2, g.heads, g.kv_heads, g.head_dim, 33));
  TestStream stream(2);
  attention(stream.get(), workspace.get(),
            {.q = q.view(),
             .heads = g.args(),
             .batch = batch.get(),
             .kv = cache.layer(),
             .max_context = 33,
             .out = q.view()});
  expect_same_bits(q.view(), apart.out.view(), "out over q");
}

// Design rule 3. The expectation is one pass over all sequences with one thread and blocks of 16.
TEST(Attention, HasTheSameBitsForEveryCutBatchBlockSizeAndThreadCount) {
  for (Geometry g : kGeometries) {
    SCOPED_TRACE(testing::Message() << g.heads << " heads of " << g.head_dim);
    Rng rng(4);
    g.block_tokens = 16;
    Case c(g, kLengths, rng);
    PagedCache first_cache(g, kLengths, rng);
    Output whole = forward(Stream{}, c, first_cache, c.whole());
    auto expect_rows = [&](const Output& part, const std::vector<Piece>& pieces) {
      int64_t at = 0;
      for (const Piece& p : pieces) {
        int64_t first = 0;
        for (size_t s = 0; s < p.sequence; ++s) first += c.lengths[s];
        const int64_t rows = p.end - p.begin;
        expect_same_bits(part.out.view().slice_rows(at, at + rows),
                         whole.out.view().slice_rows(first + p.begin, first + p.end), "out");
        expect_same_bits(part.lse.view().slice_rows(at, at + rows),
                         whole.lse.view().slice_rows(first + p.begin, first + p.end), "lse");
        at += rows;
      }
    };
    for (int block_tokens : {8, 16, 32, 64, 128}) {
      c.geometry.block_tokens = block_tokens;
      for (int threads : {1, 2, 3}) {
        TestStream stream(threads);
        PagedCache at_once(c.geometry, kLengths, rng);
        expect_rows(forward(stream.get(), c, at_once, c.whole()), c.whole());
        // All but the smallest are worth a second thread.
        if (g.window == 0) {
          EXPECT_EQ(stream.num_divided() > 0, threads > 1 && g.heads > 1);
        }

        // Random chunks of random sequences in a random order, one by one towards the end.
        PagedCache cache(c.geometry, kLengths, rng);
        std::vector<int> done(kLengths.size(), 0);
        while (done != kLengths) {
          std::vector<Piece> pieces;
          for (size_t s = 0; s < kLengths.size(); ++s) {
            const int left = kLengths[s] - done[s];
            if (left == 0 || rng() % 3 == 0) continue;
            // Pieces of a prefill first, then single tokens as in decoding.
            const int most = left > 20 ? left : 1;
            const int rows = 1 + static_cast<int>(rng() % static_cast<uint64_t>(most));
            pieces.push_back({s, done[s], done[s] + rows});
            done[s] += rows;
          }
          std::shuffle(pieces.begin(), pieces.end(), rng);
          expect_rows(forward(stream.get(), c, cache, pieces), pieces);
        }
      }
    }
  }
}

// A decode step far into a long context, alone and beside others.
TEST(Attention, OneTokenOfALongContextIsDividedAndKeepsItsBits) {
  const Geometry g{.heads = 14, .kv_heads = 2, .head_dim = 128, .block_tokens = 16};
  const std::vector<int> lengths = {3000, 1, 700};
  Rng rng(9);
  Case c(g, lengths, rng);
  PagedCache first(g, lengths, rng);
  (void)forward(Stream{}, c, first, {{0, 0, 2999}, {2, 0, 699}});
  PagedCache same = first;
  const std::vector<Piece> last = {{0, 2999, 3000}, {1, 0, 1}, {2, 699, 700}};
  Output alone = forward(Stream{}, c, first, last);
  for (int threads : {2, 3}) {
    TestStream stream(threads);
    PagedCache cache = same;
    Output divided = forward(stream.get(), c, cache, last);
    expect_same_bits(divided.out.view(), alone.out.view(), "out");
    expect_same_bits(divided.lse.view(), alone.lse.view(), "lse");
    EXPECT_GT(stream.num_divided(), 0) << threads;
  }
  PagedCache cache = same;
  Output one = forward(Stream{}, c, cache, {{0, 2999, 3000}});
  expect_same_bits(one.out.view(), alone.out.view().slice_rows(0, 1), "in a batch of its own");
}

// Three KV heads of two threads, or of four: stretches of the context, not heads, are divided.
TEST(Attention, FewHeadsOfLongContextsAreDividedAndKeepTheirBits) {
  for (Geometry g : {Geometry{.heads = 9, .kv_heads = 3, .head_dim = 64},
                     Geometry{.heads = 10, .kv_heads = 1, .head_dim = 40, .block_tokens = 8},
                     Geometry{.heads = 9, .kv_heads = 3, .head_dim = 72, .window = 777},
                     Geometry{.heads = 9, .kv_heads = 3, .head_dim = 64, .cache = Dtype::kBF16}}) {
    SCOPED_TRACE(testing::Message() << g.heads << " heads of " << g.head_dim);
    const std::vector<int> lengths = {1500, 1, 531, 256, 257};
    Rng rng(10);
    Case c(g, lengths, rng);
    PagedCache first(g, lengths, rng);
    (void)forward(Stream{}, c, first, {{0, 0, 1499}, {2, 0, 530}, {3, 0, 255}, {4, 0, 256}});
    for (const std::vector<Piece>& last :
         {std::vector<Piece>{{0, 1499, 1500}},
          {{1, 0, 1}, {0, 1499, 1500}, {2, 530, 531}},
          {{0, 1499, 1500}, {1, 0, 1}, {2, 530, 531}, {3, 255, 256}, {4, 256, 257}}}) {
      PagedCache alone_cache = first;
      const Output alone = forward(Stream{}, c, alone_cache, last);
      for (int threads : {2, 4, 7}) {
        TestStream stream(threads);
        PagedCache cache = first;
        const Output divided = forward(stream.get(), c, cache, last);
        expect_same_bits(divided.out.view(), alone.out.view(), "out");
        expect_same_bits(divided.lse.view(), alone.lse.view(), "lse");
        // One row: the scores, the softmax and the values, where that is worth the threads.
        const bool all = last.size() == 1 && g.window == 0;
        EXPECT_GE(stream.num_divided(), all ? 3 : 1) << threads;
      }
    }
  }
}

// What neighbours have in common is read in the blocks of the first of them: tables that name
// others there, of other keys and values, change nothing.
TEST(Attention, NeighboursReadWhatTheyShareOnceAndKeepTheirBits) {
  for (Geometry g : {Geometry{.heads = 9, .kv_heads = 3, .head_dim = 64},
                     Geometry{.heads = 14, .kv_heads = 2, .head_dim = 40, .block_tokens = 8},
                     Geometry{.heads = 2, .kv_heads = 2, .head_dim = 128, .block_tokens = 32},
                     Geometry{.heads = 9, .kv_heads = 3, .head_dim = 72, .cache = Dtype::kBF16}}) {
    SCOPED_TRACE(testing::Message() << g.heads << " heads of " << g.head_dim);
    const std::vector<int> lengths = {83, 97, 75, 65, 133, 131, 40};
    // Two families, of four and of two, and one alone.
    const std::vector<int> common = {0, 64, 64, 64, 0, 96, 0};
    Rng rng(11);
    Case c(g, lengths, rng);
    PagedCache cache(g, lengths, rng);
    std::vector<Piece> prompts, last;
    std::vector<int32_t> common_blocks;
    for (size_t s = 0; s < lengths.size(); ++s) {
      prompts.push_back({s, 0, lengths[s] - 1});
      last.push_back({s, lengths[s] - 1, lengths[s]});
      common_blocks.push_back(common[s] / g.block_tokens);
    }
    (void)forward(Stream{}, c, cache, prompts);
    GuardedMatrix q = Case::rows_of(c.q, last), k = Case::rows_of(c.k, last),
                  v = Case::rows_of(c.v, last);
    const BatchData own(cache, last);
    BatchData shared = own;
    for (size_t s = 1; s < lengths.size(); ++s)
      std::copy_n(shared.tables.begin() + static_cast<int64_t>(s - 1) * own.max_blocks,
                  common_blocks[s],
                  shared.tables.begin() + static_cast<int64_t>(s) * own.max_blocks);
    kv_write(Stream{}, {.k = k.view(), .v = v.view(), .batch = own.get(), .kv = cache.layer()});
    const auto attend = [&](int threads, const BatchData& data, std::span<const int32_t> blocks) {
      TestStream stream(threads);
      AttentionBatch batch = data.get();
      batch.common_blocks = blocks;
      Output result{GuardedMatrix(q.rows(), q.cols()), GuardedMatrix(q.rows(), g.heads)};
      TestWorkspace workspace(
          attention_workspace_bytes(threads, g.heads, g.kv_heads, g.head_dim, data.max_context));
      attention(stream.get(), workspace.get(),
                {.q = q.view(),
                 .heads = g.args(),
                 .batch = batch,
                 .kv = cache.layer(),
                 .max_context = data.max_context,
                 .out = result.out.view(),
                 .lse = result.lse.view()});
      result.out.expect_canaries();
      return result;
    };
    const Output alone = attend(1, shared, {});
    for (int threads : {1, 2, 3}) {
      const Output together = attend(threads, shared, common_blocks);
      expect_same_bits(together.out.view(), alone.out.view(), "out");
      expect_same_bits(together.lse.view(), alone.lse.view(), "lse");
    }
    expect_same_bits(attend(1, own, common_blocks).out.view(), alone.out.view(), "read once");
    // All begin with a system prompt of one block, and some with more: no bits.
    for (std::vector<int32_t> nested : {std::vector<int32_t>{0, 1, 2, 2, 1, 2, 1}}) {
      BatchData system = own;
      for (size_t s = 1; s < lengths.size(); ++s)
        std::copy_n(system.tables.begin() + static_cast<int64_t>(s - 1) * own.max_blocks, nested[s],
                    system.tables.begin() + static_cast<int64_t>(s) * own.max_blocks);
      expect_same_bits(attend(2, system, nested).out.view(), attend(2, system, {}).out.view(),
                       "nested");
    }
  }
}

TEST(Attention, ATokenDoesNotSeeWhatComesAfterIt) {
  Rng rng(5);
  Geometry g;
  Case c(g, {30}, rng);
  PagedCache cache(g, c.lengths, rng);
  auto before = forward(Stream{}, c, cache, c.whole());
  for (int64_t r = 20; r < 30; ++r) {
    // NaN passes through every sum and product: a weight of 0 would not hide it.
    for (int64_t i = 0; i < c.k[0].cols(); ++i) c.k[0].at(r, i) = c.v[0].at(r, i) = NAN;
  }
  auto after = forward(Stream{}, c, cache, c.whole());
  expect_same_bits(after.out.view().slice_rows(0, 20), before.out.view().slice_rows(0, 20), "out");
}

// What nobody sees may be gone: blocks that lie before the window wholly, or its NaN.
TEST(Attention, WhatLiesBeforeTheWindowIsNeverRead) {
  Rng rng(11);
  for (const int block_tokens : {8, 16, 32}) {
    const Geometry g{
        .heads = 6, .kv_heads = 2, .head_dim = 24, .block_tokens = block_tokens, .window = 21};
    Case c(g, {100}, rng);
    PagedCache cache(g, c.lengths, rng);
    Output whole = forward(Stream{}, c, cache, c.whole());
    for (const int begin : {40, 60, 99}) {
      PagedCache copy = cache;
      const int seen = begin - g.window + 1;
      copy.forget_before(0, seen);
      Output late = forward(Stream{}, c, copy, {{0, begin, 100}});
      expect_same_bits(late.out.view(), whole.out.view().slice_rows(begin, 100), "out");
      expect_same_bits(late.lse.view(), whole.lse.view().slice_rows(begin, 100), "lse");
    }
  }
}

TEST(Attention, AWindowThatHoldsAllIsNone) {
  Rng rng(12);
  Geometry g;
  Case c(g, kLengths, rng);
  PagedCache cache(g, kLengths, rng);
  Output all = forward(Stream{}, c, cache, c.whole());
  c.geometry.window = 131;
  Output wide = forward(Stream{}, c, cache, c.whole());
  expect_same_bits(wide.out.view(), all.out.view(), "out");
  expect_same_bits(wide.lse.view(), all.lse.view(), "lse");
  c.geometry.window = 130;
  EXPECT_NE(forward(Stream{}, c, cache, c.whole()).lse.at(all.lse.rows() - 1, 0),
            all.lse.at(all.lse.rows() - 1, 0));
}

Grads ref_backward(const Case& c, PagedCache& cache, const GuardedMatrix& dout) {
  const Geometry& g = c.geometry;
  GuardedMatrix q = Case::rows_of(c.q, c.whole());
  BatchData batch(cache, c.whole());
  const int64_t kv_cols = g.kv_heads * g.head_dim;
  Grads grads{GuardedMatrix(q.rows(), q.cols()), GuardedMatrix(q.rows(), kv_cols),
              GuardedMatrix(q.rows(), kv_cols)};
  ref::attention_backward(q.view(), dout.view(), g.args(), batch.get(), cache.layer(),
                          grads.dq.view(), grads.dk.view(), grads.dv.view());
  return grads;
}

TEST(AttentionBackward, AgreesWithTheReference) {
  Rng rng(6);
  for (const Geometry& g : kGeometries) {
    SCOPED_TRACE(testing::Message()
                 << g.heads << " heads of " << g.head_dim << ", " << g.block_tokens);
    Case c(g, kLengths, rng);
    PagedCache cache(g, kLengths, rng);
    GuardedMatrix dout = Case::rows_of(c.q, c.whole());
    std::shuffle(dout.view().data, dout.view().data + dout.cols(), rng);
    for (int threads : {1, 3}) {
      Grads actual = backward(TestStream(threads).get(), c, cache, dout);
      Grads expected = ref_backward(c, cache, dout);
      // dscore = p (dout . v - D) has the relative error of p and the rounding of two sums of
      // head_dim products; dk and dv then add up to group * 131 of such terms weighted by p <= 1.
      const double one = output_tolerance(c, 131) * 4 * std::sqrt(static_cast<double>(g.head_dim));
      expect_close(actual.dq.view(), expected.dq.view(), one, "dq");
      expect_close(actual.dk.view(), expected.dk.view(), 4 * one, "dk");
      expect_close(actual.dv.view(), expected.dv.view(), 4 * one, "dv");
    }
  }
}

TEST(AttentionBackward, HasTheSameBitsForEveryThreadCountAndInPlace) {
  Rng rng(7);
  Geometry g;
  Case c(g, {64, 3, 90}, rng);
  PagedCache cache(g, c.lengths, rng);
  GuardedMatrix dout(157, g.heads * g.head_dim, rng);
  Grads one = backward(Stream{}, c, cache, dout);
  for (int threads : {2, 3}) {
    Grads many = backward(TestStream(threads).get(), c, cache, dout);
    expect_same_bits(many.dq.view(), one.dq.view(), "dq");
    expect_same_bits(many.dk.view(), one.dk.view(), "dk");
    expect_same_bits(many.dv.view(), one.dv.view(), "dv");
  }
  Output y = forward(Stream{}, c, cache, c.whole());
  GuardedMatrix q = Case::rows_of(c.q, c.whole());
  BatchData batch(cache, c.whole());
  TestWorkspace workspace(attention_workspace_bytes(1, g.heads, g.kv_heads, g.head_dim, 90));
  attention_backward(Stream{}, workspace.get(),
                     {.q = q.view(),
                      .out = y.out.view(),
                      .lse = y.lse.view(),
                      .dout = dout.view(),
                      .heads = g.args(),
                      .batch = batch.get(),
                      .kv = cache.layer(),
                      .max_context = 90,
                      .dq = dout.view(),
                      .dk = one.dk.view(),
                      .dv = one.dv.view()});
  expect_same_bits(dout.view(), one.dq.view(), "dq over dout");
}

// Four sequences, of which the later ones have the first rows of earlier ones: one that goes on
// from the first, one from that, one from the first again. The same with every row of every
// sequence.
TEST(AttentionBackward, RowsThatOthersGoOnFromGetWhatAllOfThemGive) {
  struct Part {
    size_t parent;
    int begin, end;
  };
  const std::vector<Part> parts = {{0, 0, 40}, {0, 23, 61}, {1, 50, 70}, {0, 39, 45}};
  for (const Geometry& geometry : {Geometry{}, Geometry{.heads = 3, .kv_heads = 1, .head_dim = 24},
                                   Geometry{.block_tokens = 8, .window = 21}}) {
    const Geometry& g = geometry;
    SCOPED_TRACE(testing::Message() << g.heads << " heads, window " << g.window);
    Rng rng(13);
    Case c(g, {40, 61, 70, 45}, rng);
    const int64_t cols = g.heads * g.head_dim, kv_cols = g.kv_heads * g.head_dim;
    for (size_t s = 1; s < parts.size(); ++s) {
      for (int r = 0; r < parts[s].begin; ++r) {
        for (auto* from : {&c.q, &c.k, &c.v})
          std::copy_n((*from)[parts[s].parent].view().row(r), (*from)[s].cols(),
                      (*from)[s].view().row(r));
      }
    }
    PagedCache cache(g, c.lengths, rng);
    // Rows that a sequence has of another one give no gradient of their own.
    std::vector<GuardedMatrix> douts;
    for (size_t s = 0; s < parts.size(); ++s) {
      douts.emplace_back(c.lengths[s], cols, rng);
      for (int r = 0; r < parts[s].begin; ++r) std::fill_n(douts[s].view().row(r), cols, 0.0f);
    }
    const Grads whole = backward(Stream{}, c, cache, Case::rows_of(douts, c.whole()));

    std::vector<Piece> pieces;
    std::vector<int32_t> parents;
    for (size_t s = 0; s < parts.size(); ++s) {
      pieces.push_back({s, parts[s].begin, parts[s].end});
      parents.push_back(s == 0 ? -1 : static_cast<int32_t>(parts[s].parent));
    }
    const BatchData data(cache, pieces);
    AttentionBatch batch = data.get();
    batch.parents = parents;
    const GuardedMatrix q = Case::rows_of(c.q, pieces), dout = Case::rows_of(douts, pieces);
    const Output y = forward(Stream{}, c, cache, pieces);
    for (int threads : {1, 3}) {
      Grads grads{GuardedMatrix(q.rows(), cols), GuardedMatrix(q.rows(), kv_cols),
                  GuardedMatrix(q.rows(), kv_cols)};
      for (auto* m : {&grads.dq, &grads.dk, &grads.dv}) m->fill(NAN);
      const TestStream stream(threads);
      TestWorkspace workspace(
          attention_workspace_bytes(threads, g.heads, g.kv_heads, g.head_dim, data.max_context));
      attention_backward(stream.get(), workspace.get(),
                         {.q = q.view(),
                          .out = y.out.view(),
                          .lse = y.lse.view(),
                          .dout = dout.view(),
                          .heads = g.args(),
                          .batch = batch,
                          .kv = cache.layer(),
                          .max_context = data.max_context,
                          .dq = grads.dq.view(),
                          .dk = grads.dk.view(),
                          .dv = grads.dv.view()});
      for (auto* m : {&grads.dq, &grads.dk, &grads.dv}) m->expect_canaries();
      // First rows in both layouts.
      std::vector<int64_t> first_whole{0}, first{0};
      for (size_t s = 0; s < parts.size(); ++s) {
        first_whole.push_back(first_whole.back() + c.lengths[s]);
        first.push_back(first.back() + parts[s].end - parts[s].begin);
      }
      for (size_t s = 0; s < parts.size(); ++s)
        expect_same_bits(
            grads.dq.view().slice_rows(first[s], first[s + 1]),
            whole.dq.view().slice_rows(first_whole[s] + parts[s].begin, first_whole[s + 1]), "dq");
      const auto sum = [&](const GuardedMatrix& of) {
        GuardedMatrix sums(q.rows(), kv_cols);
        sums.fill(0);
        for (size_t s = 0; s < parts.size(); ++s) {
          for (int r = 0; r < parts[s].end; ++r) {
            size_t owner = s;
            while (r < parts[owner].begin) owner = parts[owner].parent;
            for (int64_t i = 0; i < kv_cols; ++i)
              sums.at(first[owner] + r - parts[owner].begin, i) += of.at(first_whole[s] + r, i);
          }
        }
        return sums;
      };
      // A row has the terms of up to 4 sequences in another order.
      const double one = output_tolerance(c, 70) * 4;
      expect_close(grads.dk.view(), sum(whole.dk).view(), 4 * one, "dk");
      expect_close(grads.dv.view(), sum(whole.dv).view(), 4 * one, "dv");
    }
  }
}

void expect_reference_is_derivative(int window) {
  Rng rng(8);
  // Two heads share their keys, so dk and dv have two parts; the rest is as small as can be, for a
  // difference costs two passes.
  Geometry g{.heads = 2, .kv_heads = 1, .head_dim = 4, .block_tokens = 8, .window = window};
  Case c(g, {5, 3}, rng);
  PagedCache cache(g, c.lengths, rng);
  GuardedMatrix dout(8, 8, rng);
  auto loss = [&] {
    auto pieces = c.whole();
    GuardedMatrix q = Case::rows_of(c.q, pieces), k = Case::rows_of(c.k, pieces),
                  v = Case::rows_of(c.v, pieces);
    BatchData batch(cache, pieces);
    GuardedMatrix out(8, 8);
    ref::kv_write(k.view(), v.view(), batch.get(), cache.layer());
    ref::attention(q.view(), g.args(), batch.get(), cache.layer(), out.view(), {});
    double sum = 0;
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t i = 0; i < 8; ++i) sum += double{out.at(r, i)} * dout.at(r, i);
    }
    return sum;
  };
  loss();
  Grads grads = ref_backward(c, cache, dout);
  auto slope = [&](float& at) { return central_difference(loss, at); };
  for (size_t s = 0; s < 2; ++s) {
    const int64_t first = s == 0 ? 0 : 5;
    for (int64_t r = 0; r < c.lengths[s]; ++r) {
      for (int64_t i = 0; i < 8; ++i)
        EXPECT_NEAR(grads.dq.at(first + r, i), slope(c.q[s].at(r, i)), 1e-3);
      for (int64_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(grads.dk.at(first + r, i), slope(c.k[s].at(r, i)), 1e-3);
        EXPECT_NEAR(grads.dv.at(first + r, i), slope(c.v[s].at(r, i)), 1e-3);
      }
    }
  }
}

TEST(AttentionBackward, ReferenceIsTheDerivativeOfTheReference) {
  expect_reference_is_derivative(/*window=*/0);
  expect_reference_is_derivative(/*window=*/3);  // less than the longer sequence
}

// However long a sequence is, its attention is one loop.
TEST(Attention, BeatsByItsWork) {
  const Geometry g{.heads = 14, .kv_heads = 2, .head_dim = 64, .block_tokens = 16};
  Rng rng(10);
  Case c(g, {700, 300}, rng);
  PagedCache cache(g, c.lengths, rng);
  const GuardedMatrix dout(1000, g.heads * g.head_dim, rng);
  int64_t product = 0;  // over the context
  for (int64_t n : c.lengths) product += n * (n + 1) / 2 * g.heads * g.head_dim;
  const int64_t round = 5 * 8 * 700 * g.head_dim;  // eight queries in five products
  // With kv_write; gradients with both.
  expect_beats(2 * product, 2, round,
               [&](const Stream& stream) { (void)forward(stream, c, cache, c.whole()); });
  expect_beats(7 * product, 3, round,
               [&](const Stream& stream) { (void)backward(stream, c, cache, dout); });
}

TEST(AttentionDeathTest, RefusesAMissingBlockAndACutSequence) {
  Rng rng(9);
  Geometry g;
  Case c(g, {20}, rng);
  PagedCache small(g, {10}, rng), ragged(g, {10, 20}, rng);
  EXPECT_DEATH(forward(Stream{}, c, small, {{0, 0, 20}}), "KV block 1 of 1");
  EXPECT_DEATH(forward(Stream{}, c, ragged, {{0, 0, 20}}), "sequence 0 has no KV block 1");
  PagedCache large(g, {20}, rng);
  forward(Stream{}, c, large, c.whole());
  BatchData batch(large, {{0, 3, 8}});
  GuardedMatrix q(5, 128), lse(5, 4), kv(5, 64);
  TestWorkspace workspace(attention_workspace_bytes(1, 4, 2, 32, 8));
  EXPECT_DEATH(attention_backward(Stream{}, workspace.get(),
                                  {.q = q.view(),
                                   .out = q.view(),
                                   .lse = lse.view(),
                                   .dout = q.view(),
                                   .heads = {.num_heads = 4},
                                   .batch = batch.get(),
                                   .kv = large.layer(),
                                   .max_context = 8,
                                   .dq = q.view(),
                                   .dk = kv.view(),
                                   .dv = kv.view()}),
               "sequence 0 is not whole: positions 3..7 in 5 rows");
}

}  // namespace
}  // namespace tailrace
