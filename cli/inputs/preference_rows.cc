#include "cli/inputs/preference_rows.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/result.h"
#include "core/chat/prompt_format.h"
#include "core/text/dataset.h"
#include "core/text/messages.h"
#include "core/text/row_file.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kPreferenceForms =
    "a row is one of\n"
    "         {\"prompt\": \"...\", \"chosen\": \"...\", \"rejected\": \"...\"}, texts or lists of "
    "messages\n"
    "         {\"chosen\": [...], \"rejected\": [...]}, lists of messages that begin with the same "
    "prompt\n"
    "         {\"prompt\": \"...\", \"completion\": \"...\", \"label\": true}\n"
    "         {\"prompt_ids\": [...], \"chosen_ids\": [...], \"rejected_ids\": [...]}\n"
    "         {\"prompt_ids\": [...], \"completion_ids\": [...], \"label\": true}";

// Whether a message of the assistant has no words, no call and no thought.
bool is_empty_answer(const Json& message) {
  for (const char* key : {"content", "tool_calls", "function_call", "reasoning_content"}) {
    const Json* value = text::find_column(message, key);
    if (value == nullptr) continue;
    if (value->is_string() ? !value->get_ref<const std::string&>().empty() : !value->empty())
      return false;
  }
  return true;
}

// One line of the file.
class PreferenceLine {
 public:
  // Adds to `nulls` the keys that it leaves out.
  PreferenceLine(const text::RowPlace& place, const PreferenceForm& form, const SftReading& reading,
                 int64_t& nulls)
      : place_(place), form_(form), reading_(reading), nulls_(nulls) {}

  PreferenceRow read(Json row) const {
    for (const auto& [ours, theirs] : form_.columns) {
      // A file may have rows of several forms, each with its own columns.
      if (const Json* found = text::find_column(row, theirs); found != nullptr && ours != theirs)
        row[ours] = Json(*found);
    }
    const bool ids = has(row, "chosen_ids") || has(row, "rejected_ids"),
               unpaired_ids = has(row, "completion_ids"),
               pair = has(row, "chosen") || has(row, "rejected"), unpaired = has(row, "completion");
    check_one_form({{ids, "\"chosen_ids\" and \"rejected_ids\""},
                    {unpaired_ids, "\"completion_ids\""},
                    {pair, "\"chosen\" and \"rejected\""},
                    {unpaired, "\"completion\""}});
    if (!ids && !unpaired_ids && !pair && !unpaired)
      fail(
          fmt::format("the row has {}; {}\n       and {}.columns says which columns have other "
                      "names, as {{prompt: question}}",
                      text::column_names(row), kPreferenceForms, form_.key));
    if (form_.paired && (unpaired || unpaired_ids))
      fail(
          "the row has one completion, and no pair of \"chosen\" and \"rejected\"; of all "
          "trainings "
          "preference with loss kto takes such rows");
    if (ids || unpaired_ids) return read_preference_row(row, place_.where(), reading_.vocab_size);
    if (reading_.format == nullptr)
      fail(
          "there is no \"prompt_ids\": a policy of model.create has the words of its environment, "
          "and learns from token ids");
    if (const auto tools = row.find("tools"); tools != row.end())
      nulls_ += text::leave_out_nulls_of_tools(*tools);
    return pair ? read_pair(row) : read_unpaired(row);
  }

 private:
  // The beginning of a sequence, and the tokens of the answer to it.
  struct Written {
    std::vector<TokenId> prompt, completion;
  };

  [[noreturn]] void fail(const std::string& what) const { place_.fail(what); }

  static bool has(const Json& row, std::string_view column) {
    return text::find_column(row, column) != nullptr;
  }

  const Json& column_of(const Json& row, std::string_view column) const {
    const Json* found = text::find_column(row, column);
    if (found == nullptr)
      fail(fmt::format("the row has {}, and no \"{}\"; {}", text::column_names(row), column,
                       kPreferenceForms));
    return *found;
  }

