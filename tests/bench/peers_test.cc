// What the scripts of bench/peers print, as far as it needs no peer: the form of the benches' rows,
// and the ratios.
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "bench/report/report.h"
#include "core/base/file.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace {
namespace {

using nlohmann::json;

const std::string kPeers = std::string(TAILRACE_SOURCE_DIR) + "/bench/peers";

class Peers : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("python3 --version > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "there is no python3";
  }

  // Exit status of a shell command; its output is in out_ and err_.
  int run(const std::string& command) {
    const std::string at = folder_.path().string();
    const int status = std::system(
        fmt::format("PYTHONDONTWRITEBYTECODE=1 {} > {}/out 2> {}/err", command, at, at).c_str());
    out_ = read_file(folder_ / "out").value();
    err_ = read_file(folder_ / "err").value();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  // A program that prints rows: a rate, a time, as many MB, and a length, which nobody compares.
  std::string fake(const std::string& name, double rate, double time, int64_t layers) {
    const Heading heading = make_heading("engine", {{"layers", layers}}, 2);
    std::string script = "#!/bin/sh\n";
    for (const Row& row : {Row{"tiny", "decode", "tokens/s", {rate, rate, rate, 1}, {}},
                           Row{"tiny", "wait", "ms", {time, time, time, 1}, {}},
                           Row{"tiny", "peak memory", "MB", {time, time, time, 1}, {}},
                           Row{"tiny", "length", "tokens", {9, 9, 9, 1}, {}}})
      script += fmt::format("echo '{}'\n", to_json(heading, row));
    folder_.write(name, script);
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    return (folder_ / name).string();
  }

  TemporaryDirectory folder_;
  std::string out_, err_;
};

TEST_F(Peers, PrintTheKeysOfABench) {
  ASSERT_EQ(run(fmt::format("python3 -c \"import sys; sys.path.insert(0, '{}'); import peer; "
                            "peer.Report('engine', 'a peer', '1', {{'layers': 4}}, True, 2, 'avx')"
                            ".add('tiny', 'decode', 'tokens/s', [1, 4, 2, 8])\"",
                            kPeers)),
            0)
      << err_;
  const json peer = json::parse(out_).flatten();
  const json ours = json::parse(to_json(make_heading("", {}, 1), {})).flatten();
  EXPECT_EQ(peer["/median"], 3);
  std::set<std::string> keys, our_keys;
  for (const auto& [key, value] : peer.items()) keys.insert(key);
  for (const auto& [key, value] : ours.items()) our_keys.insert(key);
  our_keys.erase("/settings");  // empty
  keys.erase("/settings/layers");
  EXPECT_EQ(keys, our_keys);
}

TEST_F(Peers, AreComparedByRateTimeAndMemory) {
  const std::string a = fake("a", 30, 5, 4), b = fake("b", 10, 20, 4);
  ASSERT_EQ(run(fmt::format("{}/compare.py {} {} --pairs 2 --max-others 1 --json", kPeers, a, b)),
            0)
      << err_;
  std::istringstream lines(out_);
  std::map<std::string, json> rows;
  for (std::string line; std::getline(lines, line);) {
    const json row = json::parse(line);
    rows[row["metric"]] = row;
  }
  EXPECT_EQ(rows.size(), 3);
  EXPECT_EQ(rows["decode"]["median"], 3);
  EXPECT_EQ(rows["decode"]["runs"], 2);
  EXPECT_EQ(rows["wait"]["median"], 4);
  EXPECT_EQ(rows["peak memory"]["median"], 4);
}

TEST_F(Peers, AreNotComparedWhenTheirSizesDiffer) {
  const std::string a = fake("a", 30, 5, 4), b = fake("b", 10, 20, 8);
  EXPECT_EQ(run(fmt::format("{}/compare.py {} {}", kPeers, a, b)), 2);
  EXPECT_TRUE(err_.ends_with("error: the setting layers differs: 4 and 8\n")) << err_;
  EXPECT_EQ(out_, "");
  EXPECT_EQ(run(fmt::format("{}/compare.py {} {} --pairs 1 --max-others 1 --may-differ layers",
                            kPeers, a, b)),
            0)
      << err_;
}

TEST_F(Peers, TakeTheSizesOfAFolder) {
  const std::string call =
      "python3 -c \"import sys; sys.path.insert(0, '{}'); import argparse, peer; "
      "peer.main(lambda: print(*peer.chosen_model(argparse.Namespace(geometry='tiny', "
      "model='{}'))))\"";
  ASSERT_EQ(run(fmt::format(fmt::runtime(call), kPeers,
                            std::string(TAILRACE_SOURCE_DIR) + "/tests/data/models/stories260K/")),
            0)
      << err_;
  EXPECT_TRUE(out_.starts_with("stories260K {'layers': 5, 'hidden': 64, 'heads': 8")) << out_;
  EXPECT_EQ(run(fmt::format(fmt::runtime(call), kPeers, folder_.path().string())), 2);
  EXPECT_NE(err_.find("is not the folder of a model"), std::string::npos) << err_;
}

// smollm2.py, with programs that print what they are told in the place of all others.
TEST_F(Peers, MakeATableOfTheBestWay) {
  folder_.write("table.py", R"(
import argparse, sys
sys.path.insert(0, sys.argv[1])
import smollm2
fast, slow, ours = (f'{sys.argv[2]}/{name}' for name in ('fast', 'slow', 'ours'))
rows = [('decoding', '', 'decode', 'tokens/s'), ('memory', '', 'peak memory', 'MB')]
options = argparse.Namespace(pairs=2, patience=0, max_others=1, may_differ=['layers'])
whole = smollm2.print_table(
    [smollm2.Work('a', ours, {'slowly': slow, 'fast': fast, 'never': '/bin/false'}, rows),
     smollm2.Work('b', '', {'alone': slow}, rows[:1]),
     smollm2.Work('c', ours, {'broken': '/bin/false'}, rows)], options)
sys.exit(not whole)
)");
  fake("ours", 30, 5, 4);
  fake("fast", 20, 20, 8);
  fake("slow", 10, 10, 8);
  EXPECT_EQ(run(fmt::format("python3 {0}/table.py {1} {0}", folder_.path().string(), kPeers)), 1)
      << err_;
  for (const char* part :
       {"| decoding | tokens/s | 30 | 20 | 1.50 | fast |", "| memory | MB | 5 | 20 | 4.00 | fast |",
        "| decoding | tokens/s | none yet | 10 |  | alone |",
        "- slowly, run once: decode 10 tokens/s, peak memory 10 MB",
        "- never did not run: ", "- c was not measured: "})
    EXPECT_NE(out_.find(part), std::string::npos) << part << "\n" << out_;
}

}  // namespace
}  // namespace tailrace
