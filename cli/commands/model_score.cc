#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>
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
#include "core/model/safetensors.h"
#include "core/model/sequence_scorer.h"

namespace tailrace {
namespace {

constexpr double kMaxTop = 1 << 20;  // larger than any vocabulary

struct ScoreArguments {
  std::string model, logits;
  int64_t top_k = 0;
  ComputeFlags compute;
};

// Scores rows of any length: both the model's tables and the scorer's memory grow with the rows.
class RowScorer {
 public:
  explicit RowScorer(LoadedModel& loaded) : loaded_(loaded) {}

  SequenceScores score(const ScoreRequest& request) {
    const auto tokens = std::ssize(request.ids);
    if (scorer_ == nullptr || tokens > scorer_->max_tokens()) {
      // In steps: rows that grow one by one make few scorers.
      constexpr int64_t kStep = 64;
      const int64_t room =
          std::min((tokens + kStep - 1) / kStep * kStep, loaded_.config().max_positions);
      scorer_.reset();  // it borrows the model, which fit() may replace
      loaded_.fit(room);
      scorer_ = std::make_unique<SequenceScorer>(loaded_.model(), loaded_.stream(), room);
    }
    return scorer_->score(loaded_.weights(), request);
  }

 private:
  LoadedModel& loaded_;
  std::unique_ptr<SequenceScorer> scorer_;
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

void check_finite(const JsonlInput& input, const SequenceScores& scores) {
  const auto check = [&](float logprob) {
    if (!std::isfinite(logprob))
      throw UserError("{}: the model gives a log-probability of {}; its weights overflow float32",
                      input.where(), logprob);
  };
  for (const float logprob : scores.logprobs) check(logprob);
  for (const auto& top : scores.top)
    for (const TopToken& token : top) check(token.logprob);
}

void print_row(const SequenceScores& scores, bool has_top) {
  fmt::print("{{\"logprobs\": [{}]", fmt::join(scores.logprobs, ", "));
  if (has_top) {
    fmt::memory_buffer text;
    for (const auto& top : scores.top) {
      fmt::format_to(std::back_inserter(text), "{}[", text.size() == 0 ? "" : ", ");
      for (const TopToken& token : top)
        fmt::format_to(std::back_inserter(text), "{}[{}, {}]", &token == top.data() ? "" : ", ",
                       token.id, token.logprob);
      text.push_back(']');
    }
    fmt::print(", \"top_logprobs\": [{}]", fmt::to_string(text));
  }
  fmt::print("}}\n");
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
  RowScorer scorer(loaded);
  std::vector<int64_t> seq_lens, all_ids;
  std::vector<float> logits;
  JsonlInput input(std::cin, "stdin");
  while (auto row = input.next()) {
    auto ids = input.ids(*row, "input_ids");
    check_ids(input, ids, loaded.config());
    ScoreRequest request{.ids = ids, .top_k = arguments.top_k};
    if (wants_logits)
      request.on_logits = [&](ConstMatrix rows) {
        for (int64_t r = 0; r < rows.rows; ++r)
          logits.insert(logits.end(), rows.row(r), rows.row(r) + rows.cols);
      };
    const SequenceScores scores = scorer.score(request);
    check_finite(input, scores);
    print_row(scores, arguments.top_k > 0);
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
  command.option(
      "--top-k", arguments->top_k,
      {.help = "likeliest tokens of each position, with their ids; 0: none", .max = kMaxTop});
  add_compute_flags(command, arguments->compute);
  command.footer(
      "A row {\"input_ids\": [...]} gives a row {\"logprobs\": [...]}: the natural log of the "
      "probability of each\n"
      "next token, one fewer than the ids. Needs no tokenizer. With --top-k it also has "
      "\"top_logprobs\":\n"
      "for each of them the likeliest tokens as [id, log-probability], the best first.\n\n"
      "Example:\n  echo '{\"input_ids\": [1, 403, 407]}' | tailrace model score --model "
      "tests/data/models/stories260K");
  command.action([arguments] {
    score(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
