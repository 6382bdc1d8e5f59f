#include "core/model/safetensors.h"

#include <cstring>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/random.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

std::string file_of(uint64_t header_bytes, const std::string& header, const std::string& data) {
  std::string bytes(sizeof header_bytes, '\0');
  std::memcpy(bytes.data(), &header_bytes, sizeof header_bytes);
  return bytes + header + data;
}

std::string file_of(const std::string& header, const std::string& data) {
  return file_of(header.size(), header, data);
}

// What opening a file with these bytes says, or "accepted".
std::string refusal_of_file(const std::string& bytes) {
  ScratchFolder folder;
  const auto path = folder.path() / "x.safetensors";
  write_text(path, bytes);
  try {
    const SafetensorsFile file(path);
    return "accepted";
  } catch (const UserError& e) {
    EXPECT_EQ(std::string(e.what()).find(path.string()), 0u) << e.what();
    return e.what();
  }
}

NamedTensor tensor_named(NamedTensor tensor, std::string name) {
  tensor.name = std::move(name);
  return tensor;
}

// More than the pieces that are converted at once.
TEST(Safetensors, WritesFloatsAsBfloat) {
  std::vector<float> values(200'001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0f / static_cast<float>(i + 1);
  const NamedTensor tensor{.name = "a",
                           .view = {.shape = {200'001}, .data = std::as_bytes(std::span(values))},
                           .written_as = Dtype::kBF16};
  ScratchFolder folder;
  write_safetensors(folder.path() / "x.safetensors",
                    std::vector{tensor, tensor_named(tensor, "b")});
  const SafetensorsFile file(folder.path() / "x.safetensors");
  for (const char* name : {"a", "b"}) {
    const TensorView& read = file.tensors().at(name);
    ASSERT_EQ(read.dtype, Dtype::kBF16);
    ASSERT_EQ(read.num_elements(), 200'001);
    std::vector<float> back(values.size());
    to_float(read, back);
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(back[i], to_float(to_bf16(values[i])));
  }
}

TEST(Safetensors, ReadsWhatItWrote) {
  const float values[] = {1, -2.5f, 3};
  const int64_t ids[] = {7, -9};
  const NamedTensor tensors[] = {
      {"z.first", {Dtype::kF32, {3, 1}, std::as_bytes(std::span(values))}},
      {"empty", {Dtype::kF32, {0, 5}, {}}},
      {"a.second", {Dtype::kI64, {2}, std::as_bytes(std::span(ids))}},
      {"scalar", {Dtype::kF32, {}, std::as_bytes(std::span(values).first(1))}},
  };
  ScratchFolder folder;
  const auto path = folder.path() / "x.safetensors";
  write_safetensors(path, tensors, {{"who", "a \"test\""}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.metadata().at("who"), "a \"test\"");
  for (const auto& [name, view, written_as] : tensors) {
    const TensorView& read = file.tensors().at(name);
    EXPECT_EQ(read.dtype, view.dtype);
    EXPECT_EQ(read.shape, view.shape);
    ASSERT_EQ(read.data.size(), view.data.size());
    if (!view.data.empty()) {
      EXPECT_EQ(std::memcmp(read.data.data(), view.data.data(), view.data.size()), 0);
    }
  }
  // The folder holds the file and nothing else.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(read_text(path).find("\"z.first\""), read_text(path).find("\"z.first\"", 8))
      << "data comes after";
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, read_text(path).data(), 8);
  EXPECT_EQ(header_bytes % 8, 0u);
}

TEST(Safetensors, ReadsMetadataThatIsNullAsNone) {
  const ScratchFolder folder;
  const auto path = folder.path() / "x.safetensors";
  write_text(
      path, file_of(R"({"__metadata__":null,"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                    std::string(8, '\0')));
  const SafetensorsFile file(path);
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file.tensors().at("a").num_elements(), 2);
}

TEST(Safetensors, NamesAPointerOfGitLfs) {
  EXPECT_NE(
      refusal_of_file("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 988097824\n")
          .find("this is a pointer of Git LFS and not the file itself"),
      std::string::npos);
}

TEST(Safetensors, RefusesEachKindOfDamage) {
  const std::string tensor = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string data(8, '\0');
  ASSERT_EQ(refusal_of_file(file_of("{" + tensor + "}", data)), "accepted");
  ASSERT_EQ(refusal_of_file(file_of("{}", "")), "accepted");
  auto one = [&](const std::string& entry, const std::string& bytes = std::string(8, '\0')) {
    return file_of("{\"a\":" + entry + "}", bytes);
  };
  const std::pair<std::string, const char*> cases[] = {
      {"", "it has 0 bytes"},
      {"1234567", "it has 7 bytes"},
      {file_of(3, "{}", ""), "a header of 3 bytes in a file of 10"},
      {file_of(~uint64_t{0}, "{}", ""), "a header of 18446744073709551615 bytes"},
      {file_of(100'000'001, "{}", ""), "a header of 100000001 bytes"},
      {file_of("", ""), "not JSON"},
      {file_of("{", ""), "not JSON"},
      {file_of("{}}", ""), "not JSON"},
      {file_of("{\"\xFF\":1}", ""), "not JSON"},
      {file_of("[]", ""), "not a JSON object"},
      {file_of("7", ""), "not a JSON object"},
      {file_of(std::string(100'000, '['), ""), "not JSON"},
      {file_of("{" + tensor + "," + tensor + "}", data), "the key 'a' twice"},
      {one(R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})"),
       "the key 'dtype' twice"},
      {one("7"), "tensor 'a' is not an object"},
      {one(R"({"shape":[2],"data_offsets":[0,8]})"), "has no dtype"},
      {one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"), "has no dtype"},
      {one(R"({"dtype":"F64","shape":[1],"data_offsets":[0,8]})"),
       "has the dtype F64; accepted are"},
      {one(R"({"dtype":"F32","data_offsets":[0,8]})"), "has no shape"},
      {one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), "has no shape"},
      {one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), "no natural number"},
      {one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), "no natural number"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "3 elements of 4 bytes but 8 bytes"},
      {one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
       "can be counted"},
      {one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"),
       "can be counted"},
      // Times 4 bytes this wraps around to 8.
      {one(R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})"),
       "but 8 bytes of data"},
      {one(R"({"dtype":"F32","shape":[2]})"), "no pair of data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0]})"), "no pair of data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[-8,0]})"), "no pair of data_offsets"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
       "ends at 0 before it begins at 8"},
      {one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
       "needs 12 bytes of data but the file has 8"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]})"),
       "bytes of data but the file has 8"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1})"), "unknown key 'more'"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", std::string(12, '\0')),
       "4 bytes between 'the start' and 'a'"},
      {one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", std::string(9, '\0')),
       "1 bytes of data after"},
      {file_of("{" + tensor + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
               std::string(12, '\0')),
       "tensors 'a' and 'b' overlap"},
      {file_of(R"({"__metadata__":{"k":1}})", ""), "__metadata__ 'k' is not a string"},
      {file_of(R"({"__metadata__":1})", ""), "__metadata__ is not an object"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string got = refusal_of_file(bytes);
    EXPECT_NE(got.find(message), std::string::npos) << "wanted: " << message << "\ngot: " << got;
  }
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  EXPECT_THROW(SafetensorsFile("/nonexistent/x.safetensors"), UserError);
  ScratchFolder folder;
  EXPECT_THROW(SafetensorsFile{folder.path()}, UserError);
}

