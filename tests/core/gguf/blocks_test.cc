#include "core/gguf/blocks.h"

#include <cstring>
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>

#include "core/gguf/gguf_file.h"
#include "core/model/safetensors.h"

namespace tailrace {
namespace {

const std::filesystem::path kData = std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/gguf";

// The values of the gguf package (bench/peers/gguf_vectors.py), of random blocks in each type.
TEST(GgmlBlocks, AllTypesHaveTheBitsOfTheGgufPackage) {
  const GgufFile file(kData / "blocks.gguf");
  const SafetensorsFile expected(kData / "blocks.safetensors");
  EXPECT_EQ(file.tensors().size(), 13u);
  for (const auto& [name, tensor] : file.tensors()) {
    const TensorView& wanted = expected.tensors().at(name);
    ASSERT_EQ(tensor.shape, wanted.shape) << name;
    std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
    dequantize(tensor.type, tensor.data, values);
    EXPECT_EQ(std::memcmp(values.data(), wanted.data.data(), wanted.data.size()), 0) << name;
  }
}

TEST(GgmlBlocks, NamesTypesThatAreNotRead) {
  EXPECT_EQ(ggml_type_of(14), GgmlType::kQ6_K);
  EXPECT_EQ(ggml_type_of(20), std::nullopt);
  EXPECT_EQ(name_of_ggml_number(20), "IQ4_NL");
  EXPECT_EQ(name_of_ggml_number(77), "type 77");
}

}  // namespace
}  // namespace tailrace
