#include "core/text/row_file.h"

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zlib.h>
#include <zstd.h>

#include "core/base/error.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

std::string gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(
      deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
      Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(packed.size() - stream.avail_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // as the zstd tool writes
  const size_t size =
      ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size());
  EXPECT_FALSE(ZSTD_isError(size));
  ZSTD_freeCCtx(context);
  packed.resize(size);
  return packed;
}

struct Packer {
  std::string name;
  std::string (*pack)(const std::string& text);
};
// Longer than the pieces that it is read in, and not all alike.
std::string long_text() {
  std::string text;
  for (int i = 0; text.size() < (size_t{5} << 20); ++i)
    text += "{\"prompt\": \"" + std::to_string(i * 7919) + "\"}\n";
  return text;
}

class RowFile : public ::testing::Test {
 protected:
  std::string read(const std::string& bytes, int64_t max_bytes = int64_t{1} << 40) {
    const Result<std::string> text =
        read_row_file(folder_.write("rows.jsonl", bytes),
                      {.max_text_bytes = max_bytes, .text_key = "files.max_file_mb"});
    return text ? text.value() : "failure: " + text.failure().message;
  }
  TemporaryDirectory folder_;
};

TEST_F(RowFile, ReadsWhatIsNotCompressedAsItIs) {
  const std::string text = long_text();
  EXPECT_EQ(read(text), text);
  EXPECT_EQ(read(""), "");
}

class PackedRowFile : public RowFile, public ::testing::WithParamInterface<Packer> {
 protected:
  std::string pack(const std::string& text) const { return GetParam().pack(text); }
  std::string says(const std::string& what) const {
    return "rows.jsonl: its " + GetParam().name + " data is " + what;
  }
};

TEST_P(PackedRowFile, IsReadAsWhatIsNotCompressedWhateverItsName) {
  const std::string text = long_text();
  EXPECT_EQ(read(pack(text)), text);
  EXPECT_EQ(read(pack("")), "");
  // A great deal of text in few bytes: more output than room for it, at each turn.
  const std::string blanks(size_t{20} << 20, ' ');
  EXPECT_EQ(read(pack(blanks)), blanks);
}

TEST_P(PackedRowFile, MayBeOfSeveralParts) {
  EXPECT_EQ(read(pack("a\n") + pack("") + pack("b\n")), "a\nb\n");
}

TEST_P(PackedRowFile, IsRefusedWhereItIsCutDamagedOrFollowedBySomethingElse) {
  const std::string text = long_text(), packed = pack(text);
  for (const size_t size : {packed.size() - 1, packed.size() - 4, packed.size() / 2, size_t{12}})
    EXPECT_NE(read(packed.substr(0, size)).find(says("cut")), std::string::npos) << size;
  for (const size_t place : {packed.size() - 3, packed.size() / 2}) {
    std::string damaged = packed;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x55);
    EXPECT_NE(read(damaged).find(says("damaged")), std::string::npos) << place;
  }
  EXPECT_NE(read(packed + "{}").find("something else behind its " + GetParam().name + " data"),
            std::string::npos);
}

TEST_P(PackedRowFile, IsRefusedWhereItIsMoreTextThanThereIsRoomFor) {
  const std::string packed = pack(std::string(size_t{20} << 20, ' '));
  EXPECT_NE(read(packed, 1 << 20)
                .find("rows.jsonl: it has more than 1048576 bytes of text, unpacked "
                      "(files.max_file_mb)"),
            std::string::npos);
}

// A line that does not end is refused when it is too long, however much the file stands for.
TEST_P(PackedRowFile, ALineIsRefusedBeforeItIsWhole) {
  const RowLimits limits{.max_row_bytes = 3 << 20, .row_key = "files.max_row_mb"};
  const auto file =
      folder_.write("rows.jsonl", pack("{\"a\": 1}\n" + std::string(size_t{40} << 20, ' ')));
  int64_t rows = 0;
  try {
    for_each_json_row(
        file, "", [&](const RowPlace&, const nlohmann::ordered_json&) { ++rows; }, limits);
    FAIL() << "it was read";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              file.string() + ":2: the line is longer than 3145728 bytes (files.max_row_mb)");
  }
  EXPECT_EQ(rows, 1);
}

TEST_P(PackedRowFile, IsUnpackedNoFurtherThanItsLimit) {
  const RowLimits limits{.max_text_bytes = 2 << 20, .text_key = "files.max_file_mb"};
  const auto file = folder_.write("rows.jsonl", pack(long_text()));
  int64_t rows = 0;
  try {
    for_each_json_row(
        file, "", [&](const RowPlace&, const nlohmann::ordered_json&) { ++rows; }, limits);
    FAIL() << "it was read";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()),
              file.string() + ":" + std::to_string(rows + 1) +
                  ": it has more than 2097152 bytes of text, unpacked (files.max_file_mb)");
  }
  EXPECT_GT(rows, 1000);
}

