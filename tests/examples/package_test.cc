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
#include "tests/examples/page_blocks.h"

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

// docs/python.md: the wheel of the archive, installed by pip into a root that has glibc and Python
// and nothing else, runs the example of the page.
TEST_F(Package, TheWheelRunsTheExampleOfItsPage) {
  if (!run("unshare -rm true", 10)) GTEST_SKIP() << "no root of its own may be made here";
  if (!run("python3 -c 'import ensurepip, sys; assert sys.version_info >= (3, 11)'", 30))
    GTEST_SKIP() << "there is no python3 of version 3.11 or newer with its module venv";
  std::string example;
  for (const PageBlock& block : blocks_of(read_file(TAILRACE_SOURCE_DIR "/docs/python.md").value()))
    if (block.language == "python") example += block.text;
  const fs::path script = folder_.write("example.py", example), archive = package(".tar.gz");
  ASSERT_FALSE(archive.empty());
  ASSERT_TRUE(run("root=" + root_.string() + " archive=" + archive.string() +
                      " example=" + script.string() +
                      " backend=" TAILRACE_SOURCE_DIR "/python/wheel_backend.py\n" + R"(
mkdir -p $root/{proc,dev,tmp,etc,work}
python3 $backend $archive $root/work
cp $example $root/work/example.py
# Python as it is here, with the libraries of its program and its modules alone.
python=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
wheels=$(python3 -c 'import sysconfig; print(sysconfig.get_config_var("WHEEL_PKG_DIR") or "")')
glibc=$(dirname $(ldd $python | grep -o '/[^ ]*/libc.so.6'))
for file in $python $(ldd $python $library/lib-dynload/*.so $(type -P bash) | grep -o '/[^ ]*[^: ]' |
    grep -v 'lib-dynload\|libstdc++\|libgcc_s' | sort -u) \
    $glibc/lib{pthread,dl,rt,resolv}.so.?; do
  [ ! -f $file ] || { mkdir -p $root$(dirname $file); cp -L $file $root$file; }
done
mkdir -p $root$library ${wheels:+$root$wheels}
cat >$root/work/steps.sh <<EOF
set -e
cd /work
$python -m venv /venv
PATH=/venv/bin
pip install --quiet --no-index --no-cache-dir --disable-pip-version-check tailrace-*.whl
tailrace --version
python example.py
EOF
unshare -rmpf bash -c "mount --rbind /dev $root/dev && mount -t proc proc $root/proc &&
  mount --rbind $library $root$library &&
  { [ -z '$wheels' ] || mount --rbind $wheels $root$wheels; } &&
  exec chroot $root $(type -P bash) /work/steps.sh")",
                  280))
      << said();
  EXPECT_NE(said().find("\nstep 2: reward "), std::string::npos) << said();
  expect_steps(root_ / "work/first-run", 2);
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
