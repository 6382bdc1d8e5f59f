#include "core/text/dataset.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "core/base/nearest.h"
#include "core/text/utf8.h"

namespace tailrace::text {

using json = nlohmann::ordered_json;

namespace {

bool are_messages(const json& list) {
  return !list.empty() && std::ranges::all_of(list, [](const json& message) {
    return message.is_object() && message.contains("role") && message.at("role").is_string();
  });
}

}  // namespace

std::vector<DatasetRow> read_dataset(const std::filesystem::path& path,
                                     const std::string& prompt_key) {
  Result<std::string> text = read_file(path);
  if (!text) throw UserError("{}{}", text.failure().message, nearest_path_hint(path));
  std::vector<DatasetRow> rows;
  LineReader lines(text.value());
  while (auto line = lines.next()) {
    if (line->text.find_first_not_of(" \t") == std::string_view::npos) continue;
    auto fail = [&](const std::string& what) {
      throw UserError(
          "{}:{}: {}; each line must be a JSON object with \"{}\", a string or a list "
          "of messages",
          path.string(), line->number, what, prompt_key);
    };
    // Before parsing, which would only say that it is not JSON.
    if (!is_utf8(line->text)) fail("the line is not UTF-8");
    Result<json> parsed = parse_json_row(line->text);
    if (!parsed) fail("the line is " + parsed.failure().message);
    json& row = parsed.value();
    auto prompt = row.find(prompt_key);
    if (prompt == row.end()) fail("there is no \"" + prompt_key + "\"");
    if (prompt->is_array()) {
      if (!are_messages(*prompt))
        fail("\"" + prompt_key + "\" is a list, but not of messages ({\"role\", \"content\"})");
    } else if (!prompt->is_string()) {
      fail("\"" + prompt_key + "\" is not a string");
    }
    DatasetRow kept{.json = std::string(line->text), .line = static_cast<int64_t>(line->number)};
    // Only then: other rows stay byte for byte as their file has them.
    if (prompt_key != "prompt") {
      row["prompt"] = json(*prompt);
      kept.json = json_text(row);
    }
    rows.push_back(std::move(kept));
  }
  return rows;
}

}  // namespace tailrace::text
