#include "trainer/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <map>
#include <ranges>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/model/rounding.h"
#include "core/run/run_directory.h"
#include "core/text/tokenizer.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kUnfinished = ".tmp", kDamaged = ".damaged";
constexpr const char* kStateFile = "state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kCriticFile = "critic.safetensors";

// Gives a finished folder its name. A folder that has it already (the same step again, after a
// resume) changes places with it, so that at no moment there is none.
void publish(const fs::path& temporary, const fs::path& final_path) {
  if (!fs::exists(final_path)) {
    fs::rename(temporary, final_path);
    return;
  }
  // rename() does not replace a folder that is not empty.
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0)
    return;
  // A file system without the exchange.
  fs::remove_all(final_path);
  fs::rename(temporary, final_path);
}

// A person may want to look at it; where it cannot be renamed it is passed over again.
void set_aside(const fs::path& damaged) {
  fs::path aside = damaged;
  aside += kDamaged;
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  fs::rename(damaged, aside, ignored);
}

void require(const Result<void>& result) {
  if (!result) throw UserError("{}", result.failure().message);
}

using FileDigests = std::map<std::string, Digest>;

// Digests of all files of a folder but the one that holds them.
FileDigests digest_files(const fs::path& folder) {
  FileDigests digests;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    // It holds the digests, so it cannot be among them; to_proved_json() proves it by itself.
    if (name == kStateFile) continue;
    Result<Digest> digest = digest_of_file(entry.path());
    if (!digest) throw UserError("{}", digest.failure().message);
    digests[name] = digest.value();
  }
  return digests;
}

std::string to_json(const CheckpointState& state, const FileDigests& files) {
  return to_proved_json({{"step", state.step},
                         {"version", state.version},
                         {"updates", state.updates},
                         {"horizon", state.horizon},
                         {"digest", state.digest},
                         {"reference", state.reference},
                         {"base", state.base},
                         {"extra", state.extra},
                         {"files", files}});
}

// A checkpoint that will never read back, unlike one that cannot be read now (no descriptors left).
struct Damaged : UserError {
  using UserError::UserError;
};

Digest proved_digest(const fs::path& file) {
  if (!fs::exists(file)) throw Damaged("{}: it is missing", file.string());
  const Result<Digest> digest = digest_of_file(file);
  if (!digest) throw UserError("{}", digest.failure().message);
  return digest.value();
}

// Reads the state of a checkpoint whose file can be opened.
nlohmann::json read_state(const fs::path& path) {
  try {
    return read_proved_json(path);
  } catch (const UserError& error) {
    throw Damaged("{}", error.what());
  }
}

// Every file of the folder is as it was written.
CheckpointState read_proved_state(const fs::path& folder) {
  const fs::path path = folder / kStateFile;
  // A state that is missing is damage, and one that cannot be opened now is not: the digest tells
  // the two apart before the JSON is read.
  (void)proved_digest(path);
  try {
    const nlohmann::json json = read_state(path);
    for (const auto& [name, digest] : json.at("files").get<FileDigests>()) {
      if (proved_digest(folder / name) != digest)
        throw Damaged("{}: it was changed or damaged since it was saved", (folder / name).string());
    }
    return {.step = json.at("step").get<int64_t>(),
            .version = json.at("version").get<int64_t>(),
            .updates = json.at("updates").get<int64_t>(),
            .horizon = json.at("horizon").get<int64_t>(),
            .digest = json.at("digest").get<std::string>(),
            .reference = json.at("reference").get<std::string>(),
            .base = json.value("base", std::string()),
            .extra = json.at("extra").get<std::string>()};
  } catch (const nlohmann::json::exception& e) {
    throw Damaged("{}: not the state of a checkpoint ({})", path.string(), e.what());
  }
}

}  // namespace

namespace {

bool has_halves(const ModelForm& form) {
  const auto is_half = [](const ModelForm::Tensor& tensor) { return tensor.dtype == Dtype::kF16; };
  return std::ranges::any_of(form.files, [&](const ModelForm::File& file) {
    return std::ranges::any_of(file.tensors, is_half);
  });
}

bool fits(const ModelForm& form, const Parameters& parameters) {
  return !has_halves(form) || std::ranges::all_of(parameters.flat(), [](float value) {
    return std::abs(value) < kF16Limit;
  });
}

// Weights that came in bfloat16, as long as nobody has trained them.
bool are_bf16(const Parameters& parameters) {
  return std::ranges::all_of(parameters.flat(), [](float value) {
    return (std::bit_cast<uint32_t>(value) & 0xFFFFU) == 0;
  });
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path root, fs::path tokenizer_dir, int64_t keep_last)
    : root_(std::move(root)), tokenizer_dir_(std::move(tokenizer_dir)), keep_last_(keep_last) {
  TR_CHECK(keep_last_ >= 1, "keep_last {}", keep_last_);
}

std::vector<fs::path> list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.is_directory() && checkpoint_step(entry.path())) found.push_back(entry.path());
  }
  // By number: "step_1000000" stands before "step_999999" in the alphabet.
  std::ranges::sort(found, {}, [](const fs::path& path) { return *checkpoint_step(path); });
  return found;
}

