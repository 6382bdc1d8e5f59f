// `tailrace weights` on runs of the real binary: what is listed, proved, exported and compared.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/file.h"
#include "core/model/adapter_files.h"
#include "core/model/parameter_files.h"
#include "core/model/safetensors.h"
#include "core/run/run_directory.h"
#include "core/weights/version_folder.h"
#include "tests/cli/run_binary.h"
#include "tests/golden/golden.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSteps = 8, kKeep = 2;
constexpr const char* kPrompt = "Once upon a time";

// A finished run of a really trained model: nine versions, of which the two newest and the anchors
// have their payloads.
std::string launch(const fs::path& run, const std::string& more, const fs::path& model) {
  const std::string data = TAILRACE_SOURCE_DIR "/tests/data/";
  const fs::path config = run.string() + ".yaml";
  std::ofstream(config) << fmt::format(R"(
run: {{name: tiny, seed: 3, steps: {1}}}
model: {{path: {3}}}
env:
  name: text
  dataset: {0}prompts/tinystories_prompts.jsonl
  settings: {{verifier: text_rules, stop: "\n"}}
rollout: {{prompts_per_step: 2, group_size: 4, max_turns: 1, max_action_tokens: 16,
  max_context_tokens: 128, workers: 1, threads: 1}}
algo: {{filter_zero_signal: none}}
train: {{microbatch_tokens: 1024, threads: 1}}
optim: {{lr: 0.0005}}
eval: {{prompts: 0}}
weights: {{keep: {2}, anchor_interval: 5}}
)",
                                       data, kSteps, kKeep, model.string());
  const BinaryResult result = run_binary(
      fmt::format("launch {} --in-process --run-dir {} {}", config.string(), run.string(), more));
  return result.exit_code == 0 ? "" : result.out + result.err;
}

class WeightsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryDirectory;
    for (const auto& [name, more] : std::map<std::string, std::string>{
             {"f32", ""}, {"bf16", "model.compute=bf16"}, {"lora", "lora.rank=4"}})
      failures_[name] = launch(*folder_ / name, more, original());
    write_half_model();
    failures_["half"] = launch(*folder_ / "half", "", half_model());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
    failures_.clear();
  }
  void SetUp() override {
    for (const auto& [name, failure] : failures_) ASSERT_EQ(failure, "") << name;
  }

  static fs::path original() { return TAILRACE_SOURCE_DIR "/tests/data/models/stories260K"; }
  static fs::path half_model() { return *folder_ / "half-model"; }
  // The same model in float16, in two files, with the head that it shares with the embeddings, and
  // a config that says more than we read.
  static void write_half_model() {
    const ModelConfig config = read_model_config(original());
    const ParameterLayout layout(config);
    Parameters parameters(layout);
    load_parameters(original(), config, parameters);
    ModelForm form{
        .config = read_file(original() / "config.json").value(),
        .files = {{"model-00001-of-00002.safetensors"},
                  {"model-00002-of-00002.safetensors", {{"lm_head.weight", Dtype::kF16}}}},
        .index = "{}"};
    form.config.insert(1, R"("more": {"eps": 1e-06, "large": 1000000000000000019884624838656},)");
    form.config.replace(form.config.find("float32"), 7, "float16");
    for (const ParameterInfo& info : layout.entries())
      form.files[form.files[0].tensors.size() < 20 ? 0 : 1].tensors.push_back(
          {info.name, Dtype::kF16});
    save_model(half_model(), config, parameters, form);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy_file(original() / name, half_model() / name);
    std::ofstream(half_model() / "generation_config.json") << R"({"temperature": 0.60})";
  }

  static fs::path run(const std::string& name = "f32") { return *folder_ / name; }
  static fs::path weights(const std::string& name = "f32") { return run(name) / "weights"; }
  // In the folder of the runs, so that messages name them shortly.
  static BinaryResult call(const std::string& arguments) {
    return run_binary("weights " + arguments, "", folder_->path().string());
  }
  static void expect_success(const BinaryResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }

  // A copy of a run that a test may damage.
  static fs::path copy_of(const std::string& name) {
    const fs::path copy = *folder_ / "damaged";
    fs::remove_all(copy);
    fs::copy(run(name), copy, fs::copy_options::recursive);
    return copy;
  }
  // `place`: of the file, from 0 to 1.
  static void flip_bit(const fs::path& file, double place) {
    std::string text = read_file(file).value();
    text[static_cast<size_t>(place * static_cast<double>(text.size() - 1))] ^= 4;
    std::ofstream(file, std::ios::binary) << text;
  }

  // The payload of a version, made again where it has none.
  static std::unique_ptr<SafetensorsFile> payload(const std::string& name, int64_t version) {
    const fs::path scratch = *folder_ / "scratch";
    fs::create_directories(scratch);
    const auto file = payload_of(weights(name), 0, version, scratch);
    EXPECT_TRUE(file) << file.failure().message;
    return std::make_unique<SafetensorsFile>(file.value());
  }
  static fs::path export_version(const std::string& name, int64_t version,
                                 const std::string& more = "") {
    const fs::path out = *folder_ / fmt::format("model-{}-{}", name, version);
    fs::remove_all(out);
    const BinaryResult result =
        call(fmt::format("export {} {} {} {}", name, version, out.filename().string(), more));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return out;
  }

  static TemporaryDirectory* folder_;
  static std::map<std::string, std::string> failures_;  // of the launch of each run
};
TemporaryDirectory* WeightsTest::folder_ = nullptr;
std::map<std::string, std::string> WeightsTest::failures_;

