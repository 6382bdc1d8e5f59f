// Files from a real gate, with cuts, damage, and owners that take them away.
#include "core/gate/file_fetch.h"

#include <atomic>
#include <cstring>
#include <future>
#include <mutex>

#include <sys/resource.h>
#include <sys/stat.h>
#include <zmq.h>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/run/lock_file.h"
#include "tests/core/gate/gate_fixture.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using wire::kChunkBytes;

class FetchTest : public GateTest {
 protected:
  void begin() {
    start_gate();
    run_ = join();
  }
  // A file of the run that workers may have, of bytes that differ everywhere.
  std::string put(const std::string& name, int64_t bytes, uint64_t seed = 1) {
    Rng rng(seed);
    std::string text(static_cast<size_t>(bytes), '\0');
    for (size_t i = 0; i + 8 <= text.size(); i += 8) {
      const uint64_t word = (static_cast<uint64_t>(rng.below(1 << 30)) << 32) + i;
      std::memcpy(text.data() + i, &word, 8);
    }
    const fs::path fresh = files() / (name + ".new");
    std::ofstream(fresh) << text;
    fs::rename(fresh, files() / name);
    share(name, {files() / name});
    return text;
  }
  FetchOptions fetch_options() const {
    return {.incarnation = run_->incarnation(), .patience = 15s, .stall = 200ms};
  }
  wire::Endpoint gate_endpoint() const { return host_.endpoint("east"); }
  Result<FetchCounters> fetch(const std::string& name, const FetchOptions& options) {
    return fetch_file(options, gate_endpoint(), name, target(name), stop_.get_token());
  }
  Result<FetchCounters> fetch(const std::string& name) { return fetch(name, fetch_options()); }
  // Calls `act` once, after so many bytes are there.
  FetchOptions interrupted_at(int64_t bytes, std::function<void()> act) {
    FetchOptions options = fetch_options();
    options.on_progress = [bytes, act = std::move(act), done = false](int64_t there,
                                                                      int64_t total) mutable {
      // Without a total it is the gate that gets ready, and nothing is here.
      if (done || total == 0 || there < bytes) return;
      done = true;
      act();
    };
    return options;
  }
  fs::path target(const std::string& name) const { return host_.folder() / ("got-" + name); }
  fs::path part(const std::string& name) const { return target(name).string() + ".part"; }
  std::string got(const std::string& name) {
    auto text = read_file(target(name));
    return text ? std::move(text).value() : text.failure().message;
  }
  void expect_failure(const Result<FetchCounters>& result, const std::string& part) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.failure().message.find(part), std::string::npos) << result.failure().message;
  }

  std::unique_ptr<RemoteRun> run_;
  std::stop_source stop_;
};

TEST_F(FetchTest, FilesOfAnySizeArriveWhole) {
  begin();
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, kChunkBytes - 1, kChunkBytes, kChunkBytes + 1,
                              12 * kChunkBytes + 77}) {
    const std::string name = fmt::format("f{}", bytes), text = put(name, bytes);
    const auto fetched = fetch(name);
    ASSERT_TRUE(fetched) << fetched.failure().message;
    EXPECT_TRUE(got(name) == text) << bytes;
    EXPECT_EQ(fetched.value().received, bytes);
    EXPECT_EQ(fetched.value().kept, 0);
    EXPECT_EQ(fetched.value().damaged, 0);
    EXPECT_FALSE(fs::exists(part(name)));
  }
  EXPECT_EQ(counters().chunks, 0 + 1 + 1 + 1 + 2 + 13);
}

TEST_F(FetchTest, ARateIsKept) {
  begin();
  put("x", 5 * kChunkBytes);
  FetchOptions options = fetch_options();
  options.rate_mbit = 40;
  const Time start = steady_now();
  const auto fetched = fetch("x", options);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  // The first chunk may go at once, and a burst with it.
  EXPECT_GE(seconds_of(steady_now() - start), 4.0 * kChunkBytes * 8 / 40e6 - 0.15);
}

