#include "cli/eval/loaded_model.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "core/base/machine.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/model/safetensors.h"
#include "core/weights/frozen_base.h"

namespace tailrace {

void add_compute_flags(Command& command, ComputeFlags& flags) {
  command.option(
      "--device", flags.device,
      {.help = "cpu or cuda; auto: a GPU where there is one that takes the model, of several "
               "the first that CUDA_VISIBLE_DEVICES leaves"});
  command.option("--compute", flags.compute,
                 {.help = "weights in f32 or bf16; auto: bf16 where the files are, else f32"});
  command.option("--kv-cache-dtype", flags.kv_cache_dtype,
                 {.help = "KV cache in f32 or bf16; auto: f32 on the CPU, that of the weights on a "
                          "GPU"});
  command.option("--threads", flags.threads, {.help = "of the CPU; 0: all cores", .max = 1024});
}

namespace {

// A checkpoint's own files have the dtypes in which the model came, whatever sampled.
Dtype dtype_of(const std::filesystem::path& directory, Compute compute, const ModelConfig& config) {
  const std::filesystem::path master = directory / kMasterFile;
  if (compute == Compute::kAuto && std::filesystem::exists(master)) {
    const SafetensorsFile file(master);
    const auto said = file.metadata().find(kComputeKey);
    if (said != file.metadata().end()) return said->second == "bf16" ? Dtype::kBF16 : Dtype::kF32;
  }
  return compute_dtype(compute, config);
}

}  // namespace

LoadedModel::LoadedModel(const std::filesystem::path& directory, const ComputeFlags& flags,
                         int64_t max_context)
    : pool_(std::make_unique<ThreadPool>(flags.threads > 0 ? flags.threads : num_usable_cores())) {
  auto [config, base] = read_policy_folder(directory);
  // Sizes that are not those of the files could ask for more memory than there is.
  check_headers(base, config);
  Elements elements = elements_of(flags.compute, flags.kv_cache_dtype, config);
  const Dtype dtype = elements.weights = dtype_of(directory, flags.compute, config);
  const auto [device, why_cpu] = choose_device(flags.device, config, elements);
  // Where there is a choice it is said.
  const std::string type = dtype == Dtype::kBF16 ? "bf16" : "f32";
  if (device.kind != DeviceKind::kCpu) {
    fmt::print(stderr, "computes on {}; weights, activations and KV cache in {}\n",
               describe(device), type);
  } else if (!why_cpu.empty()) {
    fmt::print(stderr, "computes on the CPU, weights in {}: {}\n", type, why_cpu);
  }
  if (device.kind == DeviceKind::kCpu && elements.kv_cache == Dtype::kBF16)
    fmt::print(stderr, "KV cache in bf16\n");
  stream_ = std::make_unique<OwnedStream>(device, pool_.get());
  model_ = std::make_unique<Model>(std::move(config), max_context, Placement::on(device, elements));
  if (model_->config().lora) {
    Parameters adapter(model_->trained());
    load_parameters(directory, model_->config(), adapter, kAdapterFile);
    const FrozenBase frozen = load_frozen_base(stream(), base, model_->config(), dtype);
    // An adapter says beside which base it was trained (design rule 4).
    require_base(directory, base, frozen.root);
    weights_ =
        std::make_shared<const PackedWeights>(stream(), frozen.weights, model_->config(), adapter);
    return;
  }
  Parameters parameters(model_->layout());
  load_parameters(directory, model_->config(), parameters);
  weights_ = std::make_shared<const PackedWeights>(stream(), model_->config(), parameters, dtype);
}

std::filesystem::path tokenizer_folder(const std::filesystem::path& directory) {
  if (!is_adapter(directory) || std::filesystem::exists(directory / "tokenizer.json"))
    return directory;
  return base_folder(directory, read_adapter_config(directory));
}

void LoadedModel::fit(int64_t context) {
  // Doubled: rows that grow one by one make few tables.
  if (context > model_->max_context())
    model_ =
        std::make_unique<Model>(ModelConfig(config()), std::max(context, 2 * model_->max_context()),
                                Placement(model_->placement()));
}

std::unique_ptr<text::Tokenizer> load_tokenizer_of(const std::filesystem::path& directory,
                                                   const ModelConfig& config) {
  auto tokenizer = text::load_tokenizer(directory);
  text::check_vocabulary(*tokenizer, config.vocab_size, directory.string());
  return tokenizer;
}

}  // namespace tailrace