TEST_F(WeightsTest, ListsEachVersionAndWhatLeadsToIt) {
  const BinaryResult result = call("list bf16");
  expect_success(result);
  for (const StoredVersion& version : list_versions(weights("bf16"))) {
    const auto manifest = read_manifest(weights("bf16") / manifest_name(0, version.version));
    EXPECT_NE(result.out.find(fmt::format("{:>8}  {}", version.version, manifest.value().root)),
              std::string::npos)
        << result.out;
  }
  EXPECT_NE(result.out.find("  whole\n"), std::string::npos);
}

// Old versions are there as deltas, and what they are made of is what was published.
TEST_F(WeightsTest, ProvesAllVersionsOrOne) {
  for (const std::string name : {"f32", "bf16", "lora"}) {
    const BinaryResult all = call("verify " + name);
    EXPECT_EQ(all.exit_code, 0) << all.out << all.err;
    EXPECT_NE(all.out.find(": all proved\n"), std::string::npos) << all.out;
  }
  bool made_again = false;
  for (const StoredVersion& version : list_versions(weights())) {
    const BinaryResult one = call(fmt::format("verify f32 {}", version.version));
    EXPECT_NE(one.out.find(fmt::format(": 1 version, {} of them whole", version.is_whole ? 1 : 0)),
              std::string::npos)
        << one.out << one.err;
    made_again |= !version.is_whole;
  }
  EXPECT_TRUE(made_again) << "some have given their payload up";
  EXPECT_NE(call("verify f32 latest").out.find("1 version, 1 of them whole"), std::string::npos);
}

TEST_F(WeightsTest, NamesTheFileAndTheTensorOfAFlippedBit) {
  const std::vector<StoredVersion> versions = list_versions(weights());
  const StoredVersion& newest = versions.back();
  const auto old = std::ranges::find_if(versions, [](const StoredVersion& version) {
    return !version.is_whole && !version.deltas.empty();
  });
  ASSERT_NE(old, versions.end());
  const std::string manifest = manifest_name(0, newest.version);
  const struct {
    std::string file;
    bool names_tensor;
  } files[] = {{payload_name(manifest), true},
               {delta_name(0, old->deltas.front(), old->version), true},
               {manifest, false}};
  for (const auto& [file, names_tensor] : files) {
    const fs::path damaged = copy_of("f32");
    flip_bit(damaged / "weights" / file, 0.6);
    const BinaryResult result = call("verify damaged");
    EXPECT_EQ(result.exit_code, 1) << file << "\n" << result.out << result.err;
    const size_t line = result.out.find("damaged: ");
    ASSERT_NE(line, std::string::npos) << file << result.out;
    const std::string first = result.out.substr(line, result.out.find('\n', line) - line);
    EXPECT_NE(first.find(file), std::string::npos) << result.out;
    EXPECT_EQ(first.find("tensor model.") != std::string::npos, names_tensor) << result.out;
  }
  // One version that the damage does not reach is what it was.
  flip_bit(copy_of("f32") / "weights" / payload_name(manifest), 0.6);
  EXPECT_EQ(call(fmt::format("verify damaged {}", newest.version)).exit_code, 1);
  EXPECT_EQ(call(fmt::format("verify damaged {}", newest.version - 1)).exit_code, 0);
}

TEST_F(WeightsTest, AMissingDeltaAndAnUnfinishedFileAreSaid) {
  const fs::path damaged = copy_of("f32");
  const std::vector<StoredVersion> versions = list_versions(damaged / "weights");
  const auto old = std::ranges::find_if(
      versions, [](const StoredVersion& version) { return !version.is_whole; });
  ASSERT_NE(old, versions.end());
  for (const int64_t from : old->deltas)
    fs::remove(damaged / "weights" / delta_name(0, from, old->version));
  const fs::path unfinished = damaged / "weights" / "p0-v99.safetensors.unfinished";
  std::ofstream(unfinished) << "half";
  // One that is young may be a version that comes.
  fs::last_write_time(unfinished, fs::file_time_type::clock::now() - std::chrono::minutes(5));
  const BinaryResult result = call("verify damaged");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find(manifest_name(0, old->version)), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("neither its payload nor a way of deltas"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("note: "), std::string::npos) << result.out;
}

