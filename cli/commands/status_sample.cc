#include "cli/commands/status_sample.h"

#include <filesystem>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "cli/status/run_state.h"
#include "cli/view/sample_trace.h"
#include "core/base/error.h"
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"

namespace tailrace {

void show_sample(const std::string& run, const std::vector<std::string>& sample, bool json) {
  const RunPaths paths{run};
  if (!std::filesystem::exists(paths.config()))
    throw UserError("{} is no run directory; 'tailrace launch' makes one.", run);
  const auto query = parse_sample_query(sample);
  if (!query) throw UserError("{}", query.failure().message);
  auto found = find_sample(paths, query.value());
  if (!found) throw UserError("{}", found.failure().message);
  std::unique_ptr<text::Tokenizer> tokenizer;
  try {
    if (!json) tokenizer = text::load_tokenizer(paths.tokenizer());
  } catch (const UserError& error) {
    // Ids are still worth showing.
    found.value().notes.push_back(error.what());
  }
  add_note_of_journal(paths, found.value().notes);
  // Not on stdout, which is the sample's.
  for (const std::string& note : found.value().notes) fmt::print(stderr, "note: {}\n", note);
  fmt::print("{}", json ? sample_trace_json(found.value()) + "\n"
                        : show_sample_trace(found.value(), tokenizer.get()));
}

}  // namespace tailrace
