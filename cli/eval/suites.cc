#include "cli/eval/suites.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/base/number.h"
#include "core/text/row_file.h"
#include "reward/verifier.h"

namespace tailrace {

namespace {

using Json = nlohmann::ordered_json;

std::string whole_file(const std::filesystem::path& file, const text::RowLimits& limits) {
  Result<std::string> whole = text::read_row_file(file, limits);
  if (!whole) throw UserError("{}{}", whole.failure().message, missing_file_hint(file));
  return std::move(whole).value();
}

text::DatasetRow row_of(const Json& row, int64_t line) {
  return {.json = json_text(row), .line = line};
}

std::vector<text::DatasetRow> read_gsm8k(const std::filesystem::path& file,
                                         const text::RowLimits& limits) {
  constexpr std::string_view kForm =
      "each line must be of the form {\"question\": \"...\", \"answer\": \"... #### 4\"}";
  std::vector<text::DatasetRow> rows;
  // The answers of the file end in "#### N", and the prompt asks for the same form.
  const auto take = [&](const text::RowPlace& place, Json row) {
    const Json* question = text::find_column(row, "question");
    if (question == nullptr)
      place.fail(fmt::format("there is no \"question\"; the row has {}", text::column_names(row)));
    if (!question->is_string()) place.fail("\"question\" is not a string");
    const auto prompt = question->get<std::string>() +
                        "\n\nSolve this step by step. Write the result on the last line, as a "
                        "number after \"#### \".";
    row["prompt"] = prompt;
    rows.push_back(row_of(row, place.line));
  };
  text::for_each_json_row(file, kForm, take, limits);
  return rows;
}

Json puzzle(const std::vector<int64_t>& numbers, int64_t target) {
  const std::string prompt = fmt::format(
      "Write an expression that is equal to {} and uses each of the numbers {} exactly once. "
      "Allowed are + - * / and parentheses. Think first. Then give the expression between <answer> "
      "and </answer>, for example <answer>(1 + 2) / 3</answer>.",
      target, fmt::join(numbers, ", "));
  return {{"prompt", prompt}, {"numbers", numbers}, {"target", target}};
}

std::vector<text::DatasetRow> read_countdown(const std::filesystem::path& file,
                                             const text::RowLimits& limits) {
  constexpr std::string_view kForm =
      "each line must be of the form {\"target\": 98, \"nums\": [44, 19, 35]}";
  std::vector<text::DatasetRow> rows;
  const auto take = [&](const text::RowPlace& place, const Json& row) {
    // Files of this puzzle are about under both names; `numbers` is that of our own environment.
    const char* column = row.contains("nums") ? "nums" : "numbers";
    if (!row.contains(column)) place.fail("there is no \"nums\"");
    if (!row.contains("target")) place.fail("there is no \"target\"");
    const Json &numbers = row[column], &target = row["target"];
    const bool whole =
        numbers.is_array() && !numbers.empty() &&
        std::ranges::all_of(numbers, [](const Json& number) { return number.is_number_integer(); });
    if (!whole) place.fail(fmt::format("\"{}\" is not a list of integers", column));
    if (!target.is_number_integer()) place.fail("\"target\" is not an integer");
    rows.push_back(
        row_of(puzzle(numbers.get<std::vector<int64_t>>(), target.get<int64_t>()), place.line));
  };
  text::for_each_json_row(file, kForm, take, limits);
  return rows;
}

std::vector<std::string_view> fields_of(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  while (true) {
    const size_t end = line.find(separator);
    fields.push_back(line.substr(0, end));
    if (end == std::string_view::npos) return fields;
    line.remove_prefix(end + 1);
  }
}

std::vector<text::DatasetRow> read_game24(const std::filesystem::path& file,
                                          const text::RowLimits& limits) {
  const std::string text = whole_file(file, limits);
  std::vector<text::DatasetRow> rows;
  std::optional<size_t> column;
  LineReader lines(text);
  while (const auto line = lines.next()) {
    if (line->text.empty()) continue;
    const std::vector<std::string_view> fields = fields_of(line->text, ',');
    if (!column) {
      const auto found = std::ranges::find(fields, "Puzzles");
      if (found == fields.end())
        throw UserError(
            "{}:{}: the first line of the CSV names no column \"Puzzles\" (four numbers with "
            "blanks "
            "between: 1 1 4 6)",
            file.string(), line->number);
      column = static_cast<size_t>(found - fields.begin());
      continue;
    }
    std::vector<int64_t> numbers;
    if (*column < fields.size())
      for (const std::string_view field : fields_of(fields[*column], ' '))
        if (const auto number = parse_integer(field)) numbers.push_back(*number);
    if (numbers.size() != 4)
      throw UserError("{}:{}: the column \"Puzzles\" must hold four numbers, for example 1 1 4 6",
                      file.string(), line->number);
    rows.push_back(row_of(puzzle(numbers, 24), line->number));
  }
  return rows;
}

constexpr EvalSuite kSuites[] = {
    {"gsm8k", "school mathematics; the JSONL of its authors, rows of question and answer", "math",
     512, read_gsm8k},
    {"countdown", "reach a target with given numbers; JSONL, rows of target and nums", "countdown",
     1024, read_countdown},
    {"game24", "reach 24 with four numbers; CSV with a column Puzzles", "countdown", 1024,
     read_game24},
};

}  // namespace

sandbox::EnvironmentSettings EvalSuite::settings() const {
  return {{"verifier", std::string(verifier)}, {"max_tokens", fmt::format("{}", max_tokens)}};
}

std::span<const EvalSuite> eval_suites() { return kSuites; }

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const EvalSuite& suite : kSuites) names.emplace_back(suite.name);
  return names;
}

const EvalSuite& find_suite(std::string_view name) {
  for (const EvalSuite& suite : kSuites)
    if (suite.name == name) return suite;
  const std::vector<std::string> names = suite_names();
  throw UserError("there is no suite '{}'{} Suites: {}", name, did_you_mean(name, names),
                  join_texts(names, ", "));
}

std::vector<text::DatasetRow> read_suite(const EvalSuite& suite, const std::filesystem::path& file,
                                         const VerifierRegistry& verifiers, Time score_budget,
                                         const text::RowLimits& limits) {
  std::vector<text::DatasetRow> rows = suite.read(file, limits);
  const Verifier& verifier = verifiers.at(std::string(suite.verifier));
  for (const text::DatasetRow& row : rows) {
    if (const Result<void> fit = verifier.check_row(row.json, score_budget); !fit)
      throw UserError("{}:{}: {} (for the suite {})", file.string(), row.line,
                      fit.failure().message, suite.name);
  }
  return rows;
}

}  // namespace tailrace