// The values of a version, bit for bit, with its dtype, also where deltas alone lead to it.
TEST_F(WeightsTest, ExportsTheBitsOfAVersion) {
  for (const std::string name : {"f32", "bf16"}) {
    for (const StoredVersion& stored : list_versions(weights(name))) {
      if (stored.version % 3 != 0 && stored.version != kSteps) continue;
      const fs::path out = export_version(name, stored.version);
      const auto version = payload(name, stored.version);
      const SafetensorsFile model(out / "model.safetensors");
      EXPECT_EQ(model.tensors().size(), version->tensors().size());
      bool has_bf16 = false;
      for (const auto& [tensor, published] : version->tensors()) {
        const auto found = model.tensors().find(tensor);
        ASSERT_NE(found, model.tensors().end()) << tensor;
        EXPECT_EQ(found->second.dtype, published.dtype) << tensor;
        EXPECT_TRUE(std::ranges::equal(found->second.data, published.data)) << tensor;
        has_bf16 |= published.dtype == Dtype::kBF16;
      }
      EXPECT_EQ(has_bf16, name == "bf16");
    }
  }
}

// Files, names and dtypes as they came; before any training every byte, too.
TEST_F(WeightsTest, AnExportHasTheFormInWhichTheModelCame) {
  const auto bytes_of = [](const fs::path& folder, const std::string& name) {
    return read_file(folder / name).value();
  };
  for (const int64_t version : {int64_t{0}, kSteps}) {
    const fs::path out = export_version("half", version);
    const fs::path checkpoint = RunPaths{run("half")}.checkpoints() / checkpoint_name(kSteps);
    for (const fs::path& written : {out, checkpoint}) {
      for (const fs::directory_entry& entry : fs::directory_iterator(half_model())) {
        const std::string name = entry.path().filename();
        ASSERT_TRUE(fs::exists(written / name)) << name;
        if (entry.path().extension() != ".safetensors") {
          EXPECT_EQ(bytes_of(written, name), bytes_of(half_model(), name)) << name;
          continue;
        }
        const SafetensorsFile before(entry.path()), after(written / name);
        ASSERT_EQ(after.tensors().size(), before.tensors().size());
        EXPECT_EQ(after.metadata(), before.metadata());
        for (const auto& [tensor, view] : before.tensors()) {
          const auto found = after.tensors().find(tensor);
          ASSERT_NE(found, after.tensors().end()) << tensor;
          EXPECT_EQ(found->second.dtype, Dtype::kF16) << tensor;
          if (version == 0 && written == out) {
            EXPECT_TRUE(std::ranges::equal(found->second.data, view.data)) << tensor;
          }
        }
      }
    }
  }
  // The bits that sampled are those of float32.
  const fs::path out = export_version("half", kSteps, "--dtype f32");
  const auto version = payload("half", kSteps);
  const ModelConfig config = read_model_config(out);
  EXPECT_EQ(config.dtype, Dtype::kF32);
  const ParameterLayout layout(config);
  Parameters parameters(layout);
  load_parameters(out, config, parameters);
  for (const auto& [tensor, view] : version->tensors())
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(parameters.vector(tensor)), view.data)) << tensor;
  const BinaryResult told = call("export half latest model-told");
  EXPECT_NE(told.out.find("matrices in float16, rounded from what sampled"), std::string::npos)
      << told.out;
  const BinaryResult adapter = call("export lora latest model-adapter --dtype bf16");
  EXPECT_EQ(adapter.exit_code, 2);
  EXPECT_NE(adapter.err.find("trains an adapter, which is written in float32"), std::string::npos)
      << adapter.err;
}

// The newest one samples as the checkpoint of the same step.
TEST_F(WeightsTest, WhatIsExportedIsAModelForTheOtherCommands) {
  for (const std::string name : {"f32", "bf16", "lora"}) {
    const fs::path out = export_version(name, kSteps);
    const fs::path checkpoint = RunPaths{run(name)}.checkpoints() / checkpoint_name(kSteps);
    const auto generate = [&](const fs::path& model) {
      const BinaryResult result = run_binary(
          fmt::format("model generate --model {} --prompt \"{}\" --seed 5 --max-new-tokens 24",
                      model.string(), kPrompt));
      EXPECT_EQ(result.exit_code, 0) << name << ": " << result.err;
      return result.out;
    };
    EXPECT_EQ(generate(out), generate(checkpoint)) << name;
    const BinaryResult eval = run_binary(fmt::format(
        "eval --model {} --env text --dataset {}/tests/data/prompts/tinystories_held_out.jsonl "
        "--settings verifier=text_rules --episodes 2 --max-action-tokens 8",
        out.string(), TAILRACE_SOURCE_DIR));
    EXPECT_EQ(eval.exit_code, 0) << name << ": " << eval.err;
  }
}

