#include "core/wire/curve_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zmq.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/wire/keyed_host.h"

namespace tailrace::wire {
namespace {

namespace fs = std::filesystem;

mode_t mode_of(const fs::path& file) {
  struct stat facts {};
  EXPECT_EQ(::stat(file.c_str(), &facts), 0) << file;
  return facts.st_mode & 0777;
}

class CurveKeys : public testing::Test {
 protected:
  // What reading `text` as a secret key is refused with.
  std::string refusal_of(const std::string& text) {
    const fs::path file = write("refused.key", text);
    try {
      (void)read_secret_key(file);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  fs::path write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const fs::path file = host_.keys().root / name;
    std::ofstream(file) << text;
    EXPECT_EQ(::chmod(file.c_str(), mode), 0);
    return file;
  }
  std::optional<std::string> owner_of(const std::string& key) {
    return find_allowed(host_.keys(), key);
  }

  KeyedHost host_;
};

TEST_F(CurveKeys, ANewPairIsReadBack) {
  const KeyFolder& keys = host_.keys();
  const KeyPair server = read_secret_key(keys.server());
  EXPECT_EQ(read_public_key(keys.server_public()), server.public_key);
  EXPECT_EQ(read_public_key(keys.server()), server.public_key);
  char derived[41];
  ASSERT_EQ(zmq_curve_public(derived, server.secret_key.c_str()), 0);
  EXPECT_EQ(derived, server.public_key);
  EXPECT_NE(new_key_pair().secret_key, new_key_pair().secret_key);
}

TEST_F(CurveKeys, OnlyItsOwnerReadsASecret) {
  const KeyFolder& keys = host_.keys();
  EXPECT_EQ(mode_of(keys.server()), 0600u);
  EXPECT_EQ(mode_of(keys.server_public()) & 0600, 0600u);
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    ASSERT_EQ(::chmod(keys.server().c_str(), mode), 0);
    try {
      (void)read_secret_key(keys.server());
      ADD_FAILURE() << mode;
    } catch (const UserError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(fmt::format("(mode {:o})", mode)), std::string::npos) << what;
      EXPECT_NE(what.find("chmod 600 " + keys.server().string()), std::string::npos) << what;
    }
  }
  ASSERT_EQ(::chmod(keys.server().c_str(), 0400), 0);
  EXPECT_NO_THROW((void)read_secret_key(keys.server()));
}

TEST_F(CurveKeys, AFileThatIsNoneIsRefusedByItsLine) {
  const KeyPair pair = new_key_pair();
  const std::string good = fmt::format("public {}\nsecret {}\n", pair.public_key, pair.secret_key);
  ASSERT_EQ(refusal_of(good), "");
  const auto expect = [&](const std::string& text, const std::string& part) {
    const std::string refusal = refusal_of(text);
    EXPECT_NE(refusal.find("refused.key"), std::string::npos) << text;
    EXPECT_NE(refusal.find(part), std::string::npos) << refusal;
  };
  expect("", "no public key");
  expect("# a comment\n\n", "no public key");
  expect("# a comment\nhello\n", "refused.key:2:");
  expect(good + "more " + pair.public_key + "\n", "refused.key:3:");
  expect("public " + pair.public_key + "\n", "holds a public key alone");
  expect("secret " + pair.secret_key + "\n", "no public key");
  expect("public  " + pair.public_key, "refused.key:1:");
  expect("public " + pair.public_key + " \n", "refused.key:1:");
  expect("public " + std::string(40, '"'), "refused.key:1:");
  expect("public " + std::string(40, '\xff'), "refused.key:1:");
  // Five characters at a time: a key that ends early is one to a reader of C strings.
  std::string cut = good;
  cut[std::string("public ").size() + 35] = '\0';
  expect(cut, "refused.key:1:");
  expect(std::string(100'000, '#'), "larger");
  // Cut anywhere, and it is no key file, or it holds all but the last newline.
  for (size_t size = 0; size + 1 < good.size(); ++size)
    EXPECT_NE(refusal_of(good.substr(0, size)), "") << size;
}

// As when two files were mixed up: the handshake would fail without a word of why.
TEST_F(CurveKeys, KeysThatAreNoPairAreRefused) {
  const KeyPair one = new_key_pair(), other = new_key_pair();
  const std::string refusal =
      refusal_of(fmt::format("public {}\nsecret {}\n", one.public_key, other.secret_key));
  EXPECT_NE(refusal.find("do not belong together"), std::string::npos) << refusal;
}

TEST_F(CurveKeys, NoKeyIsReadOfWhatIsNoFile) {
  const fs::path folder = host_.keys().root / "folder.key";
  fs::create_directory(folder);
  EXPECT_THROW((void)read_secret_key(folder), UserError);
  const fs::path pipe = host_.keys().root / "pipe.key";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW((void)read_secret_key(pipe), UserError);
  EXPECT_THROW((void)read_public_key(host_.keys().root / "missing.pub"), UserError);
}

TEST_F(CurveKeys, NothingIsOverwritten) {
  const fs::path secret = host_.keys().secret("east"), shared = host_.keys().allowed("east");
  write_key_pair(secret, shared, "east");
  const std::string before = read_file(secret).value() + read_file(shared).value();
  EXPECT_THROW(write_key_pair(secret, shared, "east"), UserError);
  EXPECT_THROW(write_key_pair(secret, host_.keys().allowed("other"), "east"), UserError);
  EXPECT_EQ(read_file(secret).value() + read_file(shared).value(), before);
  EXPECT_FALSE(fs::exists(host_.keys().allowed("other")));
  // Nor is half a pair left, in whose way the next attempt would find itself.
  EXPECT_THROW(write_key_pair(host_.keys().secret("west"), shared, "west"), UserError);
  EXPECT_FALSE(fs::exists(host_.keys().secret("west")));
  // Nor does a link lead elsewhere.
  const fs::path elsewhere = host_.folder() / "elsewhere";
  fs::create_symlink(elsewhere, host_.keys().secret("north"));
  EXPECT_THROW(write_key_pair(host_.keys().secret("north"), host_.keys().allowed("north"), "north"),
               UserError);
  EXPECT_FALSE(fs::exists(elsewhere));
}

TEST_F(CurveKeys, TheFolderIsReadAnewEachTime) {
  host_.allow("east");
  const std::string key = read_public_key(host_.keys().allowed("east"));
  EXPECT_EQ(owner_of(key), "east");
  host_.forbid("east");
  EXPECT_EQ(owner_of(key), std::nullopt);
  std::ofstream(host_.keys().allowed("east-2")) << "public " << key;
  EXPECT_EQ(owner_of(key), "east-2");
  fs::remove_all(host_.keys().allowed());
  EXPECT_EQ(owner_of(key), std::nullopt) << "no folder at all";
}

TEST_F(CurveKeys, OtherFilesOfTheFolderLetNobodyIn) {
  const std::string key = new_key_pair().public_key, line = "public " + key + "\n";
  for (const char* name : {"east.key", "east", "east.pub~", ".pub", "a b.pub", "a\nb.pub", "..pub",
                           "\xc3\xa9.pub", "east.pub.bak"})
    write(fmt::format("allowed/{}", name), line);
  write("allowed/" + std::string(65, 'n') + ".pub", line);
  fs::create_directory(host_.keys().allowed("folder"));
  ASSERT_EQ(::mkfifo(host_.keys().allowed("pipe").c_str(), 0600), 0);
  fs::create_symlink("nowhere", host_.keys().allowed("link"));
  write("allowed/broken.pub", "public " + key.substr(1));
  write("allowed/huge.pub", line + std::string(100'000, '#'));
  EXPECT_EQ(owner_of(key), std::nullopt);
  EXPECT_EQ(owner_of(""), std::nullopt);
  write("allowed/good.pub", line);
  EXPECT_EQ(owner_of(key), "good");
}

}  // namespace
}  // namespace tailrace::wire
