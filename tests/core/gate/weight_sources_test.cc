// Files of weights by relays, before a real gate: each host of a test has a folder, a connection to
// the run and sources of its own.
#include "core/gate/weight_sources.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/gate/weight_relay.h"
#include "tests/core/gate/gate_fixture.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using wire::kChunkBytes;

const std::string kFile = "p0-v1.safetensors";

class WeightSourcesTest : public GateTest {
 protected:
  // A host with one worker in it.
  struct FarHost {
    std::unique_ptr<RemoteRun> run;
    fs::path work;
    std::string address;  // of its relay
    std::unique_ptr<WeightSources> sources;
    std::unique_ptr<Log> log;
    std::unique_ptr<WeightRelay> relay;

    fs::path path(const Digest& root, const std::string& file = kFile) const {
      return work / "weights" / root / file;
    }
    std::string text(const Digest& root) const {
      const auto read = read_file(path(root));
      return read ? read.value() : read.failure().message;
    }
    std::string log_text() const {
      log->flush();
      return read_file(work / "log").value();
    }
  };

  WeightSourcesTest() { host_.allow("north"); }

  static std::string new_address() { return fmt::format("tcp://127.0.0.1:{}", wire::free_port()); }

  FarHost make_host(const std::string& name, const std::string& key,
                    const std::string& address = "", const std::string& cluster = "c") {
    FarHost host;
    host.address = address;
    host.work = host_.folder() / name;
    fs::create_directories(host.work / "weights");
    host.run = std::make_unique<RemoteRun>(
        RemoteRunOptions{.gate = host_.endpoint(key),
                         .greeting = {.cluster = cluster, .host = name, .relay = address},
                         .greet_again = 50ms});
    host.log = std::make_unique<Log>(name, host.work / "log");
    host.sources = std::make_unique<WeightSources>(
        *host.run, WeightSourcesOptions{
                       .is_here = [address](const std::string& other) { return other == address; },
                       .patience = patience_,
                       .pause = 1s,
                       .longest_pause = 4s});
    host.sources->log_to(*host.log);
    return host;
  }
  WeightRelayOptions relay_options(const FarHost& host) {
    return {.listen = host.address,
            .own = host.run->endpoint().keys->own,
            .weights = host.work / "weights",
            .lock = host.work / "relay",
            .is_guest = [&run = *host.run](std::string_view key) { return run.is_guest(key); },
            .fetch = [&sources = *host.sources, work = host.work](
                         const Digest& root, const std::string& file, const std::stop_token& stop,
                         const std::function<void(int64_t)>& on_progress) -> Result<void> {
              fs::create_directories(work / "weights" / root);
              const auto fetched =
                  sources.fetch({root, file}, work / "weights" / root / file, stop,
                                [&](int64_t bytes, int64_t) { on_progress(bytes); });
              if (!fetched) return fetched.failure();
              return {};
            }};
  }
  FarHost make_relay(const std::string& name, const std::string& key) {
    FarHost host = make_host(name, key, new_address());
    host.relay = std::make_unique<WeightRelay>(relay_options(host), *host.log);
    return host;
  }
  Result<FetchCounters> fetch(FarHost& host, const Digest& root, const std::string& file = kFile) {
    fs::create_directories(host.work / "weights" / root);
    return host.sources->fetch({root, file}, host.path(root, file), stop_.get_token());
  }
  // A version of the run.
  std::string publish(int64_t bytes, uint64_t seed = 1) {
    Rng rng(seed);
    std::string text(static_cast<size_t>(bytes), '\0');
    for (size_t i = 0; i + 8 <= text.size(); i += 8) {
      const uint64_t word = (static_cast<uint64_t>(rng.below(1 << 30)) << 32) + i;
      std::memcpy(text.data() + i, &word, 8);
    }
    std::ofstream(files() / kFile) << text;
    share("weights/" + kFile, {files() / kFile});
    return text;
  }
  // The host has heard of so many relays and keys.
  bool knows(const FarHost& host, size_t relays, size_t guests) {
    return eventually([&] {
      const wire::RelayList list = host.run->relays({});
      return list.relays.size() == relays && list.guests.size() == guests;
    });
  }