TEST_F(FetchTest, WhatIsThereIsProvedAndStays) {
  begin();
  const std::string text = put("x", 3 * kChunkBytes + 5);
  ASSERT_TRUE(fetch("x"));
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(target("x").c_str(), &before), 0);
  const auto again = fetch("x");
  ASSERT_TRUE(again);
  EXPECT_EQ(again.value().received, 0);
  EXPECT_EQ(again.value().kept, std::ssize(text));
  ASSERT_EQ(::stat(target("x").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(run_->fetch("x", target("x"), stop_.get_token()).value().kept, std::ssize(text));
}

// Of the weights that a run began with only the header is wanted.
TEST_F(FetchTest, OfAFileWithAHoleTheHeadAloneTravels) {
  begin();
  const std::string text = put("x", 5 * kChunkBytes);
  share("x", {files() / "x", kChunkBytes + 100});
  const auto fetched = fetch("x");
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_EQ(fetched.value().received, kChunkBytes + 100);
  const std::string copy = got("x");
  ASSERT_EQ(copy.size(), text.size());
  EXPECT_TRUE(copy.substr(0, kChunkBytes + 100) == text.substr(0, kChunkBytes + 100));
  EXPECT_EQ(copy.find_first_not_of('\0', kChunkBytes + 100), std::string::npos);
  EXPECT_EQ(fetch("x").value().received, 0);
}

TEST_F(FetchTest, AfterACutOnlyWhatIsMissingIsSentAgain) {
  begin();
  const int64_t num_chunks = 40;
  const std::string text = put("x", num_chunks * kChunkBytes);
  int64_t before = 0;
  const auto fetched = fetch("x", interrupted_at(10 * kChunkBytes, [&] {
                               stop_gate();
                               before = counters().chunks;
                               start_gate();
                             }));
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(got("x") == text);
  EXPECT_EQ(fetched.value().received, std::ssize(text));
  EXPECT_GT(fetched.value().asked_again, 0);
  ASSERT_TRUE(eventually([&] { return counters().chunks > 0; }));
  EXPECT_LE(before + counters().chunks,
            num_chunks + 2 * fetch_options().window_bytes / kChunkBytes);
}

TEST_F(FetchTest, AnotherCallGoesOnWhereOneHasEnded) {
  begin();
  const std::string text = put("x", 20 * kChunkBytes);
  expect_failure(fetch("x", interrupted_at(8 * kChunkBytes, [&] { stop_.request_stop(); })),
                 "given up");
  EXPECT_TRUE(fs::exists(part("x")));
  EXPECT_FALSE(fs::exists(target("x")));
  stop_ = {};
  const auto fetched = fetch("x");
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_EQ(fetched.value().kept, 8 * kChunkBytes);
  EXPECT_EQ(fetched.value().received, 12 * kChunkBytes);
  EXPECT_TRUE(got("x") == text);
}

TEST_F(FetchTest, APartWithDamageIsProvedAndRepaired) {
  begin();
  const std::string text = put("x", 10 * kChunkBytes + 3);
  std::string damaged = text;
  damaged[4 * kChunkBytes + 17] ^= 1;
  damaged.back() ^= 1;
  std::ofstream(part("x")) << damaged;
  const auto fetched = fetch("x");
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_EQ(fetched.value().received, kChunkBytes + 3);
  EXPECT_TRUE(got("x") == text);
  // One that is too long, of another file.
  std::ofstream(part("y")) << damaged << text;
  const std::string other = put("y", 2 * kChunkBytes, 9);
  ASSERT_TRUE(fetch("y"));
  EXPECT_TRUE(got("y") == other);
}

TEST_F(FetchTest, ATargetWithDamageIsRepaired) {
  begin();
  const std::string text = put("x", 4 * kChunkBytes);
  ASSERT_TRUE(fetch("x"));
  {
    std::fstream file(target("x"), std::ios::in | std::ios::out);
    file.seekp(3 * kChunkBytes);
    file << "damage";
  }
  ASSERT_TRUE(fetch("x"));
  EXPECT_TRUE(got("x") == text);
  fs::resize_file(target("x"), 100);
  ASSERT_TRUE(fetch("x"));
  EXPECT_TRUE(got("x") == text);
}

// The trainer keeps few versions of the weights.
TEST_F(FetchTest, AFileThatIsRemovedMeanwhileStillArrives) {
  begin();
  const std::string text = put("x", 20 * kChunkBytes);
  ASSERT_TRUE(fetch("x", interrupted_at(kChunkBytes, [&] { fs::remove(files() / "x"); })));
  EXPECT_TRUE(got("x") == text);
  // Also for others, while it is on the shelf.
  fs::remove(target("x"));
  ASSERT_TRUE(fetch("x"));
  EXPECT_TRUE(got("x") == text);
}

// It asks for the file again, which has no name any more.
TEST_F(FetchTest, AFileThatIsRemovedArrivesAlsoAfterAStall) {
  begin();
  const std::string text = put("x", 20 * kChunkBytes);
  FetchOptions options = interrupted_at(kChunkBytes, [&] {
    fs::remove(files() / "x");
    std::lock_guard lock(mu_);
    shared_.clear();
  });
  options.stall = 0ms;
  ASSERT_TRUE(fetch("x", options));
  EXPECT_TRUE(got("x") == text);
}

TEST_F(FetchTest, TheFileNamedNextIsKeptWithTheFirst) {
  begin();
  put("manifest", 100);
  const std::string text = put("payload", 3 * kChunkBytes, 2);
  share("manifest", {files() / "manifest", -1, "payload"});
  ASSERT_TRUE(fetch("manifest"));
  // Before anybody has asked for it.
  fs::remove(files() / "payload");
  const auto fetched = fetch("payload");
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(got("payload") == text);
}

TEST_F(FetchTest, AnotherFileOfTheNameIsFetchedAnew) {
  begin();
  put("x", 3 * kChunkBytes);
  ASSERT_TRUE(fetch("x"));
  const std::string other = put("x", 3 * kChunkBytes, 2);
  ASSERT_TRUE(fetch("x"));
  EXPECT_TRUE(got("x") == other);
}

// Somebody asks for it anew, and the gate then has the other one only.
TEST_F(FetchTest, AFileThatIsReplacedMeanwhileIsFetchedAnew) {
  begin();
  put("x", 20 * kChunkBytes);
  std::string other;
  const auto fetched =
      fetch("x", interrupted_at(3 * kChunkBytes, [&] {
              other = put("x", 10 * kChunkBytes + 1, 2);
              fs::create_directories(host_.folder() / "second");
              ASSERT_TRUE(fetch_file(fetch_options(), gate_endpoint(), "x",
                                     host_.folder() / "second" / "x", stop_.get_token()));
            }));
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(got("x") == other);
}

// As nobody should: in its place.
TEST_F(FetchTest, AFileThatIsWrittenOverMeanwhileIsFetchedAnew) {
  begin();
  std::string text = put("x", 20 * kChunkBytes);
  const auto fetched = fetch("x", interrupted_at(3 * kChunkBytes, [&] {
                               std::ranges::reverse(text);
                               std::ofstream(files() / "x", std::ios::in) << text;
                             }));
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(got("x") == text);
}

// After a restart of the gate nothing of it is left; its fetcher is told so at once.
TEST_F(FetchTest, AFileThatIsGoneForGoodIsGivenUp) {
  begin();
  put("x", 20 * kChunkBytes);
  FetchOptions options = interrupted_at(3 * kChunkBytes, [&] {
    {
      std::lock_guard lock(mu_);
      shared_.clear();
    }
    restart_gate();
  });
  options.patience = 120s;
  const auto begin_at = std::chrono::steady_clock::now();
  expect_failure(fetch("x", options), "no such file");
  EXPECT_LT(std::chrono::steady_clock::now() - begin_at, 60s);
}

// More files than stay on the shelf were asked for meanwhile.
TEST_F(FetchTest, AFileThatWasPutAwayIsTakenOutAgain) {
  begin();
  const std::string text = put("x", 20 * kChunkBytes);
  for (int i = 0; i < 80; ++i) put(fmt::format("s{}", i), 10, static_cast<uint64_t>(i));
  FetchOptions options = interrupted_at(3 * kChunkBytes, [&] {
    SecurePeer peer(host_.endpoint("east"));
    for (int i = 0; i < 80; ++i) {
      peer.say(wire::AskFile{run_->incarnation(), fmt::format("s{}", i)});
      (void)peer.answer<wire::FileFacts>();
    }
  });
  // Not all of it is asked for before.
  options.window_bytes = 2 * kChunkBytes;
  const auto fetched = fetch("x", options);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_TRUE(got("x") == text);
}

TEST_F(FetchTest, AFailureSaysWhy) {
  begin();
  expect_failure(fetch("nothing"), "nothing: the run has no such file for a worker");
  share("gone", {files() / "gone"});
  expect_failure(fetch("gone"), "No such file or directory");
  fs::create_directory(files() / "folder");
  share("folder", {files() / "folder"});
  expect_failure(fetch("folder"), "folder");
  // More than its facts can say in a frame.
  std::ofstream(files() / "vast").close();
  fs::resize_file(files() / "vast", wire::kMaxChunks * wire::kMaxChunkBytes + 1);
  share("vast", {files() / "vast"});
  expect_failure(fetch("vast"), "vast");
  put("x", 10);
  expect_failure(fetch_file(fetch_options(), gate_endpoint(), "x", host_.folder() / "no" / "x",
                            stop_.get_token()),
                 "no/x");
  FetchOptions options = fetch_options();
  options.incarnation += 1;
  options.patience = 300ms;
  expect_failure(fetch("x", options), "has not answered");
}

TEST_F(FetchTest, AStopEndsItSoon) {
  begin();
  put("x", 20 * kChunkBytes);
  // Where the gate is away, with a part and without.
  FetchOptions options = interrupted_at(3 * kChunkBytes, [&] { stop_gate(); });
  options.patience = 120s;
  for (int round = 0; round < 2; ++round) {
    stop_ = {};
    std::chrono::steady_clock::time_point asked;
    std::jthread stopper([&] {
      std::this_thread::sleep_for(200ms);
      asked = std::chrono::steady_clock::now();
      stop_.request_stop();
    });
    expect_failure(fetch("x", options), "given up");
    stopper.join();
    EXPECT_LT(std::chrono::steady_clock::now() - asked, 5s);
  }
}

TEST_F(FetchTest, TwoThatWantOneTargetTakeItOnce) {
  begin();
  const int64_t num_chunks = 30;
  const std::string text = put("x", num_chunks * kChunkBytes);
  std::vector<Result<FetchCounters>> results(4, Failure{"none"});
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = fetch("x"); });
  }
  int64_t received = 0;
  for (const auto& result : results) {
    ASSERT_TRUE(result) << result.failure().message;
    received += result.value().received;
    EXPECT_EQ(result.value().received + result.value().kept, std::ssize(text));
  }
  EXPECT_EQ(received, std::ssize(text));
  EXPECT_TRUE(got("x") == text);
  ASSERT_TRUE(eventually([&] { return counters().chunks == num_chunks; }));
}

