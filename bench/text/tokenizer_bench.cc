// MB/s of text that a tokenizer of a model folder turns into ids and back, on one thread: a file as
// one text, and each of its lines as a text of its own.
//
// Checked first: the ids decode to the text. Their number and their digest are settings, so that
// compare.py puts no program beside this one that finds other ids.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/report/program.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

struct Options {
  std::string tokenizer, text;
  int runs = 9;
};

using Ids = std::vector<TokenId>;

constexpr text::EncodeOptions kWords = {.find_special = false};

// With their ends.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.push_back(text.substr(0, end == std::string_view::npos ? end : end + 1));
    text.remove_prefix(lines.back().size());
  }
  return lines;
}

// FNV-1a over the ids, each as a little-endian int32.
std::string digest(const Ids& ids) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const TokenId id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xff)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

void measure(const Options& options, const Program& program) {
  const std::unique_ptr<text::Tokenizer> tokenizer = text::load_tokenizer(options.tokenizer);
  const auto read = read_file(options.text);
  if (!read) throw UserError("{}", read.failure().message);
  const std::string& text = read.value();
  if (text.empty()) throw UserError("{}: it is empty", options.text);
  const std::vector<std::string_view> lines = lines_of(text);

  const Ids ids = tokenizer->encode(text, kWords);
  require(tokenizer->decode(ids) == text, "{} does not come back from its ids", options.text);
  Report report = program.report({{"text", std::filesystem::path(options.text).filename()},
                                  {"bytes", std::ssize(text)},
                                  {"tokens", std::ssize(ids)},
                                  {"digest", digest(ids)}});
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  // `work` gives back what it made, so that none of it is left out.
  const auto time = [&](const char* name, const char* metric, size_t expected, const auto& work) {
    std::vector<double> rates;
    for (int run = -1; run < options.runs; ++run) {  // the first warms up
      const Stopwatch watch(CLOCK_THREAD_CPUTIME_ID);
      const size_t made = work();
      if (run >= 0) rates.push_back(megabytes / watch.seconds());
      require(made == expected, "{}, {}: {} and then {}", name, metric, expected, made);
    }
    report.add(name, metric, "MB/s", rates);
  };
  const auto encode_lines = [&] {
    size_t tokens = 0;
    for (const std::string_view line : lines) tokens += tokenizer->encode(line, kWords).size();
    return tokens;
  };
  time("whole", "encode", ids.size(), [&] { return tokenizer->encode(text, kWords).size(); });
  time("whole", "decode", text.size(), [&] { return tokenizer->decode(ids).size(); });
  time("lines", "encode", encode_lines(), encode_lines);
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("tokenizer", TAILRACE_MEASURES, "tokenizer --tokenizer MODEL --text book.txt");
  program.fix_threads(1);
  program.flags().option("--tokenizer", options.tokenizer,
                         {.help = "a folder with tokenizer.json", .required = true});
  program.flags().option("--text", options.text,
                         {.help = "a file of UTF-8 text", .required = true});
  program.flags().option("--runs", options.runs,
                         {.help = "measured runs of each case", .min = 1, .max = 10000});
  return program.run(argc, argv, [&] { measure(options, program); });
}
