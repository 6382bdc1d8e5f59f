// Evaluation sets by name. A suite reads the file that its authors publish, and adds what the file
// does not say: how a question is put to a model, which verifier scores, and how long an answer may
// be. Nothing is downloaded.
//
//   gsm8k      JSONL, {"question", "answer"}: "... #### 72" (Cobbe et al. 2021)
//   countdown  JSONL, {"target": 98, "nums": [44, 19, 35]}, or "numbers" (TinyZero)
//   game24     CSV with a column "Puzzles": "1 1 4 6" (Yao et al. 2023)
//
// Thread: any.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/time.h"
#include "core/text/dataset.h"
#include "reward/registry.h"
#include "sandbox/environment.h"

namespace tailrace {

struct EvalSuite {
  std::string_view name, help, verifier;
  int64_t max_tokens = 0;  // of an answer, where --max-action-tokens says nothing
  std::vector<text::DatasetRow> (*read)(const std::filesystem::path& file,
                                        const text::RowLimits& limits);

  // The environment `text` plays a suite, with these settings.
  sandbox::EnvironmentSettings settings() const;
};

std::span<const EvalSuite> eval_suites();
std::vector<std::string> suite_names();

// Throws UserError, as for a name that is none of these.
const EvalSuite& find_suite(std::string_view name);

// The rows of the file, each proved by the verifier of the suite. Throws UserError with file:line.
std::vector<text::DatasetRow> read_suite(const EvalSuite& suite, const std::filesystem::path& file,
                                         const VerifierRegistry& verifiers, Time score_budget,
                                         const text::RowLimits& limits = {});

}  // namespace tailrace