// Its own progress begins with what it has proved.
TEST_F(FetchTest, WhatIsNotProvedYetIsNoProgress) {
  begin();
  const std::string text = put("x", 6 * kChunkBytes);
  std::string cut = text.substr(0, 4 * kChunkBytes);
  cut[kChunkBytes] ^= 1;
  std::ofstream(part("x")) << cut;
  auto other = std::make_optional<LockFile>(target("x").string() + ".lock");
  ASSERT_TRUE(other->held());
  std::mutex mu;
  std::vector<std::pair<int64_t, int64_t>> told;
  FetchOptions options = fetch_options();
  options.on_progress = [&](int64_t bytes, int64_t total) {
    const std::lock_guard lock(mu);
    told.emplace_back(bytes, total);
  };
  const auto num_told = [&] {
    const std::lock_guard lock(mu);
    return std::ssize(told);
  };
  auto fetched = std::async(std::launch::async, [&] { return fetch("x", options); });
  // The process that is waited for writes.
  EXPECT_TRUE(eventually([&] {
    std::ofstream(part("x"), std::ios::app) << 'x';
    return num_told() >= 2;
  }));
  std::ofstream(part("x")) << cut;
  other.reset();
  const auto result = fetched.get();
  ASSERT_TRUE(result) << result.failure().message;
  EXPECT_EQ(result.value().kept, 3 * kChunkBytes);
  std::erase_if(told, [](const auto& one) { return one.second == 0; });
  std::vector<std::pair<int64_t, int64_t>> expected;
  for (int64_t chunk = 1; chunk <= 6; ++chunk)
    expected.emplace_back(chunk * kChunkBytes, 6 * kChunkBytes);
  EXPECT_EQ(told, expected);
}

