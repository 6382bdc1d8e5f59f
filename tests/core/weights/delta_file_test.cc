#include "core/weights/delta_file.h"

#include <csignal>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "kernels/base/pulse.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const DeltaEnds kEnds = {.policy = 3,
                         .from_version = 7,
                         .to_version = 9,
                         .from_root = std::string(32, 'a'),
                         .to_root = std::string(32, 'b'),
                         .attempt = "a2"};

class DeltaFileTest : public testing::Test {
 protected:
  DeltaFileTest() {
    Rng rng(1);
    // One that changes a little, one that does not, one that is new, one without elements.
    add("layers.0.q", Dtype::kBF16, {40, 30}, rng, 0.05);
    add("norm", Dtype::kF32, {30}, rng, 0);
    add("head", Dtype::kF32, {7, 5}, rng, 1);
    add("none", Dtype::kBF16, {0, 5}, rng, 1);
    add("scalar", Dtype::kF32, {}, rng, 1);
  }

  void add(const std::string& name, Dtype dtype, std::vector<int64_t> shape, Rng& rng,
           double rate) {
    int64_t bytes = size_of(dtype);
    for (const int64_t size : shape) bytes *= size;
    std::vector<std::byte> from(static_cast<size_t>(bytes));
    for (std::byte& byte : from) byte = static_cast<std::byte>(rng.next_u32());
    std::vector<std::byte> to = from;
    if (rate == 1)
      for (std::byte& byte : to) byte ^= static_cast<std::byte>(1 + rng.below(255));
    else
      for (size_t at = 0; at < to.size(); at += 2)
        if (rng.chance(rate)) to[at] ^= std::byte{1};
    names_.push_back(name);
    dtypes_.push_back(dtype);
    shapes_.push_back(std::move(shape));
    from_.push_back(std::move(from));
    to_.push_back(std::move(to));
  }

  std::vector<TensorBytes> tensors(const std::vector<std::vector<std::byte>>& states) const {
    std::vector<TensorBytes> all;
    for (size_t i = 0; i < names_.size(); ++i)
      all.push_back({names_[i], dtypes_[i], shapes_[i], states[i]});
    return all;
  }

  DeltaSizes write(const fs::path& path) const {
    auto sizes = write_delta(path, kEnds, tensors(from_), tensors(to_), {});
    EXPECT_TRUE(sizes) << sizes.failure().message;
    return sizes.value();
  }

  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  std::vector<std::string> names_;
  std::vector<Dtype> dtypes_;
  std::vector<std::vector<int64_t>> shapes_;
  std::vector<std::vector<std::byte>> from_, to_;
};

TEST_F(DeltaFileTest, LeadsFromOneVersionToTheOther) {
  const DeltaSizes sizes = write(folder_ / "d");
  const auto opened = DeltaFile::open(folder_ / "d");
  ASSERT_TRUE(opened) << opened.failure().message;
  const DeltaFile& file = opened.value();
  EXPECT_EQ(file.ends(), kEnds);
  EXPECT_TRUE(file.prove());
  ASSERT_EQ(file.tensors().size(), names_.size());
  const TensorPayload payloads[] = {TensorPayload::kDelta, TensorPayload::kSame,
                                    TensorPayload::kFull, TensorPayload::kSame,
                                    TensorPayload::kFull};
  DeltaDecoder decoder;
  for (size_t i = 0; i < names_.size(); ++i) {
    const DeltaFile::Tensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, names_[i]);
    EXPECT_EQ(tensor.dtype, dtypes_[i]);
    EXPECT_EQ(tensor.shape, shapes_[i]);
    EXPECT_EQ(tensor.payload, payloads[i]) << names_[i];
    std::vector<std::byte> out(static_cast<size_t>(tensor.dense_bytes));
    for (int time = 0; time < 2; ++time) {
      const auto applied =
          time == 0 ? file.apply(i, from_[i], out) : file.apply(decoder, i, from_[i], out);
      ASSERT_TRUE(applied) << applied.failure().message;
      EXPECT_EQ(out, to_[i]) << names_[i];
    }
  }
  EXPECT_EQ(sizes.dense, 2400 + 120 + 140 + 4);
  EXPECT_EQ(sizes.elements, 1200 + 30 + 35 + 1);
  EXPECT_EQ(sizes.full, 140 + 4);
  EXPECT_EQ(sizes.same, 120);
  EXPECT_EQ(sizes.compressed, file.tensors()[0].bytes);
  EXPECT_EQ(sizes.file, static_cast<int64_t>(fs::file_size(folder_ / "d")));
  EXPECT_GT(sizes.changed, 36 + 20);
  EXPECT_LT(sizes.changed, 36 + 120);
}

