// The parts of `tailrace bench cuda`, in miniature on the emulated GPU: what they compute is
// checked by themselves, and their rows here.
#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench/gpu/parts.h"
#include "core/base/error.h"
#include "kernels/cuda/host/emulation_control.h"
#include "kernels/cuda/provide.h"

namespace tailrace {
namespace {

using nlohmann::json;

gpu_bench::Options miniature(std::vector<std::string> parts) {
  return {.parts = std::move(parts),
          .geometries = {"mini"},
          .batches = {1, 3},
          .rows = {1, 5, 70},
          .context = 24,
          .members = 2,
          .prompt = 37,
          .tokens = 40,
          .sequence = 20,
          .steps = 1,
          .sizes = {.copy_mib = 1, .product = 64, .weights_mib = 1, .milliseconds = 0, .runs = 1}};
}

std::vector<json> rows_of(const gpu_bench::Options& options, const BackendFacts& facts) {
  std::FILE* file = std::tmpfile();
  Heading heading;
  heading.bench = "cuda";
  heading.settings = gpu_bench::describe(facts);
  heading.device = "x";
  Report report(heading, Report::Form::kJson, file);
  gpu_bench::measure(options, facts, report);
  for (const std::string& error : cuda::emulation::take_errors()) ADD_FAILURE() << error;
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  std::vector<json> rows;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) rows.push_back(json::parse(line));
  return rows;
}

std::vector<json> rows_of(const char* part) {
  provide_cuda();
  return rows_of(miniature({part}), backend_facts(DeviceKind::kCuda));
}

std::set<std::string> names_of(const std::vector<json>& rows) {
  std::set<std::string> names;
  for (const json& row : rows) {
    EXPECT_GT(row["median"], 0) << row;
    names.insert(row["case"].get<std::string>() + ": " + row["metric"].get<std::string>());
  }
  return names;
}

TEST(GpuBench, FactsNameTheDevice) {
  const auto rows = rows_of("facts");
  EXPECT_EQ(rows.front()["settings"]["gpu"], "emulated GPU");
  EXPECT_EQ(rows.front()["machine"]["device"], "x");
  EXPECT_EQ(names_of(rows),
            (std::set<std::string>{"facts: devices", "emulated GPU: multiprocessors",
                                   "emulated GPU: memory", "emulated GPU: free memory"}));
}

TEST(GpuBench, LimitsAreACopyAndAProduct) {
  EXPECT_EQ(names_of(rows_of("limits")),
            (std::set<std::string>{"limits: copy of 1 MiB", "limits: bf16 product of 64^3"}));
}

TEST(GpuBench, DecodeHasARowForEachBatch) {
  EXPECT_EQ(names_of(rows_of("decode")),
            (std::set<std::string>{"mini, 1 sequences: decode", "mini, 1 sequences: weights read",
                                   "mini, 1 sequences: weights and KV read",
                                   "mini, 3 sequences: decode", "mini, 3 sequences: weights read",
                                   "mini, 3 sequences: weights and KV read",
                                   "mini, 3 sequences: decode, prompts of 2"}));
}

TEST(GpuBench, PrefillCountsTokensAndWork) {
  EXPECT_EQ(names_of(rows_of("prefill")),
            (std::set<std::string>{"mini, prompt of 37: prefill", "mini, prompt of 37: work"}));
}

TEST(GpuBench, TrainingLearnsItsTokens) {
  EXPECT_EQ(names_of(rows_of("training")),
            (std::set<std::string>{"mini, 2 x 20 tokens: training", "mini, 2 x 20 tokens: work"}));
}

TEST(GpuBench, ProductsOfFewRowsAreBytesAndOfManyWork) {
  const auto rows = rows_of("products");
  EXPECT_EQ(names_of(rows).size(), 15u);
  for (const json& row : rows) {
    const bool many = row["case"] == "mini, 70 rows";
    EXPECT_EQ(row["unit"], many ? "TFLOP/s" : "GB/s") << row;
    EXPECT_GT(row["limit"], 0) << row;
  }
}

TEST(GpuBench, WithoutADeviceThereAreFactsAlone) {
  BackendFacts facts;
  facts.built = true;
  facts.fault = "there is no NVIDIA driver";
  const auto rows = rows_of(miniature({"facts"}), facts);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["median"], 0);
  EXPECT_EQ(rows[0]["settings"]["fault"], "there is no NVIDIA driver");
  try {
    rows_of(miniature({"facts", "decode"}), facts);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("there is no NVIDIA driver"), std::string::npos);
  }
}

}  // namespace
}  // namespace tailrace