TEST_F(FetchTest, ChunksThatArriveDamagedAreNotWritten) {
  const std::string text(3 * kChunkBytes, 'x');
  const auto bytes = std::as_bytes(std::span(text)).first(kChunkBytes);
  std::atomic<int> lies = 2;
  wire::FileFacts facts{.name = "x",
                        .digest = digest_of(std::string_view("any")),
                        .bytes = std::ssize(text),
                        .apparent_bytes = std::ssize(text),
                        .chunks = std::vector<Digest>(3, digest_of(bytes))};
  const FakeGate gate(host_, [&](std::span<const std::byte> frame) {
    std::vector<std::vector<std::byte>> answers;
    const auto message = wire::decode_gate_message(frame);
    if (!message) return answers;
    if (std::holds_alternative<wire::AskFile>(message.value())) answers.push_back(encode(facts));
    if (const auto* ask = std::get_if<wire::AskChunk>(&message.value())) {
      wire::Chunk chunk{facts.digest, ask->index, {bytes.begin(), bytes.end()}};
      // Of another file, one that was not asked for, and one of another size.
      wire::Chunk other = chunk;
      other.digest = std::string(32, '0');
      answers.push_back(encode(other));
      other = chunk;
      other.index = 1'000;
      answers.push_back(encode(other));
      if (lies > 0) {
        --lies;
        if (lies == 1) chunk.bytes.resize(7);
        chunk.bytes[5] = std::byte{'y'};
      }
      answers.push_back(encode(chunk));
    }
    return answers;
  });
  FetchOptions options{.incarnation = 7, .patience = 10s};
  const auto fetched = fetch("x", options);
  ASSERT_TRUE(fetched) << fetched.failure().message;
  EXPECT_EQ(fetched.value().damaged, 2);
  EXPECT_TRUE(got("x") == text);
  // One that lies for ever is given up.
  fs::remove(target("x"));
  lies = 1'000'000;
  expect_failure(fetch("x", options), "arrive damaged");
  EXPECT_FALSE(fs::exists(target("x")));
}

