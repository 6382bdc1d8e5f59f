#include "cli/inputs/length.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "cli/config/counted.h"
#include "cli/config/named_file.h"
#include "core/base/join_texts.h"
#include "core/text/dataset.h"

namespace tailrace {

std::vector<int64_t> prompts_of_epoch(const ResolvedRun& run) {
  std::vector<int64_t> prompts;
  for (const RunDataset& dataset : run.datasets) {
    const bool counts = dataset.prompts > 0 && !dataset.dataset.empty();
    // fit_datasets() has counted what is left of a file whose rows are too long in part: the file
    // itself has more.
    if (!counts || dataset.fitted.rows >= 0) {
      prompts.push_back(counts ? dataset.fitted.rows : 0);
      continue;
    }
    const RowsFile rows = rows_of(dataset);
    prompts.push_back(std::ssize(read_named(dataset.key("dataset"), [&] {
      return text::read_dataset(rows.file, rows.columns, run.options.files.limits());
    })));
  }
  return prompts;
}

int64_t most_steps(const ResolvedRun& run) {
  if (run.options.run.steps > 0 || run.supervised_only) return run.options.run.steps;
  const std::vector<int64_t> prompts = prompts_of_epoch(run);
  int64_t steps = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const RunDataset& dataset = run.datasets[i];
    if (dataset.prompts == 0) continue;
    // Each dataset keeps its share of a step, and the run goes on until the last has ended. Epochs
    // have no barrier: a step may hold the end of one and the begin of the next.
    int64_t all = 0;
    if (__builtin_mul_overflow(prompts[i], dataset.epochs, &all) || all == 0) return 0;
    steps = std::max(steps, (all - 1) / dataset.prompts + 1);
  }
  return steps;
}

std::string epochs_text(const ResolvedRun& run) {
  std::vector<std::string> parts;
  if (run.supervised_only)
    for (const RunStage& stage : run.stages) {
      const RowOptions& rows = stage.rows();
      parts.push_back(fmt::format(
          "{} of {}",
          rows.updates > 0 ? counted(rows.updates, "update") : counted(rows.epochs, "epoch"),
          rows.data));
    }
  for (const RunDataset& dataset : run.datasets) {
    if (dataset.ratio > 0)
      parts.push_back(fmt::format("{} of {}", counted(dataset.epochs, "epoch"), dataset.dataset));
  }
  return join_texts(parts, ", ");
}

}  // namespace tailrace
