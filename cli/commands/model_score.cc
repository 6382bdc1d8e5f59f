#include <algorithm>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/commands/jsonl_input.h"
#include "cli/eval/loaded_model.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/flags.h"
#include "core/model/forward_batch.h"
#include "core/model/kv_cache.h"
#include "core/model/mirror.h"
#include "core/model/safetensors.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"

namespace tailrace {
namespace {

struct ScoreArguments {
  std::string model, logits;
  ComputeFlags compute;
};

// Log-probabilities of whole sequences, in pieces of kChunk tokens. The cut does not show in the
// numbers (design rule 3).
class Scorer {
 public:
  Scorer(LoadedModel& loaded, bool wants_logits) : loaded_(loaded), wants_logits_(wants_logits) {}

  // logprobs[i] is of ids[i + 1]. Appends all rows of logits [ids, vocab] to `logits` when it is
  // not null.
  std::vector<float> score(std::span<const int32_t> ids, std::vector<float>* logits) {
    prepare(static_cast<int64_t>(ids.size()));
    // check_ids() lets no empty row through.
    std::vector<float> logprobs(ids.size() - 1);
    for (size_t begin = 0; begin < ids.size(); begin += kChunk)
      score_chunk(ids, begin, std::min(ids.size(), begin + kChunk), logprobs, logits);
    return logprobs;
  }

 private:
  static constexpr size_t kChunk = 512;
  static constexpr int kBlockTokens = 16;

  // Arrays that a piece computes besides the model's own scratch.
  struct Arrays {
    Tensor hidden;  // [kChunk, hidden], of the device
    Mirror<int32_t> targets;
    Mirror<float> logprobs, lse;
    MirrorMatrix logits;  // [kChunk or 0, vocab]

    Arrays(const MirrorMemory& memory, const ModelConfig& config, bool wants_logits)
        : hidden(take_tensor(memory.device, memory.placement, kChunk, config.hidden_size,
                             memory.placement.operands)),
          targets(memory, kChunk),
          logprobs(memory, kChunk),
          lse(memory, kChunk),
          logits(memory, wants_logits ? kChunk : 0, config.num_ids()) {}
  };

  void prepare(int64_t tokens) {
    loaded_.fit(tokens);
    const ModelConfig& config = loaded_.config();
    const Placement& placement = loaded_.model().placement();
    const Device device = placement.device;
    int blocks = static_cast<int>((tokens + kBlockTokens - 1) / kBlockTokens);
    // Grown only: what served a longer row serves this one.
    if (static_cast<size_t>(blocks) <= blocks_.size()) return;
    blocks_.resize(static_cast<size_t>(blocks));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    kv_ =
        std::make_unique<KvCache>(config, blocks, kBlockTokens, /*keeps_choices=*/false, placement);
    builder_ = std::make_unique<BatchBuilder>(BatchRoom{.tokens = kChunk,
                                                        .sequences = 1,
                                                        .blocks_per_sequence = blocks,
                                                        .vocab = config.vocab_size,
                                                        .blocks = blocks},
                                              device);
    // The arrays are laid out once without memory, which says how much they take.
    Workspace on_device = Workspace::measuring(), on_host = Workspace::measuring();
    Arrays({on_device, on_host, placement}, config, wants_logits_);
    const size_t forward =
        loaded_.model().workspace_bytes(kChunk, blocks * kBlockTokens, loaded_.num_threads());
    const size_t head =
        linear_logprob_workspace_bytes(kChunk, config.num_ids(), config.hidden_size, device);
    // One after the other in the same memory.
    memory_ = Buffer(on_device.peak() + std::max(forward, head), device);
    host_memory_ = Buffer::pinned(on_host.peak(), device);
  }

  void score_chunk(std::span<const int32_t> ids, size_t begin, size_t end,
                   std::span<float> logprobs, std::vector<float>* logits) {
    const ModelConfig& config = loaded_.config();
    const Stream& stream = loaded_.stream();
    auto rows = static_cast<int64_t>(end - begin);
    std::vector<int32_t> wanted(end - begin);
    std::iota(wanted.begin(), wanted.end(), 0);
    builder_->clear();
    // All blocks of the sequence in every piece: the cache keeps what earlier pieces have written.
    builder_->add(ids.subspan(begin, end - begin), static_cast<int32_t>(begin), blocks_, wanted);
    Workspace workspace(memory_), host_workspace(host_memory_);
    const Arrays arrays({workspace, host_workspace, loaded_.model().placement()}, config,
                        wants_logits_);
    const Tensor hidden = arrays.hidden.slice_rows(0, rows);
    loaded_.model().forward(stream, workspace, loaded_.weights(), builder_->batch(stream), *kv_,
                            hidden, nullptr);

    // The last token of the sequence predicts nothing.
    const int64_t predicting = end == ids.size() ? rows - 1 : rows;
    const Mirror<int32_t> targets = arrays.targets.slice(0, predicting);
    const Mirror<float> found = arrays.logprobs.slice(0, predicting);
    std::ranges::copy(ids.subspan(begin + 1, targets.host.size()), targets.host.begin());
    targets.send(stream);
    linear_logprob(stream, workspace,
                   {.head = {.hidden = hidden.slice_rows(0, predicting),
                             .weight = loaded_.weights().head(),
                             .targets = targets.device},
                    .out = {.logprob = found.device,
                            .lse = arrays.lse.slice(0, predicting).device,
                            .entropy = {}}});
    found.fetch(stream);
    if (logits != nullptr) {
      const MirrorMatrix all = arrays.logits.slice_rows(0, rows);
      linear(stream, {.x = hidden, .weight = loaded_.weights().head(), .y = all.device});
      all.fetch(stream);
      wait(stream);
      for (int64_t r = 0; r < rows; ++r)
        logits->insert(logits->end(), all.host.row(r), all.host.row(r) + all.host.cols);
    }
    wait(stream);
    std::ranges::copy(found.host, logprobs.begin() + static_cast<std::ptrdiff_t>(begin));
  }

