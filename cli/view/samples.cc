#include "cli/view/samples.h"

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/trajectory/sample_rows.h"

namespace tailrace {
namespace {

// Pieces of one role each. A piece's text is what its tokens add to the text before them, because
// some tokenizers write a blank differently at the start of a text.
std::vector<SampleText> decode_segment(const std::vector<TokenId>& tokens,
                                       const std::vector<TokenRole>& roles,
                                       const text::Tokenizer& tokenizer) {
  std::vector<SampleText> pieces;
  std::string before;
  for (size_t begin = 0; begin < tokens.size();) {
    size_t end = begin;
    while (end < tokens.size() && roles[end] == roles[begin]) ++end;
    std::string all = tokenizer.decode(std::span(tokens).first(end));
    // Not where a character's bytes lie on both sides: of half of it U+FFFD was made.
    bool grows = all.starts_with(before);
    pieces.push_back(
        {roles[begin], grows ? all.substr(before.size())
                             : tokenizer.decode(std::span(tokens).subspan(begin, end - begin))});
    before = std::move(all);
    begin = end;
  }
  return pieces;
}

Result<Sample> parse_sample(std::string_view line, const text::Tokenizer& tokenizer) {
  auto row = parse_sample_row(line);
  if (!row) return row.failure();
  const SampleRow& found = row.value();
  Sample sample{.step = found.step,
                .version = found.version,
                .name = found.sample,
                .reward = found.reward,
                .success = found.success,
                .segments = {},
                .dataset = found.dataset};
  for (const SampleRow::Tokens& segment : found.segments) {
    for (size_t i = 0; i < segment.ids.size(); ++i) {
      if (segment.ids[i] < tokenizer.vocab_size()) continue;
      return Failure{fmt::format("token {} with role {} is out of range", segment.ids[i],
                                 static_cast<int>(segment.roles[i]))};
    }
    sample.segments.push_back(decode_segment(segment.ids, segment.roles, tokenizer));
  }
  return sample;
}

}  // namespace

Result<std::vector<Sample>> read_samples(const std::filesystem::path& path,
                                         const text::Tokenizer& tokenizer) {
  auto text = read_file(path);
  if (!text) return text.failure();
  std::vector<Sample> samples;
  LineReader lines(text.value());
  while (auto line = lines.next()) {
    // The run may be writing it.
    if (!line->complete || line->text.empty()) continue;
    auto sample = parse_sample(line->text, tokenizer);
    if (!sample)
      return Failure{
          fmt::format("{}:{}: {}", path.string(), line->number, sample.failure().message)};
    samples.push_back(std::move(sample).value());
  }
  return samples;
}

}  // namespace tailrace
