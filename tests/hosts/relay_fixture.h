// Two hosts of one cluster behind slow links, and a fast one between them: weights cross from the
// run to one of them, which hands them on.
//
//   alpha (the run) --slow-- beta --fast-- gamma --slow-- alpha
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tests/hosts/remote_fixture.h"

namespace tailrace {

inline const std::string kAddressC = "10.77.0.3";
inline constexpr char kRelayAt[] = "tcp://10.77.0.2:7702";
class RelayTest : public RemoteTest {
 protected:
  void SetUp() override {
    RemoteTest::SetUp();
    if (IsSkipped()) return;
    third_.emplace("gamma", HostOptions{.hidden = {fs::path(TAILRACE_SOURCE_DIR) / "tests/data"}});
    make_keys("box8");
    carry_keys("box8", *third_);
    connect({.rate_mbit = 20, .delay = std::chrono::milliseconds(5)});
    to_third_.emplace(
        *home_, *third_,
        LinkOptions{
            .address_b = kAddressC, .rate_mbit = 20, .delay = std::chrono::milliseconds(5)});
    between_.emplace(*far_, *third_,
                     LinkOptions{.address_a = kAddressB,
                                 .address_b = kAddressC,
                                 .rate_mbit = 1000,
                                 .delay = std::chrono::microseconds(100)});
  }
  void TearDown() override {
    if (HasFailure() && third_) {
      show_worker_logs(*far_);
      show_worker_logs(*third_);
    }
    between_.reset();
    to_third_.reset();
    third_.reset();
    RemoteTest::TearDown();
  }

  static std::vector<fs::path> worker_logs(const Host& host) {
    std::vector<fs::path> logs;
    std::error_code ignored;
    for (const auto& log : fs::directory_iterator(host.outside("/tmp/work/logs"), ignored))
      logs.push_back(log.path());
    return logs;
  }
  static void show_worker_logs(const Host& host) {
    for (const fs::path& log : worker_logs(host))
      fmt::print("{} {}:\n{}", host.name(), log.filename().string(), read_file(log).value());
  }
  // What the workers of a host have written.
  static std::string words_of(const Host& host) {
    std::string words;
    for (const fs::path& log : worker_logs(host)) words += read_file(log).value();
    return words;
  }

  // Payloads and ways that workers of the host have received from this source, by version.
  static std::map<int64_t, int64_t> weights_received(const Host& host, const std::string& source) {
    const std::string words = words_of(host);
    const std::regex received("received p0-v([0-9]+)\\.(safetensors|way-[^ ]*) from=" + source +
                              " bytes=");
    std::map<int64_t, int64_t> forms;
    for (auto at = std::sregex_iterator(words.begin(), words.end(), received);
         at != std::sregex_iterator(); ++at)
      ++forms[std::stoll((*at)[1])];
    return forms;
  }

  HostProcess& launch_four(std::vector<std::string> more = {}) {
    more.insert(more.end(),
                {"rollout.pools=[{name: far, workers: 4, cluster: west}]", "reward.workers=1"});
    return launch(more);
  }
  HostProcess& join_relay() { return join({"--pool", "far", "--relay", kRelayAt}); }
  HostProcess& join_third() {
    return third_->spawn(
        {TAILRACE_BINARY, "worker", "--join", kListen, "--key", "/tmp/keys/box8.key",
         "--server-key", "/tmp/keys/server.pub", "--work-dir", "/tmp/work", "--pool", "far"},
        next_output());
  }
  int64_t from_home(const std::optional<LinkEmulator>& link) const {
    return link->counters(Direction::kAToB).passed_bytes;
  }
  // All versions are of one size; the trainer removes old ones.
  int64_t payload_bytes() const {
    int64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(home_->outside("/tmp/run/weights")))
      if (file.path().extension() == ".safetensors") bytes = static_cast<int64_t>(file.file_size());
    return bytes;
  }
  void expect_relaying(const std::string& words = "relays weights to other hosts") {
    ASSERT_TRUE(comes_true([&] { return words_of(*far_).find(words) != std::string::npos; }));
  }

  std::optional<Host> third_;
  std::optional<LinkEmulator> to_third_, between_;
};

}  // namespace tailrace
