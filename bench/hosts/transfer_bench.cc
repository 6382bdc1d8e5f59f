// A file from the gate of a run to a worker of another host, over an emulated link, as a share of
// what one plain TCP stream carries over the same link under the same congestion control. Both are
// measured in pairs, in turn.
//
// Checked first: the file that arrives is the file that was sent.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "bench/report/program.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/gate/gate.h"
#include "core/gate/remote_run.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/hosts/host.h"
#include "tests/hosts/link_emulator.h"
#include "tests/hosts/raw_stream.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr char kAddress[] = "tcp://10.77.0.1:7701";

struct Options {
  int mib = 64;
  double rate_mbit = 100, delay_ms = 25, loss_percent = 0;
  std::string congestion_control = "cubic";
  int pairs = 3;
  std::string serve, take;  // what a child of this bench does, in a folder
};

wire::KeyFolder keys_in(const fs::path& folder) { return {folder / "keys"}; }

// In the host of the run: a gate that has one file.
void serve(const fs::path& folder) {
  Log log("gate-0", folder / "gate.log");
  Gate gate({.listen = kAddress,
             .scheduler = "ipc:///tmp/nobody",
             .keys = keys_in(folder),
             .find = [&](const std::string&) { return SharedFile{folder / "file"}; },
             .admit =
                 [](const wire::Greeting&, const std::string&) {
                   return wire::GreetingAnswer{.kind = wire::GreetingAnswer::Kind::kWelcome,
                                               .name = "rollout-0"};
                 },
             .release = [](const std::string&) {},
             .write_lines = [](const std::string&, std::span<const wire::LogLine>) {}},
            log);
  gate.run({});
}

// In the host of the worker: fetches the file once, and says how long that took, connection and
// proof included.
void take(const fs::path& folder) {
  const wire::KeyFolder keys = keys_in(folder);
  RemoteRun run({.gate = {kAddress,
                          {wire::read_secret_key(keys.secret("far")),
                           wire::read_public_key(keys.server_public())}},
                 .greeting = {.role = Role::kRollout}});
  // The first look at a file takes its digests, whoever asks.
  const fs::path target = "/tmp/taken";
  const Stopwatch watch;
  const auto fetched = run.fetch("file", target, {});
  const double seconds = watch.seconds();
  if (!fetched) throw UserError("{}", fetched.failure().message);
  const auto digest = digest_of_file(target);
  std::ofstream(folder / "took") << fmt::format(
      "{} {} {}\n", seconds, digest ? digest.value() : "none", fetched.value().asked_again);
}

class Transfers {
 public:
  explicit Transfers(const Options& options) : options_(options) {
    const wire::KeyFolder keys = keys_in(folder_);
    fs::create_directories(keys.allowed());
    wire::write_key_pair(keys.server(), keys.server_public(), "server");
    wire::write_key_pair(keys.secret("far"), keys.allowed("far"), "far");
    std::string bytes(static_cast<size_t>(options.mib) << 20, '\0');
    std::mt19937_64 random(1);
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      const uint64_t drawn = random();
      std::memcpy(bytes.data() + at, &drawn, sizeof drawn);
    }
    std::ofstream(folder_ / "file", std::ios::binary) << bytes;
    digest_ = digest_of(std::string_view(bytes));
  }

  struct Pair {
    double raw = 0, fetched = 0;  // Mbit/s
    int64_t asked_again = 0;
  };
  Pair measure() {
    Host home("home", {.shown = {folder_}}), far("far", {.shown = {folder_}});
    LinkEmulator link(
        home, far,
        {.rate_mbit = options_.rate_mbit,
         .delay = std::chrono::nanoseconds(static_cast<int64_t>(options_.delay_ms * 1e6)),
         .loss_ratio = options_.loss_percent / 100,
         .congestion_control = options_.congestion_control,
         .seed = ++seed_});
    Pair pair;
    const int64_t bytes = int64_t{options_.mib} << 20;
    pair.raw = raw_stream(home, far, kAddressB, bytes).mbit_per_s;
    const std::string self = fs::read_symlink("/proc/self/exe").string();
    home.spawn({self, "--serve", folder_.string()}, folder_ / "serve.out");
    HostProcess& taker = far.spawn({self, "--take", folder_.string()}, folder_ / "take.out");
    const auto status = taker.wait(600s);
    require(status == 0, "the transfer did not end well: {}",
            read_file(folder_ / "take.out").value());
    std::ifstream said(folder_ / "took");
    double seconds = 0;
    std::string digest;
    said >> seconds >> digest >> pair.asked_again;
    require(digest == digest_, "what arrived has digest {}, and {} was sent", digest, digest_);
    pair.fetched = static_cast<double>(bytes) * 8e-6 / seconds;
    return pair;
  }

 private:
  const Options& options_;
  TemporaryDirectory directory_;
  fs::path folder_ = directory_.path();
  Digest digest_;
  uint64_t seed_ = 0;
};

void measure(const Options& options, const Program& program) {
  if (!options.serve.empty()) return serve(options.serve);
  if (!options.take.empty()) return take(options.take);
  if (const auto reason = why_no_hosts(options.congestion_control))
    throw UserError("no hosts can be made here: {}", *reason);
  Report report = program.report({{"mib", int64_t{options.mib}},
                                  {"rate_mbit", options.rate_mbit},
                                  {"delay_ms", options.delay_ms},
                                  {"loss_percent", options.loss_percent},
                                  {"congestion_control", options.congestion_control}});
  Transfers transfers(options);
  std::vector<double> raw, fetched, ratio;
  int64_t again = 0;
  for (int i = 0; i < options.pairs; ++i) {
    const Transfers::Pair pair = transfers.measure();
    raw.push_back(pair.raw);
    fetched.push_back(pair.fetched);
    ratio.push_back(pair.fetched / pair.raw);
    again += pair.asked_again;
  }
  const std::string name = fmt::format("{} Mbit/s, {} ms, {} % lost", options.rate_mbit,
                                       options.delay_ms, options.loss_percent);
  report.add(name, "plain TCP", "Mbit/s", raw, options.rate_mbit);
  report.add(name, "gate", "Mbit/s", fetched, options.rate_mbit);
  report.add(name, "gate / plain TCP", "ratio", ratio);
  report.note(fmt::format("{} chunks were asked for more than once", again));
}

}  // namespace
}  // namespace tailrace

int main(int argc, char** argv) {
  using namespace tailrace;
  Options options;
  Program program("transfer", TAILRACE_MEASURES, "transfer --rate-mbit 1000 --delay-ms 5");
  program.fix_threads(0);
  Command& flags = program.flags();
  flags.option("--mib", options.mib, {.help = "size of the file", .min = 1, .max = 4096});
  flags.option("--rate-mbit", options.rate_mbit,
               {.help = "of the link, each way", .min = 0.1, .max = 100000});
  flags.option("--delay-ms", options.delay_ms, {.help = "of the link, one way", .max = 1000});
  flags.option("--loss-percent", options.loss_percent,
               {.help = "packets that are lost, each way", .max = 50});
  flags.option("--congestion-control", options.congestion_control,
               {.help = "of both: cubic, bbr, ...", .value = "NAME"});
  flags.option("--pairs", options.pairs, {.help = "of transfers", .min = 1, .max = 100});
  flags.option("--serve", options.serve, {.hidden = true});
  flags.option("--take", options.take, {.hidden = true});
  return program.run(argc, argv, [&] { measure(options, program); });
}
