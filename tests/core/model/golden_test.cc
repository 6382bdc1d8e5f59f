// Reference values made by an independent implementation in float64 (tests/data/golden/README.md,
// which also gives the bounds used here).

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/model/parameter_files.h"
#include "core/model/safetensors.h"
#include "kernels/base/isa.h"
#include "kernels/ops/adamw.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

using Json = nlohmann::json;

constexpr double kLogitBound = 1e-4;
constexpr double kLossBound = 1e-5;      // relative
constexpr double kGradientBound = 1e-3;  // relative to the largest element of the tensor

Json read_json(const std::filesystem::path& path) { return Json::parse(read_text(path)); }

std::vector<int64_t> integers(const TensorView& view) {
  TR_CHECK(view.dtype == Dtype::kI64);
  std::vector<int64_t> out(static_cast<size_t>(view.num_elements()));
  std::memcpy(out.data(), view.data.data(), view.data.size());
  return out;
}

std::vector<float> floats(const TensorView& view) {
  std::vector<float> out(static_cast<size_t>(view.num_elements()));
  to_float(view, out);
  return out;
}

// Prints the worst element.
void expect_close(std::span<const float> got, std::span<const float> want, double bound,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double worst = -1;
  size_t place = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(difference <= worst)) {  // a NaN is the worst of all
      worst = difference;
      place = i;
    }
  }
  EXPECT_LE(worst, bound) << what << "[" << place << "]: got " << got[place] << ", want "
                          << want[place];
}

int32_t argmax(std::span<const float> row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Token by token over the KV cache, as a decode engine would.
Tokens greedy(Rig& rig, const Tokens& prompt, size_t count) {
  std::vector<int32_t> blocks;
  const auto total = static_cast<int>(prompt.size() + count);
  for (int32_t i = 0; i * rig.kv.block_tokens() < total; ++i) blocks.push_back(i);
  Tokens next = prompt, out;
  int32_t position = 0;
  while (out.size() < count) {
    const int32_t last = static_cast<int32_t>(next.size()) - 1;
    rig.builder.clear();
    rig.builder.add(next, position, blocks, std::span(&last, 1));
    rig.forward(rig.builder);
    position += static_cast<int32_t>(next.size());
    out.push_back(argmax(rig.logits()));
    next = {out.back()};
  }
  return out;
}

// The models that the reference values are of; each shows something that the others have not.
constexpr const char* kGoldens[] = {"llama3-untied-f32", "llama3-ropescaled-tied-bf16",
                                    "qwen2-tied-f32", "qwen3-headdim-untied-bf16"};
// By another hand and without optimizer steps (make_families.py).
constexpr const char* kFamilies[] = {
    "families/llama-biases-linear", "families/mistral-window", "families/qwen2-yarn-upper-windows",
    "families/qwen3-biases",        "families/gemma3-pattern", "families/gemma3-untied-linear"};
constexpr const char* kSparseModels[] = {"families/qwen3moe-layer0-dense",
                                         "families/qwen3moe-every-second"};

// Of the host.
double squares(std::span<const float> x) {
  double sum = 0;
  sum_of_squares(Stream{}, {.x = x, .sum = {&sum, 1}});
  return sum;
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Golden()
      : folder(test_data("golden") / GetParam()),
        golden(read_json(folder / "golden.json")),
        rig(read_model_config(folder), /*num_threads=*/2) {
    load_parameters(folder, rig.model.config(), rig.parameters);
    rig.repack();
  }

  // The sequences and masks of the `ce` block.
  void read_ce(std::vector<Tokens>& sequences, std::vector<std::vector<int>>& masks) const {
    for (const Json& sequence : golden["ce"]["data"]["sequences"]) {
      sequences.push_back(sequence["ids"].get<Tokens>());
      std::vector<int> mask;
      for (const Json& counts : sequence["loss_mask"]) {
        mask.push_back(counts.is_boolean() ? counts.get<bool>() : counts.get<int>());
      }
      masks.push_back(mask);
    }
  }

  // Norms, and some elements of each.
  void expect_gradients(const Parameters& gradients, const Json& tensors) const {
    ASSERT_EQ(tensors.size(), rig.model.layout().entries().size());
    for (const auto& [name, want] : tensors.items()) {
      const double bound = kGradientBound * want["max_abs"].get<double>();
      const auto got_values = gradients.vector(name);
      EXPECT_NEAR(std::sqrt(squares(got_values)), want["l2"].get<double>(),
                  kGradientBound * want["l2"].get<double>())
          << name;
      for (size_t i = 0; i < want["indices"].size(); ++i) {
        const auto at = want["indices"][i].get<size_t>();
        EXPECT_NEAR(got_values[at], want["values"][i].get<double>(), bound) << name << " " << at;
      }
    }
  }

  std::filesystem::path folder;
  Json golden;
  Rig rig;
};

class GoldenSteps : public Golden {};
class GoldenExperts : public Golden {};

// What bf16 weights may cost follows from the model itself: over the step from the weights to the
// rounded ones the loss changes by the mean of its slopes at both ends, up to the third order.
TEST_P(Golden, InBfloatTheLossMovesAsItsGradientsSay) {
  const float scale = rig.weights().embedding_scale();
  if (to_float(to_bf16(scale)) != scale)
    GTEST_SKIP() << "the factor of embeddings is rounded too, and is no weight";
  std::vector<Tokens> sequences;
  std::vector<std::vector<int>> masks;
  read_ce(sequences, masks);
  Parameters here(rig.model.layout()), there(rig.model.layout());
  const double before = cross_entropy(rig, sequences, masks, &here).loss;
  // Rounding moves a few choices of experts, and there the loss has no slope: both ends take the
  // same.
  if (rig.model.config().num_experts > 0) rig.given = rig.choices();
  rig.pack(Dtype::kBF16);
  const double after = cross_entropy(rig, sequences, masks, &there).loss;
  if (isa() == Isa::kAvx512Bf16 && rig_device().kind == DeviceKind::kCpu) {
    // What products read is rounded too, which no slope says. The other instruction sets run this
    // test as well.
    EXPECT_NE(after, before);
    EXPECT_NEAR(after, before, 3e-3 * before);
    return;
  }
  double slope = 0, length = 0;
  for (const ParameterInfo& info : rig.model.layout().entries()) {
    if (info.shape.size() == 1) continue;  // norms and biases stay what they are
    const auto weights = rig.parameters.vector(info.name);
    for (size_t i = 0; i < weights.size(); ++i) {
      const double step = double{to_float(to_bf16(weights[i]))} - weights[i];
      slope += step * (here.vector(info.name)[i] + double{there.vector(info.name)[i]}) / 2;
      length += step * step;
    }
  }
  if (rig.model.config().dtype == Dtype::kBF16) {
    EXPECT_EQ(length, 0);
    EXPECT_EQ(after, before);
  } else {
    EXPECT_GT(length, 0);
    // A float32 loss is good to 1e-6 of itself.
    EXPECT_NEAR(after - before, slope, 2e-6 * before + 0.01 * std::abs(slope));
    EXPECT_GT(std::abs(slope), 1e-6 * before) << "nothing to compare";
  }
}

TEST_P(Golden, InverseFrequenciesAgree) {
  const ModelConfig& config = rig.model.config();
  const auto expect_agree = [&](const char* name, const std::vector<double>& got) {
    const auto want = golden[name].get<std::vector<double>>();
    ASSERT_EQ(got.size(), want.size());
    // The golden values are printed with 9 digits; the families' are rounded to float32.
    const bool is_float = golden.contains("attention_factor");
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i] / want[i], 1, is_float ? 1e-6 : 1e-8) << i;
  };
  expect_agree("inv_freq", config.inv_freq());
  EXPECT_EQ(golden.contains("local_inv_freq"), config.local_rope_theta > 0);
  if (config.local_rope_theta > 0) expect_agree("local_inv_freq", config.local_inv_freq());
  EXPECT_NEAR(rig.model.config().rope_scaling.attention_factor,
              golden.value("attention_factor", 1.0), 1e-12);
}

