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
  // The whole line, for the environment and the verifier; its prompt, a text or a list of messages
  // ({"role", "content"}), is under "prompt" too, whatever its key.
  std::string json;
  int64_t line = 0;  // in its file, from 1
};

// Reads all lines. Throws UserError with file:line for a line that is not a JSON object, has a
// field twice, lacks `prompt_key` or has something else there than a string or a list of messages,
// or is not UTF-8. Blank lines are skipped.
std::vector<DatasetRow> read_dataset(const std::filesystem::path& path,
                                     const std::string& prompt_key);

}  // namespace tailrace::text
