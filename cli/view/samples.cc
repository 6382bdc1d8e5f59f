#include "cli/view/samples.h"

#include <fmt/format.h>

#include "core/base/file.h"

namespace tailrace {

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
  }
  for (size_t i = 0; i < found.segments.size(); ++i) {
    const SampleRow::Tokens& segment = found.segments[i];
    sample.segments.push_back({// With special tokens: the policy reads them, and is trained to
                               // write those that end a turn.
                               .text = segment_text(found, i,
                                                    [&](std::span<const TokenId> ids) {
                                                      return tokenizer.decode(
                                                          ids, /*keep_special=*/true);
                                                    }),
                               .roles = segment.roles,
                               .parent = segment.parent,
                               .parent_tokens = segment.parent_tokens});
  }
  return sample;
}

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
