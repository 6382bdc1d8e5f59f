#include "cli/run/length.h"

#include <algorithm>
#include <iterator>

#include "cli/run/datasets.h"
#include "cli/run/named_file.h"
#include "core/text/dataset.h"

namespace tailrace {

std::vector<int64_t> prompts_of_epoch(const RunOptions& options) {
  const std::vector<DatasetSection> datasets = datasets_of(options);
  const std::vector<int64_t> quotas = prompts_of_step(options);
  std::vector<int64_t> prompts;
  for (size_t i = 0; i < datasets.size(); ++i) {
    const bool counts = quotas[i] > 0 && !datasets[i].dataset.empty();
    // fit_datasets() has counted what is left of a file whose rows are too long in part: the file
    // itself has more.
    if (!counts || datasets[i].fitted.rows >= 0) {
      prompts.push_back(counts ? datasets[i].fitted.rows : 0);
      continue;
    }
    const RowsFile rows = rows_of(datasets[i]);
    prompts.push_back(std::ssize(read_named(dataset_key(options, i, "dataset"), [&] {
      return text::read_dataset(rows.file, rows.columns, options.files.limits());
    })));
  }
  return prompts;
}

int64_t most_steps(const RunOptions& options) {
  if (options.run.steps > 0 || supervised_only(options)) return options.run.steps;
  const std::vector<DatasetSection> datasets = datasets_of(options);
  const std::vector<int64_t> quotas = prompts_of_step(options);
  const std::vector<int64_t> prompts = prompts_of_epoch(options);
  int64_t steps = 0;
  for (size_t i = 0; i < datasets.size(); ++i) {
    if (quotas[i] == 0) continue;
    // Each dataset keeps its share of a step, and the run goes on until the last has ended. Epochs
    // have no barrier: a step may hold the end of one and the begin of the next.
    int64_t all = 0;
    if (__builtin_mul_overflow(prompts[i], datasets[i].epochs, &all) || all == 0) return 0;
    steps = std::max(steps, (all - 1) / quotas[i] + 1);
  }
  return steps;
}

}  // namespace tailrace
