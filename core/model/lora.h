// Low-rank adapters (LoRA, 2106.09685): y = x W^T + b + (alpha / rank) (x A^T) B^T, with W and b
// frozen, A [rank, in] and B [out, rank].
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/enum_names.h"

namespace tailrace {

// The linear layers of a decoder layer that an adapter may go beside.
enum class LoraTarget : uint8_t { kQ, kK, kV, kO, kGate, kUp, kDown };
constexpr auto enum_names(LoraTarget) {
  using enum LoraTarget;
  return name_table<LoraTarget>({{kQ, "q_proj"},
                                 {kK, "k_proj"},
                                 {kV, "v_proj"},
                                 {kO, "o_proj"},
                                 {kGate, "gate_proj"},
                                 {kUp, "up_proj"},
                                 {kDown, "down_proj"}});
}

inline constexpr int64_t kMaxLoraRank = 4096;

// The shape of an adapter; part of ModelConfig, whose other fields are those of the base.
struct Lora {
  int64_t rank = 0;                      // 0: there is none, and all weights are trained
  double alpha = 0;                      // the product is multiplied by alpha / rank
  std::vector<LoraTarget> targets = {};  // ascending, each once
  std::string base = {};                 // the folder of the base, as adapter_config.json names it

  friend bool operator==(const Lora&, const Lora&) = default;
  explicit operator bool() const { return rank > 0; }
  bool has(LoraTarget target) const { return std::ranges::find(targets, target) != targets.end(); }
  float scale() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
};

// The matrices of one layer. The A of those that share an input are one, in the order q, k, v and
// gate, up: what they give is one product. What has no adapter has no rows.
template <class MatrixType>
struct AdapterOf {
  MatrixType qkv_a;  // [targets of these * rank, hidden]
  MatrixType q_b, k_b, v_b;
  MatrixType o_a;  // [rank, q_size]
  MatrixType o_b;
  MatrixType gate_up_a;
  MatrixType gate_b, up_b;
  MatrixType down_a;  // [rank, intermediate]
  MatrixType down_b;
};

// visit(a.qkv_a, b.qkv_a, ...) and so on for each member, in the order of the file.
template <class Visit, class... Adapters>
void for_each_adapter(const Visit& visit, Adapters&... adapters) {
  visit(adapters.qkv_a...);
  visit(adapters.q_b...);
  visit(adapters.k_b...);
  visit(adapters.v_b...);
  visit(adapters.o_a...);
  visit(adapters.o_b...);
  visit(adapters.gate_up_a...);
  visit(adapters.gate_b...);
  visit(adapters.up_b...);
  visit(adapters.down_a...);
  visit(adapters.down_b...);
}

}  // namespace tailrace
