#include "core/model/tensor_files.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

constexpr const char* kA = "model-00001-of-00002.safetensors";
constexpr const char* kB = "model-00002-of-00002.safetensors";

// Two shards by hand: `x` is in the first and `y` in the second, if nothing else is said.
class ShardedFolder : public ::testing::Test {
 protected:
  using Values = std::vector<float>;

  void write(const std::string& file, const std::map<std::string, Values>& tensors) {
    std::vector<NamedTensor> named;
    for (const auto& [name, values] : tensors)
      named.push_back(
          {name, {Dtype::kF32, {std::ssize(values)}, std::as_bytes(std::span(values))}});
    write_safetensors(folder.path() / file, named);
  }
  // `map`: the text between the braces of weight_map.
  void index(const std::string& map) {
    write_text(folder.path() / TensorFiles::kIndexFile,
               R"({"metadata": {}, "weight_map": {)" + map + "}}");
  }
  std::string map_of(const std::string& x, const std::string& y) {
    return R"("x": ")" + x + R"(", "y": ")" + y + "\"";
  }
  std::string outcome() {
    try {
      TensorFiles files(folder.path());
      return "accepted";
    } catch (const UserError& error) {
      return error.what();
    }
  }
  void expect_refusal(const std::string& file, const std::string& message) {
    const std::string got = outcome();
    EXPECT_TRUE(got.starts_with((folder.path() / file).string() + ": " + message)) << got;
    EXPECT_NE(got.find("download"), std::string::npos) << got;
  }

  const ScratchFolder folder;
};

TEST_F(ShardedFolder, IsReadByItsIndex) {
  write(kA, {{"x", {1, 2}}});
  write(kB, {{"y", {3}}});
  index(map_of(kA, kB));
  TensorFiles files(folder.path());
  const auto [path, view] = files.find("y");
  EXPECT_EQ(path, folder.path() / kB);
  EXPECT_EQ(view->num_elements(), 1);
}

TEST_F(ShardedFolder, ATensorInTwoShardsMustBeTheSame) {
  write(kA, {{"x", {1, 2}}});
  index(map_of(kA, kB));
  write(kB, {{"x", {1, 2}}, {"y", {3}}});
  EXPECT_EQ(outcome(), "accepted");  // either is the model
  for (const Values& other : {Values{1, 2.5f}, Values{1}, Values{1, 2, 3}}) {
    write(kB, {{"x", other}, {"y", {3}}});
    expect_refusal(kB, "tensor 'x' is here, and in model-00001-of-00002.safetensors it is another");
  }
  // Equal bytes of another shape are another tensor.
  const float ones[] = {1, 2}, three[] = {3};
  write_safetensors(
      folder.path() / kB,
      std::vector<NamedTensor>{{"x", {Dtype::kF32, {2, 1}, std::as_bytes(std::span(ones))}},
                               {"y", {Dtype::kF32, {1}, std::as_bytes(std::span(three))}}});
  expect_refusal(kB, "tensor 'x' is here, and in");
}

TEST_F(ShardedFolder, AnIndexThatIsWrongAboutATensorIsRefused) {
  write(kA, {{"x", {1, 2}}, {"z", {4}}});
  write(kB, {{"y", {3}}});
  index(map_of(kB, kB) + R"(, "z": ")" + kA + "\"");
  expect_refusal(kA,
                 "tensor 'x' is here; model.safetensors.index.json says that it is in "
                 "model-00002-of-00002.safetensors, which lacks it.");
  write(kA, {{"x", {1, 2}}});
  index(map_of(kA, kB) + R"(, "z": ")" + kB + "\"");
  expect_refusal(kB, "tensor 'z' is missing; model.safetensors.index.json says that it is here");
}

TEST_F(ShardedFolder, ATensorThatTheIndexDoesNotNameIsRefused) {
  write(kA, {{"x", {1, 2}}, {"more", {1}}});
  write(kB, {{"y", {3}}});
  index(map_of(kA, kB));
  expect_refusal(kA, "tensor 'more' is here, and model.safetensors.index.json names it in no file");
  // What follows from the config may be there.
  write(kA, {{"x", {1, 2}}, {"model.layers.0.self_attn.rotary_emb.inv_freq", {1}}});
  EXPECT_EQ(outcome(), "accepted");
}

TEST_F(ShardedFolder, AnIndexMayNameATensorOnce) {
  write(kA, {{"x", {1, 2}}});
  write(kB, {{"y", {3}}});
  for (const char* again : {kA, kB}) {
    index(map_of(kA, kB) + R"(, "x": ")" + again + "\"");
    EXPECT_TRUE(outcome().starts_with((folder.path() / TensorFiles::kIndexFile).string() +
                                      ": an object has the key \"x\" twice"))
        << outcome();
  }
}

}  // namespace
}  // namespace tailrace