TEST_F(DeltaFileTest, OfNoTensorsIsAFileAsWell) {
  const auto sizes = write_delta(folder_ / "d", kEnds, {}, {}, {});
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes.value().dense, 0);
  const auto file = DeltaFile::open(folder_ / "d");
  ASSERT_TRUE(file) << file.failure().message;
  EXPECT_TRUE(file.value().prove());
  EXPECT_TRUE(file.value().tensors().empty());
}

TEST_F(DeltaFileTest, EqualVersionsGiveEqualFiles) {
  write(folder_ / "d");
  write(folder_ / "e");
  EXPECT_EQ(read_file(folder_ / "d").value(), read_file(folder_ / "e").value());
}

// Every byte of the file, and every length that it can be cut to.
TEST_F(DeltaFileTest, NamesWhatIsDamaged) {
  write(folder_ / "d");
  const std::string good = read_file(folder_ / "d").value();
  size_t sections = good.size();  // where they begin
  {
    const auto file = DeltaFile::open(folder_ / "d");
    for (const auto& tensor : file.value().tensors()) sections -= static_cast<size_t>(tensor.bytes);
  }
  const fs::path path = folder_ / "d";
  const auto judge = [&]() -> std::string {
    const auto file = DeltaFile::open(path);
    if (!file) return file.failure().message;
    const auto proved = file.value().prove();
    if (proved) return "";
    // A tensor that is damaged is not applied, and the others are.
    int refused = 0;
    for (size_t i = 0; i < names_.size(); ++i) {
      std::vector<std::byte> out(to_[i].size());
      const auto applied = file.value().apply(i, from_[i], out);
      refused += !applied;
      if (applied) {
        EXPECT_EQ(out, to_[i]);
      } else {
        EXPECT_EQ(applied.failure().message, proved.failure().message);
      }
    }
    EXPECT_EQ(refused, 1);
    return proved.failure().message;
  };
  std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto put = [&](size_t at, char byte) {
    bytes.seekp(static_cast<std::streamoff>(at));
    bytes.put(byte);
    bytes.flush();
  };
  for (size_t at = 0; at < good.size(); ++at) {
    put(at, static_cast<char>(good[at] ^ (1 << at % 8)));
    const std::string message = judge();
    put(at, good[at]);
    ASSERT_TRUE(message.starts_with(path.string() + ": ")) << at << ": " << message;
    if (at >= sections)
      ASSERT_NE(message.find(" is damaged"), std::string::npos) << message;
    else
      ASSERT_TRUE(message.find("header") != std::string::npos ||
                  message.find("no delta of weights") != std::string::npos)
          << at << ": " << message;
  }
  ASSERT_EQ(judge(), "");
  put(good.size(), 'x');
  EXPECT_NE(judge().find("follow its header"), std::string::npos);
  for (size_t size = good.size(); size-- > 0;) {
    fs::resize_file(path, size);
    ASSERT_NE(judge(), "") << size;
  }
}

// The digest of the header holds, and what it says cannot be.
TEST_F(DeltaFileTest, RefusesAHeaderThatDoesNotFitItsFile) {
  write(folder_ / "d");
  const std::string good = read_file(folder_ / "d").value();
  const auto opened_with = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    const size_t at = bytes.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    EXPECT_LE(to.size(), from.size());
    bytes.replace(at, from.size(), to + std::string(from.size() - to.size(), ' '));
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + 40, 8);
    bytes.replace(8, 32, digest_of(std::string_view(bytes).substr(40, 8 + length)));
    std::ofstream(folder_ / "odd", std::ios::binary | std::ios::trunc) << bytes;
    const auto file = DeltaFile::open(folder_ / "odd");
    return file ? std::string() : file.failure().message;
  };
  EXPECT_EQ(opened_with("\"attempt\":\"a2\"", "\"attempt\":\"a3\""), "")
      << "a header may be written anew";
  EXPECT_NE(opened_with("\"format\":1", "\"format\":2").find("has format 2; this build reads 1"),
            std::string::npos);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"shape\":[40,30]", "\"shape\":[-4,30]"},
           {"\"shape\":[40,30]", "\"shape\":[4,3]"},
           {"\"shape\":[7,5]", "\"shape\":[7,6]"},
           {"\"shape\":[7,5]", "\"shape\":7"},
           {"\"dtype\":\"BF16\"", "\"dtype\":\"I64\""},
           {"\"payload\":\"delta\"", "\"payload\":\"same\""},
           {"\"payload\":\"delta\"", "\"payload\":\"half\""},
           {"\"name\":\"head\"", "\"name\":\"norm\""},
           {"\"offset\":0", "\"offset\":1"},
           {"\"bytes\":140", "\"bytes\":144"},
           {"\"bytes\":140", "\"bytes\":-14"},
           {"\"bytes\":140", "\"bytes\":\"1\""},
           {"\"attempt\":\"a2\"", "\"attempts\":1"},
           {"\"policy\":3", "\"polic\":3"}})
    EXPECT_NE(opened_with(from, to), "") << from << " -> " << to;
}

