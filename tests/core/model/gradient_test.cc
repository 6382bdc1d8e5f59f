// The hand-written backward against finite differences of the forward pass.

#include <algorithm>
#include <array>
#include <cmath>

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "core/model/model.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double length(std::span<const float> a) { return std::sqrt(dot(a, a)); }

enum class GradientShape { kUntied, kTied, kRich, kSparse, kSparseRaw, kSparseGiven };

class Gradient : public ::testing::TestWithParam<GradientShape> {
 protected:
  Gradient()
      : rig(config()),
        sequences(random_sequences(/*count=*/5, /*longest=*/24, rig.model.config().vocab_size,
                                   /*seed=*/3)) {
    // Unequal masks, so that a row that does not count is among them.
    Rng rng(8);
    for (const Tokens& tokens : sequences) {
      masks.emplace_back(tokens.size());
      for (int& counts : masks.back()) counts = rng.chance(0.7) ? 1 : 0;
    }
    // Norm weights and biases that are not all equal, and attention sharp enough for its keys to
    // matter.
    for (const ParameterInfo& info : rig.model.layout().entries()) {
      if (info.kind != ParameterKind::kNorm && info.kind != ParameterKind::kBias) continue;
      const bool of_heads = info.name.ends_with("_norm.weight");
      const double more = of_heads ? 0.6 : 0;  // of factors, which begin as 1
      for (float& weight : rig.parameters.vector(info.name))
        weight += static_cast<float>(more + 0.2 * rng.normal());
    }
    // Weights that are not normalised are about 1 / 7, and so is what comes of the experts.
    if (GetParam() == GradientShape::kSparseRaw) {
      for (const ParameterInfo& info : rig.model.layout().entries())
        if (info.name.find(".experts.") != std::string::npos &&
            info.name.ends_with("down_proj.weight"))
          for (float& weight : rig.parameters.vector(info.name)) weight *= 5;
    }
    // The same experts for all tokens, others in each layer: a step that changed a choice would
    // have no slope. Real choices are those of the goldens.
    for (const ParameterInfo& info : rig.model.layout().entries()) {
      if (info.kind != ParameterKind::kChoice) continue;
      const size_t first = info.name.find("layers.0.") != std::string::npos ? 0 : 2;
      for (const size_t e : {first, first + 3, first + 4}) rig.parameters.vector(info.name)[e] = 2;
    }
    // None of those that the biases choose.
    if (GetParam() == GradientShape::kSparseGiven)
      for (const Tokens& tokens : sequences)
        for (size_t t = 0; t < tokens.size(); ++t)
          rig.given.insert(rig.given.end(), {1, 2, 6, 0, 1, 3});
  }

  static ModelConfig config() {
    if (GetParam() == GradientShape::kRich) {
      ModelConfig config = rich_config();
      config.scaled_embeddings = false;  // a step of theirs would be long; the goldens have it
      return config;
    }
    if (GetParam() < GradientShape::kSparse)
      return awkward_config(GetParam() == GradientShape::kTied);
    ModelConfig config = sparse_config();
    config.normalised_experts = GetParam() != GradientShape::kSparseRaw;
    config.qk_norm = false;  // its gradients are small, and kRich has them
    return config;
  }

  double loss_at(const std::vector<float>& start, std::span<float> place,
                 std::span<const float> direction, double step) {
    for (size_t i = 0; i < place.size(); ++i) {
      place[i] = static_cast<float>(start[i] + step * static_cast<double>(direction[i]));
    }
    rig.repack();
    return cross_entropy(rig, sequences, masks, nullptr).loss;
  }

  // Central difference of the loss along `direction` (unit length), with the h^2 term removed.
  double slope(const std::string& name, std::span<const float> direction) {
    std::span<float> place = rig.parameters.vector(name);
    const std::vector<float> start(place.begin(), place.end());
    auto central = [&](double h) {
      return (loss_at(start, place, direction, h) - loss_at(start, place, direction, -h)) / (2 * h);
    };
    const double coarse = central(2 * kStep), fine = central(kStep);
    std::copy(start.begin(), start.end(), place.begin());
    rig.repack();
    return (4 * fine - coarse) / 3;
  }

  static constexpr double kStep = 0.02;
  // The loss is a mean of float32 log-probabilities, each good to a few ulp of 8 (about 2e-6 with
  // the noise of the layers below it); over 2 * kStep, with the weights 4/3 and 1/3 of the two
  // differences: about 1e-4.
  static constexpr double kNoise = 2e-4;
  // What the h^4 term and the rounding of a stepped weight leave.
  static constexpr double kRelative = 2e-3;

  Rig rig;
  std::vector<Tokens> sequences;
  std::vector<std::vector<int>> masks;
};