  // A row of two forms would be learned in one of them, without a word.
  void check_one_form(const std::vector<std::pair<bool, std::string_view>>& forms) const {
    std::vector<std::string_view> found;
    for (const auto& [is_there, name] : forms)
      if (is_there) found.push_back(name);
    if (found.size() > 1)
      fail(fmt::format("the row has {}; it may have one of these forms. Leave the others out",
                       join_texts(found, ", and ")));
  }

  PreferenceRow read_pair(const Json& row) const {
    const Json &chosen = column_of(row, "chosen"), &rejected = column_of(row, "rejected");
    const Json* prompt = text::find_column(row, "prompt");
    PreferenceRow read = prompt == nullptr || hold_the_prompt(*prompt, chosen, rejected)
                             ? read_conversations(row, prompt, chosen, rejected)
                             : both_written(row, *prompt, chosen, rejected);
    read.margin = preference_margin(row, place_.where());
    return read;
  }

  PreferenceRow read_unpaired(const Json& row) const {
    const Json &prompt = column_of(row, "prompt"), &completion = column_of(row, "completion");
    const bool label = preference_label(row, place_.where());
    Written only = written(row, prompt, completion, "completion");
    return {.prompt = std::move(only.prompt),
            .chosen = std::move(only.completion),
            .rejected = {},
            .desirable = label};
  }

  // Whether two whole conversations stand beside the text of their prompt, as in the rows of
  // ultrafeedback_binarized.
  static bool hold_the_prompt(const Json& prompt, const Json& chosen, const Json& rejected) {
    const auto begins_with_prompt = [](const Json& list) {
      return text::are_messages(list) && list.front().at("role") != "assistant";
    };
    return prompt.is_string() && begins_with_prompt(chosen) && begins_with_prompt(rejected);
  }

  // `text`: the prompt, which the conversations hold as well; null where the row has none.
  PreferenceRow read_conversations(const Json& row, const Json* text, const Json& chosen,
                                   const Json& rejected) const {
    if (chosen.is_string() || rejected.is_string())
      fail(
          "there is no \"prompt\", and of texts nothing says where it ends; write {\"prompt\": "
          "\"...\", \"chosen\": \"...\", \"rejected\": \"...\"}, where chosen and rejected are the "
          "answers alone");
    const Json a = messages_of(chosen, "chosen"), b = messages_of(rejected, "rejected");
    if (a == b) fail_equal();
    const auto shared = std::ranges::mismatch(a, b).in1 - a.begin();
    if (shared == 0)
      fail(
          "there is no \"prompt\", and \"chosen\" and \"rejected\" begin with different messages; "
          "the messages that both begin with are the prompt");
    const Json prompt(Json::array_t(a.begin(), a.begin() + shared));
    const auto says_text = [&](const Json& message) {
      return message.contains("content") && message.at("content") == *text;
    };
    if (text != nullptr && std::ranges::none_of(prompt, says_text))
      fail(
          "\"prompt\" is a text that no message says with which both \"chosen\" and \"rejected\" "
          "begin; leave \"prompt\" out, or the beginning of the conversations");
    const auto behind = [&](const Json& list) {
      return Json(Json::array_t(list.begin() + shared, list.end()));
    };
    return both_written(row, prompt, behind(a), behind(b));
  }

  PreferenceRow both_written(const Json& row, const Json& prompt, const Json& better,
                             const Json& worse) const {
    Written chosen = written(row, prompt, better, "chosen");
    Written rejected = written(row, prompt, worse, "rejected");
    // A template may write an earlier turn differently for another last answer.
    if (chosen.prompt != rejected.prompt)
      fail(
          "the chat template writes the prompt differently in front of \"chosen\" and "
          "\"rejected\"; two answers can be compared behind the same prompt only");
    if (chosen.completion == rejected.completion) fail_equal();
    return {.prompt = std::move(chosen.prompt),
            .chosen = std::move(chosen.completion),
            .rejected = std::move(rejected.completion)};
  }

