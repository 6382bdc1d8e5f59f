#include "trainer/preference_rows.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kForm =
    "a row is {\"prompt_ids\": [...], \"chosen_ids\": [...], \"rejected_ids\": [...]} or "
    "{\"prompt_ids\": [...], \"completion_ids\": [...], \"label\": true}";

// A column that is null counts as absent: tables give each row the columns of all rows.
const Json* find(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found == row.end() || found->is_null() ? nullptr : &*found;
}

// Every message begins with `where`.
std::vector<TokenId> read_ids(const Json& row, const char* key, const std::string& where,
                              int64_t vocab_size) {
  const Json* list = find(row, key);
  if (list == nullptr) throw UserError("{}: \"{}\" is missing; {}.", where, key, kForm);
  if (!list->is_array()) throw UserError("{}: \"{}\" must be a list of integers.", where, key);
  if (list->empty()) throw UserError("{}: \"{}\" is empty.", where, key);
  std::vector<TokenId> ids;
  ids.reserve(list->size());
  for (const Json& item : *list) {
    if (!item.is_number_integer())
      throw UserError("{}: \"{}\" holds {}; it must be a list of integers.", where, key,
                      json_text(item));
    const bool wide = item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX;
    const int64_t id = wide ? -1 : item.get<int64_t>();
    if (id < 0 || id >= vocab_size)
      throw UserError(
          "{}: {} holds {}; the model's vocabulary has {}. Was it written with another tokenizer?",
          where, key, json_text(item), vocab_size);
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

std::string_view name_of_kind(bool pair) { return pair ? "a pair" : "unpaired"; }

}  // namespace

int64_t PreferenceRow::sequence_tokens() const {
  return std::ssize(prompt) + std::max(std::ssize(chosen), std::ssize(rejected));
}

double preference_margin(const Json& row, const std::string& where) {
  const Json* margin = find(row, "margin");
  if (margin == nullptr) return 0;
  if (!margin->is_number() || !std::isfinite(margin->get<double>()))
    throw UserError("{}: \"margin\" is {}; it must be a finite number.", where, json_text(*margin));
  return margin->get<double>();
}

bool preference_label(const Json& row, const std::string& where) {
  const Json* label = find(row, "label");
  if (label == nullptr) throw UserError("{}: \"label\" is missing; it is true or false.", where);
  if (label->is_boolean()) return label->get<bool>();
  if (label->is_number_integer() && (*label == 0 || *label == 1)) return *label == 1;
  throw UserError("{}: \"label\" is {}; it must be true or false.", where, json_text(*label));
}

PreferenceRow read_preference_row(const Json& row, const std::string& where, int64_t vocab_size) {
  const bool pair = find(row, "chosen_ids") != nullptr || find(row, "rejected_ids") != nullptr;
  const bool unpaired = find(row, "completion_ids") != nullptr;
  if (pair && unpaired)
    throw UserError("{}: the row has \"completion_ids\" beside a pair; {}.", where, kForm);
  if (!pair && !unpaired) throw UserError("{}: the row has no completion; {}.", where, kForm);
  PreferenceRow read{
      .prompt = read_ids(row, "prompt_ids", where, vocab_size), .chosen = {}, .rejected = {}};
  if (unpaired) {
    read.chosen = read_ids(row, "completion_ids", where, vocab_size);
    read.desirable = preference_label(row, where);
    return read;
  }
  read.chosen = read_ids(row, "chosen_ids", where, vocab_size);
  read.rejected = read_ids(row, "rejected_ids", where, vocab_size);
  read.margin = preference_margin(row, where);
  if (read.chosen == read.rejected)
    throw UserError(
        "{}: chosen_ids and rejected_ids are equal: the row prefers neither. Leave it out.", where);
  return read;
}

std::string format_preference_row(const PreferenceRow& row) {
  const std::string prompt = fmt::format("{{\"prompt_ids\":[{}]", fmt::join(row.prompt, ","));
  const std::string completion = fmt::format("{}", fmt::join(row.chosen, ","));
  if (!row.is_pair())
    return fmt::format("{},\"completion_ids\":[{}],\"label\":{}}}\n", prompt, completion,
                       row.desirable);
  return fmt::format("{},\"chosen_ids\":[{}],\"rejected_ids\":[{}]{}}}\n", prompt, completion,
                     fmt::join(row.rejected, ","),
                     row.margin == 0 ? "" : fmt::format(",\"margin\":{}", row.margin));
}

std::vector<PreferenceRow> read_preference_rows(const std::filesystem::path& path,
                                                int64_t vocab_size, int64_t max_tokens) {
  const Result<std::string> text = read_file(path);
  if (!text) throw UserError("{}", text.failure().message);
  std::vector<PreferenceRow> rows;
  LineReader lines(text.value());
  while (const auto line = lines.next()) {
    if (line->text.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::string where = fmt::format("{}:{}", path.string(), line->number);
    const Result<Json> parsed = parse_json_row(line->text);
    if (!parsed) throw UserError("{}: {}; {}.", where, parsed.failure().message, kForm);
    PreferenceRow row = read_preference_row(parsed.value(), where, vocab_size);
    if (row.sequence_tokens() > max_tokens)
      throw UserError("{}: the row has {} tokens; the context holds {}.", where,
                      row.sequence_tokens(), max_tokens);
    if (!rows.empty() && rows.front().is_pair() != row.is_pair())
      throw UserError("{}: the row is {}, and the first row is {}; a file has rows of one kind.",
                      where, name_of_kind(row.is_pair()), name_of_kind(rows.front().is_pair()));
    rows.push_back(std::move(row));
  }
  if (rows.empty()) throw UserError("{}: it has no row; there is nothing to learn.", path.string());
  return rows;
}

}  // namespace tailrace