// A file of another host says under which names its reader looks for the next one.
TEST_F(DeltaFileTest, RefusesEndsThatAreNoVersions) {
  for (const char* root :
       {"../../elsewhere", "/tmp/elsewhere", "", "ABCDEFABCDEFABCDEFABCDEFABCDEFAB"})
    for (const bool is_to : {false, true}) {
      DeltaEnds ends = kEnds;
      (is_to ? ends.to_root : ends.from_root) = root;
      ASSERT_TRUE(write_delta(folder_ / "d", ends, tensors(from_), tensors(to_), {}));
      const auto opened = DeltaFile::open(folder_ / "d");
      ASSERT_FALSE(opened) << root;
      EXPECT_NE(opened.failure().message.find("no root of a version"), std::string::npos)
          << opened.failure().message;
    }
  DeltaEnds ends = kEnds;
  ends.to_version = -1;
  ASSERT_TRUE(write_delta(folder_ / "d", ends, tensors(from_), tensors(to_), {}));
  EXPECT_FALSE(DeltaFile::open(folder_ / "d"));
}

TEST_F(DeltaFileTest, SaysWhatIsNoDelta) {
  const auto message = [&](const std::string& bytes) {
    std::ofstream(folder_ / "x", std::ios::binary | std::ios::trunc) << bytes;
    return DeltaFile::open(folder_ / "x").failure().message;
  };
  const std::string name = (folder_ / "x").string();
  EXPECT_EQ(message(""), name + ": it is empty");
  EXPECT_EQ(message("a text"), name + ": it is no delta of weights");
  EXPECT_EQ(message("TRdelta\nabc"), name + ": it ends within its header");
  EXPECT_NE(DeltaFile::open(folder_ / "none").failure().message.find("cannot open"),
            std::string::npos);
  EXPECT_FALSE(DeltaFile::open(folder_));
}

TEST_F(DeltaFileTest, AWrongBaseGivesBytesThatAreNotThoseOfTheVersion) {
  write(folder_ / "d");
  const auto file = DeltaFile::open(folder_ / "d");
  std::vector<std::byte> wrong = from_[0], out(to_[0].size());
  wrong[100] ^= std::byte{4};
  ASSERT_TRUE(file.value().apply(0, wrong, out)) << "the file cannot know: the manifest does";
  EXPECT_NE(digest_of(out), digest_of(to_[0]));
  EXPECT_NE(file.value()
                .apply(0, std::span(wrong).first(8), out)
                .failure()
                .message.find("layers.0.q: its base has 8 bytes and not 2400"),
            std::string::npos);
}

TEST_F(DeltaFileTest, AFullDiskLeavesNothingBehind) {
  const auto whole = static_cast<rlim_t>(write(folder_ / "whole").file);
  // A file size limit stands for it, in a child that alone has it. It is met in the head, and in
  // the sections.
  for (const rlim_t bytes : {rlim_t{100}, whole - 10}) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
      ::setrlimit(RLIMIT_FSIZE, &limit);
      const auto written = write_delta(folder_ / "d", kEnds, tensors(from_), tensors(to_), {});
      const bool named =
          !written &&
          written.failure().message.find((folder_ / "d").string()) != std::string::npos &&
          written.failure().message.find("File too large") != std::string::npos;
      ::_exit(named ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "the whole one alone";
  }
}

TEST_F(DeltaFileTest, StopsAndBeats) {
  Pulse pulse;
  {
    const PulseScope scope(pulse);
    write(folder_ / "d");
  }
  EXPECT_GE(pulse.beats(), names_.size());
  std::stop_source source;
  source.request_stop();
  const auto stopped =
      write_delta(folder_ / "e", kEnds, tensors(from_), tensors(to_), {}, source.get_token());
  ASSERT_FALSE(stopped);
  EXPECT_NE(stopped.failure().message.find("asked to stop"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "only the first";
}

}  // namespace
}  // namespace tailrace
