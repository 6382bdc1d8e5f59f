// Sums over a row: log-sum-exp over the vocabulary, in fixed blocks of it joined in order, a row a
// thread; and the norms, whose rows are summed in one vector of lanes, and whose dweight is summed
// over tokens in order, columns divided among threads.
//
// Free: one pass with several vectors of lanes; the vocabulary, or the tokens, divided among
// threads.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bench/kernels/exactness.h"
#include "bench/report/program.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ref/ref.h"

namespace tailrace {
namespace {

constexpr int kChains = 4;

struct Partial {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;  // of e^(z - max)
};

Vec16 join(const Vec16 (&chains)[kChains]) {
  return simd::add(simd::add(chains[0], chains[1]), simd::add(chains[2], chains[3]));
}

// Vector v of a row belongs to chain v modulo kChains. A stretch that stays in the first-level
// cache, its maximum, then its terms; sums so far are rescaled when the maximum grows.
Partial sum_exp(const float* logits, int64_t n, float inv_temperature) {
  constexpr int64_t kStretch = 4096;
  const Vec16 scale = simd::broadcast(inv_temperature);
  const Vec16 lowest = simd::broadcast(Partial().max);
  Partial result;
  Vec16 sums[kChains];
  for (auto& s : sums) s = simd::zero();
  for (int64_t begin = 0; begin < n; begin += kStretch) {
    const int64_t end = std::min(n, begin + kStretch);
    const auto at = [&](int64_t i) {
      const Vec16 z = simd::mul(simd::load(logits + i, end - i), scale);
      return simd::select_first(end - i, z, lowest);
    };
    Vec16 max[kChains];
    for (auto& m : max) m = lowest;
    for (int64_t i = begin; i < end; i += kChains * kLanes) {
      for (int c = 0; c < kChains; ++c) max[c] = simd::max(max[c], at(i + c * kLanes));
    }
    const float largest =
        simd::reduce_max(simd::max(simd::max(max[0], max[1]), simd::max(max[2], max[3])));
    if (largest > result.max) {
      const Vec16 factor = simd::broadcast(simd::exp(result.max - largest));
      for (auto& s : sums) s = simd::mul(s, factor);
      result.max = largest;
    }
    const Vec16 shift = simd::broadcast(result.max);
    for (int64_t i = begin; i < end; i += kChains * kLanes) {
      for (int c = 0; c < kChains; ++c) {
        sums[c] = simd::add(sums[c], simd::exp(simd::sub(at(i + c * kLanes), shift)));
      }
    }
  }
  result.sum = simd::reduce_add(join(sums));
  return result;
}

void rows_in_chains(const Stream& stream, ConstMatrix logits, std::span<float> lse) {
  const int64_t grain = std::max<int64_t>(1, 8192 / logits.cols);
  parallel_for(stream, logits.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Partial row = sum_exp(logits.row(r), logits.cols, 1);
      lse[static_cast<size_t>(r)] = row.max + std::log(row.sum);
    }
  });
}

// `partials`: one a row and thread.
void vocabulary_by_threads(const Stream& stream, ConstMatrix logits, std::span<Partial> partials,
                           std::span<float> lse) {
  const int64_t parts =
      std::clamp<int64_t>(logits.rows * logits.cols / 8192, 1, num_threads(stream));
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      const int64_t first = logits.cols * part / parts, last = logits.cols * (part + 1) / parts;
      for (int64_t r = 0; r < logits.rows; ++r) {
        partials[static_cast<size_t>(r * parts + part)] =
            sum_exp(logits.row(r) + first, last - first, 1);
      }
    }
  });
  for (int64_t r = 0; r < logits.rows; ++r) {
    const auto row = partials.subspan(static_cast<size_t>(r * parts), static_cast<size_t>(parts));
    const float max = std::ranges::max(row, {}, &Partial::max).max;
    float sum = 0;
    for (const Partial& p : row) sum += p.sum * std::exp(p.max - max);
    lse[static_cast<size_t>(r)] = max + std::log(sum);
  }
}

constexpr float kEps = 1e-5f;

// Sum of squares, in chains.
float sum_of_row(const float* in, int64_t dim) {
  Vec16 sums[kChains];
  for (auto& s : sums) s = simd::zero();
  for (int64_t i = 0; i < dim; i += kChains * kLanes) {
    for (int c = 0; c < kChains; ++c) {
      const Vec16 v = simd::load(in + i + c * kLanes, dim - i - c * kLanes);
      sums[c] = simd::fma(v, v, sums[c]);
    }
  }
  return simd::reduce_add(join(sums));
}

