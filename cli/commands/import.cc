#include "core/gguf/import.h"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "core/base/enum_names.h"
#include "core/base/exit_code.h"
#include "core/base/join_texts.h"
#include "core/config/flags.h"
#include "core/model/model_config.h"
#include "core/model/parameter_files.h"
#include "core/model/safetensors.h"
#include "core/run/unfinished_folder.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

enum class ImportDtype : uint8_t { kAuto, kF32, kBf16, kF16 };
constexpr auto enum_names(ImportDtype) {
  return name_table<ImportDtype>({{ImportDtype::kAuto, "auto"},
                                  {ImportDtype::kF32, "f32"},
                                  {ImportDtype::kBf16, "bf16"},
                                  {ImportDtype::kF16, "f16"}});
}

std::optional<Dtype> dtype_of(ImportDtype dtype) {
  switch (dtype) {
    case ImportDtype::kF32:
      return Dtype::kF32;
    case ImportDtype::kBf16:
      return Dtype::kBF16;
    case ImportDtype::kF16:
      return Dtype::kF16;
    case ImportDtype::kAuto:
      break;
  }
  return std::nullopt;
}

struct ImportArguments {
  std::string file, out;
  ImportDtype dtype = ImportDtype::kAuto;
};

std::string listed(const std::map<std::string, int64_t>& types) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : types) parts.push_back(fmt::format("{} {}", count, name));
  return join_texts(parts, ", ");
}

int import_file(const ImportArguments& arguments) {
  fs::path out = fs::absolute(arguments.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();  // "model/"
  // Whole or not at all: what a full disk leaves would look like a model.
  UnfinishedFolder folder(out);
  const GgufImport made = import_gguf(arguments.file, folder.path(), dtype_of(arguments.dtype));
  // As whoever loads the folder will do.
  const ModelConfig config = read_model_config(folder.path());
  check_headers(folder.path(), config);
  text::check_vocabulary(*text::load_tokenizer(folder.path()), config.vocab_size, arguments.file);
  folder.publish();
  for (const std::string& note : made.notes) fmt::print(stderr, "note: {}\n", note);
  fmt::print(
      "{}: {} parameters of {} ({}), in {}{}\n", out.string(), made.num_parameters, arguments.file,
      listed(made.types), name_of(made.dtype),
      made.num_rounded == 0
          ? ", exactly"
          : fmt::format(", which rounds {} of them (--dtype f32 keeps all)", made.num_rounded));
  return kExitDone;
}

}  // namespace

void add_import(Command& program) {
  auto arguments = std::make_shared<ImportArguments>();
  Command& command =
      program.command("import", "Make a Hugging Face folder of a GGUF file (llama.cpp)");
  command.option("file", arguments->file,
                 {.help = "a .gguf file", .value = "FILE", .required = true});
  command.option("out", arguments->out,
                 {.help = "folder of the model to make", .value = "DIR", .required = true});
  command.option("--dtype", arguments->dtype,
                 {.help = "of its tensors; auto: that of the file's matrices, and bf16 where these "
                          "are quantised"});
  command.footer("Example:\n  tailrace import SmolLM2-135M-Instruct.Q4_1.gguf smollm2");
  command.action([arguments] { return import_file(*arguments); });
}

}  // namespace tailrace
