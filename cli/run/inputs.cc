#include "cli/run/inputs.h"

#include <filesystem>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_file.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct Input {
  std::string key;  // of the config that names it
  fs::path path;
};

// By the name that stays when a run is moved.
std::map<std::string, Input> inputs_of(const RunPaths& paths, const RunOptions& o) {
  std::map<std::string, Input> inputs;
  const auto named = [&](const char* key, const fs::path& path) {
    if (!path.empty()) inputs[key] = {key, path};
  };
  named("env.dataset", o.env.dataset);
  if (o.eval.prompts > 0) named("env.eval_dataset", o.env.eval_dataset);
  named("sft.data", o.sft.data);
  // Its weights are read before the first checkpoint only; its shape is, whenever the run goes on.
  if (!o.model.path.empty()) named("model.path", fs::path(o.model.path) / "config.json");
  if (o.sft.demonstrations > 0)
    inputs["demonstrations"] = {"sft.demonstrations", paths.demonstrations()};
  for (const fs::directory_entry& entry : fs::directory_iterator(paths.tokenizer()))
    inputs["tokenizer/" + entry.path().filename().string()] = {"model.path", entry.path()};
  return inputs;
}

bool has_begun(const RunPaths& paths) {
  std::error_code error;
  return fs::directory_iterator(paths.journal(), error) != fs::directory_iterator();
}

}  // namespace

void prove_inputs(const RunPaths& paths, const RunOptions& options) {
  nlohmann::json noted = nlohmann::json::object();
  if (fs::exists(paths.inputs())) {
    noted = read_proved_json(paths.inputs());
  } else if (has_begun(paths)) {
    throw UserError(
        "{} is gone: whether the run would go on with the data that it began with is not known. "
        "Put it back, or start a new run directory.",
        paths.inputs().string());
  }
  const size_t num_noted = noted.size();
  for (const auto& [name, input] : inputs_of(paths, options)) {
    const Result<Digest> digest = digest_of_file(input.path);
    if (!digest) throw UserError("{}", digest.failure().message).about(input.key);
    const auto [known, is_new] = noted.emplace(name, digest.value());
    if (*known != digest.value())
      throw UserError(
          "{}: it has changed since the run began, and a run keeps what it began with. Put the "
          "file back, or start a new run directory.",
          input.path.string())
          .about(input.key);
  }
  if (noted.size() == num_noted) return;
  if (auto written = write_file_atomic(paths.inputs(), to_proved_json(noted)); !written)
    throw UserError("{}", written.failure().message);
}

}  // namespace tailrace