  const Digest root_ = digest_of(std::string_view("a version"));
  std::chrono::milliseconds patience_ = 2s;
  std::stop_source stop_;
};

TEST_F(WeightSourcesTest, AFileCrossesTheBoundaryOnce) {
  start_gate();
  const std::string text = publish(9 * kChunkBytes + 5);
  FarHost b = make_relay("b", "east"), c = make_host("c", "west"), d = make_host("d", "north");
  ASSERT_TRUE(knows(b, 1, 3) && knows(c, 1, 3) && knows(d, 1, 3));
  std::optional<Result<FetchCounters>> of_c, of_d;
  {
    // Nobody has told the relay of this version: who asks is enough.
    const std::jthread one([&] { of_c = fetch(c, root_); });
    const std::jthread other([&] { of_d = fetch(d, root_); });
  }
  ASSERT_TRUE(*of_c) << of_c->failure().message;
  ASSERT_TRUE(*of_d) << of_d->failure().message;
  for (const FarHost* host : {&b, &c, &d}) EXPECT_TRUE(host->text(root_) == text);
  EXPECT_EQ(counters().chunks, 10);
  EXPECT_EQ(of_c->value().received, std::ssize(text));
  EXPECT_EQ(c.sources->received(),
            (std::map<std::string, int64_t>{{b.run->welcome().name, std::ssize(text)}}));
  EXPECT_EQ(b.sources->received(), (std::map<std::string, int64_t>{{"run", std::ssize(text)}}));
  EXPECT_NE(c.log_text().find("received p0-v1.safetensors from=rollout-0 bytes="),
            std::string::npos)
      << c.log_text();
  // A late joiner has it of the relay, too.
  FarHost late = make_host("late", "west");
  const auto fetched = fetch(late, root_);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(late.text(root_) == text);
  EXPECT_EQ(counters().chunks, 10);
}

// The way to a version is the relay's own: the run is asked nothing about it.
TEST_F(WeightSourcesTest, ARelayGivesAWayOfItsOwnAndIsLeftWhereItLeadsElsewhere) {
  start_gate();
  const std::string way = "p0-v1.way-made-by-a-relay", of_run(3 * kChunkBytes, 'r');
  std::ofstream(files() / way) << of_run;
  share("weights/" + way, {files() / way});
  FarHost b = make_host("b", "east", new_address()), c = make_host("c", "west");
  const std::string of_relay(2 * kChunkBytes, 'x');
  WeightRelayOptions options = relay_options(b);
  options.fetch = [&](const Digest& root, const std::string& file, const std::stop_token&,
                      const std::function<void(int64_t)>&) -> Result<void> {
    fs::create_directories(b.path(root).parent_path());
    std::ofstream(b.path(root, file)) << of_relay;
    return {};
  };
  b.relay = std::make_unique<WeightRelay>(options, *b.log);
  ASSERT_TRUE(knows(c, 1, 2) && knows(b, 1, 2));
  fs::create_directories(c.path(root_).parent_path());
  const auto take = [&](int64_t max_bytes) {
    const auto fetched =
        c.sources->fetch({root_, way, max_bytes}, c.path(root_, way), stop_.get_token());
    EXPECT_TRUE(fetched) << fetched.failure().message;
    return read_file(c.path(root_, way)).value();
  };
  EXPECT_TRUE(take(2 * kChunkBytes) == of_relay);
  EXPECT_EQ(counters().chunks, 0);
  EXPECT_TRUE(c.sources->refuse(c.path(root_, way), "it leads elsewhere"));
  EXPECT_FALSE(c.sources->refuse(c.path(root_, way), "again")) << "the relay is left already";
  EXPECT_NE(c.log_text().find("did not give " + way + " (it leads elsewhere)"), std::string::npos)
      << c.log_text();
  fs::remove(c.path(root_, way));
  EXPECT_TRUE(take(3 * kChunkBytes) == of_run);
  EXPECT_FALSE(c.sources->refuse(c.path(root_, way), "it came from the run"));
  // No more bytes than the receiver can use are taken of anybody.
  FarHost d = make_host("d", "north");
  ASSERT_TRUE(knows(d, 1, 3));
  fs::create_directories(d.path(root_).parent_path());
  const auto refused = d.sources->fetch({root_, way, kChunkBytes}, d.path(root_, way), {});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.failure().message.find("it has 524288 bytes there, and can have 262144"),
            std::string::npos)
      << refused.failure().message;
  EXPECT_EQ(counters().chunks, 3);
}

