#include "trainer/sft.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/random.h"

namespace tailrace {
namespace {

// Every message begins with `where`.
class RowReader {
 public:
  RowReader(std::string where, int64_t vocab_size)
      : where_(std::move(where)), vocab_size_(vocab_size) {}

  SftRow read(const nlohmann::ordered_json& json) const {
    SftRow row;
    for (int64_t id : integers(json, "input_ids")) {
      if (id < 0 || id >= vocab_size_) {
        throw UserError(
            "{}: input_ids holds {}; the model's vocabulary has {}. Was it written with another "
            "tokenizer?",
            where_, id, vocab_size_);
      }
      row.tokens.push_back(static_cast<TokenId>(id));
    }
    read_mask(json, row);
    return row;
  }

 private:
  std::vector<int64_t> integers(const nlohmann::ordered_json& json, const char* key) const {
    auto found = json.find(key);
    if (found == json.end()) throw UserError("{}: \"{}\" is missing.", where_, key);
    if (!found->is_array()) throw UserError("{}: \"{}\" must be a list of integers.", where_, key);
    std::vector<int64_t> values;
    for (const nlohmann::ordered_json& item : *found) {
      // Masks are often written as true and false.
      if (item.is_boolean()) {
        values.push_back(item.get<bool>());
      } else if (item.is_number_integer() &&
                 !(item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX)) {
        values.push_back(item.get<int64_t>());
      } else {
        throw UserError("{}: \"{}\" holds {}; it must be a list of integers.", where_, key,
                        json_text(item));
      }
    }
    return values;
  }

  void read_mask(const nlohmann::ordered_json& json, SftRow& row) const {
    std::vector<int64_t> mask(row.tokens.size(), 1);
    if (json.contains("loss_mask")) mask = integers(json, "loss_mask");
    if (mask.size() != row.tokens.size()) {
      throw UserError(
          "{}: loss_mask has {} entries and input_ids {}; they must have the same length.", where_,
          mask.size(), row.tokens.size());
    }
    for (size_t j = 0; j < mask.size(); ++j) {
      if (mask[j] != 0 && mask[j] != 1) {
        throw UserError("{}: loss_mask holds {}; it must be 0 or 1.", where_, mask[j]);
      }
      // Nothing predicts the first token, so a 1 there counts for nothing; tools write masks of all
      // ones.
      if (mask[j] == 1 && j >= 1) row.targets.push_back(static_cast<int32_t>(j));
    }
  }

  std::string where_;
  int64_t vocab_size_;
};

std::vector<PackedSequence> views(const std::vector<SftRow>& rows, std::span<const size_t> chosen) {
  std::vector<PackedSequence> sequences;
  for (const size_t row : chosen)
    sequences.push_back({.tokens = rows[row].tokens, .targets = rows[row].targets});
  return sequences;
}

}  // namespace

SftRow read_sft_row(const nlohmann::ordered_json& row, const std::string& where,
                    int64_t vocab_size) {
  return RowReader(where, vocab_size).read(row);
}

std::string format_sft_row(const SftRow& row) {
  std::vector<uint8_t> mask(row.tokens.size());
  for (const int32_t target : row.targets) mask[static_cast<size_t>(target)] = 1;
  return fmt::format("{{\"input_ids\":[{}],\"loss_mask\":[{}]}}\n", fmt::join(row.tokens, ","),
                     fmt::join(mask, ","));
}

std::vector<SftRow> read_sft_rows(const std::filesystem::path& path, int64_t vocab_size,
                                  int64_t max_tokens) {
  const Result<std::string> text = read_file(path);
  if (!text) throw UserError("{}", text.failure().message);
  std::vector<SftRow> rows;
  LineReader lines(text.value());
  while (const auto line = lines.next()) {
    if (line->text.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), line->number);
    const Result<nlohmann::ordered_json> parsed = parse_json_row(line->text);
    if (!parsed)
      throw UserError("{}: {}; a row is {{\"input_ids\": [...], \"loss_mask\": [...]}}.", where,
                      parsed.failure().message);
    SftRow row = read_sft_row(parsed.value(), where, vocab_size);
    if (std::ssize(row.tokens) > max_tokens)
      throw UserError("{}: input_ids has {} tokens; the context holds {}.", where,
                      row.tokens.size(), max_tokens);
    if (!row.targets.empty()) rows.push_back(std::move(row));
  }
  if (rows.empty())
    throw UserError("{}: no row has a token that counts; there is nothing to learn.",
                    path.string());
  return rows;
}

std::vector<std::vector<size_t>> sft_batches(const std::vector<SftRow>& rows, int64_t batch_tokens,
                                             uint64_t seed, int64_t epoch) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Rng rng(mix({seed, 0x5f7, static_cast<uint64_t>(epoch)}));  // 0x5f7: a stream of its own
  // Fisher-Yates by hand: the standard leaves open what std::shuffle draws, and a run's seed must
  // mean the same rows everywhere.
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
  }
  std::vector<std::vector<size_t>> batches;
  int64_t tokens = 0;
  for (size_t row : order) {
    auto length = static_cast<int64_t>(rows[row].tokens.size());
    if (batches.empty() || tokens + length > batch_tokens) {
      batches.emplace_back();
      tokens = 0;
    }
    batches.back().push_back(row);
    tokens += length;
  }
  return batches;
}

SftTask::SftTask(PolicyTrainer& trainer, const SftOptions& options, std::vector<SftRow> rows,
                 std::vector<SftRow> held_out, uint64_t seed)
    : trainer_(trainer), rows_(std::move(rows)), held_out_(std::move(held_out)) {
  // All epochs are cut beforehand: the schedule has to know its last update.
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (auto& batch : sft_batches(rows_, options.batch_tokens, seed, epoch))
      batches_.push_back(std::move(batch));
  }
  eval_updates_ = options.eval_updates;
  if (eval_updates_ > 0)
    eval_updates_ = std::max(eval_updates_, total_updates() / kMostSftEvaluations);
  trainer_.reset_optimizer(options.optim, total_updates());
}

std::optional<MetricList> SftTask::update() {
  if (updates_done_ == total_updates()) return std::nullopt;
  MetricList metrics =
      trainer_.sft_update(views(rows_, batches_[static_cast<size_t>(updates_done_)]));
  ++updates_done_;
  return metrics;
}

bool SftTask::evaluation_is_due() const {
  if (held_out_.empty()) return false;
  if (updates_done_ == 0 || updates_done_ == total_updates()) return true;
  return eval_updates_ > 0 && updates_done_ % eval_updates_ == 0;
}

MetricList SftTask::evaluate() {
  std::vector<size_t> all(held_out_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return trainer_.sft_evaluation(views(held_out_, all));
}

void SftTask::skip(int64_t updates) { updates_done_ = std::min(updates, total_updates()); }

}  // namespace tailrace
