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
#include "core/base/join_texts.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

// The label of a token that does not count.
constexpr int64_t kIgnoredLabel = -100;

// Every message begins with `where`.
class RowReader {
 public:
  RowReader(std::string where, int64_t vocab_size)
      : where_(std::move(where)), vocab_size_(vocab_size) {}

  SftRow read(const Json& json) const {
    SftRow row;
    for (const int64_t id : integers(json, "input_ids", /*booleans=*/false)) {
      if (id < 0 || id >= vocab_size_) {
        throw UserError(
            "{}: input_ids holds {}; the model's vocabulary has {}. Was it written with another "
            "tokenizer?",
            where_, id, vocab_size_);
      }
      row.tokens.push_back(static_cast<TokenId>(id));
    }
    refuse_padding(json, row);
    refuse_other_masks(json);
    row.targets = targets(json, row.tokens);
    return row;
  }

 private:
  static bool has(const Json& json, std::string_view key) {
    const auto found = json.find(key);
    return found != json.end() && !found->is_null();
  }

  std::vector<int64_t> integers(const Json& json, const char* key, bool booleans) const {
    if (!has(json, key)) throw UserError("{}: \"{}\" is missing.", where_, key);
    const Json& list = json.at(key);
    if (!list.is_array()) throw UserError("{}: \"{}\" must be a list of integers.", where_, key);
    std::vector<int64_t> values;
    for (const Json& item : list) {
      if (booleans && item.is_boolean()) {
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

  // As many as there are tokens.
  std::vector<int64_t> of_each_token(const Json& json, const char* key, size_t tokens,
                                     bool booleans) const {
    std::vector<int64_t> values = integers(json, key, booleans);
    if (values.size() != tokens)
      throw UserError("{}: {} has {} entries and input_ids {}; they must have the same length.",
                      where_, key, values.size(), tokens);
    return values;
  }

  std::vector<uint8_t> counts_of_mask(const Json& json, const char* key, size_t tokens) const {
    std::vector<uint8_t> counts;
    for (const int64_t value : of_each_token(json, key, tokens, /*booleans=*/true)) {
      if (value != 0 && value != 1)
        throw UserError("{}: {} holds {}; it must be 0 or 1.", where_, key, value);
      counts.push_back(value == 1);
    }
    return counts;
  }

  std::vector<uint8_t> counts_of_labels(const Json& json, std::span<const TokenId> tokens) const {
    const std::vector<int64_t> labels =
        of_each_token(json, "labels", tokens.size(), /*booleans=*/false);
    std::vector<uint8_t> counts;
    for (size_t j = 0; j < labels.size(); ++j) {
      if (labels[j] != kIgnoredLabel && labels[j] != tokens[j])
        throw UserError(
            "{}: labels holds {} at place {}, where input_ids holds {}; a label is {} (it does not "
            "count) or the token of its own place, not of the next one.",
            where_, labels[j], j, tokens[j], kIgnoredLabel);
      counts.push_back(labels[j] != kIgnoredLabel);
    }
    return counts;
  }

  // Ascending. Nothing predicts the first token, so it never counts; tools write masks of all ones.
  std::vector<int32_t> targets(const Json& json, std::span<const TokenId> tokens) const {
    std::vector<uint8_t> counts(tokens.size(), 1);
    const char* from = nullptr;
    const auto take = [&](const char* key, std::vector<uint8_t> taken) {
      if (!taken.empty()) taken[0] = 0;
      if (from != nullptr && taken != counts)
        throw UserError(
            "{}: {} and {} differ on which tokens count. Leave out the one that is not meant.",
            where_, from, key);
      from = key;
      counts = std::move(taken);
    };
    for (const char* key : kSftMasks)
      if (has(json, key)) take(key, counts_of_mask(json, key, tokens.size()));
    if (has(json, "labels")) take("labels", counts_of_labels(json, tokens));
    std::vector<int32_t> targets;
    for (size_t j = 1; j < counts.size(); ++j)
      if (counts[j] != 0) targets.push_back(static_cast<int32_t>(j));
    return targets;
  }

  void refuse_padding(const Json& json, const SftRow& row) const {
    if (!has(json, "attention_mask")) return;
    for (const uint8_t read : counts_of_mask(json, "attention_mask", row.tokens.size()))
      if (read == 0)
        throw UserError(
            "{}: attention_mask holds 0: the row is padded. Write the rows without padding.",
            where_);
  }

  // A mask that is not understood would train what it keeps out.
  void refuse_other_masks(const Json& json) const {
    for (const auto& item : json.items()) {
      const std::string& key = item.key();
      if (item.value().is_null() || !(key.ends_with("_mask") || key.ends_with("_masks"))) continue;
      // sft.columns copies a column that has another name, which stays.
      const bool known =
          key == "attention_mask" || std::ranges::any_of(kSftMasks, [&](const char* ours) {
            return key == ours || (has(json, ours) && json.at(ours) == item.value());
          });
      if (known) continue;
      throw UserError(
          "{}: the mask \"{}\" is not known; what counts is said by {} or labels. Leave it out, or "
          "name it with sft.columns, as {{loss_mask: {}}}.",
          where_, key,
          join_texts(std::vector<std::string_view>(std::begin(kSftMasks), std::end(kSftMasks)),
                     ", "),
          key);
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

SftRow read_sft_row(const Json& row, const std::string& where, int64_t vocab_size) {
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
    // A row without a target has no loss, and would be an error of the pass.
    if (!row.targets.empty()) rows.push_back(std::move(row));
  }
  if (rows.empty())
    throw UserError("{}: no row has a token that counts; there is nothing to learn.",
                    path.string());
  return rows;
}

RowBatches sft_batches(const std::vector<SftRow>& rows, int64_t batch_tokens, uint64_t seed,
                       int64_t epoch) {
  RowBatches batches;
  int64_t tokens = 0;
  for (size_t row : shuffled_rows(rows.size(), seed, epoch)) {
    auto length = static_cast<int64_t>(rows[row].tokens.size());
    // A row longer than the bound makes a batch of its own.
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
    : RowTask(options, !held_out.empty(),
              all_batches(options,
                          [&](int64_t epoch) {
                            return sft_batches(rows, options.batch_tokens, seed, epoch);
                          })),
      trainer_(trainer),
      rows_(std::move(rows)),
      held_out_(std::move(held_out)) {
  trainer_.reset_optimizer(options.optim);
}

MetricList SftTask::update_rows(std::span<const size_t> rows, double done) {
  return trainer_.sft_update(views(rows_, rows), done);
}

MetricList SftTask::evaluate() {
  std::vector<size_t> all(held_out_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return trainer_.sft_evaluation(views(held_out_, all));
}

}  // namespace tailrace
