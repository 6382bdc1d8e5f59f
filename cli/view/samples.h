// The episodes of RUN/samples.jsonl as text, for the report. Their rows:
// core/trajectory/sample_rows.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/text/tokenizer.h"
#include "core/trajectory/sample_rows.h"

namespace tailrace {

struct Sample {
  int64_t step = 0, version = 0;
  std::string name = {};  // for `tailrace status --sample`; empty: not known
  std::optional<double> reward, success;
  struct Segment {
    std::vector<SampleText> text;  // behind that of the tokens that it continues
    std::vector<TokenRole> roles = {};
    int32_t parent = -1, parent_tokens = 0;  // as in a trajectory
  };
  std::vector<Segment> segments;
  std::string dataset = {};  // its name, where a run has several
};

// One line of it. A Failure says what is wrong with the line.
Result<Sample> parse_sample(std::string_view line, const text::Tokenizer& tokenizer);

// Rows in the order of the file. A last line that is cut is ignored; another fault is a Failure
// with its line.
Result<std::vector<Sample>> read_samples(const std::filesystem::path& path,
                                         const text::Tokenizer& tokenizer);

}  // namespace tailrace
