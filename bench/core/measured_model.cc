#include "bench/core/measured_model.h"

#include <filesystem>

#include "bench/core/geometry.h"
#include "core/base/error.h"
#include "core/model/compute.h"
#include "core/model/parameter_files.h"

namespace tailrace {

void add_model_flags(Program& program, ModelChoice& choice) {
  program.flags().option("--geometry", choice.geometry,
                         {.help = "the model", .one_of = geometry_names()});
  program.flags().option("--model", choice.folder,
                         {.help = "the folder of a model instead, in the dtype of its files",
                          .value = "FOLDER",
                          .excludes = {"--geometry"}});
  program.flags().option("--kv-cache-dtype", choice.kv_cache_dtype,
                         {.help = "KV cache in f32 (auto) or bf16"});
}

MeasuredModel::MeasuredModel(const ModelChoice& choice, int64_t max_positions)
    : name(choice.geometry), folder(choice.folder) {
  if (folder.empty()) {
    config = geometry(name, max_positions);
    // Random weights are read in float32.
    elements = elements_of(Compute::kF32, choice.kv_cache_dtype, config);
    return;
  }
  config = read_model_config(folder);
  check_headers(folder, config);
  if (config.max_positions < max_positions)
    throw UserError("{} has {} positions; this needs {}", folder, config.max_positions,
                    max_positions);
  name = std::filesystem::canonical(folder).filename();
  elements = elements_of(Compute::kAuto, choice.kv_cache_dtype, config);
}

void MeasuredModel::fill(uint64_t seed, Parameters& parameters) const {
  if (folder.empty())
    init_parameters(config, seed, parameters);
  else
    load_parameters(folder, config, parameters);
}

void MeasuredModel::describe(int64_t num_parameters, Settings& settings) const {
  describe_geometry(name, config, num_parameters, settings, elements.weights);
}

}  // namespace tailrace
