#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/config/counted.h"
#include "cli/eval/loaded_model.h"
#include "core/base/error.h"
#include "core/base/exit_code.h"
#include "core/base/file.h"
#include "core/base/join_texts.h"
#include "core/config/flags.h"
#include "core/model/adapter_files.h"
#include "core/model/compute.h"
#include "core/model/model_form.h"
#include "core/model/parameter_files.h"
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"
#include "core/weights/proved_weights.h"
#include "core/weights/verify.h"
#include "core/weights/version_folder.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct WeightsArguments {
  std::string run, version, other, out;
  Compute dtype = Compute::kAuto;
};

fs::path weights_of(const std::string& run) {
  const RunPaths paths{run};
  std::error_code ignored;
  if (!fs::exists(paths.config(), ignored))
    throw UserError("{} is no run directory: it has no config.yaml.", run);
  if (!fs::is_directory(paths.weights(), ignored))
    throw UserError("{} has published no weights yet.", run);
  return paths.weights();
}

std::string listed(const std::vector<StoredVersion>& versions) {
  std::string text;
  for (const StoredVersion& version : versions)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", version.version);
  return text;
}

// "12", or "latest".
StoredVersion version_of(const fs::path& folder, const std::string& text) {
  const std::vector<StoredVersion> versions = list_versions(folder);
  if (versions.empty()) throw UserError("{} holds no versions.", folder.string());
  if (text == "latest") return versions.back();
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw UserError("VERSION is '{}', and a version is a number, or latest.", text);
  const auto found = std::ranges::find(versions, number, &StoredVersion::version);
  if (found == versions.end())
    throw UserError("{} has no version {}. It has {}.", folder.string(), number, listed(versions));
  return *found;
}

// Removes what others of this name have left that were killed.
void sweep_scratch(const fs::path& beside) {
  const std::string prefix = beside.filename().string() + ".unfinished.";
  std::error_code ignored;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(beside.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    pid_t pid = 0;
    if (!name.starts_with(prefix) || !entry.is_directory(ignored) || entry.is_symlink(ignored))
      continue;
    const char* const begin = name.data() + prefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), pid);
    // A process of this number lives: the folder may be its own, or an older one's whose number was
    // given again. It stays then.
    const bool is_ours = error == std::errc() && end == name.data() + name.size() && pid > 0;
    if (is_ours && ::kill(pid, 0) != 0 && errno == ESRCH) left.push_back(entry.path());
  }
  for (const fs::path& folder : left) fs::remove_all(folder, ignored);
}

// Holds what is made again on the way, until it ends.
class Scratch {
 public:
  explicit Scratch(const fs::path& beside)
      : path_(fmt::format("{}.unfinished.{}", beside.string(), ::getpid())) {
    sweep_scratch(beside);
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw UserError("{}", describe_errno("create", path_, error.value()));
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  const fs::path path_;
};

fs::path below_temporary() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error)
    throw UserError("TMPDIR names no folder, and versions are made again there. Name one that is.");
  return folder / "tailrace-weights";
}

int list(const WeightsArguments& arguments) {
  const fs::path folder = weights_of(arguments.run);
  fmt::print("{:>8}  {:<32}  {:>12}  {}\n", "version", "root", "bytes", "from");
  for (const StoredVersion& version : list_versions(folder)) {
    const std::string name = manifest_name(version.policy, version.version);
    const auto manifest = read_manifest(folder / name);
    if (!manifest) {
      fmt::print("{:>8}  {}\n", version.version, manifest.failure().message);
      continue;
    }
    const auto size_of_file = [&](const std::string& file) {
      std::error_code ignored;
      const auto size = fs::file_size(folder / file, ignored);
      return ignored ? 0 : static_cast<int64_t>(size);
    };
    if (version.is_whole)
      fmt::print("{:>8}  {}  {:>12}  whole\n", version.version, manifest.value().root,
                 size_of_file(manifest.value().payload));
    for (const int64_t from : version.deltas)
      fmt::print("{:>8}  {}  {:>12}  delta from {}\n", version.version, manifest.value().root,
                 size_of_file(delta_name(version.policy, from, version.version)), from);
  }
  return kExitDone;
}

int verify(const WeightsArguments& arguments) {
  const fs::path folder = weights_of(arguments.run);
  std::optional<int64_t> version;
  if (!arguments.version.empty()) version = version_of(folder, arguments.version).version;
  const Scratch scratch(below_temporary());
  const VerifiedFolder found = verify_versions(folder, version, scratch.path());
  for (const std::string& damage : found.damages) fmt::print("damaged: {}\n", damage);
  for (const std::string& lost : found.lost) fmt::print("lost: {}\n", lost);
  for (const std::string& stray : found.strays)
    fmt::print("note: {} belongs to no version; a process that was killed may have left it\n",
               (folder / stray).string());
  if (found.versions == 0) throw UserError("{} holds no versions.", folder.string());
  fmt::print("{}: {}, {} of them whole, {}, {} bytes: {}\n", folder.string(),
             counted(found.versions, "version"), found.whole, counted(found.deltas, "delta"),
             found.bytes,
             found.damages.empty() ? "all proved" : counted(std::ssize(found.damages), "damage"));
  return found.damages.empty() && found.lost.empty() ? kExitDone : kExitFailed;
}

