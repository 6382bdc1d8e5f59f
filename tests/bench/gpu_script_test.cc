// bench/gpu.sh, in a bundle whose programs have an emulated GPU and the smallest work: what it says
// of parts that are right, that fail, and that cannot run.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::set<std::string> kParts = {
    "facts",          "limits",      "parity",     "golden",    "engine",  "trainer",
    "rollout_worker", "same_as_cpu", "quickstart", "grpo",      "decode",  "prefill",
    "training",       "products",    "memcheck",   "racecheck", "pytorch", "transformers"};

class Bundle {
 public:
  Bundle() {
    fs::create_directories(root_ / "bin/bench");
    fs::create_directories(root_ / "lib");
    fs::create_directories(root_ / "tools");
    const fs::path source = TAILRACE_SOURCE_DIR;
    fs::copy_file(source / "bench/gpu.sh", root_ / "gpu.sh");
    fs::create_directory_symlink(source / "tests/data", root_ / "data");
    fs::create_directory_symlink(source / "configs", root_ / "configs");
    write("bundle.txt", "commit emulated\n");
    // What the parts launch, but tiny.
    script(
        "bin/tailrace",
        "if [[ $1 == launch ]]; then\n"
        "  args=()\n"
        "  for arg in \"$@\"; do\n"
        "    [[ $arg =~ ^(model.create|run.steps|rollout.max_sequences|algo.filter|sft|eval) ]] || "
        "args+=(\"$arg\")\n"
        "  done\n"
        "  set -- \"${args[@]}\" run.steps=2 rollout.prompts_per_step=4 rollout.group_size=4 "
        "rollout.max_turns=4 rollout.max_context_tokens=128 rollout.max_batch_tokens=256 "
        "train.microbatch_tokens=256 algo.filter_zero_signal=none sft.demonstrations=8 "
        "sft.epochs=1 eval.prompts=4 eval.interval_steps=0\n"
        "  [[ $* != *grpo* ]] || set -- \"$@\" model.create.hidden_size=32 "
        "model.create.layers=1 model.create.intermediate_size=64 model.create.heads=2 "
        "model.create.kv_heads=1 rollout.max_sequences=16\n"
        "fi\n" TAILRACE_EMULATED " \"$@\"");
    script("bin/bench/cuda", TAILRACE_EMULATED_BENCH
           " \"$@\" --geometry mini --batch 1,2 --rows 1,70 --context 20 --prompt 20 --tokens 24 "
           "--sequence 12 --steps 1 "
           "--runs 1 --milliseconds 0 --copy-mib 1 --weights-mib 1 --product 64");
    script("bin/test_cuda_gpu", TAILRACE_EMULATED_OPS " \"$@\" --gtest_filter='CudaRows.*'");
    script("bin/test_cuda_model_gpu",
           TAILRACE_EMULATED_MODEL " \"$@\" --gtest_filter='*GreedyTextAgrees/qwen2_tied_f32'");
    script("bin/test_cuda_engine_gpu",
           TAILRACE_EMULATED_ENGINE " \"$@\" --gtest_filter='*SamplesWhatAWholePassGives/F32'");
    script("bin/test_cuda_trainer_gpu",
           TAILRACE_EMULATED_TRAINER " \"$@\" --gtest_filter='*ScoresAreTheSameBits*/DenseF32'");
    // A test is a part by its line in the list, with the filter that stands there.
    script("bin/test_cuda_rollout_worker_gpu",
           "[[ $* != *--gtest_filter=Some.*:Other.*-No.* ]] || echo '[  PASSED  ] 2 tests.'");
    write("bin/gpu_tests.txt",
          "test_cuda_gpu\ttest_cuda_gpu\t*\n"
          "test_cuda_model_gpu\ttest_cuda_model_gpu\t-*AdamW*\n"
          "test_cuda_engine_gpu\ttest_cuda_engine_gpu\t*\n"
          "test_cuda_rollout_worker_gpu\ttest_cuda_rollout_worker_gpu\tSome.*:Other.*-No.*\n"
          "test_cuda_trainer_gpu\ttest_cuda_trainer_gpu\t*\n");
    // Its options, then the program.
    script("tools/compute-sanitizer", "shift 4; exec \"$@\"");
    script("tools/python3", "exit 1");
  }
  Bundle(const Bundle&) = delete;

