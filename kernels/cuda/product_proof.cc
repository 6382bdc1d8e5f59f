#include "kernels/cuda/product_proof.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/base/pulse.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm.h"

namespace tailrace::cuda {
namespace {

// Rows repeat after so many: a prime, so that each of them comes to stand at every place of a tile.
constexpr int64_t kProofRows = 61;
constexpr int kComparedRows = 40;
// Larger operands are not proved: of x and y together in forward, of all in backward.
constexpr int64_t kForwardBytes = int64_t{256} << 20, kGradientBytes = int64_t{2} << 30;
// Enough for what depends on the number of tokens in backward; the second fits no tile.
constexpr int64_t kGradientTokens[] = {kLeastLibraryRows, 200, 1024};

int64_t padded(int64_t cols) {
  return (cols + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment;
}

// Numbers of many sizes, so that a sum in another order has other bits.
float draw_real(std::mt19937& rng) {
  const float value = std::normal_distribution<float>()(rng);
  return std::ldexp(value, std::uniform_int_distribution<int>(-6, 3)(rng));
}
float draw_integer(std::mt19937& rng) {
  return static_cast<float>(std::uniform_int_distribution<int>(-2, 2)(rng));
}
using Draw = float (*)(std::mt19937&);

// A matrix of the device whose row r is the row r % kProofRows of random values, which the host
// keeps. Rows are padded with zeros to multiples of kWeightAlignment, as those of a weight.
template <class T>
class RepeatedRows {
 public:
  RepeatedRows(const Stream& stream, int64_t rows, int64_t cols, Draw draw, unsigned seed)
      : stride_(padded(cols)),
        host_(static_cast<size_t>(std::min(rows, kProofRows) * stride_)),
        memory_(static_cast<size_t>(rows * stride_) * sizeof(T), stream.device) {
    std::mt19937 rng(seed);
    for (int64_t r = 0; r < std::min(rows, kProofRows); ++r)
      for (int64_t c = 0; c < cols; ++c) {
        // The value fits a bfloat16 too, so float32 operands that are rounded stay as they are.
        const Bf16 value = to_bf16(draw(rng));
        T& to = host_[static_cast<size_t>(r * stride_ + c)];
        if constexpr (std::is_same_v<T, Bf16>) to = value;
        if constexpr (std::is_same_v<T, float>) to = to_float(value);
      }
    fill(stream);
  }
  // All values as they were drawn.
  void fill(const Stream& stream) {
    const ConstDeviceBytes block = bytes_of(std::span<const T>(host_));
    for (size_t done = 0; done < memory_.size(); done += block.size) {
      const size_t count = std::min(block.size, memory_.size() - done);
      copy(stream, memory_.bytes().part(done, count), block.part(0, count));
    }
    wait(stream);
  }
  std::vector<std::vector<std::byte>> read(const Stream& stream,
                                           std::span<const int64_t> rows) const {
    std::vector<std::vector<std::byte>> values;
    const size_t bytes = static_cast<size_t>(stride_) * sizeof(T);
    for (const int64_t row : rows) {
      values.emplace_back(bytes);
      copy(stream, bytes_of(std::span(values.back())),
           memory_.bytes().part(static_cast<size_t>(row) * bytes, bytes));
    }
    wait(stream);
    return values;
  }
  T* data() { return reinterpret_cast<T*>(memory_.bytes().data); }
  int64_t stride() const { return stride_; }

 private:
  int64_t stride_;
  std::vector<T> host_;
  Buffer memory_;
};

// Rows at both ends of a batch and in its middle, and random ones.
std::vector<int64_t> compared_rows(int64_t rows) {
  std::vector<int64_t> at = {0, rows / 2, rows - 1};
  std::mt19937 rng(static_cast<unsigned>(rows));
  std::uniform_int_distribution<int64_t> any(0, rows - 1);
  while (std::ssize(at) < kComparedRows) at.push_back(any(rng));
  return at;
}

// Row counts whose operands are not too large.
std::vector<int64_t> row_counts(int64_t out, int64_t in, int64_t most_rows) {
  const int64_t row_bytes = padded(in) * size_of(Dtype::kBF16) + padded(out) * size_of(Dtype::kF32);
  std::vector<int64_t> counts;
  for (int64_t rows = kLeastLibraryRows; rows <= most_rows && rows * row_bytes <= kForwardBytes;
       rows *= 2)
    counts.push_back(rows);
  return counts;
}

// The operands of y = x W^T and both ways to multiply them.
template <class Y>
class ForwardProof {
 public:
  static constexpr bool kFloat = std::is_same_v<Y, float>;

  ForwardProof(const Stream& stream, LibraryProducts& library, int64_t out, int64_t in,
               std::vector<int64_t> counts)
      : stream_(stream),
        library_(library),
        out_(out),
        in_(in),
        counts_(std::move(counts)),
        weight_(stream, out, in, draw_real, 1),
        x_(stream, counts_.back(), in, draw_real, 2),
        y_(stream, counts_.back(), out, draw_real, 3) {
    std::vector<int64_t> all(kProofRows);
    for (int64_t r = 0; r < kProofRows; ++r) all[static_cast<size_t>(r)] = r;
    for (const bool add : {false, true}) {
      if (add && !kFloat) continue;
      y_.fill(stream_);
      multiply_bf16(stream_, {.x = x_.data(),
                              .x_stride = x_.stride(),
                              .weight = weight_.data(),
                              .weight_stride = weight_.stride(),
                              .y = y_.data(),
                              .y_is_float = kFloat,
                              .y_stride = y_.stride(),
                              .tokens = kProofRows,
                              .out = out_,
                              .in = in_,
                              .add = add});
      ours_.push_back(y_.read(stream_, all));
    }
  }

  std::optional<ForwardWay> run() {
    for (const LibraryAlgorithm& algorithm :
         library_.choose(stream_, product(counts_.back(), false)))
      if (std::ranges::all_of(counts_, [&](int64_t rows) { return holds(algorithm, rows); }))
        return ForwardWay{algorithm, counts_.back()};
    return std::nullopt;
  }

 private:
  LibraryProduct product(int64_t rows, bool add) {
    return {.kind = ProductKind::kForward,
            .a = x_.data(),
            .a_stride = x_.stride(),
            .b = weight_.data(),
            .b_stride = weight_.stride(),
            .c = y_.data(),
            .c_is_float = kFloat,
            .c_stride = y_.stride(),
            .m = rows,
            .n = out_,
            .k = in_,
            .add = add};
  }
  // Each row has the bits that our product gave it.
  bool holds(const LibraryAlgorithm& algorithm, int64_t rows) {
    const std::vector<int64_t> at = compared_rows(rows);
    for (size_t add = 0; add < ours_.size(); ++add) {
      beat();
      const LibraryProduct own = product(rows, add != 0);
      y_.fill(stream_);
      if (!library_.check(stream_, own, algorithm) || !library_.multiply(stream_, own, algorithm))
        return false;
      const auto found = y_.read(stream_, at);
      for (size_t i = 0; i < at.size(); ++i)
        if (found[i] != ours_[add][static_cast<size_t>(at[i] % kProofRows)]) return false;
    }
    return true;
  }

  const Stream& stream_;
  LibraryProducts& library_;
  int64_t out_, in_;
  std::vector<int64_t> counts_;
  RepeatedRows<Bf16> weight_, x_;
  RepeatedRows<Y> y_;
  // Rows of y, padding included: by whether they were added to what y held.
  std::vector<std::vector<std::vector<std::byte>>> ours_;
};

// The operands of a gradient: dy and the weight, or dy and x.
class GradientProof {
 public:
  GradientProof(const Stream& stream, LibraryProducts& library, ProductKind kind, int64_t out,
                int64_t in, int64_t most_tokens, Draw draw)
      : stream_(stream),
        library_(library),
        kind_(kind),
        out_(out),
        in_(in),
        dy_(stream, most_tokens, out, draw, 4),
        dy_floats_(stream, most_tokens, out, draw, 4),
        other_(stream, of_weight() ? most_tokens : out, in, draw, 5),
        c_(stream, of_weight() ? out : most_tokens, in, draw, 6) {}

  LibraryProduct product(int64_t tokens, bool add) {
    return {.kind = kind_,
            .a = dy_.data(),
            .a_stride = dy_.stride(),
            .b = other_.data(),
            .b_stride = other_.stride(),
            .c = c_.data(),
            .c_stride = c_.stride(),
            .m = of_weight() ? out_ : tokens,
            .n = in_,
            .k = of_weight() ? tokens : out_,
            .add = add};
  }
  using Rows = std::vector<std::vector<std::byte>>;
  Rows ours(int64_t tokens, bool add) {
    const LibraryProduct p = product(tokens, add);
    c_.fill(stream_);
    multiply_grad(stream_, kind_,
                  {.a = dy_floats_.data(),
                   .a_stride = dy_floats_.stride(),
                   .b = p.b,
                   .b_stride = p.b_stride,
                   .c = static_cast<float*>(p.c),
                   .c_stride = p.c_stride,
                   .m = p.m,
                   .n = p.n,
                   .k = p.k,
                   .add = add});
    return c_.read(stream_, compared_rows(p.m));
  }
  // None: the algorithm cannot.
  std::optional<Rows> theirs(const LibraryAlgorithm& algorithm, int64_t tokens, bool add) {
    beat();
    const LibraryProduct p = product(tokens, add);
    c_.fill(stream_);
    if (!library_.check(stream_, p, algorithm) || !library_.multiply(stream_, p, algorithm))
      return std::nullopt;
    return c_.read(stream_, compared_rows(p.m));
  }

 private:
  bool of_weight() const { return kind_ == ProductKind::kGradWeight; }

  const Stream& stream_;
  LibraryProducts& library_;
  ProductKind kind_;
  int64_t out_, in_;
  RepeatedRows<Bf16> dy_;
  RepeatedRows<float> dy_floats_;
  RepeatedRows<Bf16> other_;
  RepeatedRows<float> c_;
};

}  // namespace

std::optional<ForwardWay> prove_forward(const Stream& stream, LibraryProducts& library, int64_t out,
                                        int64_t in, bool y_is_float, int64_t most_rows) {
  std::vector<int64_t> counts = row_counts(out, in, most_rows);
  if (counts.empty() || out == 0 || in == 0) return std::nullopt;
  if (y_is_float) return ForwardProof<float>(stream, library, out, in, std::move(counts)).run();
  return ForwardProof<Bf16>(stream, library, out, in, std::move(counts)).run();
}

std::optional<LibraryAlgorithm> prove_gradient(const Stream& stream, LibraryProducts& library,
                                               ProductKind kind, int64_t out, int64_t in,
                                               int64_t most_rows) {
  const int64_t tokens = std::min(most_rows, std::ranges::max(kGradientTokens));
  if (tokens < kLeastLibraryRows || out == 0 || in == 0) return std::nullopt;
  if (6 * padded(out) * padded(in) + tokens * (6 * padded(out) + 4 * padded(in)) > kGradientBytes)
    return std::nullopt;
  std::vector<LibraryAlgorithm> candidates;
  {
    GradientProof integers(stream, library, kind, out, in, tokens, draw_integer);
    candidates = library.choose(stream, integers.product(tokens, /*add=*/true));
    // Sums of small integers are exact in float32.
    for (const int64_t count : kGradientTokens) {
      if (count > tokens) continue;
      for (const bool add : {false, true}) {
        const auto due = integers.ours(count, add);
        std::erase_if(candidates, [&](const LibraryAlgorithm& algorithm) {
          return integers.theirs(algorithm, count, add) != due;
        });
      }
    }
  }
  GradientProof reals(stream, library, kind, out, in, tokens, draw_real);
  for (const LibraryAlgorithm& algorithm : candidates) {
    const auto once = reals.theirs(algorithm, tokens, /*add=*/true);
    if (once && once == reals.theirs(algorithm, tokens, /*add=*/true)) return algorithm;
  }
  return std::nullopt;
}

}  // namespace tailrace::cuda