  LoadedModel& loaded_;
  bool wants_logits_;
  std::vector<int32_t> blocks_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<BatchBuilder> builder_;
  Buffer memory_, host_memory_;
};

void check_ids(const JsonlInput& input, std::span<const int32_t> ids, const ModelConfig& config) {
  if (ids.empty())
    throw UserError("{}: input_ids is empty; it must hold at least one id", input.where());
  if (static_cast<int64_t>(ids.size()) > config.max_positions)
    throw UserError("{}: input_ids has {} tokens; the model takes at most {}", input.where(),
                    ids.size(), config.max_positions);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= config.num_ids())
      throw UserError("{}: input_ids[{}] is {}; the model has ids below {}", input.where(), i,
                      ids[i], config.num_ids());
}

// All rows one after another, as tensors `seq_lens` [rows], `input_ids` [tokens], `logits` [tokens,
// vocab].
void write_logits(const std::string& path, const std::vector<int64_t>& seq_lens,
                  const std::vector<int64_t>& input_ids, const std::vector<float>& logits,
                  int64_t vocab_size) {
  auto tokens = static_cast<int64_t>(input_ids.size());
  std::vector<NamedTensor> tensors = {
      {"seq_lens",
       {Dtype::kI64, {static_cast<int64_t>(seq_lens.size())}, std::as_bytes(std::span(seq_lens))}},
      {"input_ids", {Dtype::kI64, {tokens}, std::as_bytes(std::span(input_ids))}},
      {"logits", {Dtype::kF32, {tokens, vocab_size}, std::as_bytes(std::span(logits))}}};
  write_safetensors(path, tensors);
}

// Said before the work rather than after it. An empty file stands there meanwhile.
void check_writable(const std::string& path) {
  if (auto opened = AppendFile::open(path); !opened)
    throw UserError("--logits: {}", opened.failure().message);
}

void score(const ScoreArguments& arguments) {
  if (!arguments.logits.empty()) check_writable(arguments.logits);
  // How long the rows are is known when they come.
  LoadedModel loaded(arguments.model, arguments.compute, /*max_context=*/1);
  const bool wants_logits = !arguments.logits.empty();
  Scorer scorer(loaded, wants_logits);
  std::vector<int64_t> seq_lens, all_ids;
  std::vector<float> logits;
  JsonlInput input(std::cin, "stdin");
  while (auto row = input.next()) {
    auto ids = input.ids(*row, "input_ids");
    check_ids(input, ids, loaded.config());
    auto logprobs = scorer.score(ids, wants_logits ? &logits : nullptr);
    for (float logprob : logprobs)
      if (!std::isfinite(logprob))
        throw UserError("{}: the model gives a log-probability of {}; its weights overflow float32",
                        input.where(), logprob);
    fmt::print("{{\"logprobs\": [{}]}}\n", fmt::join(logprobs, ", "));
    if (!wants_logits) continue;
    seq_lens.push_back(static_cast<int64_t>(ids.size()));
    all_ids.insert(all_ids.end(), ids.begin(), ids.end());
  }
  if (wants_logits)
    // At the end, because the header of the file comes first and gives all sizes.
    write_logits(arguments.logits, seq_lens, all_ids, logits, loaded.config().num_ids());
}

}  // namespace

void add_model_score(Command& model) {
  auto arguments = std::make_shared<ScoreArguments>();
  Command& command =
      model.command("score", "Log-probabilities of token ids, JSONL on stdin and stdout");
  command.option("--model", arguments->model,
                 {.help = "Hugging Face folder (config.json, model.safetensors)",
                  .value = "DIR",
                  .required = true});
  command.option("--logits", arguments->logits,
                 {.help = "also write seq_lens, input_ids and logits [tokens, vocab]",
                  .value = "FILE.safetensors"});
  add_compute_flags(command, arguments->compute);
  command.footer(
      "A row {\"input_ids\": [...]} gives a row {\"logprobs\": [...]}: the natural log of the "
      "probability of each\n"
      "next token, one fewer than the ids. Needs no tokenizer.\n\n"
      "Example:\n  echo '{\"input_ids\": [1, 403, 407]}' | tailrace model score --model "
      "tests/data/models/stories260K");
  command.action([arguments] {
    score(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