TEST_F(WeightSourcesTest, ARelayAsksThoseBeforeItAndNoOther) {
  start_gate();
  publish(4 * kChunkBytes);
  FarHost b = make_relay("b", "east"), c = make_relay("c", "west");
  ASSERT_TRUE(knows(b, 2, 2) && knows(c, 2, 2));
  EXPECT_EQ(b.run->relays({}).relays[0].name, "rollout-0");
  ASSERT_TRUE(fetch(c, root_));
  EXPECT_EQ(c.sources->received().count("rollout-0"), 1u);
  EXPECT_EQ(b.sources->received().count("run"), 1u);
  EXPECT_EQ(b.sources->received().size(), 1u);
  EXPECT_EQ(counters().chunks, 4);
}

// Behind a relay that waits for another one: as long as that gets on, nobody leaves either.
TEST_F(WeightSourcesTest, ProgressIsPassedOnByAChainOfRelays) {
  start_gate();
  const std::string text = publish(2 * kChunkBytes);
  patience_ = 2s;
  FarHost b = make_host("b", "east", new_address()), c = make_relay("c", "west");
  const Time until = steady_now() + 5s;
  const FakeGate slow(
      b.address, b.run->endpoint().keys->own, host_,
      [&, bytes = int64_t{0}](
          std::span<const std::byte> frame) mutable -> std::vector<std::vector<std::byte>> {
        const auto message = wire::decode_gate_message(frame);
        if (!message || !std::holds_alternative<wire::AskFile>(message.value())) return {};
        const auto& name = std::get<wire::AskFile>(message.value()).name;
        using enum wire::FileFacts::Status;
        return {wire::encode(wire::FileFacts{.name = name,
                                             .status = steady_now() < until ? kLater : kAbsent,
                                             .reason = "it has come to nothing",
                                             .bytes = ++bytes})};
      });
  ASSERT_TRUE(knows(c, 2, 2));
  const wire::Endpoint endpoint(
      c.address,
      wire::ClientKeys{host_.endpoint("east").keys->own, c.run->endpoint().keys->own.public_key});
  const auto fetched = fetch_file({.patience = patience_}, endpoint, name_at_relay(root_, kFile),
                                  b.work / "got", stop_.get_token());
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(read_file(b.work / "got").value() == text);
  EXPECT_GE(steady_now(), until);
  EXPECT_NE(c.log_text().find("it has come to nothing"), std::string::npos) << c.log_text();
}

// It would hide whether the relay gets on.
TEST_F(WeightSourcesTest, WhatATransferThatWasCutHasLeftIsNoProgressOfARelay) {
  start_gate();
  FarHost b = make_host("b", "east", new_address());
  fs::create_directories(b.path(root_).parent_path());
  std::ofstream(b.path(root_).string() + ".part") << std::string(4 * kChunkBytes, 'x');
  std::mutex mu;
  std::set<int64_t> heard;
  const auto has_heard = [&](int64_t number) {
    const std::lock_guard lock(mu);
    return heard.contains(number);
  };
  WeightRelayOptions options = relay_options(b);
  options.is_guest = [](std::string_view) { return true; };
  options.fetch = [&](const Digest&, const std::string&, const std::stop_token&,
                      const std::function<void(int64_t)>& on_progress) -> Result<void> {
    for (const int64_t number : {5, 7}) {
      on_progress(number);
      EXPECT_TRUE(eventually([&] { return has_heard(number); })) << number;
    }
    return Failure{"it has come to nothing"};
  };
  b.relay = std::make_unique<WeightRelay>(options, *b.log);
  const wire::Endpoint endpoint(
      b.address,
      wire::ClientKeys{host_.endpoint("west").keys->own, b.run->endpoint().keys->own.public_key});
  const auto fetched =
      fetch_file({.on_progress =
                      [&](int64_t number, int64_t) {
                        const std::lock_guard lock(mu);
                        heard.insert(number);
                      }},
                 endpoint, name_at_relay(root_, kFile), b.work / "got", stop_.get_token());
  ASSERT_FALSE(fetched);
  EXPECT_NE(fetched.failure().message.find("it has come to nothing"), std::string::npos)
      << fetched.failure().message;
  heard.erase(0);  // it has not begun
  EXPECT_EQ(heard, (std::set<int64_t>{5, 7}));
}