// Mutated files are either refused with a message or give views that lie within the file.
TEST(Safetensors, SurvivesMutatedFiles) {
  const std::string original = file_of(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]}})",
      std::string(22, 'x'));
  ASSERT_EQ(refusal_of_file(original), "accepted");
  constexpr uint64_t kSeed = 2024;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  const std::string alphabet = "0123456789{}[]\",:.-eFBtrue_\\ ";
  ScratchFolder folder;
  const auto path = folder.path() / "x.safetensors";
  int accepted = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    std::string bytes = original;
    const int64_t edits = 1 + rng.below(3);
    for (int64_t i = 0; i < edits && !bytes.empty(); ++i) {
      const auto place = static_cast<size_t>(rng.below(static_cast<int64_t>(bytes.size())));
      switch (rng.below(4)) {
        case 0:
          bytes[place] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bytes[place] =
              alphabet[static_cast<size_t>(rng.below(static_cast<int64_t>(alphabet.size())))];
          break;
        case 2:
          bytes.erase(place, static_cast<size_t>(1 + rng.below(4)));
          break;
        default:
          bytes.insert(
              place, 1,
              alphabet[static_cast<size_t>(rng.below(static_cast<int64_t>(alphabet.size())))]);
      }
    }
    write_text(path, bytes);
    try {
      const SafetensorsFile file(path);
      ++accepted;
      int64_t total = 0;
      for (const auto& [name, view] : file.tensors()) {
        int64_t product = size_of(view.dtype);
        for (const int64_t size : view.shape) product *= size;
        ASSERT_EQ(product, static_cast<int64_t>(view.data.size())) << "round " << round;
        total += product;
        // Touches every byte.
        for (const std::byte byte : view.data) total += byte == std::byte{255} ? 0 : 0;
      }
      ASSERT_LE(total, static_cast<int64_t>(bytes.size())) << "round " << round;
    } catch (const UserError&) {
    }
  }
  // Both ends happen: a changed data byte is fine, a changed bracket is not.
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kRounds / 2);
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  const std::string original =
      file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, '\0'));
  for (size_t size = 0; size < original.size(); ++size) {
    EXPECT_NE(refusal_of_file(original.substr(0, size)), "accepted") << size;
  }
}

