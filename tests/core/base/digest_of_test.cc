#include "core/base/digest_of.h"

#include <gtest/gtest.h>

#include "kernels/base/pulse.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

TEST(Digest, AFileHasThatOfItsBytes) {
  TemporaryDirectory folder;
  for (const size_t size : {size_t{0}, size_t{5}, (size_t{1} << 20) + 7}) {
    const std::string bytes(size, 'x');
    EXPECT_EQ(digest_of_file(folder.write("file", bytes)).value(), digest_of(bytes)) << size;
  }
  EXPECT_EQ(digest_of("").size(), 32u);
  EXPECT_NE(digest_of("a"), digest_of("b"));
  EXPECT_NE(digest_of_file(folder / "missing").failure().message.find("missing"),
            std::string::npos);
}

TEST(Digest, ATextFromOutsideLooksLikeOneOrDoesNot) {
  const Digest digest = digest_of("a");
  EXPECT_TRUE(is_digest(digest));
  EXPECT_FALSE(is_digest(digest.substr(1)));
  EXPECT_FALSE(is_digest(digest + "0"));
  EXPECT_FALSE(is_digest(std::string(kDigestDigits, 'A')));
  EXPECT_FALSE(is_digest("../../" + digest.substr(6)));
}

// A device gives bytes for ever, and the pulse would say that all is well.
TEST(Digest, OfWhatIsNoFileThereIsNone) {
  TemporaryDirectory folder;
  std::filesystem::create_symlink("/dev/zero", folder / "zero");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"zero", "pipe"}) {
    const auto digest = digest_of_file(folder / name);
    ASSERT_FALSE(digest) << name;
    EXPECT_NE(digest.failure().message.find("it is a pipe or a device"), std::string::npos);
  }
}

TEST(Digest, ALargeFileShowsProgress) {
  TemporaryDirectory folder;
  const auto file = folder.write("large", std::string(3 << 20, 'x'));
  Pulse pulse;
  const PulseScope scope(pulse);
  ASSERT_TRUE(digest_of_file(file));
  EXPECT_GE(pulse.beats(), 3u);
}

}  // namespace
}  // namespace tailrace