TEST_F(WeightsTest, OfAnAdapterTheExportIsAFolderOfPeft) {
  for (const int64_t version : {int64_t{0}, kSteps - 3}) {
    const fs::path out = export_version("lora", version);
    ASSERT_TRUE(is_adapter(out));
    const ModelConfig config = read_policy_folder(out).config;
    EXPECT_EQ(config.lora.rank, 4);
    EXPECT_EQ(base_root_of(out),
              read_manifest(weights("lora") / manifest_name(0, version)).value().base);
    const ParameterLayout layout = ParameterLayout::of_adapter(config);
    Parameters adapter(layout);
    load_parameters(out, config, adapter, kAdapterFile);
    const auto published = payload("lora", version);
    for (const auto& [name, view] : published->tensors()) {
      std::vector<float> values(static_cast<size_t>(view.num_elements()));
      to_float(view, values);
      EXPECT_TRUE(
          std::ranges::equal(std::as_bytes(std::span(values)), std::as_bytes(adapter.vector(name))))
          << name;
    }
  }
}

TEST_F(WeightsTest, CountsWhatDiffersBetweenTwoVersions) {
  const auto all = [](const std::string& out) { return out.substr(out.rfind("\nall ") + 1); };
  const BinaryResult same = call("diff f32 5 5");
  expect_success(same);
  EXPECT_NE(all(same.out).find("  0    0.000\n"), std::string::npos) << same.out;
  const BinaryResult other = call("diff bf16 0 latest");
  expect_success(other);
  // By another way: element by element.
  const auto a = payload("bf16", 0), b = payload("bf16", kSteps);
  int64_t elements = 0, changed = 0;
  for (const auto& [name, before] : a->tensors()) {
    const auto count = static_cast<size_t>(before.num_elements());
    std::vector<float> x(count), y(count);
    to_float(before, x);
    to_float(b->tensors().at(name), y);
    for (size_t i = 0; i < count; ++i) changed += x[i] != y[i] ? 1 : 0;
    elements += before.num_elements();
  }
  EXPECT_GT(changed, 0);
  EXPECT_NE(all(other.out).find(fmt::format("{:>12}  {:>12}", elements, changed)),
            std::string::npos)
      << other.out;
}

TEST_F(WeightsTest, MistakesAreSaid) {
  const fs::path damaged = copy_of("f32");
  flip_bit(damaged / "weights" / payload_name(manifest_name(0, kSteps)), 0.6);
  fs::create_directories(*folder_ / "full");
  std::ofstream(*folder_ / "full" / "file") << "mine";
  fs::create_directories(*folder_ / "empty");
  fs::remove_all(*folder_ / "young");
  fs::create_directories(*folder_ / "young");
  std::ofstream(*folder_ / "young" / "config.yaml") << "run: {steps: 4}\n";
  std::string text;
  for (const std::string arguments :
       {"list none", "list empty", "verify young", "verify f32 99", "verify f32 -1",
        "verify f32 newest", "export f32 latest full", "export f32 99 model-99",
        "export damaged latest model-damaged", "diff f32 0", "diff f32 0 x", "diff none 0 1"}) {
    BinaryResult result = call(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.out;
    const std::string place = folder_->path().string();
    for (size_t at; (at = result.err.find(place)) != std::string::npos;)
      result.err.replace(at, place.size(), "DIR");
    text += "$ weights " + arguments + "\n" + result.err + "\n";
  }
  // Roots and digests depend on the instruction set.
  for (size_t at = 0, length; at < text.size(); at += std::max<size_t>(length, 1)) {
    length = text.find_first_not_of("0123456789abcdef", at);
    length = (length == std::string::npos ? text.size() : length) - at;
    if (length == 32) text.replace(at, length, "DIGEST"), length = 6;
  }
  EXPECT_FALSE(fs::exists(*folder_ / "model-damaged")) << "whole or not at all";
  for (const auto& entry : fs::directory_iterator(folder_->path()))
    EXPECT_EQ(entry.path().string().find(".unfinished"), std::string::npos) << entry.path();
  expect_golden("messages/weights.txt", text);
}

}  // namespace
}  // namespace tailrace
