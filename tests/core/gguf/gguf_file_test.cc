#include "core/gguf/gguf_file.h"

#include <filesystem>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/core/gguf/gguf_bytes.h"

namespace tailrace {
namespace {

// The refusal of a file with these bytes, or "accepted".
std::string refusal_of(const std::string& bytes) {
  const TemporaryDirectory folder;
  // Without an fsync: hundreds of them wait for the disk.
  const auto path = folder.write("x.gguf", bytes);
  try {
    const GgufFile file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      const auto [values, block_bytes] = block_shape(tensor.type);
      EXPECT_EQ(tensor.num_elements() / values * block_bytes, std::ssize(tensor.data)) << name;
    }
    return "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find(path.string()), 0u) << error.what();
    return error.what();
  }
}

std::string refusal_of(const GgufBytes& bytes) { return refusal_of(bytes.text); }

GgufBytes one_tensor() { return GgufBytes::head(1, 0); }

TEST(GgufFile, ReadsAllKindsOfMetadata) {
  const TemporaryDirectory folder;
  GgufBytes bytes = GgufBytes::head(0, 7);
  bytes.text_key("text", "a\nb").key("small", 0).add<uint8_t>(200).key("negative", 5).add(-7);
  bytes.key("real", 6).add(1e-5f).key("true", 7).add<uint8_t>(1);
  bytes.key("texts", 9).add<uint32_t>(8).add<uint64_t>(2).add_text("x").add_text("");
  bytes.key("numbers", 9).add<uint32_t>(5).add<uint64_t>(3).add(1).add(-2).add(3);
  ASSERT_TRUE(write_file_atomic(folder.path() / "x.gguf", bytes.text));
  const GgufFile file(folder.path() / "x.gguf");
  EXPECT_EQ(file.text("text"), "a\nb");
  EXPECT_EQ(file.integer("small"), 200);
  EXPECT_EQ(file.integer("negative"), -7);
  EXPECT_EQ(file.number("real", 0), 1e-5);  // as written, not the nearest float
  EXPECT_TRUE(file.flag("true", false));
  EXPECT_EQ(*file.array<std::string_view>("texts"), (std::vector<std::string_view>{"x", ""}));
  EXPECT_EQ(*file.array<int64_t>("numbers"), (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(file.array<double>("none"), nullptr);
  EXPECT_EQ(file.integer("none", 4), 4);
  EXPECT_THROW(file.integer("none"), UserError);
  EXPECT_THROW(file.text("small"), UserError);
  EXPECT_THROW(file.array<double>("numbers"), UserError);
}

TEST(GgufFile, RefusesWhatIsNoSuchFile) {
  expect_said(refusal_of(std::string("")), "it is empty");
  expect_said(refusal_of(std::string("GGU")), "does not begin with GGUF");
  expect_said(refusal_of(std::string("version https://git-lfs.github.com/spec/v1\n")), "Git LFS");
  expect_said(refusal_of(GgufBytes::head(0, 0, 1)), "version 1 is not read; accepted are 2 and 3");
  expect_said(refusal_of(GgufBytes::head(0, 0, 0x03000000)), "big-endian");
  EXPECT_EQ(refusal_of(GgufBytes::head(0, 0)), "accepted");
}

TEST(GgufFile, CountsAndLengthsThatLieTakeNoMemory) {
  const uint64_t huge = uint64_t{1} << 62;
  expect_said(refusal_of(GgufBytes::head(huge, 0)), "tensors, for which its");
  expect_said(refusal_of(GgufBytes::head(0, huge)), "keys of metadata, for which its");
  expect_said(refusal_of(GgufBytes::head(0, 1).add(huge).data(64)), "at most 1024");
  expect_said(refusal_of(GgufBytes::head(0, 1).key("k", 8).add(~uint64_t{0}).data(64)),
              "it was cut off");
  expect_said(refusal_of(GgufBytes::head(0, 1).key("k", 9).add<uint32_t>(8).add(huge).data(64)),
              "the key 'k': it says that it has 4611686018427387904 elements");
  expect_said(
      refusal_of(
          GgufBytes::head(0, 1).key("k", 9).add<uint32_t>(9).add<uint64_t>(1).add<uint64_t>(0).data(
              64)),
      "an array of arrays");
  expect_said(refusal_of(GgufBytes::head(0, 1).key("k", 13).data(64)), "its type is 13");
  expect_said(refusal_of(GgufBytes::head(0, 1).key("k", 10).add(~uint64_t{0}).data(8)),
              "above all numbers");
  expect_said(refusal_of(GgufBytes::head(0, 1).key("k", 7).add<uint8_t>(2).data(8)),
              "truth value is 2");
  expect_said(refusal_of(GgufBytes::head(0, 2).text_key("k", "a").text_key("k", "b").data(8)),
              "the key 'k': it is there twice");
}

TEST(GgufFile, TensorsLieWithinTheFileAndApart) {
  EXPECT_EQ(refusal_of(one_tensor().tensor("a", 8, 0, 0).data(32)), "accepted");
  expect_said(refusal_of(one_tensor().tensor("a", 8, 0, 0).data(31)), "it was cut off");
  expect_said(refusal_of(one_tensor().tensor("a", 8, 0, 32).data(32)), "it was cut off");
  expect_said(refusal_of(one_tensor().tensor("a", 8, 0, ~uint64_t{31}).data(32)), "it was cut off");
  expect_said(refusal_of(one_tensor().tensor("a", 8, 0, 4).data(64)), "no multiple of 32");
  expect_said(refusal_of(one_tensor().tensor("a", 0, 0, 0).data(32)), "has room for");
  expect_said(refusal_of(one_tensor().tensor("a", ~uint64_t{0}, 0, 0).data(32)), "has room for");
  expect_said(refusal_of(one_tensor().tensor("a", 31, 8, 0).data(64)), "no whole blocks of 32");
  expect_said(refusal_of(one_tensor().tensor("a", 8, 20, 0).data(32)), "the type IQ4_NL");
  expect_said(refusal_of(one_tensor().tensor("a", 8, 999, 0).data(32)), "the type type 999");
  expect_said(refusal_of(one_tensor().add_text("a").add<uint32_t>(5).data(99)), "it has 5 sizes");
  expect_said(
      refusal_of(GgufBytes::head(2, 0).tensor("a", 16, 0, 0).tensor("b", 8, 0, 32).data(64)),
      "tensor 'b': it overlaps 'a'");
  expect_said(refusal_of(GgufBytes::head(2, 0).tensor("a", 8, 0, 0).tensor("a", 8, 0, 32).data(64)),
              "tensor 'a': it is there twice");
  // The product of these is 0 in 64 bits.
  GgufBytes wrapped = one_tensor().add_text("a").add<uint32_t>(4);
  for (int i = 0; i < 4; ++i) wrapped.add(uint64_t{1} << 16);
  expect_said(refusal_of(wrapped.add<uint32_t>(0).add<uint64_t>(0).data(32)), "has room for");
  GgufBytes far = GgufBytes::head(0, 1);
  far.key("general.alignment", 4).add<uint32_t>(24);
  expect_said(refusal_of(far.data(32)), "power of two");
}

// The files are sparse: their bytes are there, and take no room.
TEST(GgufFile, WhatStandsInFrontOfTheDataIsBounded) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "x.gguf";
  const auto refusal = [&](const GgufBytes& bytes) -> std::string {
    if (!write_file_atomic(path, bytes.text)) return "not written";
    std::filesystem::resize_file(path, 3 * kMaxGgufHeadBytes);
    try {
      const GgufFile file(path);
      return "accepted";
    } catch (const UserError& error) {
      return error.what();
    }
  };
  const uint64_t over = kMaxGgufHeadBytes + 1;
  const std::string_view said = "metadata and list of tensors have more than 128 MiB";
  expect_said(refusal(GgufBytes::head(0, 1).key("k", 9).add<uint32_t>(0).add(over)), said);
  expect_said(refusal(GgufBytes::head(0, 1).key("k", 8).add(over)), said);
  expect_said(refusal(GgufBytes::head(over / 24, 0)), said);
  expect_said(refusal(GgufBytes::head(0, over / 13)), said);
  expect_said(refusal(GgufBytes::head(0, 1).key("k", 8).add(3 * over)), "it was cut off");
  EXPECT_EQ(refusal(GgufBytes::head(0, 1).key("k", 8).add(over / 2)), "accepted");
}

// Whatever happens to a file, it is read or refused in one message.
TEST(GgufFile, AFileThatIsCutOrFlippedIsRefusedOrRead) {
  const auto whole =
      read_file(std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data/gguf/blocks.gguf");
  ASSERT_TRUE(whole);
  const std::string& bytes = whole.value();
  for (size_t size = 0; size < bytes.size(); size += 61)
    EXPECT_NE(refusal_of(bytes.substr(0, size)), "accepted") << size;
  constexpr int64_t kHead = 1000;
  Rng random(7);
  for (int i = 0; i < 400; ++i) {
    std::string flipped = bytes;
    for (int flips = 0; flips < 3; ++flips)
      flipped[static_cast<size_t>(random.below(kHead))] ^= static_cast<char>(1 << random.below(8));
    refusal_of(flipped);
  }
}

}  // namespace
}  // namespace tailrace