TEST_F(WeightSourcesTest, TwoRelaysThatWaitForEachOtherGoToTheRun) {
  start_gate();
  const std::string text = publish(4 * kChunkBytes);
  FarHost b = make_relay("b", "east"), c = make_relay("c", "west");
  ASSERT_TRUE(knows(b, 2, 2) && knows(c, 2, 2));
  // As if each saw another order.
  for (FarHost* host : {&b, &c}) {
    host->relay.reset();
    host->sources = std::make_unique<WeightSources>(
        *host->run, WeightSourcesOptions{.is_here = [](const std::string&) { return false; },
                                         .patience = patience_});
    host->relay = std::make_unique<WeightRelay>(relay_options(*host), *host->log);
  }
  const auto fetched = fetch(c, root_);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(c.text(root_) == text);
}

TEST_F(WeightSourcesTest, ADeadRelayIsLeftAndAskedAgainLater) {
  start_gate();
  publish(2 * kChunkBytes);
  patience_ = 300ms;
  FarHost b = make_relay("b", "east"), c = make_host("c", "west");
  ASSERT_TRUE(knows(c, 1, 2) && knows(b, 1, 2));
  b.relay.reset();
  ASSERT_TRUE(fetch(c, root_));
  EXPECT_EQ(c.sources->received(), (std::map<std::string, int64_t>{{"run", 2 * kChunkBytes}}));
  EXPECT_NE(c.log_text().find("relay rollout-0 at " + b.address + " did not give " + kFile),
            std::string::npos)
      << c.log_text();
  // It is not asked at once again.
  const Digest next = digest_of(std::string_view("next"));
  const std::string before = c.log_text();
  ASSERT_TRUE(fetch(c, next));
  EXPECT_EQ(c.log_text().find("relay rollout-0", before.size()), std::string::npos) << c.log_text();
  b.relay = std::make_unique<WeightRelay>(relay_options(b), *b.log);
  ASSERT_TRUE(eventually([&] {
    fs::remove(c.path(next));
    return fetch(c, next) && c.sources->received().count("rollout-0") == 1;
  }));
}

TEST_F(WeightSourcesTest, ARelayThatDiesInTheMiddleLeavesItsChunks) {
  start_gate();
  const std::string text = publish(40 * kChunkBytes);
  patience_ = 3s;  // a relay that lives may be this slow on a busy machine
  FarHost b = make_relay("b", "east"), c = make_host("c", "west");
  ASSERT_TRUE(knows(c, 1, 2) && knows(b, 1, 2));
  ASSERT_TRUE(fetch(b, root_));
  bool dead = false;
  const auto fetched = c.sources->fetch(
      {root_, kFile}, c.work / "got", stop_.get_token(), [&](int64_t there, int64_t total) {
        // Without a total it is the relay that gets on, and nothing is here.
        if (total > 0 && there >= 8 * kChunkBytes && !std::exchange(dead, true)) b.relay.reset();
      });
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(read_file(c.work / "got").value() == text);
  const auto received = c.sources->received();
  EXPECT_GE(received.at("rollout-0"), 8 * kChunkBytes);
  EXPECT_EQ(received.at("rollout-0") + received.at("run"), std::ssize(text));
  EXPECT_EQ(fetched.value().received, std::ssize(text));
  EXPECT_EQ(fetched.value().kept, 0);
}