TEST_P(Gradient, AgreesWithFiniteDifferencesForEveryTensor) {
  rig.repack();
  Parameters gradients(rig.model.layout());
  cross_entropy(rig, sequences, masks, &gradients);
  Rng rng(5);
  int idle = 0;
  for (const ParameterInfo& info : rig.model.layout().entries()) {
    const std::span<const float> gradient = gradients.vector(info.name);
    const double norm = length(gradient);
    // No token has gone there.
    if (norm == 0 && info.name.find(".experts.") != std::string::npos) {
      ++idle;
      continue;
    }
    if (info.kind == ParameterKind::kChoice) {
      EXPECT_EQ(norm, 0) << info.name;
      continue;
    }
    ASSERT_GT(norm, 100 * kNoise) << info.name << ": too small to be told from noise";
    // Along the gradient tilted by a random unit vector: its length, and parts that are not along
    // it.
    for (int round = 0; round < 2; ++round) {
      std::vector<float> direction(gradient.size());
      for (float& d : direction) d = static_cast<float>(rng.normal());
      const double random_length = length(direction);
      for (size_t i = 0; i < direction.size(); ++i) {
        direction[i] = static_cast<float>(direction[i] / random_length + gradient[i] / norm);
      }
      const double scale = 1 / length(direction);
      for (float& d : direction) d = static_cast<float>(d * scale);
      const double want = slope(info.name, direction);
      EXPECT_NEAR(dot(gradient, direction), want, kNoise + kRelative * std::abs(want)) << info.name;
    }
    // And of single parameters, the largest and some random ones.
    const auto largest =
        std::max_element(gradient.begin(), gradient.end(),
                         [](float a, float b) { return std::abs(a) < std::abs(b); }) -
        gradient.begin();
    for (const int64_t i :
         {static_cast<int64_t>(largest), rng.below(info.size), rng.below(info.size)}) {
      std::vector<float> direction(gradient.size());
      direction[static_cast<size_t>(i)] = 1;
      const double want = slope(info.name, direction);
      EXPECT_NEAR(gradient[static_cast<size_t>(i)], want, kNoise + kRelative * std::abs(want))
          << info.name << "[" << i << "]";
    }
  }
  // Of three tensors each, four of seven in two layers.
  EXPECT_EQ(idle, rig.model.config().num_experts > 0 ? 2 * 4 * 3 : 0);
}

TEST_P(Gradient, IsAddedToWhatIsThere) {
  rig.repack();
  Parameters once(rig.model.layout()), twice(rig.model.layout());
  cross_entropy(rig, sequences, masks, &once);
  cross_entropy(rig, sequences, masks, &twice);
  cross_entropy(rig, sequences, masks, &twice);
  for (size_t i = 0; i < once.flat().size(); ++i) {
    // Adding to what is there rounds each of the few sums into an element again.
    const double one = once.flat()[i];
    ASSERT_NEAR(twice.flat()[i], 2 * one, 1e-6 + 1e-4 * std::abs(one)) << i;
  }
}

TEST_P(Gradient, OfTheEmbeddingsReachesUsedTokensOnlyUnlessTied) {
  rig.repack();
  Parameters gradients(rig.model.layout());
  cross_entropy(rig, {{3, 5, 3, 9}}, {}, &gradients);  // of `given` the first rows
  const ConstMatrix embeddings = std::as_const(gradients).matrix(kEmbeddingName);
  for (int64_t id = 0; id < embeddings.rows; ++id) {
    const bool moved = length({embeddings.row(id), static_cast<size_t>(embeddings.cols)}) > 0;
    const bool read = id == 3 || id == 5;  // 9 is only a target
    EXPECT_EQ(moved, GetParam() == GradientShape::kTied || read) << id;
  }
}

// They are no part of the softmax, so the log-probabilities are those over the ids alone, and their
// rows of the head get no gradient.
TEST(PaddedIds, HaveNoGradientAndNoProbability) {
  for (const bool tied : {false, true}) {
    ModelConfig config = awkward_config(tied);
    Rig whole(config);
    config.padded_ids = 9;  // of 67: neither a panel nor a vector
    Rig padded(config);
    const std::vector<Tokens> sequences = random_sequences(4, 20, config.num_ids(), /*seed=*/3);
    Parameters gradients(padded.model.layout());
    const CrossEntropy got = cross_entropy(padded, sequences, {}, &gradients);
    const ConstMatrix head = std::as_const(gradients).matrix(padded.model.head_name());
    for (int64_t id = 0; id < config.vocab_size; ++id) {
      const bool moved = length({head.row(id), static_cast<size_t>(head.cols)}) > 0;
      EXPECT_EQ(moved, id < config.num_ids()) << id;
    }
    whole.forward_whole(sequences, Rig::Rows::kPredicting, false);
    const std::vector<float> logits = whole.logits();
    size_t row = 0;
    for (const Tokens& tokens : sequences) {
      for (size_t t = 1; t < tokens.size(); ++t, ++row) {
        double sum = 0;
        const float* z = &logits[row * static_cast<size_t>(config.vocab_size)];
        for (int64_t id = 0; id < config.num_ids(); ++id)
          sum += std::exp(static_cast<double>(z[id]));
        ASSERT_NEAR(got.logprobs[row], z[tokens[t]] - std::log(sum), 1e-5);
      }
    }
  }
}

std::string name_of_gradient(const ::testing::TestParamInfo<GradientShape>& test) {
  return std::array{"Untied", "Tied", "Rich", "Sparse", "SparseRaw", "SparseGiven"}.at(
      static_cast<size_t>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Shapes, Gradient,
                         ::testing::Values(GradientShape::kUntied, GradientShape::kTied,
                                           GradientShape::kRich, GradientShape::kSparse,
                                           GradientShape::kSparseRaw, GradientShape::kSparseGiven),
                         name_of_gradient);

}  // namespace
}  // namespace tailrace