int64_t norm_grain(int64_t dim) { return std::max<int64_t>(1, 32 * 1024 / dim); }

void norm_in_chains(const Stream& stream, ConstMatrix x, std::span<const float> weight, Matrix y,
                    std::span<float> inv_rms) {
  const int64_t dim = x.cols;
  parallel_for(stream, x.rows, norm_grain(dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* in = x.row(t);
      const float mean = sum_of_row(in, dim) / static_cast<float>(dim);
      const float inv = 1.0f / std::sqrt(mean + kEps);
      inv_rms[static_cast<size_t>(t)] = inv;
      for (int64_t i = 0; i < dim; i += kLanes) {
        const Vec16 scaled = simd::mul(simd::load(in + i, dim - i), simd::broadcast(inv));
        simd::store(y.row(t) + i, simd::mul(scaled, simd::load(weight.data() + i, dim - i)),
                    dim - i);
      }
    }
  });
}

// dx and dweight in one pass over the tokens of a thread. `partials`: dweight for each thread.
void norm_backward_by_threads(const Stream& stream, ConstMatrix x, std::span<const float> weight,
                              std::span<const float> inv_rms, ConstMatrix dy, Matrix dx,
                              std::span<float> partials, std::span<float> dweight) {
  const int64_t dim = x.cols;
  const int64_t parts = std::clamp<int64_t>(x.rows / norm_grain(dim), 1, num_threads(stream));
  parallel_for(stream, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      float* own = partials.data() + part * dim;
      std::fill_n(own, dim, 0.0f);
      for (int64_t t = x.rows * part / parts; t < x.rows * (part + 1) / parts; ++t) {
        const float *in = x.row(t), *grad = dy.row(t);
        const Vec16 inv = simd::broadcast(inv_rms[static_cast<size_t>(t)]);
        Vec16 dots[kChains];
        for (auto& d : dots) d = simd::zero();
        for (int64_t i = 0; i < dim; i += kChains * kLanes) {
          for (int c = 0; c < kChains; ++c) {
            const int64_t at = i + c * kLanes, left = dim - at;
            if (left <= 0) break;
            const Vec16 normed = simd::mul(simd::load(in + at, left), inv);
            const Vec16 product = simd::mul(simd::load(grad + at, left), normed);
            dots[c] = simd::fma(product, simd::load(weight.data() + at, left), dots[c]);
            simd::store(own + at, simd::add(simd::load(own + at, left), product), left);
          }
        }
        const float dot = simd::reduce_add(join(dots));
        const Vec16 mean = simd::broadcast(-dot / static_cast<float>(dim));
        for (int64_t i = 0; i < dim; i += kLanes) {
          const int64_t left = dim - i;
          const Vec16 g =
              simd::mul(simd::load(grad + i, left), simd::load(weight.data() + i, left));
          const Vec16 n = simd::mul(simd::load(in + i, left), inv);
          simd::store(dx.row(t) + i, simd::mul(inv, simd::fma(n, mean, g)), left);
        }
      }
    }
  });
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t i = 0; i < dim; ++i) {
      dweight[static_cast<size_t>(i)] += partials[static_cast<size_t>(part * dim + i)];
    }
  }
}

// One row.
Matrix row_of(std::vector<float>& values) {
  return {values.data(), 1, static_cast<int64_t>(values.size())};
}

void norm_forward_case(ExactnessHarness& bench, int64_t rows, int64_t dim) {
  const std::string name = norm_name(rows, dim, "");
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  std::mt19937 rng(3);
  RandomMatrix x(rows, dim, rng), y(rows, dim, rng), again(rows, dim, rng),
      expected(rows, dim, rng);
  std::vector<float> weight(static_cast<size_t>(dim), 1.5f), inv_rms(static_cast<size_t>(rows));
  const auto exact = [&](int64_t) {
    rms_norm(stream, {.x = x.view, .weight = weight, .eps = kEps, .y = y.view, .inv_rms = inv_rms});
  };
  const Liberty chains{"4 chains",
                       [&](int64_t) { norm_in_chains(stream, x.view, weight, y.view, inv_rms); }};
  ref::rms_norm(x.view, weight, kEps, expected.view, inv_rms);
  exact(0);
  for (int64_t r = 0; r < rows; ++r) {
    rms_norm(Stream{}, {.x = x.view.slice_rows(r, r + 1),
                        .weight = weight,
                        .eps = kEps,
                        .y = again.view.slice_rows(r, r + 1)});
  }
  require_same_bits(y.view, again.view, name + ", one row at a time");
  require_close(y.view, expected.view, dim, name);
  chains.call(0);
  require_close(y.view, expected.view, dim, name + ", free");
  bench.measure(name, 1, exact, {chains});
}

