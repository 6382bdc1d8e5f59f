// Angles of the rotary embedding (Su et al. 2021, RoFormer), as they are or stretched for contexts
// beyond those of pre-training.
#pragma once

#include <cstdint>
#include <vector>

namespace tailrace {

struct RopeScaling {
  enum class Type : uint8_t {
    kNone,
    kLinear,  // every angle divided by `factor` (Chen et al. 2023, Position Interpolation)
    kLlama3,  // slow ones divided, fast ones kept, a ramp between (Llama 3.1)
    kYarn,    // the same by other bounds, and longer queries and keys (Peng et al. 2023, YaRN)
  };
  Type type = Type::kNone;
  double factor = 1;
  int64_t original_positions = 0;  // kLlama3, kYarn: of pre-training
  // kLlama3: wavelengths above original_positions / low_freq_factor are slow, those below
  // original_positions / high_freq_factor fast.
  double low_freq_factor = 1, high_freq_factor = 4;
  // kYarn: slow are those that turn fewer than beta_slow times within original_positions, fast
  // those that turn more than beta_fast times; `truncate` widens the ramp to whole dimensions.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;
  double attention_factor = 1;  // kYarn: of all cosines and sines
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// attention_factor as the paper has it: 0.1 mscale ln(factor) + 1.
double yarn_attention_factor(double factor, double mscale = 1);

// Inverse frequencies, [head_dim / 2]: theta^(-2i / head_dim), scaled. In double: rope_table()
// rounds the angle, once.
std::vector<double> rope_inv_freq(double theta, int64_t head_dim, const RopeScaling& scaling);

}  // namespace tailrace
