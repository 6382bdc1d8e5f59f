#include "core/text/dataset.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/text/messages.h"
#include "core/text/row_file.h"
#include "core/text/utf8.h"

namespace tailrace::text {

using json = nlohmann::ordered_json;

namespace {

constexpr size_t kNamedColumns = 12;

// Where frameworks keep the reference answer: ROLL, verl, SkyRL.
constexpr std::string_view kAnswerColumns[] = {"ground_truth", "reward_model.ground_truth",
                                               "reward_spec.ground_truth"};

// One line of a file. `fail` throws with file:line.
template <class Fail>
class Columns {
 public:
  Columns(json& row, const ColumnMap& map, const Fail& fail) : row_(row), map_(map), fail_(fail) {}

  // Adds our columns to the row. Whether there were any to add.
  bool complete() {
    for (const auto& [ours, theirs] : map_) {
      const json* found = find_column(row_, theirs);
      if (found == nullptr)
        fail_(fmt::format("there is no \"{}\", which columns names for \"{}\"; the row has {}",
                          theirs, ours, column_names(row_)));
      if (ours != theirs) add(ours, *found);
    }
    if (find_column(row_, "prompt") == nullptr) add_messages();
    check_prompt();
    if (find_column(row_, "answer") == nullptr) {
      for (const std::string_view name : kAnswerColumns) {
        const json* found = find_column(row_, name);
        if (found == nullptr) continue;
        add("answer", *found);
        break;
      }
    }
    return changed_;
  }

 private:
  void add(const std::string& name, json value) {
    row_[name] = std::move(value);
    changed_ = true;
  }

  // The chat of a row of ROLL or TRL, which is a prompt as long as the policy has the last word.
  void add_messages() {
    const json* messages = find_column(row_, "messages");
    if (messages == nullptr)
      fail_(
          fmt::format("there is no \"prompt\"; the row has {} (columns: {{prompt: THEIRS}} names "
                      "another column)",
                      column_names(row_)));
    json list =
        messages->is_string() ? parse_ordered_json(messages->get<std::string>()) : *messages;
    if (!are_messages(list))
      fail_("\"messages\" is not a list of messages ({\"role\", \"content\"})");
    if (list.back().at("role") == "assistant")
      fail_("\"messages\" ends with an answer of the assistant, so it is no prompt");
    add("prompt", std::move(list));
  }

  void check_prompt() {
    json& prompt = row_.at("prompt");
    if (prompt.is_array()) {
      if (!are_messages(prompt))
        fail_("\"prompt\" is a list, but not of messages ({\"role\", \"content\"})");
      const Result<bool> joined = make_texts(prompt);
      if (!joined) fail_(joined.failure().message);
      changed_ = changed_ || joined.value();
    } else if (!prompt.is_string()) {
      fail_("\"prompt\" is not a string");
    }
  }

  json& row_;
  const ColumnMap& map_;
  const Fail& fail_;
  bool changed_ = false;
};

}  // namespace

const json* find_column(const json& row, std::string_view name) {
  const json* at = &row;
  while (true) {
    const auto whole = at->find(name);
    if (whole != at->end()) return whole->is_null() ? nullptr : &*whole;
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) return nullptr;
    const auto part = at->find(name.substr(0, dot));
    if (part == at->end() || !part->is_object()) return nullptr;
    at = &*part;
    name.remove_prefix(dot + 1);
  }
}

std::string column_names(const json& row) {
  std::string names;
  size_t number = 0;
  for (const auto& item : row.items()) {
    if (++number > kNamedColumns) return names + ", ...";
    names += (names.empty() ? "" : ", ") + item.key();
  }
  return names.empty() ? "no columns" : names;
}

std::vector<DatasetRow> read_dataset(const std::filesystem::path& path, const ColumnMap& columns) {
  const Result<std::string> text = read_row_file(path);
  if (!text) throw UserError("{}{}", text.failure().message, nearest_path_hint(path));
  std::vector<DatasetRow> rows;
  LineReader lines(text.value());
  while (auto line = lines.next()) {
    if (line->text.find_first_not_of(" \t") == std::string_view::npos) continue;
    const auto fail = [&](const std::string& what) {
      throw UserError(
          "{}:{}: {}; each line must be a JSON object with \"prompt\", a string or a list "
          "of messages",
          path.string(), line->number, what);
    };
    // Before parsing, which would only say that it is not JSON.
    if (!is_utf8(line->text)) fail("the line is not UTF-8");
    Result<json> parsed = parse_json_row(line->text);
    if (!parsed) fail("the line is " + parsed.failure().message);
    json& row = parsed.value();
    const bool changed = Columns(row, columns, fail).complete();
    // Other rows stay byte for byte as their file has them.
    rows.push_back({.json = changed ? json_text(row) : std::string(line->text),
                    .line = static_cast<int64_t>(line->number)});
  }
  return rows;
}

}  // namespace tailrace::text