TEST(ToFloat, ConvertsEveryHalfAsItsDefinitionSays) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const TensorView view{Dtype::kF16, {1}, std::as_bytes(std::span(&half, 1))};
    float got = 0;
    to_float(view, std::span(&got, 1));
    const int exponent = (half >> 10) & 31, mantissa = half & 1023;
    const double sign = (half & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_TRUE(mantissa == 0 ? std::isinf(got) && std::signbit(got) == (sign < 0)
                                : std::isnan(got))
          << bits;
    } else {
      const double want =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(got, sign * want) << bits;
      ASSERT_EQ(std::signbit(got), sign < 0) << bits;
    }
  }
}

// Ends the process with 3 when the write is refused with the system's reason.
[[noreturn]] void write_under_a_size_limit(const std::filesystem::path& path,
                                           const NamedTensor& tensor) {
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4096, 4096};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  try {
    write_safetensors(path, std::span(&tensor, 1));
  } catch (const UserError& e) {
    ::_exit(std::string(e.what()).find("File too large") != std::string::npos ? 3 : 4);
  }
  ::_exit(5);
}

// The limit on file sizes stands in for a full disk: write() fails half-way in both.
TEST(SafetensorsDeathTest, AFailingDiskIsReportedAndLeavesTheOldFile) {
  ScratchFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<float> values(1 << 16, 1.0f);
  const NamedTensor big{"a", {Dtype::kF32, {1 << 16}, std::as_bytes(std::span(values))}};
  const NamedTensor small{"a", {Dtype::kF32, {2}, std::as_bytes(std::span(values).first(2))}};
  write_safetensors(path, std::span(&small, 1));
  EXPECT_EXIT(write_under_a_size_limit(path, big), ::testing::ExitedWithCode(3), "");
  EXPECT_EQ(SafetensorsFile(path).tensors().at("a").shape, std::vector<int64_t>{2});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace tailrace
