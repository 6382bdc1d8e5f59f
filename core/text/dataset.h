// Prompts from a JSONL file: one object a line.
//
// Thread: any (immutable).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tailrace::text {

struct DatasetRow {
  std::string prompt;
  // The whole line, for the environment and the verifier; its prompt is under "prompt" too,
  // whatever its key.
  std::string json;
  int64_t line = 0;  // in its file, from 1
};

// Reads all lines. Throws UserError with file:line for a line that is not a JSON object, has a
// field twice, lacks the string `prompt_key`, or is not UTF-8. Blank lines are skipped.
std::vector<DatasetRow> read_dataset(const std::filesystem::path& path,
                                     const std::string& prompt_key);

}  // namespace tailrace::text