std::optional<ProvedCheckpoint> find_proved_checkpoint(const fs::path& folder) {
  const std::vector<fs::path> all = list_checkpoints(folder);
  if (all.empty()) return std::nullopt;
  ProvedCheckpoint found;
  // A damaged one costs the steps since the one before it, and not the run.
  for (const fs::path& path : std::views::reverse(all)) {
    try {
      found.state = read_proved_state(path);
      if (checkpoint_step(path) != found.state.step)
        throw Damaged("{}: it holds step {}: the folder was exchanged or renamed", path.string(),
                      found.state.step);
      found.path = path;
      return found;
    } catch (const Damaged& e) {
      found.passed_over.emplace_back(e.what());
      found.damaged.push_back(path);
    } catch (const UserError& e) {
      found.passed_over.emplace_back(e.what());
    }
  }
  throw UserError(
      "{}: no checkpoint is whole, of {}. The newest: {}. Put one of them back, or start a new run "
      "directory.",
      folder.string(), all.size(), found.passed_over.front());
}

void CheckpointFolder::remove_unfinished() const {
  std::error_code ignored;
  std::vector<fs::path> unfinished;
  for (const fs::directory_entry& entry : fs::directory_iterator(root_, ignored)) {
    if (entry.path().filename().string().ends_with(kUnfinished)) unfinished.push_back(entry.path());
  }
  for (const fs::path& path : unfinished) fs::remove_all(path, ignored);
}

void CheckpointFolder::write(const fs::path& folder, const CheckpointState& state,
                             const ModelConfig& config, const Parameters& parameters,
                             const Optimizer& optimizer, const Critic* critic) const {
  fs::create_directories(folder);
  if (config.lora) {
    save_adapter(folder, config.lora, parameters, state.base);
  } else {
    ModelForm form = form_;
    // Weights that float16 does not hold must not be lost: they are saved in the sampling dtype.
    if (!fits(form, parameters)) form.keeps_dtypes = false;
    // A master file is written only where the model's own files round something. Weights in
    // bfloat16 that no update has moved are exact in both, which saves a file of twice their size.
    const bool is_exact =
        save_model(folder, config, parameters, form) ||
        (config.dtype == Dtype::kBF16 && !has_halves(form) && are_bf16(parameters));
    if (!is_exact)
      save_parameters(folder / kMasterFile, parameters,
                      {{kComputeKey, config.dtype == Dtype::kBF16 ? "bf16" : "f32"}});
  }
  if (!tokenizer_dir_.empty()) text::copy_tokenizer(tokenizer_dir_, folder);
  optimizer.save(folder / kOptimizerFile);
  if (critic != nullptr) critic->save(folder / kCriticFile);
  require(write_file_atomic(folder / kStateFile, to_json(state, digest_files(folder))));
  // The files have fsynced themselves; their names are what is left.
  require(sync_directory(folder));
}

Result<fs::path> CheckpointFolder::save(const CheckpointState& state, const ModelConfig& config,
                                        const Parameters& parameters, const Optimizer& optimizer,
                                        const Critic* critic) {
  fs::path final_path = root_ / checkpoint_name(state.step);
  fs::path temporary = final_path;
  temporary += kUnfinished;
  std::error_code ignored;
  try {
    fs::remove_all(temporary);
    write(temporary, state, config, parameters, optimizer, critic);
    publish(temporary, final_path);
    require(sync_directory(root_));
    fs::remove_all(temporary, ignored);
  } catch (const UserError& e) {
    fs::remove_all(temporary, ignored);
    return Failure{fmt::format("checkpoint of step {} was not written: {}", state.step, e.what())};
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(temporary, ignored);
    return Failure{fmt::format("checkpoint of step {} was not written: {}", state.step, e.what())};
  }
  // Only now, when the new one is durable: a crash at any point leaves at least as many as before.
  std::vector<fs::path> all = list_checkpoints(root_);
  // A later one was passed over: it does not count as kept.
  std::erase_if(all, [&](const fs::path& path) { return checkpoint_step(path) > state.step; });
  for (size_t i = 0; i + static_cast<size_t>(keep_last_) < all.size(); ++i)
    fs::remove_all(all[i], ignored);
  return final_path;
}

std::optional<int64_t> CheckpointFolder::oldest() const {
  const std::vector<fs::path> all = list_checkpoints(root_);
  return all.empty() ? std::nullopt : checkpoint_step(all.front());
}

std::optional<ProvedCheckpoint> CheckpointFolder::load_latest(const ModelConfig& config,
                                                              Parameters& parameters,
                                                              Optimizer& optimizer,
                                                              Critic* critic) {
  remove_unfinished();
  auto found = find_proved_checkpoint(root_);
  if (!found) return std::nullopt;
  // Proved, so what does not fit now is of another model.
  load_parameters(found->path, config, parameters, config.lora ? kAdapterFile : "");
  if (!config.lora) use_form(read_model_form(found->path));
  optimizer.load(found->path / kOptimizerFile);
  if (critic != nullptr) {
    const fs::path file = found->path / kCriticFile;
    if (!fs::exists(file))
      throw UserError(
          "{}: it is missing: the run was begun without a critic, and algo.advantage=gae goes on "
          "with one. Start a new run directory.",
          file.string());
    critic->load(file);
  }
  // Behind all that may throw: a checkpoint is renamed only once the run does go on from another.
  for (const fs::path& damaged : found->damaged) set_aside(damaged);
  return found;
}

}  // namespace tailrace
