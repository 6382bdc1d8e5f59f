#include "cli/inputs/stage_rows.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/named_file.h"
#include "cli/inputs/preference_rows.h"
#include "core/base/error.h"
#include "trainer/preference.h"
#include "trainer/sft.h"

namespace tailrace {
namespace {

template <class Rows>
StageFile counted_file(const Rows& rows) {
  return {.lines = {},
          .rows = std::ssize(rows.rows),
          .tokens = rows.tokens(),
          .dropped = rows.dropped,
          .cut = rows.cut,
          .too_long = rows.too_long,
          .nulls = rows.nulls};
}

StageFile supervised_file(const auto& options, const std::string& key, const std::string& path,
                          SftReading reading) {
  reading.key = key;
  const SftRows rows = read_supervised(path, options, reading);
  StageFile file = counted_file(rows);
  for (const SftRow& row : rows.rows) file.lines += format_sft_row(row);
  file.batches = std::ssize(sft_batches(rows.rows, options.batch_tokens, /*seed=*/0, /*epoch=*/0));
  return file;
}

StageFile preference_file(const RunStage& stage, bool paired, int64_t batch_rows,
                          const std::string& path, const SftReading& reading) {
  const RowOptions& options = stage.rows();
  const PreferenceRows rows = read_preferences(path,
                                               {.columns = options.columns,
                                                .too_long = options.too_long,
                                                .paired = paired,
                                                .whole = !stage.trains_policy(),
                                                .key = stage.item},
                                               reading);
  StageFile file = counted_file(rows);
  for (const PreferenceRow& row : rows.rows) file.lines += format_preference_row(row);
  file.batches = (file.rows + batch_rows - 1) / batch_rows;
  if (paired) file.pass_tokens = most_pair_tokens(rows.rows);
  return file;
}

}  // namespace

StageFile read_stage_file(const RunStage& stage, bool held_out, const SftReading& reading,
                          int64_t microbatch_tokens) {
  const std::string key = stage.key(held_out ? "eval_data" : "data");
  const std::string& path = held_out ? stage.rows().eval_data : stage.rows().data;
  StageFile file = read_named(key, [&] {
    if (const auto* sft = std::get_if<SftOptions>(&stage.work))
      return supervised_file(*sft, stage.item, path, reading);
    if (const auto* distill = std::get_if<DistillStageOptions>(&stage.work))
      return supervised_file(*distill, stage.item, path, reading);
    if (const auto* preference = std::get_if<PreferenceOptions>(&stage.work))
      return preference_file(stage, is_paired(preference->loss.kind), preference->batch_rows, path,
                             reading);
    return preference_file(stage, /*paired=*/true,
                           std::get<RewardModelOptions>(stage.work).batch_rows, path, reading);
  });
  if (const int64_t room = std::max(microbatch_tokens, reading.max_tokens); file.pass_tokens > room)
    throw UserError::at("train.microbatch_tokens",
                        "is {}, and both halves of a pair go into one pass: the longest of {} has "
                        "{} tokens with its prompt for each. Try {}.",
                        microbatch_tokens, key, file.pass_tokens, file.pass_tokens);
  return file;
}

std::string describe(const StageFile& file) {
  std::string text =
      fmt::format("{}, {}", counted(file.rows, "row"), counted(file.tokens, "token"));
  if (file.dropped > 0) text += fmt::format(", {} dropped", counted(file.dropped, "more row"));
  if (file.cut > 0) text += fmt::format(", {} of them cut", file.cut);
  if (!file.too_long.empty()) text += fmt::format("; too long: {}", list_lines(file.too_long));
  if (file.nulls > 0) text += "; " + nulls_note(file.nulls);
  return text;
}

}  // namespace tailrace
