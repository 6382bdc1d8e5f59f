#include "cli/inputs/sft_rows.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/named_file.h"
#include "cli/config/stages.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/text/dataset.h"
#include "core/text/messages.h"
#include "core/text/row_file.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kForms =
    "a row is one of\n"
    "         {\"messages\": [{\"role\": \"user\", \"content\": \"...\"}, {\"role\": "
    "\"assistant\", ...}]}\n"
    "         {\"prompt\": \"...\", \"completion\": \"...\"}, texts or lists of messages\n"
    "         {\"input_ids\": [...], \"loss_mask\": [...]}";

// One line of the file.
class SftLine {
 public:
  // Adds to `nulls` the keys that it leaves out.
  SftLine(const text::RowPlace& place, const SftReading& reading, int64_t& nulls)
      : place_(place), reading_(reading), nulls_(nulls) {}

  SftRow read(Json row, const text::ColumnMap& columns) const {
    for (const auto& [ours, theirs] : columns) {
      // A file may have rows of several forms, each with its own columns.
      if (const Json* found = text::find_column(row, theirs); found != nullptr && ours != theirs)
        row[ours] = Json(*found);
    }
    check_one_form(row);
    if (text::find_column(row, "input_ids") != nullptr)
      return read_sft_row(row, place_.where(), reading_.vocab_size);
    if (reading_.format == nullptr)
      fail(
          "there is no \"input_ids\": a policy of model.create has the words of its environment, "
          "and learns from token ids");
    for (const char* mask : kSftMasks)
      if (text::find_column(row, mask) != nullptr)
        fail(
            fmt::format("\"{}\" goes with \"input_ids\", which the row lacks. What counts of "
                        "messages is said by a flag of each (docs/data.md)",
                        mask));
    if (const auto tools = row.find("tools"); tools != row.end())
      nulls_ += text::leave_out_nulls_of_tools(*tools);
    const Json* completion = text::find_column(row, "completion");
    const Json* prompt = text::find_column(row, "prompt");
    if (completion != nullptr && prompt != nullptr) return pair(row, *prompt, *completion);
    if (const Json* messages = text::find_column(row, "messages"))
      return as_row(written(messages_of(*messages, "messages"), row, 0));
    fail(
        fmt::format("the row has {}; {}\n       and {}.columns says which columns have other "
                    "names, as {{prompt: question}}",
                    text::column_names(row), kForms, reading_.key));
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { place_.fail(what); }

  // One would be learned and the others not, without a word.
  void check_one_form(const Json& row) const {
    const auto has = [&](const char* column) { return text::find_column(row, column) != nullptr; };
    std::vector<std::string_view> forms;
    if (has("input_ids")) forms.emplace_back("\"input_ids\"");
    if (has("prompt") && has("completion")) forms.emplace_back("\"prompt\" and \"completion\"");
    if (has("messages")) forms.emplace_back("\"messages\"");
    if (forms.size() > 1)
      fail(fmt::format("the row has {}; it may have one of these forms. Leave the others out",
                       join_texts(forms, ", and ")));
  }

  Json messages_of(const Json& value, std::string_view column) const {
    Json list = value.is_string() ? parse_ordered_json(value.get<std::string>()) : value;
    if (!text::are_messages(list))
      fail(fmt::format("\"{}\" is not a list of messages ({{\"role\", \"content\"}})", column));
    if (const Result<bool> texts = text::make_texts(list); !texts)
      fail(fmt::format("\"{}\": {}", column, texts.failure().message));
    nulls_ += text::leave_out_nulls(list);
    return list;
  }

  // Only what the completion says counts, whatever the assistant says in the prompt.
  SftRow pair(const Json& row, const Json& prompt, const Json& completion) const {
    if (prompt.is_string() && completion.is_string())
      return as_row(checked(reading_.format->lesson_of_texts(prompt.get<std::string>(),
                                                             completion.get<std::string>())));
    Json messages = as_messages(prompt, "user", "prompt");
    const size_t learn_from = messages.size();
    for (Json& message : as_messages(completion, "assistant", "completion"))
      messages.push_back(std::move(message));
    return as_row(written(messages, row, learn_from));
  }

  Json as_messages(const Json& value, const char* role, std::string_view column) const {
    if (value.is_string()) return Json::array({{{"role", role}, {"content", value}}});
    return messages_of(value, column);
  }

  chat::Lesson written(const Json& messages, const Json& row, size_t learn_from) const {
    return checked(reading_.format->lesson(messages, json_of_field(row, "tools"), learn_from));
  }

  chat::Lesson checked(Result<chat::Lesson> lesson) const {
    if (!lesson) fail(lesson.failure().message);
    return std::move(lesson).value();
  }

  static SftRow as_row(chat::Lesson lesson) {
    SftRow row{.tokens = std::move(lesson.tokens), .targets = {}};
    // Nothing predicts the first token.
    for (size_t i = 1; i < row.tokens.size(); ++i)
      if (lesson.counts[i] != 0) row.targets.push_back(static_cast<int32_t>(i));
    return row;
  }

  const text::RowPlace& place_;
  const SftReading& reading_;
  int64_t& nulls_;
};

}  // namespace

