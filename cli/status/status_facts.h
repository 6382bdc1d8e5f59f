// Where a run stands, as facts: `tailrace status` shows them as text and as JSON.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/status/row_facts.h"
#include "cli/view/health.h"
#include "core/base/time.h"
#include "core/run/run_directory.h"
#include "scheduler/state/state.h"

namespace tailrace {

// Prompts that were begun, by where they are now.
struct PromptCount {
  std::string_view key, words;  // for JSON, for people
  int64_t count = 0;
};

// All places, also those where none is. `dataset`: of one dataset; absent: of all.
std::vector<PromptCount> count_prompts(const scheduler::Policy& policy,
                                       std::optional<int32_t> dataset);

// The training on rows, as the metrics tell it, which come some fifty times a stage.
struct SupervisedFacts {
  bool alone = false;          // the run does nothing else
  scheduler::RowStage stage;   // that the trainer is at, or was at last; number 0: it has not said
  std::string_view kind = {};  // of the updates (kRowStages); empty: nothing is told yet
  int64_t updates = 0;         // done
  std::optional<int64_t> of;   // in all; absent: nothing is told yet
  std::optional<double> loss, eval_loss;
  std::string checkpoint;  // the newest, within RUN; empty: none
};

// Absent: the run has no such training, or it lies behind and steps are trained.
std::optional<SupervisedFacts> supervised_facts(const RunPaths& paths, const RowFacts& rows,
                                                bool alone, const scheduler::Policy& policy);

struct StatusFacts {
  std::string run, state, about;      // `state`: one word; `about`: a sentence for people
  std::string damage;                 // of the journal, a sentence (run_state.h); empty: none
  Time quiet{};                       // since the scheduler wrote to its journal
  Time silent{};                      // since it wrote there, or a row of metrics
  std::vector<std::string> datasets;  // names; empty: the run has one
  std::vector<std::string> waits;     // who waits for whom; empty: nobody, as the run is over
  std::optional<SupervisedFacts> supervised;
  std::string health;                  // of the last step, a line (cli/view/health.h); empty: none
  std::vector<HealthFigure> figures;   // the same as numbers
  std::vector<std::string> findings;   // what is wrong now, the gravest first
  std::optional<double> seconds_left;  // at the pace of the last steps; absent: nobody knows
};

struct RunStatus {
  StatusFacts facts;
  scheduler::State state;  // as the journal has it
  bool runs = false;       // a scheduler of the run answers here
};

// The facts of its metrics.jsonl, as far as that can be read.
RowFacts row_facts_of(const RunPaths& paths);

struct RunSilence {
  Time journal{}, all{};  // StatusFacts::quiet and silent
};
// By the files' times: a state's own time stands still while nobody runs it.
RunSilence silence_of(const RunPaths& paths);

// `run`: its directory as a person names it. Throws UserError where it has no journal, or one that
// cannot be read at all.
RunStatus read_status(const std::string& run, const RowFacts& rows);

// One object. `state` of the scheduler: as its journal has it. `indent`: as json_text() has it.
std::string status_json(const StatusFacts& facts, const scheduler::State& state, int indent = 2);

}  // namespace tailrace
