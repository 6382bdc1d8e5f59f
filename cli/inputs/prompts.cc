#include "cli/inputs/prompts.h"

#include "core/base/error.h"
#include "core/text/tokenizer.h"

namespace tailrace {

std::vector<text::DatasetRow> read_prompts(const std::filesystem::path& file,
                                           const text::ColumnMap& columns,
                                           const std::string& verifier,
                                           const VerifierRegistry& verifiers, Time score_budget,
                                           const text::RowLimits& limits) {
  std::vector<text::DatasetRow> rows = text::read_dataset(file, columns, limits);
  if (verifier.empty()) return rows;
  const Verifier& scores = verifiers.at(verifier);
  const auto require = [&](const Result<void>& fit) {
    if (!fit) throw UserError("{} (for the verifier {})", fit.failure().message, verifier);
  };
  // Faults of no row are checked first: else they would be the first row's.
  require(scores.check_machine());
  require(scores.check_hidden(file));
  for (const text::DatasetRow& row : rows) {
    if (const Result<void> fit = scores.check_row(row.json, score_budget); !fit)
      throw UserError("{}:{}: {} (for the verifier {})", file.string(), row.line,
                      fit.failure().message, verifier);
  }
  return rows;
}

chat::ChatOptions chat_of_run(const RunPaths& paths, const RunOptions& options) {
  chat::ChatOptions chat = options.chat;
  // The run has a copy of the template: what has become of the person's file since does not change
  // it.
  if (!chat.template_file.empty()) chat.template_file = paths.tokenizer() / text::kTemplateFile;
  return chat;
}

}  // namespace tailrace
