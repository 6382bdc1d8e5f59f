#include <filesystem>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/eval/loaded_model.h"
#include "core/base/error.h"
#include "core/base/exit_code.h"
#include "core/config/flags.h"
#include "core/model/adapter_files.h"
#include "core/model/compute.h"
#include "core/model/model_form.h"
#include "core/model/parameter_files.h"
#include "core/run/unfinished_folder.h"
#include "core/text/tokenizer.h"
#include "core/weights/frozen_base.h"
#include "core/weights/manifest.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct MergeArguments {
  std::string adapter, out;
  Compute dtype = Compute::kAuto;
};

int merge(const MergeArguments& arguments) {
  const fs::path adapter = arguments.adapter;
  fs::path out = fs::absolute(arguments.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();  // "merged/"
  if (!is_adapter(adapter))
    throw UserError(
        "{} has no {}: it is no adapter. Checkpoints of a run that trains one are below "
        "RUN/checkpoints.",
        adapter.string(), kAdapterConfigFile);
  // Whole or not at all: what a full disk leaves would look like a model.
  UnfinishedFolder unfinished(out);
  auto [config, base] = read_policy_folder(adapter);
  check_headers(base, config);
  const ParameterLayout whole_layout(config), low_layout = ParameterLayout::of_adapter(config);
  Parameters whole(whole_layout), low(low_layout);
  load_parameters(base, config, whole);
  load_parameters(adapter, config, low, kAdapterFile);
  // An adapter beside another base would be a model that nobody has trained.
  require_base(adapter, base, make_manifest(whole, 0, 0, "").master);
  merge_adapter(config, low, whole);
  ModelConfig written = config;
  written.lora = {};
  ModelForm form = read_model_form(base);
  form.keeps_dtypes = arguments.dtype == Compute::kAuto;
  // In the base's own dtypes nothing is narrowed.
  written.dtype = form.keeps_dtypes ? Dtype::kF32 : compute_dtype(arguments.dtype, config);
  const bool is_exact = save_model(unfinished.path(), written, whole, form);
  text::copy_tokenizer(tokenizer_folder(adapter), unfinished.path());
  unfinished.publish();
  const char* const short_name = form.keeps_dtypes && config.dtype == Dtype::kF16 ? "f16" : "bf16";
  fmt::print("{}: {} with {}, in {}\n", out.string(), base.string(), adapter.string(),
             is_exact ? "f32" : fmt::format("{}, which rounds small changes away", short_name));
  return kExitDone;
}

}  // namespace

void add_model_merge(Command& model) {
  auto arguments = std::make_shared<MergeArguments>();
  Command& command = model.command("merge", "Make one model of an adapter (LoRA) and its base");
  command.option("adapter", arguments->adapter,
                 {.help = "folder of the adapter: a checkpoint of a run with lora.rank, or one of "
                          "peft",
                  .value = "ADAPTER",
                  .required = true});
  command.option("out", arguments->out,
                 {.help = "folder of the model to make", .value = "DIR", .required = true});
  command.option(
      "--dtype", arguments->dtype,
      {.help =
           "of its matrices, f32 or bf16, with norms in f32; auto: each tensor as in the base"});
  command.footer("Example:\n  tailrace model merge runs/a/checkpoints/step_000100 merged");
  command.action([arguments] { return merge(*arguments); });
}

}  // namespace tailrace