  [[noreturn]] void fail_equal() const {
    fail("\"chosen\" and \"rejected\" are equal: the row prefers neither. Leave it out");
  }

  Json messages_of(const Json& value, std::string_view column) const {
    Json list = value;
    if (!text::are_messages(list))
      fail(fmt::format("\"{}\" is not a list of messages ({{\"role\", \"content\"}})", column));
    if (const Result<bool> texts = text::make_texts(list); !texts)
      fail(fmt::format("\"{}\": {}", column, texts.failure().message));
    nulls_ += text::leave_out_nulls(list);
    return list;
  }

  Json as_messages(const Json& value, const char* role, std::string_view column) const {
    if (value.is_string()) return Json::array({{{"role", role}, {"content", value}}});
    return messages_of(value, column);
  }

  // `column` names the completion in messages.
  Written written(const Json& row, const Json& prompt, const Json& completion,
                  std::string_view column) const {
    Json messages = as_messages(prompt, "user", "prompt");
    const size_t learn_from = messages.size();
    // Nothing is left of a conversation with which the other one begins.
    Json answer = completion.is_array() && completion.empty()
                      ? Json::array()
                      : as_messages(completion, "assistant", column);
    check_answer(answer, column);
    const std::string tools = json_of_field(row, "tools");
    if (prompt.is_string() && completion.is_string() && !reading_.format->has_template()) {
      if (!tools.empty())
        fail("\"tools\" are written by a chat template, and there is none. Leave them out");
      return split(reading_.format->lesson_of_texts(prompt.get<std::string>(),
                                                    completion.get<std::string>()),
                   column);
    }
    messages.push_back(std::move(answer.front()));
    Written written = split(reading_.format->lesson(messages, tools, learn_from), column);
    if (form_.whole && reading_.format->has_template()) add_rest(messages, tools, written);
    return written;
  }

  // Nothing, where a template writes a turn otherwise once another one stands behind it.
  void add_rest(const Json& messages, const std::string& tools, Written& written) const {
    const Result<std::vector<TokenId>> whole = reading_.format->whole(messages, tools);
    if (!whole) return;
    std::vector<TokenId> turns = written.prompt;
    turns.insert(turns.end(), written.completion.begin(), written.completion.end());
    const std::vector<TokenId>& ids = whole.value();
    if (ids.size() > turns.size() && std::equal(turns.begin(), turns.end(), ids.begin()))
      written.completion.insert(written.completion.end(), ids.begin() + std::ssize(turns),
                                ids.end());
  }

  // Every token of a completion is learned. Between several answers stand words of others.
  void check_answer(const Json& answer, std::string_view column) const {
    if (answer.empty() || (answer.size() == 1 && is_empty_answer(answer.front())))
      fail(fmt::format("\"{}\" is empty; it must be an answer", column));
    if (const Json& role = answer.front().at("role"); role != "assistant")
      fail(
          fmt::format("\"{}\" begins with a message of role {} behind the prompt; it must be one "
                      "answer of the assistant",
                      column, json_text(role)));
    if (answer.size() > 1)
      fail(
          fmt::format("\"{}\" has {} messages behind the prompt; it must be one answer of the "
                      "assistant. Move the earlier turns into the prompt",
                      column, answer.size()));
  }

  Written split(Result<chat::Lesson> result, std::string_view column) const {
    if (!result) fail(fmt::format("\"{}\": {}", column, result.failure().message));
    const chat::Lesson lesson = std::move(result).value();
    const auto first = std::ranges::find(lesson.counts, 1) - lesson.counts.begin();
    Written written{.prompt = {lesson.tokens.begin(), lesson.tokens.begin() + first},
                    .completion = {lesson.tokens.begin() + first, lesson.tokens.end()}};
    if (written.completion.empty())
      fail(fmt::format("\"{}\": a flag of the answer says that it does not count", column));
    if (written.prompt.empty()) fail("\"prompt\" is empty");
    return written;
  }

