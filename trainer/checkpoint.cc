#include "trainer/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <ranges>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/run_directory.h"
#include "core/model/parameter_files.h"
#include "core/text/tokenizer.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kUnfinished = ".tmp";
constexpr const char* kStateFile = "state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";

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

void require(const Result<void>& result) {
  if (!result) throw UserError("{}", result.failure().message);
}

std::string to_json(const CheckpointState& state) {
  nlohmann::json json = {{"step", state.step},
                         {"version", state.version},
                         {"updates", state.updates},
                         {"digest", state.digest},
                         {"extra", state.extra}};
  return json.dump(2) + "\n";
}

CheckpointState read_state(const fs::path& path) {
  Result<std::string> text = read_file(path);
  if (!text) throw UserError("{}", text.failure().message);
  nlohmann::json json = nlohmann::json::parse(text.value(), nullptr, /*allow_exceptions=*/false);
  try {
    return {.step = json.at("step").get<int64_t>(),
            .version = json.at("version").get<int64_t>(),
            .updates = json.at("updates").get<int64_t>(),
            .digest = json.at("digest").get<std::string>(),
            .extra = json.at("extra").get<std::string>()};
  } catch (const nlohmann::json::exception& e) {
    throw UserError("{}: not the state of a checkpoint ({})", path.string(), e.what());
  }
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
                             const Optimizer& optimizer) const {
  fs::create_directories(folder);
  save_model(folder, config, parameters);
  if (!tokenizer_dir_.empty()) text::copy_tokenizer(tokenizer_dir_, folder);
  optimizer.save(folder / kOptimizerFile);
  require(write_file_atomic(folder / kStateFile, to_json(state)));
  // The files have fsynced themselves; their names are what is left.
  require(sync_directory(folder));
}

Result<fs::path> CheckpointFolder::save(const CheckpointState& state, const ModelConfig& config,
                                        const Parameters& parameters, const Optimizer& optimizer) {
  fs::path final_path = root_ / checkpoint_name(state.step);
  fs::path temporary = final_path;
  temporary += kUnfinished;
  std::error_code ignored;
  try {
    fs::remove_all(temporary);
    write(temporary, state, config, parameters, optimizer);
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
  for (size_t i = 0; i + static_cast<size_t>(keep_last_) < all.size(); ++i)
    fs::remove_all(all[i], ignored);
  return final_path;
}

std::optional<CheckpointFolder::Loaded> CheckpointFolder::load_latest(const ModelConfig& config,
                                                                      Parameters& parameters,
                                                                      Optimizer& optimizer) {
  remove_unfinished();
  std::vector<fs::path> all = list_checkpoints(root_);
  if (all.empty()) return std::nullopt;
  Loaded loaded;
  // A damaged one costs the steps since the one before it, and not the run. What it had already
  // written to `parameters` the next one overwrites.
  for (const fs::path& path : std::views::reverse(all)) {
    try {
      loaded.state = read_state(path / kStateFile);
      load_parameters(path, config, parameters);
      optimizer.load(path / kOptimizerFile);
      loaded.path = path;
      return loaded;
    } catch (const UserError& e) {
      loaded.damaged.emplace_back(e.what());
    }
  }
  throw UserError(
      "{}: all {} checkpoints are damaged. The newest: {}. Start a new run, or restore one of "
      "them.",
      root_.string(), all.size(), loaded.damaged.front());
}

}  // namespace tailrace