TEST_P(Golden, LogitsLogprobsAndEntropyAgree) {
  const SafetensorsFile file(folder / "golden_forward.safetensors");
  const auto lengths = integers(file.tensors().at("seq_lens"));
  const auto ids = integers(file.tensors().at("input_ids"));
  std::vector<Tokens> sequences;
  auto next = ids.begin();
  for (const int64_t length : lengths) {
    sequences.emplace_back(next, next + length);
    next += length;
  }
  rig.forward_whole(sequences, Rig::Rows::kAll, /*keep=*/false);
  expect_close(rig.logits(), floats(file.tensors().at("logits")), kLogitBound, "logits");

  const CrossEntropy got = cross_entropy(rig, sequences, {}, nullptr);
  expect_close(got.logprobs, floats(file.tensors().at("logprobs")), kLogitBound, "logprobs");
  // The file has the entropy of every position, ours leaves out each sequence's last.
  const auto all = floats(file.tensors().at("entropy"));
  std::vector<float> entropy;
  size_t row = 0;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i, ++row) {
      if (i + 1 < length) entropy.push_back(all[row]);
    }
  }
  expect_close(got.entropies, entropy, kLogitBound, "entropy");
}

TEST_P(Golden, GreedyTextAgrees) {
  for (const Json& example : golden["forward"]["greedy"]) {
    const auto want = example["greedy"].get<Tokens>();
    // By the cache, token by token: another path than the whole sequences above.
    EXPECT_EQ(greedy(rig, example["prompt"].get<Tokens>(), want.size()), want);
  }
}

TEST_P(Golden, GradientsOfCrossEntropyAgree) {
  std::vector<Tokens> sequences;
  std::vector<std::vector<int>> masks;
  read_ce(sequences, masks);
  Parameters gradients(rig.model.layout());
  const CrossEntropy got = cross_entropy(rig, sequences, masks, &gradients);
  EXPECT_NEAR(got.loss / golden["ce"]["loss"].get<double>(), 1, kLossBound);

  const Json& tensors = golden["ce"]["gradients"];
  expect_gradients(gradients, tensors);
  // Two of the models have them whole.
  const auto path = folder / "golden_ce_grads.safetensors";
  if (!std::filesystem::exists(path)) return;
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, view] : file.tensors()) {
    expect_close(gradients.vector(name), floats(view),
                 kGradientBound * tensors[name]["max_abs"].get<double>(), name);
  }
}