// The file is larger than what either side may keep of it.
TEST_F(FetchTest, MemoryDoesNotGrowWithTheFile) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps what is freed";
#endif
  begin();
  std::ofstream(files() / "x").close();
  fs::resize_file(files() / "x", 200 * kChunkBytes);
  share("x", {files() / "x"});
  const auto peak_bytes = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
  };
  const int64_t before = peak_bytes();
  ASSERT_TRUE(fetch("x"));
  EXPECT_EQ(fs::file_size(target("x")), static_cast<uintmax_t>(200 * kChunkBytes));
  EXPECT_LT(peak_bytes() - before, 100 * kChunkBytes);
}

// Somebody who asks for chunks and takes none makes the gate keep a few of them.
TEST_F(FetchTest, ChunksThatNobodyTakesAreNotPiledUp) {
  begin();
  std::ofstream(files() / "x").close();
  fs::resize_file(files() / "x", 20 * kChunkBytes);
  share("x", {files() / "x"});
  SecurePeer peer(host_.endpoint("east"));
  wire::FileFacts facts;
  do {
    peer.say(wire::AskFile{run_->incarnation(), "x"});
    facts = peer.answer<wire::FileFacts>();
  } while (facts.status != wire::FileFacts::Status::kThere);
  void* context = zmq_ctx_new();
  void* greedy = zmq_socket(context, ZMQ_DEALER);
  const auto endpoint = host_.endpoint("east");
  const int one = 1, none = 0;
  zmq_setsockopt(greedy, ZMQ_RCVHWM, &one, sizeof one);
  zmq_setsockopt(greedy, ZMQ_LINGER, &none, sizeof none);
  zmq_setsockopt(greedy, ZMQ_CURVE_SERVERKEY, endpoint.keys->server.c_str(), 41);
  zmq_setsockopt(greedy, ZMQ_CURVE_PUBLICKEY, endpoint.keys->own.public_key.c_str(), 41);
  zmq_setsockopt(greedy, ZMQ_CURVE_SECRETKEY, endpoint.keys->own.secret_key.c_str(), 41);
  ASSERT_EQ(zmq_connect(greedy, endpoint.address.c_str()), 0);
  for (int i = 0; i < 900; ++i) {
    const auto ask = encode(wire::AskChunk{run_->incarnation(), facts.digest, i % 20});
    ASSERT_EQ(zmq_send(greedy, ask.data(), ask.size(), 0), static_cast<int>(ask.size()));
  }
  // Behind them in the same turns.
  EXPECT_TRUE(is_served("west"));
  ASSERT_TRUE(eventually([&] { return counters().chunks > 20; }));
  EXPECT_LT(counters().chunks, 100);
  zmq_close(greedy);
  zmq_ctx_term(context);
}

}  // namespace
}  // namespace tailrace
