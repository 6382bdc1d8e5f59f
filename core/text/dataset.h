// Prompts from a file of JSON Lines, plain, gzip or zstd: one object a line, with the columns of
// TRL, verl, SkyRL or ROLL, or with others that a map names.
//
// Thread: any (immutable).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/text/row_file.h"

namespace tailrace::text {

// Columns of ours, each with the column of the file that it is read from: {"answer", "solution"}.
// A dot leads into an object ("extra_info.answer"), where no column has that whole name.
using ColumnMap = std::vector<std::pair<std::string, std::string>>;

struct DatasetRow {
  // An object for the environment and the verifier: all columns of the line, byte for byte as the
  // file has them where nothing was changed. "prompt" is a text or a list of messages ({"role",
  // "content"}) whose contents are texts (core/text/messages.h); "answer" is the reference answer,
  // where the row has one under a known name.
  std::string json;
  int64_t line = 0;  // in its file, from 1
  // Keys that were null in arguments of calls and in schemas of tools, and are left out.
  int64_t nulls = 0;
};

// Reads all lines. What `columns` name is copied to our names. A row without "prompt" has it from
// "messages" (a list, or its JSON as a text); one without "answer" has it from "ground_truth",
// "reward_model.ground_truth" or "reward_spec.ground_truth". A column that is null is absent.
//
// Throws UserError with file:line for a line that is not a JSON object, has a field twice, lacks a
// prompt or a column of the map, has something else than a text or messages of text for a prompt,
// or is not UTF-8; and as read_row_file() fails. Blank lines are skipped.
std::vector<DatasetRow> read_dataset(const std::filesystem::path& path,
                                     const ColumnMap& columns = {}, const RowLimits& limits = {});

// The column of a row by its name, or by names with dots between. nullptr: there is none, or null.
const nlohmann::ordered_json* find_column(const nlohmann::ordered_json& row, std::string_view name);

// "question, answer": for messages.
std::string column_names(const nlohmann::ordered_json& row);

}  // namespace tailrace::text
