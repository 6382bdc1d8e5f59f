// How much smaller a step of a tensor is as a delta, and how fast it is encoded and applied, on one
// thread: matrices of normal weights (0.02) and a normal step, rounded to bf16, at sizes of the
// step that change from one element in 300 to one in 4; and one in float32.
//
// The floors are those of a code that knows how often an element changes and how the changes are
// distributed, and takes each element by itself: once of the XOR with the parent, and once of the
// difference of magnitudes. The peer is XOR with the parent and zstd at level 1, in chunks of the
// same size. What is applied is digested in blocks of 1 MiB, as a receiver does.
//
// Checked: what is applied is the target, to the bit.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <zstd.h>

#include "bench/report/program.h"
#include "core/base/digest_of.h"
#include "core/base/random.h"
#include "core/weights/delta_codec.h"
#include "core/weights/delta_loops.h"
#include "core/weights/digest.h"

namespace tailrace {
namespace {

struct Options {
  int64_t elements = int64_t{16} << 20;
  int runs = 5;
  bool quick = false;
};

struct Case {
  Dtype dtype;
  double step;  // standard deviation of the change
};

// Of bf16 they change about 0.3, 1.9, 9 and 23 %.
constexpr std::array<Case, 5> kCases = {{{Dtype::kBF16, 9e-8},
                                         {Dtype::kBF16, 7e-7},
                                         {Dtype::kBF16, 5e-6},
                                         {Dtype::kBF16, 1.8e-5},
                                         {Dtype::kF32, 7e-7}}};

constexpr double kWeight = 0.02;
constexpr int64_t kTable = int64_t{1} << 20;

struct States {
  std::vector<std::byte> base, target;
};

// Weights and steps are drawn from a table of normal numbers, so that a case takes no minute.
States make_states(const Case& which, int64_t elements, const std::vector<float>& table) {
  const auto element_bytes = static_cast<size_t>(size_of(which.dtype));
  States states;
  states.base.resize(static_cast<size_t>(elements) * element_bytes);
  states.target.resize(states.base.size());
  Rng rng(7);
  for (int64_t i = 0; i < elements; ++i) {
    const uint32_t first = rng.next_u32(), second = rng.next_u32();
    const double spread = kWeight * (1 + 1e-3 * (first >> 22));
    const auto before = static_cast<float>(spread * table[first % kTable]);
    const auto after = static_cast<float>(before + which.step * table[second % kTable]);
    const auto put = [&](std::vector<std::byte>& to, float value) {
      const Bf16 rounded = to_bf16(value);
      const void* from = which.dtype == Dtype::kF32 ? static_cast<const void*>(&value) : &rounded;
      std::memcpy(to.data() + static_cast<size_t>(i) * element_bytes, from, element_bytes);
    };
    put(states.base, before);
    put(states.target, after);
  }
  return states;
}

struct Floors {
  double changed = 0;  // share of the elements
  double xor_bytes = 0, difference_bytes = 0;
};

double entropy_bits(const std::unordered_map<uint32_t, int64_t>& counts, double total) {
  double bits = 0;
  for (const auto& [value, count] : counts)
    bits -= static_cast<double>(count) * std::log2(static_cast<double>(count) / total);
  return bits;
}

// The entropy of an element, 0 being one of its values, times the elements: where it changes and
// how are in it.
template <class U>
Floors floors_of(const States& states) {
  std::unordered_map<uint32_t, int64_t> masks, symbols;
  for (size_t at = 0; at < states.base.size(); at += sizeof(U)) {
    U base, target;
    std::memcpy(&base, states.base.data() + at, sizeof(U));
    std::memcpy(&target, states.target.data() + at, sizeof(U));
    ++masks[base ^ target];
    ++symbols[delta_symbol(base, target)];
  }
  const double elements = static_cast<double>(states.base.size()) / sizeof(U);
  return {1 - static_cast<double>(masks[0]) / elements, entropy_bits(masks, elements) / 8,
          entropy_bits(symbols, elements) / 8};
}

// XOR and zstd -1, chunk by chunk; the bytes that they take.
size_t xor_zstd(const States& states, std::vector<std::byte>& mask, std::vector<std::byte>& out) {
  constexpr size_t kPiece = size_t{2} << 20;
  size_t bytes = 0;
  mask.resize(kPiece);
  out.resize(ZSTD_compressBound(kPiece));
  for (size_t at = 0; at < states.base.size(); at += kPiece) {
    const size_t size = std::min(kPiece, states.base.size() - at);
    for (size_t i = 0; i < size; ++i) mask[i] = states.base[at + i] ^ states.target[at + i];
    const size_t packed = ZSTD_compress(out.data(), out.size(), mask.data(), size, 1);
    require(!ZSTD_isError(packed), "zstd: {}", ZSTD_getErrorName(packed));
    bytes += packed;
  }
  return bytes;
}

void measure_case(const Case& which, const Options& options, const std::vector<float>& table,
                  Report& report) {
  const States states = make_states(which, options.elements, table);
  const Floors floors =
      which.dtype == Dtype::kF32 ? floors_of<uint32_t>(states) : floors_of<uint16_t>(states);
  const auto dense = static_cast<double>(states.base.size());
  const std::string name = fmt::format(
      "{}, {:.3g} % changed", which.dtype == Dtype::kF32 ? "f32" : "bf16", 100 * floors.changed);
  const auto rates = [&](const std::function<void()>& work) {
    std::vector<double> found;
    for (int run = -1; run < options.runs; ++run) {  // the first warms up
      const Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
      work();
      if (run >= 0) found.push_back(1e-9 * dense / watch.seconds());
    }
    return found;
  };

  DeltaEncoder encoder;
  DeltaDecoder decoder;
  TensorDelta delta;
  std::vector<std::byte> out(states.base.size()), mask, packed;
  Digest digest;
  const auto apply = [&] {
    const Result<void> applied =
        decoder.apply(which.dtype, delta.kind, delta.bytes, states.base, out);
    require(applied.ok(), "{}: {}", name, applied.ok() ? "" : applied.failure().message);
  };
  const std::vector<double> copies =
      rates([&] { std::memcpy(out.data(), states.base.data(), out.size()); });
  const double copy = spread(copies).median;
  const auto encodes = rates([&] {
    delta = encoder.encode(which.dtype, states.base, states.target, std::move(delta.bytes));
  });
  std::fill(out.begin(), out.end(), std::byte{0xA5});
  const auto applies = rates(apply);
  const auto proofs = rates([&] {
    apply();
    digest = root_digest(std::array{
        digest_tensor("weights", "BF16", {options.elements}, size_of(which.dtype), out)});
  });
  require(out == states.target, "{}: what is applied is not what was encoded", name);
  size_t peer_bytes = 0;
  const auto peers = rates([&] { peer_bytes = xor_zstd(states, mask, packed); });

  const auto bytes = static_cast<double>(delta.bytes.size());
  report.add(name, "dense / delta", "x", {dense / bytes}, dense / floors.difference_bytes);
  report.add(name, "XOR's floor / delta", "ratio", {floors.xor_bytes / bytes},
             floors.xor_bytes / floors.difference_bytes);
  report.add(name, "dense / zstd -1 of XOR", "x", {dense / static_cast<double>(peer_bytes)},
             dense / floors.xor_bytes);
  report.add(name, "encode", "GB/s", encodes, copy);
  report.add(name, "apply", "GB/s", applies, copy);
  report.add(name, "apply and digest", "GB/s", proofs, copy);
  report.add(name, "zstd -1 of XOR", "GB/s", peers, copy);
}

void measure(const Options& options, const Program& program) {
  Options chosen = options;
  if (options.quick) {
    chosen.elements = std::min<int64_t>(options.elements, 1 << 17);
    chosen.runs = 1;
  }
  Report report = program.report({{"elements", chosen.elements},
                                  {"runs", int64_t{chosen.runs}},
                                  {"chunk_elements", kDeltaChunk}});
  Rng rng(1);
  std::vector<float> table(static_cast<size_t>(kTable));
  for (float& value : table) value = static_cast<float>(rng.normal());
  for (const Case& which : kCases) measure_case(which, chosen, table, report);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("weights", TAILRACE_MEASURES, "weights --elements 67108864");
  program.fix_threads(1);
  program.flags().option("--elements", options.elements,
                         {.help = "of each tensor", .min = 1, .max = int64_t{1} << 32});
  program.flags().option("--runs", options.runs,
                         {.help = "measured runs of each case", .min = 1, .max = 10000});
  program.flags().option("--quick", options.quick, {.help = "small tensors, one run"});
  return program.run(argc, argv, [&] { measure(options, program); });
}