TEST_P(PackedRowFile, GivesTheRowsOfALongFile) {
  std::string rows;
  for_each_json_row(folder_.write("rows.jsonl", pack(long_text())), "",
                    [&](const RowPlace& place, const nlohmann::ordered_json&) {
                      rows += std::string(place.text) + "\n";
                    });
  EXPECT_EQ(rows, long_text());
}

INSTANTIATE_TEST_SUITE_P(Packers, PackedRowFile,
                         ::testing::Values(Packer{"gzip", gzip}, Packer{"zstd", zstd}),
                         [](const auto& test) { return test.param.name; });

TEST_F(RowFile, NamesTheScriptForAParquetFile) {
  const std::string refusal = read("PAR1\x15\x04\x15 PAR1");
  EXPECT_NE(refusal.find("rows.jsonl: it is a Parquet file"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("python3 scripts/parquet_to_jsonl.py "), std::string::npos) << refusal;
  EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(TAILRACE_SOURCE_DIR) / kParquetScript));
}

TEST_F(RowFile, WhatUnpacksOtherFilesIsNamed) {
  for (const auto& [bytes, name, unpack] :
       {std::tuple{std::string("\xFD"
                               "7zXZ\0\0",
                               7),
                   "xz", "xz -dc "},
        std::tuple{std::string("BZh91AY&SY"), "bzip2", "bzip2 -dc "},
        std::tuple{std::string("PK\x03\x04\x14"), "zip", "unzip -p "}}) {
    const std::string failure = read(bytes);
    EXPECT_NE(failure.find(std::string("it is compressed by ") + name), std::string::npos)
        << failure;
    EXPECT_NE(failure.find(std::string("Try '") + unpack), std::string::npos) << failure;
  }
}

TEST_P(PackedRowFile, BlankLinesAreCountedAndBounded) {
  // More than a piece of the file on either side of a row.
  std::string blank;
  for (int i = 0; i < 100'000; ++i) blank += i % 3 == 0 ? "\n" : i % 3 == 1 ? " \t\r\n" : "\r\n";
  std::vector<int64_t> lines;
  for_each_json_row(
      folder_.write("rows.jsonl", pack(blank + "{}\n" + blank + " {}" + blank)), "",
      [&](const RowPlace& place, const nlohmann::ordered_json&) { lines.push_back(place.line); },
      {.max_row_bytes = 20});
  EXPECT_EQ(lines, (std::vector<int64_t>{100'001, 200'002}));
  const auto error_of = [&](const std::string& text, const RowLimits& limits) -> std::string {
    try {
      for_each_json_row(
          folder_.write("rows.jsonl", pack(text)), "",
          [](const RowPlace&, const nlohmann::ordered_json&) {}, limits);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(error_of("\n" + std::string(50, ' ') + "\n", {.max_row_bytes = 20})
                .find("rows.jsonl:2: the line is longer than 20 bytes"),
            std::string::npos);
  EXPECT_NE(error_of("\r\r\n", {}).find(":1: the line is not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(std::string(1'000'000, '\n'), {.max_text_bytes = 500'000})
                .find("it has more than 500000 bytes of text"),
            std::string::npos);
}

TEST_F(RowFile, GivesRowsWithTheirPlaces) {
  const std::filesystem::path file = folder_.write("rows.jsonl", "{\"a\": 1}\r\n\n \n{\"b\":2}");
  std::vector<std::string> rows;
  for_each_json_row(file, "", [&](const RowPlace& place, const nlohmann::ordered_json& row) {
    rows.push_back(std::to_string(place.line) + " " + std::string(place.text) + " " + row.dump());
  });
  EXPECT_EQ(rows, (std::vector<std::string>{R"(1 {"a": 1} {"a":1})", R"(4 {"b":2} {"b":2})"}));
  const auto error_of = [&](const std::string& text) -> std::string {
    try {
      for_each_json_row(
          folder_.write("rows.jsonl", text), "each line must be one",
          [](const RowPlace& place, const nlohmann::ordered_json&) { place.fail("it is none"); });
    } catch (const UserError& error) {
      return std::string(error.what()).substr(file.string().size());
    }
    return "";
  };
  EXPECT_EQ(error_of("\n{}"), ":2: it is none; each line must be one");
  EXPECT_EQ(error_of("{}" + std::string(70, ' ') + "\n{"), ":1: it is none; each line must be one");
  EXPECT_EQ(error_of("{"), ":1: the line is not valid JSON; each line must be one");
  EXPECT_EQ(error_of("{\"a\": \"\xFF\"}"), ":1: the line is not UTF-8; each line must be one");
}

}  // namespace
}  // namespace tailrace::text
