#include "core/text/dataset.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/text/messages.h"
#include "core/text/row_file.h"

namespace tailrace::text {

using json = nlohmann::ordered_json;

namespace {

constexpr size_t kNamedColumns = 12;

// Where frameworks keep the reference answer: ROLL, verl, SkyRL.
constexpr std::string_view kAnswerColumns[] = {"ground_truth", "reward_model.ground_truth",
                                               "reward_spec.ground_truth"};

constexpr std::string_view kForm =
    "each line must be a JSON object with \"prompt\", a string or a list of messages";

// One line of a file.
class Columns {
 public:
  Columns(json& row, const ColumnMap& map, const RowPlace& place)
      : row_(row), map_(map), place_(place) {}

  // Adds our columns to the row. Whether there were any to add.
  bool complete() {
    for (const auto& [ours, theirs] : map_) {
      const json* found = find_column(row_, theirs);
      if (found == nullptr)
        place_.fail(
            fmt::format("there is no \"{}\", which columns names for \"{}\"; the row has {}",
                        theirs, ours, column_names(row_)));
      if (ours != theirs) add(ours, *found);
    }
    if (find_column(row_, "prompt") == nullptr) add_messages();
    check_prompt();
    if (row_.at("prompt").is_array()) nulls_ += leave_out_nulls(row_.at("prompt"));
    if (const auto tools = row_.find("tools"); tools != row_.end())
      nulls_ += leave_out_nulls_of_tools(*tools);
    if (find_column(row_, "answer") == nullptr) {
      for (const std::string_view name : kAnswerColumns) {
        const json* found = find_column(row_, name);
        if (found == nullptr) continue;
        add("answer", *found);
        break;
      }
    }
    return changed_ || nulls_ > 0;
  }
  // How many were left out.
  int64_t nulls() const { return nulls_; }

 private:
  void add(const std::string& name, json value) {
    row_[name] = std::move(value);
    changed_ = true;
  }

  // The chat of a row of ROLL or TRL, which is a prompt as long as the policy has the last word.
  void add_messages() {
    const json* messages = find_column(row_, "messages");
    if (messages == nullptr)
      place_.fail(
          fmt::format("there is no \"prompt\"; the row has {} (columns: {{prompt: THEIRS}} names "
                      "another column)",
                      column_names(row_)));
    json list =
        messages->is_string() ? parse_ordered_json(messages->get<std::string>()) : *messages;
    if (!are_messages(list))
      place_.fail("\"messages\" is not a list of messages ({\"role\", \"content\"})");
    if (list.back().at("role") == "assistant")
      place_.fail("\"messages\" ends with an answer of the assistant, so it is no prompt");
    add("prompt", std::move(list));
  }

  void check_prompt() {
    json& prompt = row_.at("prompt");
    if (prompt.is_array()) {
      if (!are_messages(prompt))
        place_.fail("\"prompt\" is a list, but not of messages ({\"role\", \"content\"})");
      const Result<bool> joined = make_texts(prompt);
      if (!joined) place_.fail(joined.failure().message);
      changed_ = changed_ || joined.value();
    } else if (!prompt.is_string()) {
      place_.fail("\"prompt\" is not a string");
    }
  }

  json& row_;
  const ColumnMap& map_;
  const RowPlace& place_;
  bool changed_ = false;
  int64_t nulls_ = 0;
};

}  // namespace

const json* find_column(const json& row, std::string_view name) {
  const json* at = &row;
  while (true) {
    // The whole name goes first: a flat table may have a column "reward_model.ground_truth".
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

std::vector<DatasetRow> read_dataset(const std::filesystem::path& path, const ColumnMap& columns,
                                     const RowLimits& limits) {
  std::vector<DatasetRow> rows;
  for_each_json_row(
      path, kForm,
      [&](const RowPlace& place, json row) {
        Columns complete(row, columns, place);
        const bool changed = complete.complete();
        // Other rows stay byte for byte as their file has them.
        rows.push_back({.json = changed ? json_text(row) : std::string(place.text),
                        .line = place.line,
                        .nulls = complete.nulls()});
      },
      limits);
  return rows;
}

}  // namespace tailrace::text
