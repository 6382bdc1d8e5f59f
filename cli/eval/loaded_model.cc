#include "cli/eval/loaded_model.h"

#include <algorithm>
#include <utility>

#include "core/base/machine.h"
#include "core/model/parameter_files.h"

namespace tailrace {

LoadedModel::LoadedModel(const std::filesystem::path& directory, int threads, Compute compute,
                         int64_t max_context)
    : pool_(std::make_unique<ThreadPool>(threads > 0 ? threads : num_usable_cores())) {
  stream_.pool = pool_.get();
  ModelConfig config = read_model_config(directory);
  // Sizes that are not those of the files could ask for more memory than there is.
  check_headers(directory, config);
  model_ = std::make_unique<Model>(std::move(config), max_context);
  Parameters parameters(model_->layout());
  load_parameters(directory, model_->config(), parameters);
  weights_ = std::make_shared<const PackedWeights>(stream_, model_->config(), parameters,
                                                   compute_dtype(compute, model_->config()));
}

void LoadedModel::fit(int64_t context) {
  // Doubled: rows that grow one by one make few tables.
  if (context > model_->max_context())
    model_ = std::make_unique<Model>(ModelConfig(config()),
                                     std::max(context, 2 * model_->max_context()));
}

std::unique_ptr<text::Tokenizer> load_tokenizer_of(const std::filesystem::path& directory,
                                                   const ModelConfig& config) {
  auto tokenizer = text::load_tokenizer(directory);
  text::check_vocabulary(*tokenizer, config.vocab_size, directory.string());
  return tokenizer;
}

}  // namespace tailrace
