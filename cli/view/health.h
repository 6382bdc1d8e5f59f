// Whether a run is healthy: what its metrics say is wrong, since which step, and what to do.
//
// Each step is judged by the rules of health_rules.h, which follow docs/metrics.md ("Is my run
// healthy?"). The terminal, the report and `tailrace status` all show the findings of this file.
//
// Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/view/health_rules.h"
#include "core/run/metrics.h"
#include "core/run/run_directory.h"

namespace tailrace {

struct Finding {
  Ailment kind{};
  Severity severity{};
  HealthNumber about{};
  int64_t since = 0;      // first step of the latest time that it held
  int64_t until = 0;      // last step of it
  bool pays_all = false;  // every sample has one reward, above 0, whatever it says
  std::string sentence;   // what is seen, with the number and its metric
  std::string advice;     // one thing to do, with its key

  // "warning: rate_too_high since step 1: ... Try ..."
  std::string line() const;
};

// One of the numbers that stand at the top of a report.
struct HealthFigure {
  std::string_view name;
  std::string value;        // "15 of 16 groups"; empty: the last step does not have it
  std::string_view word;    // ok, watch, wrong; unknown: nobody can say
  std::string_view course;  // an arrow from the first step; empty: nothing to compare
};

class Health {
 public:
  explicit Health(const HealthSettings& settings = {}) : settings_(settings) {}

  // Takes the next row; rows of evaluations and of a warm-up change nothing. A step that a
  // restarted scheduler did again replaces the one with its number and all later ones. Returns what
  // was found for the first time.
  std::vector<Finding> add(const MetricsRow& row);

  // All that held in some step, the gravest first, then the earliest: a cause stands before what
  // came of it, a reward that fell before the symptoms that began with it, and a reward above 0
  // that every sample has before the actions that cannot be read since the same step.
  std::vector<Finding> findings() const;
  // Findings that hold in the last step.
  std::vector<Finding> present() const;

  // The finding that a launch ends with; nothing: a healthy run. The first one of findings() that
  // holds in the last step, or else a cause that held before: a symptom that is gone needs no cure.
  // A run that is solved needs none for its symptoms, nor for what lies behind it.
  std::optional<Finding> verdict() const;

  // Figures of the last step; empty without one.
  std::vector<HealthFigure> figures() const;
  // "signal 15 of 16 groups ok, entropy 0.82 ok ↓, ..."; empty without a step.
  std::string line() const;

 private:
  struct Course {
    int streak = 0;   // steps in a row, up to the last, in which the rule held
    Finding finding;  // of the latest time
    bool found = false;
  };
  std::vector<Finding> judge(const HealthStep& step);
  Severity severity_of(HealthNumber number) const;

  HealthSettings settings_;
  std::vector<HealthStep> steps_;
  HealthHistory history_;                                   // of these
  std::array<Course, kEnumNames<Ailment>.size()> courses_;  // by kind
};

// The health of a whole run. `config`: the text of its config.yaml; may be empty.
Health health_of(std::span<const MetricsRow> rows, const std::string& config);
// The health of the run in this directory, as far as its files can be read.
Health health_of(const RunPaths& paths);

}  // namespace tailrace