  void script(const std::string& path, const std::string& line) {
    write(path, "#!/bin/bash\n" + line + "\n");
    fs::permissions(root_ / path, fs::perms::owner_all);
  }
  // For tests of something else: the comparison of texts fails at once.
  void without_texts() {
    script("bin/tailrace", "[[ $1 == --version || $1 == doctor ]] && exit 0; exit 3");
  }
  // Its exit status.
  int run() {
    const int status = std::system(
        fmt::format("cd {0} && env -i PATH={0}/tools:/usr/bin:/bin ./gpu.sh > out 2> err",
                    root_.string())
            .c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string read(const std::string& path) const {
    std::ifstream file(root_ / path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::map<std::string, json> parts() const {
    std::map<std::string, json> parts;
    const json all = json::parse(read("gpu-results/gpu.json"), nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(all.is_discarded()) << read("gpu-results/gpu.json");
    if (all.is_discarded()) return parts;
    for (const json& part : all["parts"]) parts[part["part"]] = part;
    return parts;
  }

 private:
  void write(const std::string& path, const std::string& text) {
    std::ofstream(root_ / path) << text;
  }
  TemporaryDirectory directory_;
  fs::path root_ = directory_.path();
};

TEST(GpuScript, RunsEveryPart) {
  Bundle bundle;
  EXPECT_EQ(bundle.run(), 0) << bundle.read("out") << bundle.read("err");
  auto parts = bundle.parts();
  ASSERT_EQ(parts.size(), kParts.size());
  for (const std::string& name : kParts) {
    EXPECT_EQ(parts[name]["status"], name == "pytorch" || name == "transformers" ? "not run" : "ok")
        << parts[name];
    const bool has_rows = name == "facts" || name == "limits" || name == "decode" ||
                          name == "prefill" || name == "products" || name == "training" ||
                          name == "grpo";
    EXPECT_EQ(!parts[name]["rows"].empty(), has_rows) << parts[name];
  }
  EXPECT_EQ(parts["pytorch"]["detail"], "Python has no torch");
  EXPECT_EQ(parts["facts"]["detail"], "emulated GPU");
  EXPECT_EQ(parts["golden"]["detail"], "1 test.");
  EXPECT_EQ(parts["rollout_worker"]["detail"], "2 tests.");
  const std::string learned = parts["quickstart"]["detail"];
  EXPECT_TRUE(learned.starts_with("quickstart: success ")) << learned;
  EXPECT_TRUE(learned.ends_with("largest mismatch of a log-probability: 0")) << learned;
  const std::string in_turn = parts["grpo"]["detail"];
  EXPECT_TRUE(in_turn.starts_with("device memory planned=")) << in_turn;
  const std::string same = parts["same_as_cpu"]["detail"];
  EXPECT_TRUE(same.starts_with("3 greedy texts, ")) << same;
  const std::string table = bundle.read("gpu-results/gpu.md");
  EXPECT_NE(table.find("| decode | tailrace | mini, 2 sequences | weights read |"),
            std::string::npos)
      << table;
  EXPECT_NE(bundle.read("out").find(table), std::string::npos) << "the table ends the output";
}

TEST(GpuScript, SaysWhatFailedAndGoesOn) {
  Bundle bundle;
  bundle.without_texts();
  bundle.script("bin/test_cuda_gpu",
                "echo 'say \"what\" \\ it is'; echo '[  FAILED  ] A.B (1 ms)'; exit 1");
  EXPECT_EQ(bundle.run(), 1);
  auto parts = bundle.parts();
  EXPECT_EQ(parts["parity"]["status"], "failed");
  EXPECT_EQ(parts["parity"]["detail"], "failed: A.B");
  EXPECT_EQ(parts["parity"]["log"], "say \"what\" \\ it is\n[  FAILED  ] A.B (1 ms)");
  EXPECT_EQ(parts["rollout_worker"]["detail"], "2 tests.");
  EXPECT_EQ(parts["decode"]["status"], "ok");
  EXPECT_TRUE(bundle.read("err").starts_with(
      "gpu.sh: parity same_as_cpu quickstart grpo memcheck racecheck: failed"))
      << bundle.read("err");
}

// A fault of a device ends the process: the tests behind it are run one by one.
TEST(GpuScript, NamesTheTestsThatEndTheProgram) {
  Bundle bundle;
  bundle.without_texts();
  bundle.script(
      "bin/test_cuda_gpu",
      "case \"$*\" in\n"
      "*list_tests*) printf 'A.\\n  One\\n  Two  # GetParam() = 2\\nB/C.\\n  Three/0\\n' ;;\n"
      "*filter=A.Two*) echo '[       OK ] A.Two (1 ms)' ;;\n"
      "*) kill -ABRT $$ ;;\n"
      "esac");
  EXPECT_EQ(bundle.run(), 1);
  EXPECT_EQ(bundle.parts()["parity"]["detail"],
            "exit status 134; alone these fail: A.One B/C.Three/0");
}

TEST(GpuScript, WithoutAGpuSaysSoOfEachPart) {
  Bundle bundle;
  bundle.script("bin/bench/cuda", fmt::format("{}/bench/cuda \"$@\"",
                                              fs::path(TAILRACE_BINARY).parent_path().string()));
  if (std::system(
          fmt::format("{}/bench/cuda --parts limits --product 8 --copy-mib 1 > /dev/null 2>&1",
                      fs::path(TAILRACE_BINARY).parent_path().string())
              .c_str()) == 0)
    GTEST_SKIP() << "there is a GPU here";
  EXPECT_EQ(bundle.run(), 1);
  auto parts = bundle.parts();
  for (const std::string& name : kParts) EXPECT_EQ(parts[name]["status"], "not run") << name;
  EXPECT_TRUE(bundle.read("err").starts_with("gpu.sh: nothing was measured; no GPU: "))
      << bundle.read("err");
}

TEST(GpuScript, ProgramsThatDoNotStartAreNoGpu) {
  Bundle bundle;
  bundle.script("bin/tailrace", "echo 'GLIBC_9 not found' >&2; exit 1");
  EXPECT_EQ(bundle.run(), 1);
  EXPECT_EQ(bundle.parts()["parity"]["detail"],
            "the programs of this bundle do not start here: GLIBC_9 not found");
}

}  // namespace
}  // namespace tailrace