TEST_P(GoldenExperts, TheLossThatBalancesThemAgrees) {
  std::vector<Tokens> sequences;
  std::vector<std::vector<int>> masks;
  read_ce(sequences, masks);
  double tokens = 0;
  for (const Tokens& sequence : sequences) tokens += static_cast<double>(sequence.size());
  ExpertLoads loads(rig.model.config());
  Parameters gradients(rig.model.layout());
  const double coef = golden["balance"]["coef"];
  cross_entropy(rig, sequences, masks, &gradients, {.weight = coef / tokens, .loads = &loads});
  EXPECT_NEAR(loads.balance_loss() / golden["balance"]["loss"].get<double>(), 1, kLossBound);
  expect_gradients(gradients, golden["balance"]["gradients"]);
}

TEST_P(GoldenSteps, ThreeAdamWStepsAgree) {
  const Json& settings = golden["ce"]["adamw"]["settings"];
  const Json& history = golden["ce"]["adamw"]["history"];
  ASSERT_TRUE(settings["max_grad_norm"].is_null() && settings["decay_rule"] == "all");
  std::vector<Tokens> sequences;
  std::vector<std::vector<int>> masks;
  read_ce(sequences, masks);
  Parameters m(rig.model.layout()), v(rig.model.layout());
  const AdamWConstants constants{.beta1 = settings["betas"][0],
                                 .beta2 = settings["betas"][1],
                                 .eps = settings["eps"],
                                 .weight_decay = settings["weight_decay"]};
  const float rate = settings["lr"];
  UpdateState state;
  for (size_t step = 0; step < 3; ++step) {
    Parameters gradients(rig.model.layout());
    const CrossEntropy got = cross_entropy(rig, sequences, masks, &gradients);
    const Json& want = history[step];
    EXPECT_NEAR(got.loss / want["loss"].get<double>(), 1, kLossBound);
    sum_of_squares(rig.stream(), {.x = gradients.flat(), .sum = {&state.sum_of_squares, 1}});
    begin_update(rig.stream(), {.state = {&state, 1}, .rates = {&rate, 1}});
    EXPECT_NEAR(state.grad_norm / want["grad_norm_before_clip"].get<double>(), 1, kGradientBound);
    adamw(rig.stream(), {.state = {&state, 1},
                         .constants = constants,
                         .parameters = rig.parameters.flat(),
                         .gradients = gradients.flat(),
                         .m = m.flat(),
                         .v = v.flat()});
    rig.repack();
  }
  EXPECT_NEAR(cross_entropy(rig, sequences, masks, nullptr).loss / history[3]["loss"].get<double>(),
              1, kLossBound);

  const SafetensorsFile file(folder / "golden_ce_after3.safetensors");
  const Json& deviation = golden["float32_deviation"]["ce_after3"]["by_parameter"];
  for (const auto& [name, view] : file.tensors()) {
    expect_close(rig.parameters.vector(name), floats(view),
                 5e-5 + 5 * deviation[name].get<double>(), name);
  }
}

std::string word(std::string name) {
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '/'; }, '_');
  return name;
}
const auto name_of_model = [](const auto& model) { return word(model.param); };
INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(kGoldens), name_of_model);
INSTANTIATE_TEST_SUITE_P(Families, Golden, ::testing::ValuesIn(kFamilies), name_of_model);
INSTANTIATE_TEST_SUITE_P(Sparse, Golden, ::testing::ValuesIn(kSparseModels), name_of_model);
INSTANTIATE_TEST_SUITE_P(Sparse, GoldenExperts, ::testing::ValuesIn(kSparseModels), name_of_model);
INSTANTIATE_TEST_SUITE_P(Models, GoldenSteps, ::testing::ValuesIn(kGoldens), name_of_model);

TEST(StoriesGolden, LogprobsAndGreedyTextAgree) {
  const auto folder = test_data("models/stories260K");
  Rig rig(read_model_config(folder), /*num_threads=*/2);
  load_parameters(folder, rig.model.config(), rig.parameters);
  rig.repack();
  const Json golden = read_json(test_data("golden/real_weights_golden.json"));
  ASSERT_FALSE(golden["stories260K"].empty());
  for (const Json& example : golden["stories260K"]) {
    const auto ids = example["ids"].get<Tokens>();
    const CrossEntropy got = cross_entropy(rig, {ids}, {}, nullptr);
    expect_close(got.logprobs, example["next_token_logprobs"].get<std::vector<float>>(),
                 kLogitBound, "logprobs");
    const auto want = example["greedy_new_ids"].get<Tokens>();
    EXPECT_EQ(greedy(rig, ids, want.size()), want);
  }
}

}  // namespace
}  // namespace tailrace