  const text::RowPlace& place_;
  const PreferenceForm& form_;
  const SftReading& reading_;
  int64_t& nulls_;
};

// Returns false where a completion is empty now, or both are equal.
bool cut_completions(PreferenceRow& row, int64_t max_tokens) {
  const auto room = static_cast<size_t>(std::max<int64_t>(max_tokens - std::ssize(row.prompt), 0));
  for (std::vector<TokenId>* completion : {&row.chosen, &row.rejected})
    if (completion->size() > room) completion->resize(room);
  return !row.chosen.empty() && row.chosen != row.rejected;
}

void add(PreferenceRow row, const PreferenceForm& form, std::vector<PreferenceRow>& rows) {
  if (form.paired || !row.is_pair()) {
    rows.push_back(std::move(row));
    return;
  }
  rows.push_back({.prompt = row.prompt, .chosen = std::move(row.chosen), .rejected = {}});
  rows.push_back({.prompt = std::move(row.prompt),
                  .chosen = std::move(row.rejected),
                  .rejected = {},
                  .desirable = false});
}

void check_rows(const std::filesystem::path& file, const PreferenceForm& form,
                const PreferenceRows& all) {
  const std::string dropped =
      all.dropped == 0
          ? ""
          : fmt::format(" ({} too long and dropped)",
                        all.dropped == 1 ? "1 row was" : fmt::format("{} rows were", all.dropped));
  if (all.rows.empty() && all.dropped == 0)
    throw UserError("{}: the file has no row; there is nothing to learn.", file.string());
  if (all.rows.empty())
    throw UserError(
        "{}: no row is left; there is nothing to learn{}. Raise rollout.max_context_tokens, or "
        "shorten the prompts.",
        file.string(), dropped);
  if (form.paired) return;
  const bool first = all.rows.front().desirable;
  if (std::ranges::all_of(all.rows, [&](const auto& row) { return row.desirable == first; }))
    throw UserError("{}: every label is {}{}; loss kto needs rows of both, true and false.",
                    file.string(), first, dropped);
}

}  // namespace

int64_t PreferenceRows::tokens() const {
  int64_t sum = 0;
  for (const PreferenceRow& row : rows)
    sum += std::ssize(row.prompt) + std::ssize(row.chosen) + std::ssize(row.rejected);
  return sum;
}

PreferenceRows read_preferences(const std::filesystem::path& file, const PreferenceForm& form,
                                const SftReading& reading) {
  PreferenceRows all;
  int64_t num_rows = 0;
  std::vector<LongRow> refused;
  const auto take = [&](const text::RowPlace& place, Json json) {
    ++num_rows;
    PreferenceRow row = PreferenceLine(place, form, reading, all.nulls).read(std::move(json));
    if (row.sequence_tokens() > reading.max_tokens) {
      const LongRow found{.line = place.line, .tokens = row.sequence_tokens()};
      if (form.too_long == TooLong::kRefuse) {
        refused.push_back(found);
        return;
      }
      all.too_long.push_back(found);
      if (form.too_long == TooLong::kDrop || !cut_completions(row, reading.max_tokens)) {
        ++all.dropped;
        return;
      }
      ++all.cut;
    }
    add(std::move(row), form, all.rows);
  };
  text::for_each_json_row(file, /*form=*/"", take, reading.limits);
  if (!refused.empty())
    refuse_long({.file = file,
                 .noun = "row",
                 .limit = fmt::format("the context holds {} (rollout.max_context_tokens)",
                                      reading.max_tokens),
                 .advice = fmt::format("Raise it, or try {}.too_long=drop, or cut.", form.key)},
                refused, num_rows);
  check_rows(file, form, all);
  return all;
}

}  // namespace tailrace
