// The facts of a run in a few words: its model, algorithm, data and machine, for the head of the
// report.
//
// Thread: any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/run/metrics.h"

namespace tailrace {

struct RunFact {
  std::string label, value;
};

// `config`: the text of config.yaml; what it does not say, or what cannot be read of it, is left
// out. `machine`: a line about it; may be empty.
std::vector<RunFact> run_facts(const std::string& config, const std::string& machine,
                               std::span<const MetricsRow> rows);

// The number of the last step that a row tells of.
int64_t last_step(std::span<const MetricsRow> rows);

// The number of the last update of the supervised training that a row tells of; 0: there was none.
int64_t last_supervised_update(std::span<const MetricsRow> rows);

}  // namespace tailrace
