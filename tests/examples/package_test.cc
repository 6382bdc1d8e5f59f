// `make package`, unpacked where nothing else is: each package trains for a moment. The archive
// does so in a root of its own, with glibc and no other file of the system.
#include <cstdlib>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

#include "core/base/file.h"
#include "core/run/metrics.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class Package : public ::testing::Test {
 protected:
  // Runs a script of bash; false: it failed, or took longer than `seconds`.
  bool run(const std::string& script, int seconds) {
    const fs::path file = folder_.write("script.sh", "set -e\n" + script);
    const int status = std::system(("timeout -k 5 " + std::to_string(seconds) + " bash " +
                                    file.string() + " > " + said_.string() + " 2>&1")
                                       .c_str());
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::string said() const { return read_file(said_).value(); }

  // The only file with this ending among the packages.
  fs::path package(const std::string& ending) {
    const std::string build = fs::path(TAILRACE_BINARY).parent_path().string();
    EXPECT_TRUE(run("cd " + build + " && cpack -B " + packages_.string(), 300)) << said();
    for (const auto& entry : fs::directory_iterator(packages_))
      if (entry.path().string().ends_with(ending)) return entry.path();
    ADD_FAILURE() << "no " << ending << "\n" << said();
    return {};
  }

  void expect_steps(const fs::path& run_folder, size_t steps) {
    const auto rows = read_metrics(run_folder / "metrics.jsonl");
    ASSERT_TRUE(rows) << said();
    size_t trained = 0;
    for (const MetricsRow& row : rows.value()) trained += row.find("policy/loss") != nullptr;
    EXPECT_GE(trained, steps) << said();
  }

  const TemporaryDirectory folder_;
  const fs::path said_ = folder_ / "said", packages_ = folder_ / "packages",
                 root_ = folder_ / "root";
  static constexpr const char* kTrain =
      "launch /opt/share/tailrace/configs/quickstart.yaml --run-dir /run0 run.steps=4 "
      "sft.demonstrations=500 eval.prompts=16";
};

TEST_F(Package, TheArchiveTrainsWhereNothingElseIs) {
  if (!run("unshare -rm true", 10)) GTEST_SKIP() << "no root of its own may be made here";
  const fs::path archive = package(".tar.gz");
  ASSERT_FALSE(archive.empty());
  // The loader and glibc alone; /proc and /dev are the kernel's.
  ASSERT_TRUE(run("root=" + root_.string() + "\nmkdir -p $root/{opt,proc,dev,tmp,etc}\n" +
                      "tar -xzf " + archive.string() + " -C $root/opt --strip-components=1\n" +
                      R"(
for library in $(ldd $root/opt/bin/tailrace | grep -o '/[^ ]*'); do
  case $(basename $library) in
    ld-linux*|libc.so*|libm.so*|libpthread.so*|libresolv.so*|libdl.so*|librt.so*)
      mkdir -p $root$(dirname $library); cp -L $library $root$library;;
    *) [[ $library == $root/* ]] || { echo "$library is not in the archive"; exit 1; };;
  esac
done
[ -s $root/opt/share/doc/tailrace/licences/libzmq5 ]
unshare -rmpf bash -c "mount --rbind /dev $root/dev && mount -t proc proc $root/proc &&
  exec chroot $root /opt/bin/tailrace )" +
                      kTrain + "\"\n",
                  280))
      << said();
  expect_steps(root_ / "run0", 4);
}

TEST_F(Package, ThePackageOfDebianNamesWhatItNeeds) {
  const fs::path deb = package(".deb");
  ASSERT_FALSE(deb.empty());
  const std::string root = root_.string();
  std::string train = kTrain;
  for (const auto& [from, to] : {std::pair{"/opt/", "/usr/"}, std::pair{"/run0", "/run0"}})
    train.replace(train.find(from), std::string(from).size(), root + to);
  ASSERT_TRUE(run("dpkg-deb -f " + deb.string() + " Depends | tee " +
                      (folder_ / "depends").string() + "\ndpkg-deb -x " + deb.string() + " " +
                      root + "\ntest ! -e " + root + "/usr/lib/tailrace\n" + root +
                      "/usr/bin/tailrace " + train + "\n",
                  280))
      << said();
  const std::string depends = read_file(folder_ / "depends").value();
  for (const char* name : {"libc6 (>= ", "libzmq5 (>= ", "libgloo0", "libfmt9 (>= "})
    EXPECT_NE(depends.find(name), std::string::npos) << depends;
  expect_steps(root_ / "run0", 4);
}

}  // namespace
}  // namespace tailrace