std::string nulls_note(int64_t nulls) {
  if (nulls == 0) return "";
  return fmt::format("{} null in arguments or tools {} left out",
                     nulls == 1 ? "1 key that is" : fmt::format("{} keys that are", nulls),
                     nulls == 1 ? "is" : "are");
}

int64_t SftRows::tokens() const {
  int64_t sum = 0;
  for (const SftRow& row : rows) sum += std::ssize(row.tokens);
  return sum;
}

SftRows read_supervised(const std::filesystem::path& file, const RowOptions& options,
                        const SftReading& reading) {
  SftRows all;
  int64_t num_rows = 0;
  std::vector<LongRow> refused;
  const auto take = [&](const text::RowPlace& place, Json json) {
    ++num_rows;
    SftRow row = SftLine(place, reading, all.nulls).read(std::move(json), options.columns);
    if (std::ssize(row.tokens) > reading.max_tokens) {
      const LongRow found{.line = place.line, .tokens = std::ssize(row.tokens)};
      if (options.too_long == TooLong::kRefuse) {
        refused.push_back(found);
        return;
      }
      all.too_long.push_back(found);
      if (options.too_long == TooLong::kDrop) {
        ++all.dropped;
        return;
      }
      row.tokens.resize(static_cast<size_t>(reading.max_tokens));
      // A row that loses all that counts teaches nothing, and is dropped below.
      std::erase_if(row.targets, [&](int32_t target) { return target >= reading.max_tokens; });
      if (!row.targets.empty()) ++all.cut;
    }
    if (row.targets.empty())
      ++all.dropped;
    else
      all.rows.push_back(std::move(row));
  };
  text::for_each_json_row(file, /*form=*/"", take, reading.limits);
  if (!refused.empty())
    refuse_long({.file = file,
                 .noun = "row",
                 .limit = fmt::format("the context holds {} (rollout.max_context_tokens)",
                                      reading.max_tokens),
                 .advice = fmt::format("Raise it, or try {}.too_long=drop, or cut.", reading.key)},
                refused, num_rows);
  if (all.rows.empty())
    throw UserError("{}: no row has a token that counts; there is nothing to learn.",
                    file.string());
  return all;
}

SupervisedReader::SupervisedReader(const RunOptions& o, const ModelConfig& model)
    : reading_{.format = nullptr,
               .vocab_size = model.num_ids(),
               .max_tokens = o.rollout.engine.max_context_tokens,
               .limits = o.files.limits()} {
  const std::filesystem::path folder = o.model.path;
  if (!has_row_files(o)) return;
  if (o.model.creates() || !std::filesystem::exists(folder / "tokenizer.json")) return;
  tokenizer_ = read_named("model.path", [&] { return text::load_tokenizer(folder); });
  read_named(o.chat.template_file.empty() ? "chat.style" : "chat.template", [&] {
    format_.emplace(chat::PromptFormat::of(o.chat, folder, *tokenizer_));
    return true;
  });
  reading_.format = &*format_;
}

}  // namespace tailrace
