// The model that a bench measures: a geometry of random weights in fp32, or the folder of a real
// model, whose products read the dtype of its files. Flags and settings are the same in every bench
// that has a choice, and in their peers.
#pragma once

#include <cstdint>
#include <string>

#include "bench/report/program.h"
#include "bench/report/report.h"
#include "core/model/compute.h"
#include "core/model/model_config.h"
#include "core/model/parameters.h"
#include "core/model/placement.h"

namespace tailrace {

struct ModelChoice {
  std::string geometry = "tiny";
  std::string folder;  // empty: the geometry
  Compute kv_cache_dtype = Compute::kAuto;
};
// Lists --geometry, --model and --kv-cache-dtype.
void add_model_flags(Program& program, ModelChoice& choice);

struct MeasuredModel {
  // Throws UserError where the folder has no model, or one of fewer positions.
  MeasuredModel(const ModelChoice& choice, int64_t max_positions);

  // `seed`: of a geometry's weights.
  void fill(uint64_t seed, Parameters& parameters) const;
  void describe(int64_t num_parameters, Settings& settings) const;

  std::string name;  // the geometry, or the last part of the folder's path
  std::string folder;
  ModelConfig config;
  Elements elements;
};

}  // namespace tailrace