// "matrices in float16, rounded from what sampled": of a folder that was written of `weights`.
std::string described(const fs::path& folder, const ProvedWeights& weights,
                      const ParameterLayout& layout) {
  std::map<std::string_view, Dtype> sampled;
  for (const ParameterInfo& info : layout.entries())
    sampled[info.name] = weights.values(info.name).dtype();
  std::set<std::string_view> matrices;
  bool is_rounded = false;
  for (const ModelForm::File& file : read_model_form(folder).files) {
    for (const auto& [name, dtype] : file.tensors) {
      const auto found = sampled.find(name);
      if (found == sampled.end()) continue;  // tied embeddings, as a head too
      // float32 holds the values of every narrower dtype.
      if (dtype != found->second && dtype != Dtype::kF32) is_rounded = true;
      if (layout.at(name).shape.size() > 1)
        matrices.insert(dtype == Dtype::kF32    ? "float32"
                        : dtype == Dtype::kBF16 ? "bfloat16"
                                                : "float16");
    }
  }
  const bool all_float32 = matrices == std::set<std::string_view>{"float32"};
  return fmt::format("{}{}{}", all_float32 ? "" : "matrices in ",
                     join_texts(std::vector(matrices.begin(), matrices.end()), " and "),
                     is_rounded ? ", rounded from what sampled" : "");
}

int export_version(const WeightsArguments& arguments) {
  const fs::path folder = weights_of(arguments.run);
  const StoredVersion version = version_of(folder, arguments.version);
  if (arguments.out.empty()) throw UserError("DIR is empty. Name a folder for the model.");
  fs::path out = fs::absolute(arguments.out).lexically_normal();
  if (!out.has_filename()) out = out.parent_path();  // "model/"
  std::error_code ignored;
  const bool is_there = fs::symlink_status(out, ignored).type() != fs::file_type::not_found;
  if (is_there &&
      (!fs::is_directory(fs::symlink_status(out, ignored)) || !fs::is_empty(out, ignored)))
    throw UserError("{} exists and is not empty. Name a new folder.", out.string());
  const RunPaths paths{arguments.run};
  const auto newest = newest_checkpoint(paths);
  if (!newest)
    throw UserError("{} has no checkpoint, whose config.json says what the tensors are.",
                    arguments.run);
  const fs::path shape = paths.checkpoints() / checkpoint_name(*newest);
  const ModelConfig config = read_policy_folder(shape).config;
  if (config.lora && arguments.dtype != Compute::kAuto)
    throw UserError(
        "--dtype: {} trains an adapter, which is written in float32. Leave it out; 'tailrace "
        "merge' "
        "makes a model of both in a dtype.",
        arguments.run);
  // Whole or not at all: what a full disk leaves would look like a model.
  const Scratch unfinished(out), scratch(below_temporary());
  const std::string name = manifest_name(version.policy, version.version);
  // An older version is kept as a delta, from which its payload is made again in the scratch
  // folder.
  auto payload = payload_of(folder, version.policy, version.version, scratch.path());
  if (!payload) throw UserError("{}", payload.failure().message);
  fs::path manifest = folder / name;
  // prove_weights() looks for a payload beside its manifest.
  if (payload.value().parent_path() != folder) {
    std::error_code error;
    fs::copy_file(manifest, scratch.path() / name, error);
    if (error) throw UserError("{}", describe_errno("copy", manifest, error.value()));
    manifest = scratch.path() / name;
  }
  const auto read = read_manifest(manifest);
  if (!read) throw UserError("{}", read.failure().message);
  const ParameterLayout layout = ParameterLayout::trained(config);
  const auto proved = prove_weights(manifest, read.value().root, layout);
  if (!proved)
    throw UserError(
        "{}\n       Version {} is damaged. Export another one; 'tailrace weights verify {}' names "
        "all that is.",
        proved.failure().message, version.version, arguments.run);
  Parameters parameters(layout);
  ModelConfig written = config;
  written.dtype = Dtype::kF32;
  for (const ParameterInfo& info : layout.entries()) {
    const TensorValues values = proved.value().values(info.name);
    values.to_floats(parameters.vector(info.name));
    if (values.dtype() == Dtype::kBF16) written.dtype = Dtype::kBF16;
  }
  std::string kind = "an adapter";
  if (config.lora) {
    save_adapter(unfinished.path(), config.lora, parameters, proved.value().base());
  } else {
    ModelForm form = read_model_form(shape);
    form.keeps_dtypes = arguments.dtype == Compute::kAuto;
    if (!form.keeps_dtypes) written.dtype = compute_dtype(arguments.dtype, written);
    save_model(unfinished.path(), written, parameters, form);
    kind = described(unfinished.path(), proved.value(), layout);
  }
  text::copy_tokenizer(tokenizer_folder(shape), unfinished.path());
  fs::remove(out, ignored);  // where it is empty
  std::error_code error;
  fs::rename(unfinished.path(), out, error);
  if (error) throw UserError("{}", describe_errno("make", out, error.value()));
  fmt::print("{}: version {} of {}, {}, root {}\n", arguments.out, version.version, arguments.run,
             kind, proved.value().root());
  return kExitDone;
}