TEST_F(WeightSourcesTest, ARelayThatHasAnotherFileIsNotBelieved) {
  start_gate();
  const std::string text = publish(3 * kChunkBytes);
  FarHost b = make_relay("b", "east"), c = make_host("c", "west");
  ASSERT_TRUE(knows(c, 1, 2) && knows(b, 1, 2));
  ASSERT_TRUE(fetch(b, root_));
  std::fstream(b.path(root_)) << "x";
  const auto fetched = fetch(c, root_);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(c.text(root_) == text);
  EXPECT_NE(c.log_text().find("what is there is another file"), std::string::npos) << c.log_text();
}

// A relay with the right digest, and a hole behind the file.
TEST_F(WeightSourcesTest, WhatARelaySaysOfAFileIsNotBelieved) {
  start_gate();
  const std::string text = publish(2 * kChunkBytes + 9);
  FarHost b = make_host("b", "east", new_address()), c = make_host("c", "west");
  ASSERT_TRUE(knows(c, 1, 2));
  const auto facts = c.run->facts("weights/" + kFile, stop_.get_token());
  ASSERT_TRUE(facts);
  std::atomic<int> damaged = 0;
  const FakeGate liar(
      b.address, b.run->endpoint().keys->own, host_,
      [&](std::span<const std::byte> frame) -> std::vector<std::vector<std::byte>> {
        const auto message = wire::decode_gate_message(frame);
        if (!message) return {};
        if (const auto* ask = std::get_if<wire::AskFile>(&message.value())) {
          wire::FileFacts lie = facts.value();
          lie.name = ask->name;
          lie.apparent_bytes += int64_t{1} << 30;
          lie.chunks.back() = lie.chunks.front();
          return {wire::encode(lie)};
        }
        if (const auto* ask = std::get_if<wire::AskChunk>(&message.value())) {
          const auto bytes =
              std::as_bytes(std::span(text))
                  .subspan(static_cast<size_t>(ask->index * kChunkBytes),
                           std::min<size_t>(
                               kChunkBytes,
                               text.size() - static_cast<size_t>(ask->index * kChunkBytes)));
          wire::Chunk chunk{ask->digest, ask->index, {bytes.begin(), bytes.end()}};
          // The first time another chunk than that of the run.
          if (damaged++ == 0) chunk.bytes[0] ^= std::byte{1};
          return {wire::encode(chunk)};
        }
        return {};
      });
  const auto fetched = fetch(c, root_);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(c.text(root_) == text);
  EXPECT_EQ(fetched.value().damaged, 1);
  EXPECT_EQ(c.sources->received().count("rollout-0"), 1u);
}