void norm_backward_case(ExactnessHarness& bench, int64_t rows, int64_t dim) {
  const std::string name = norm_name(rows, dim, ", gradients");
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  std::mt19937 rng(4);
  RandomMatrix x(rows, dim, rng), y(rows, dim, rng), dy(rows, dim, rng), dx(rows, dim, rng),
      again(rows, dim, rng), expected(rows, dim, rng);
  std::vector<float> weight(static_cast<size_t>(dim), 1.5f), inv_rms(static_cast<size_t>(rows)),
      dweight(weight.size()), dweight_again(weight.size()), expected_dweight(weight.size()),
      partials(weight.size() * static_cast<size_t>(bench.num_threads()));
  rms_norm(stream, {.x = x.view, .weight = weight, .eps = kEps, .y = y.view, .inv_rms = inv_rms});
  const auto exact_on = [&](const Stream& on, Matrix out, std::span<float> dw) {
    rms_norm_backward(on, {.x = x.view,
                           .weight = weight,
                           .inv_rms = inv_rms,
                           .dy = dy.view,
                           .dx = out,
                           .accumulate = false,
                           .dweight = dw});
  };
  const auto exact = [&](int64_t) { exact_on(stream, dx.view, dweight); };
  const Liberty free{"tokens among threads, one pass", [&](int64_t) {
                       norm_backward_by_threads(stream, x.view, weight, inv_rms, dy.view, dx.view,
                                                partials, dweight);
                     }};
  ref::rms_norm_backward(x.view, weight, inv_rms, dy.view, expected.view, false, expected_dweight);
  exact(0);
  exact_on(Stream{}, again.view, dweight_again);
  require_same_bits(dx.view, again.view, name + ", one thread");
  require_same_bits(row_of(dweight), row_of(dweight_again), name + ", dweight, one thread");
  const auto require_right = [&](const std::string& what) {
    require_close(dx.view, expected.view, dim, what);
    require_close(row_of(dweight), row_of(expected_dweight), rows, what + ", dweight");
  };
  require_right(name);
  std::ranges::fill(dweight, 0.0f);
  free.call(0);
  require_right(name + ", free");
  bench.measure(name, 1, exact, {free});
}

}  // namespace

std::string log_sum_exp_name(int64_t rows, int64_t vocab) {
  return fmt::format("log_sum_exp [{}, {}]", rows, vocab);
}

void exactness_log_sum_exp(ExactnessHarness& bench, int64_t rows, int64_t vocab) {
  const std::string name = log_sum_exp_name(rows, vocab);
  if (!bench.wants(name)) return;
  const Stream& stream = bench.stream();
  std::mt19937 rng(2);
  const RandomMatrix logits(rows, vocab, rng, 3.0f);
  std::vector<float> lse(static_cast<size_t>(rows)), again(lse), expected(lse);
  std::vector<Partial> partials(static_cast<size_t>(rows * bench.num_threads()));
  const auto exact = [&](int64_t) {
    log_sum_exp(stream, {.logits = logits.view, .inv_temperature = 1, .lse = lse});
  };
  std::vector<Liberty> liberties = {
      {"4 chains", [&](int64_t) { rows_in_chains(stream, logits.view, lse); }}};
  if (bench.num_threads() > 1) {
    liberties.push_back({"vocabulary among threads", [&](int64_t) {
                           vocabulary_by_threads(stream, logits.view, partials, lse);
                         }});
  }
  exact(0);
  for (int64_t r = 0; r < rows; ++r) {
    log_sum_exp(Stream{}, {.logits = logits.view.slice_rows(r, r + 1),
                           .inv_temperature = 1,
                           .lse = std::span(again).subspan(static_cast<size_t>(r), 1)});
  }
  require_same_bits(row_of(lse), row_of(again), name + ", one row at a time");
  ref::log_sum_exp(logits.view, 1, expected, {});
  require_close(row_of(lse), row_of(expected), vocab, name);
  for (const Liberty& liberty : liberties) {
    liberty.call(0);
    require_close(row_of(lse), row_of(expected), vocab, name + ", " + liberty.name);
  }
  bench.measure(name, 1, exact, liberties);
}

std::string norm_name(int64_t rows, int64_t dim, const std::string& what) {
  return fmt::format("rms_norm [{}, {}]{}", rows, dim, what);
}

void exactness_norm(ExactnessHarness& bench, int64_t rows, int64_t dim, bool gradients) {
  norm_forward_case(bench, rows, dim);
  if (gradients) norm_backward_case(bench, rows, dim);
}

}  // namespace tailrace