int diff(const WeightsArguments& arguments) {
  const fs::path folder = weights_of(arguments.run);
  const StoredVersion a = version_of(folder, arguments.version),
                      b = version_of(folder, arguments.other);
  const Scratch first(below_temporary().string() + "-a"), second(below_temporary().string() + "-b");
  const auto open = [&](const StoredVersion& version, const Scratch& scratch) {
    auto payload = payload_of(folder, version.policy, version.version, scratch.path());
    if (!payload) throw UserError("{}", payload.failure().message);
    const auto manifest = read_manifest(folder / manifest_name(version.policy, version.version));
    if (!manifest) throw UserError("{}", manifest.failure().message);
    if (auto proof = prove_payload(payload.value(), manifest.value()); !proof)
      throw UserError("{}", proof.failure().message);
    return std::make_unique<SafetensorsFile>(payload.value());
  };
  const auto from = open(a, first), to = open(b, second);
  int64_t all = 0, changed = 0;
  fmt::print("{:<56}  {:>12}  {:>12}  {:>7}\n", "tensor", "elements", "changed", "%");
  for (const auto& [name, before] : from->tensors()) {
    const auto found = to->tensors().find(name);
    if (found == to->tensors().end() || found->second.data.size() != before.data.size()) {
      fmt::print("{:<56}  another shape or dtype\n", name);
      continue;
    }
    // By bits, as a digest sees them: -0 and 0 differ, and a NaN is equal to itself.
    const auto width = static_cast<size_t>(size_of(before.dtype));
    int64_t differ = 0;
    for (size_t i = 0; i < before.data.size(); i += width)
      differ +=
          std::ranges::equal(before.data.subspan(i, width), found->second.data.subspan(i, width))
              ? 0
              : 1;
    all += before.num_elements();
    changed += differ;
    if (differ > 0)
      fmt::print("{:<56}  {:>12}  {:>12}  {:>7.3f}\n", name, before.num_elements(), differ,
                 100.0 * static_cast<double>(differ) / static_cast<double>(before.num_elements()));
  }
  for (const auto& [name, after] : to->tensors())
    if (!from->tensors().contains(name)) fmt::print("{:<56}  not in the first\n", name);
  fmt::print("{:<56}  {:>12}  {:>12}  {:>7.3f}\n", "all", all, changed,
             all == 0 ? 0.0 : 100.0 * static_cast<double>(changed) / static_cast<double>(all));
  return kExitDone;
}

}  // namespace

void add_weights(Command& program) {
  Command& weights =
      program.command("weights", "Versions of a run's weights: list, verify, export, compare");
  auto arguments = std::make_shared<WeightsArguments>();
  const auto run = [&](Command& command) {
    command.option("run", arguments->run,
                   {.help = "run directory", .value = "RUN", .required = true});
  };
  Command& listing = weights.command("list", "The versions that RUN/weights keeps");
  run(listing);
  listing.footer("Example:\n  tailrace weights list runs/a");
  listing.action([arguments] { return list(*arguments); });

  Command& verification = weights.command(
      "verify", "Prove every byte of the manifests, payloads and deltas; exit code 1: damaged");
  run(verification);
  verification.option("version", arguments->version,
                      {.help = "that alone: its number, or latest", .value = "VERSION"});
  verification.footer("Example:\n  tailrace weights verify runs/a");
  verification.action([arguments] { return verify(*arguments); });

  Command& exporting = weights.command("export", "Write a version as a Hugging Face folder");
  run(exporting);
  exporting.option("version", arguments->version,
                   {.help = "its number, or latest", .value = "VERSION", .required = true});
  exporting.option("out", arguments->out,
                   {.help = "folder of the model to make", .value = "DIR", .required = true});
  exporting.option("--dtype", arguments->dtype,
                   {.help = "of its matrices, f32 or bf16, with norms in f32; auto: each tensor as "
                            "the model came"});
  exporting.footer("Example:\n  tailrace weights export runs/a 12 model-12");
  exporting.action([arguments] { return export_version(*arguments); });

  Command& comparison = weights.command("diff", "How many elements differ between two versions");
  run(comparison);
  comparison.option("a", arguments->version,
                    {.help = "a number, or latest", .value = "A", .required = true});
  comparison.option("b", arguments->other,
                    {.help = "a number, or latest", .value = "B", .required = true});
  comparison.footer("Example:\n  tailrace weights diff runs/a 11 12");
  comparison.action([arguments] { return diff(*arguments); });
}

}  // namespace tailrace