TEST_F(WeightSourcesTest, AFailureNamesEachSource) {
  start_gate();
  publish(kChunkBytes);
  patience_ = 300ms;
  FarHost b = make_relay("b", "east"), c = make_host("c", "west");
  ASSERT_TRUE(knows(c, 1, 2) && knows(b, 1, 2));
  // It cannot be written at either: the folder is not there.
  const auto fetched =
      c.sources->fetch({root_, kFile}, c.work / "nowhere" / "x", stop_.get_token());
  ASSERT_FALSE(fetched);
  for (const char* part : {"rollout-0: ", "run: ", "nowhere"})
    EXPECT_NE(fetched.failure().message.find(part), std::string::npos) << fetched.failure().message;
  // What the run has not is asked of nobody else.
  const auto missing = fetch(c, root_, "p0-v9.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.failure().message, "weights/p0-v9.json: the run has no such file for a worker");
}

TEST_F(WeightSourcesTest, ARelayKnowsWorkersOfItsClusterAlone) {
  start_gate();
  publish(kChunkBytes);
  FarHost b = make_relay("b", "east"), other = make_host("other", "west", "", "elsewhere");
  ASSERT_TRUE(knows(b, 1, 1) && knows(other, 0, 1));
  ASSERT_TRUE(fetch(b, root_));
  const wire::RelayAddress relay = b.run->relays({}).relays.at(0);
  const auto ask = [&](const std::string& key, const std::string& name) {
    const wire::Endpoint endpoint(
        relay.address, wire::ClientKeys{host_.endpoint(key).keys->own, relay.public_key});
    return fetch_file({.patience = 1s}, endpoint, name, other.work / "got", stop_.get_token());
  };
  EXPECT_FALSE(ask("west", name_at_relay(root_, kFile)));
  EXPECT_TRUE(ask("east", name_at_relay(root_, kFile)));
  // And it gives weights alone.
  std::ofstream(b.work / "secret") << "x";
  for (const std::string& name :
       {std::string("weights/../secret"), std::string("secret"),
        "weights/" + root_ + "/../../secret", "weights/" + root_ + "/.hidden",
        "weights/" + root_ + "/" + kFile + ".lock", "weights/" + root_ + "/",
        "weights/" + std::string(32, 'z') + "/" + kFile, std::string("bundle/rollout.json")}) {
    const auto got = ask("east", name);
    ASSERT_FALSE(got) << name;
    EXPECT_EQ(got.failure().message, name + ": a relay has files of weights alone");
  }
}

TEST_F(WeightSourcesTest, AnotherWorkerOfTheHostTakesThePlaceOfARelay) {
  start_gate();
  publish(kChunkBytes);
  FarHost b = make_relay("b", "east"), c = make_host("c", "west");
  ASSERT_TRUE(knows(c, 1, 2) && knows(b, 1, 2));
  const WeightRelay second(relay_options(b), *b.log);
  EXPECT_NE(b.log_text().find("this one waits to take its place"), std::string::npos);
  b.relay.reset();
  const auto fetched = fetch(c, root_);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_EQ(c.sources->received().count("rollout-0"), 1u);
}

TEST_F(WeightSourcesTest, AnAddressThatIsTakenIsAMistake) {
  start_gate();
  FarHost b = make_relay("b", "east");
  WeightRelayOptions options = relay_options(b);
  options.lock = b.work / "another-lock";
  EXPECT_THROW(WeightRelay(options, *b.log), UserError);
}

// It asks for many chunks and takes none.
TEST_F(WeightSourcesTest, ASlowAskerDelaysNobody) {
  start_gate();
  publish(40 * kChunkBytes);
  FarHost b = make_relay("b", "east"), c = make_host("c", "west"), d = make_host("d", "north");
  ASSERT_TRUE(knows(c, 1, 3) && knows(b, 1, 3));
  ASSERT_TRUE(fetch(b, root_));
  const wire::RelayAddress relay = b.run->relays({}).relays.at(0);
  SecurePeer slow(
      {relay.address, wire::ClientKeys{host_.endpoint("north").keys->own, relay.public_key}});
  slow.say(wire::AskFile{d.run->incarnation(), name_at_relay(root_, kFile)});
  const auto facts = slow.answer<wire::FileFacts>();
  const Digest digest = facts.status == wire::FileFacts::Status::kThere
                            ? facts.digest
                            : slow.answer<wire::FileFacts>().digest;
  for (int i = 0; i < 400; ++i) slow.say(wire::AskChunk{d.run->incarnation(), digest, i % 40});
  const Time start = steady_now();
  ASSERT_TRUE(fetch(c, root_));
  EXPECT_LT(steady_now() - start, 5s);
  EXPECT_EQ(c.sources->received().count("run"), 0u);
}

TEST_F(WeightSourcesTest, AGateThatBeginsAgainKeepsTheOrderOfRelays) {
  start_gate();
  FarHost b = make_relay("b", "east"), c = make_relay("c", "west");
  ASSERT_TRUE(knows(b, 2, 2));
  const Digest before = b.run->relays({}).digest;
  restart_gate();
  FarHost d = make_host("d", "north");
  ASSERT_TRUE(knows(d, 2, 3));
  const auto list = d.run->relays({});
  EXPECT_EQ(list.relays[0].address, b.address);
  EXPECT_EQ(list.relays[1].address, c.address);
  EXPECT_NE(list.digest, before);
  // A key that is taken away is nobody's.
  host_.forbid("west");
  EXPECT_TRUE(knows(d, 1, 2));
}

}  // namespace
}  // namespace tailrace
