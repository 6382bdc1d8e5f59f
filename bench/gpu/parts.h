// What `tailrace bench cuda` measures, a function each. All sizes are parameters, so that a test
// runs every part on an emulated GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/harness.h"
#include "bench/report/report.h"
#include "kernels/base/backend.h"

namespace tailrace::gpu_bench {

struct Options {
  std::vector<std::string> parts = {"facts", "limits", "decode", "prefill", "training", "products"};
  std::vector<std::string> geometries = {"qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"};
  std::vector<int64_t> batches = {1, 8, 64};          // sequences of a decode step
  std::vector<int64_t> rows = {1, 8, 64, 512, 4096};  // of a product
  int64_t context = 1024;                             // tokens of a sequence that is decoded
  int64_t members = 8;                                // sequences that share a prompt
  int64_t prompt = 2048;                              // tokens of a prompt that is prefilled
  int64_t tokens = 4096, sequence = 1024;             // of an update; of a sequence in it
  int64_t steps = 32;                                 // decode steps between two waits
  Sizes sizes = {};
};

// What the driver says. The only part that needs no GPU: it says so then.
void report_facts(const BackendFacts& facts, Report& report);

// A copy in memory of the device, in bytes read and written a second, and a large square product.
// Every other part takes its limits from these.
void measure_limits(Harness& harness, Report& report);

// Tokens a second of decode steps in which every sequence has one token behind `context` - 1, the
// head's logits included, without sampling; then once more where `members` at a time share the
// first three quarters of it.
// Checked: all sequences are alike, so their hidden states are, bit for bit, those of a sequence
// alone and of the last row of a prefill (design rule 3).
void measure_decode(Harness& harness, const Options& options, Report& report);

// Tokens a second of one prompt, with the logits of its last token.
void measure_prefill(Harness& harness, const Options& options, Report& report);

// Tokens a second of supervised updates of `tokens` tokens in sequences of `sequence`: forward,
// loss, backward and AdamW. What does not fit the device is left out, with a word on stderr.
// Checked: the loss falls.
void measure_training(Harness& harness, const Options& options, Report& report);

// Every product of a layer, and the head, with weights that no cache holds. Few rows wait for the
// bytes of the weight, many for tensor cores.
// Checked: the bits of the first row do not depend on how many there are.
void measure_products(Harness& harness, const Options& options, Report& report);

// The parts that `options` names, in their order. Throws UserError where a part needs a GPU and
// there is none, or more memory than it has.
void measure(const Options& options, const BackendFacts& facts, Report& report);

// "device" and versions, for the heading of a report.
Settings describe(const BackendFacts& facts);

}  // namespace tailrace::gpu_bench
