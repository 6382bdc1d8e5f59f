// Versions of weights that come to a host through a real gate.
#include "core/hosts/weight_cache.h"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <map>
#include <mutex>
#include <optional>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/gate/weight_relay.h"
#include "core/hosts/bundle_listing.h"
#include "core/run/lock_file.h"
#include "core/weights/proved_weights.h"
#include "core/weights/tidy_versions.h"
#include "core/weights/version_folder.h"
#include "core/weights/way.h"
#include "tests/core/gate/gate_fixture.h"
#include "tests/core/weights/small_model.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

class WeightCacheTest : public GateTest {
 protected:
  WeightCacheTest() : layout_(small_model()), weights_(layout_) {
    for (const ParameterInfo& info : layout_.entries())
      for (float& value : weights_.vector(info.name))
        value = static_cast<float>(rng_.uniform() - 0.5);
    start_gate();
    run_ = join();
    sources_ = std::make_unique<WeightSources>(*run_);
    log_file_ = std::make_unique<Log>("worker", host_.folder() / "log");
    cache_ = std::make_unique<WeightCache>(
        host_.folder() / "cache",
        [this](const WeightFile& file, const fs::path& target, const std::stop_token& stop,
               const WeightSources::Progress& progress) {
          if (!file.name.ends_with(".json")) asked_.push_back(file.name);
          return sources_->fetch(file, target, stop, progress);
        });
  }

  fs::path published() const { return host_.folder() / "published"; }
  fs::path here(int64_t version) const {
    return cache_->folder() / roots_.at(version) / payload_name(manifest_name(0, version));
  }

  void publish(int64_t version) {
    for (int i = 0; i < 30; ++i)
      weights_.vector(kEmbeddingName)[static_cast<size_t>(rng_.below(96 * 32))] *= 1.01f;
    const WeightManifest manifest = make_manifest(weights_, 0, version, "", {}, Dtype::kBF16);
    ASSERT_TRUE(publish_weights(published(), manifest, weights_));
    roots_[version] = manifest.root;
    // Whatever a worker may ask for.
    const auto offer = [&](const std::string& file) {
      share("weights/" + file, *find_weight_file(published(), file));
    };
    offer(manifest_name(0, version));
    offer(payload_name(manifest_name(0, version)));
    for (const auto& [to, root] : roots_)
      for (const auto& [from, base] : roots_) offer(way_name({0, to, root, base}));
  }

  // Brings it, and proves it as the worker would. The metrics of it.
  std::map<std::string, double> bring(int64_t version) {
    const auto fetched = cache_->bring(
        {.manifest = manifest_name(0, version), .root = roots_.at(version)}, 0, *log_file_);
    if (!fetched) {
      ADD_FAILURE() << fetched.failure().message;
      return {};
    }
    const auto proved = prove_weights(fetched.value().manifest, roots_.at(version), layout_);
    EXPECT_TRUE(proved) << proved.failure().message;
    return {fetched.value().metrics.begin(), fetched.value().metrics.end()};
  }

  static void flip_last_byte(const fs::path& file) {
    std::string bytes = read_file(file).value();
    bytes.back() ^= 1;
    fs::remove(file);  // it may be linked to another name
    std::ofstream(file, std::ios::binary) << bytes;
  }

  Rng rng_{3};
  ParameterLayout layout_;
  Parameters weights_;
  std::map<int64_t, Digest> roots_;
  std::unique_ptr<RemoteRun> run_;
  std::unique_ptr<WeightSources> sources_;
  std::unique_ptr<Log> log_file_;
  std::unique_ptr<WeightCache> cache_;
  std::vector<std::string> asked_;  // files of the run, but for manifests
};

TEST_F(WeightCacheTest, TheFirstVersionComesWholeAndTheNextAsADelta) {
  publish(1);
  auto metrics = bring(1);
  EXPECT_GT(metrics["bytes_full"], 0);
  EXPECT_EQ(metrics["bytes_compressed"], 0);
  publish(2);
  metrics = bring(2);
  EXPECT_EQ(metrics["bytes_full"], 0);
  EXPECT_GT(metrics["bytes_compressed"], 0);
  EXPECT_GT(metrics["bytes_reconstructed"], 0);
  EXPECT_GT(metrics["bytes_skipped"], 0) << "only the embeddings change";
  EXPECT_EQ(read_file(here(2)).value(), read_file(published() / "p0-v2.safetensors").value());
  // It is here.
  EXPECT_EQ(bring(2)["bytes_compressed"], 0);
}

TEST_F(WeightCacheTest, WhoStayedBehindIsLedInOneStepOrAlongTheChain) {
  publish(1);
  bring(1);
  for (int64_t version = 2; version <= 5; ++version) publish(version);
  EXPECT_EQ(bring(5)["bytes_full"], 0);
  EXPECT_TRUE(fs::exists(published() / "p0-v5.from-v1.delta"));
  for (int64_t version = 6; version <= 9; ++version) publish(version);
  // Payloads of old versions go: there is no other way than the deltas.
  ASSERT_TRUE(tidy_versions(published(), 0, 9, {.fetched_from = 8, .anchor_interval = 100}));
  EXPECT_EQ(bring(9)["bytes_full"], 0);
  EXPECT_TRUE(fs::exists(here(7))) << "a step on the way";
}

TEST_F(WeightCacheTest, ABaseThatIsDamagedHereLeadsToTheWhole) {
  publish(1);
  bring(1);
  flip_last_byte(here(1));
  publish(2);
  EXPECT_GT(bring(2)["bytes_full"], 0);
  EXPECT_FALSE(fs::exists(here(1))) << "it would lead nowhere the next time either";
  publish(3);
  EXPECT_EQ(bring(3)["bytes_full"], 0);
}

TEST_F(WeightCacheTest, AVersionThatIsDamagedHereComesAgain) {
  publish(1);
  bring(1);
  publish(2);
  bring(2);
  flip_last_byte(here(2));
  EXPECT_EQ(bring(2)["bytes_full"], 0) << "from the version before";
}

TEST_F(WeightCacheTest, AVersionThatTheRunHasLetGoIsAFailureOfItsSource) {
  publish(1);
  bring(1);
  publish(2);
  fs::remove(published() / "p0-v2.json");
  fs::remove(published() / "p0-v2.safetensors");
  const auto fetched =
      cache_->bring({.manifest = manifest_name(0, 2), .root = roots_.at(2)}, 0, *log_file_);
  ASSERT_FALSE(fetched);
  EXPECT_NE(fetched.failure().message.find("p0-v2.json"), std::string::npos)
      << fetched.failure().message;
}

// The scheduler gives both the time that a version takes, and not only who fetches it.
TEST_F(WeightCacheTest, WhoWaitsForAnotherWorkerOfItsHostHasItsProgress) {
  publish(1);
  const fs::path folder = cache_->folder() / roots_.at(1), part = folder / "p0-v1.safetensors.part";
  fs::create_directories(folder);
  auto other = std::make_optional<LockFile>(folder / "making.lock");
  ASSERT_TRUE(other->held());
  // What a transfer that was cut has left is proved by nobody yet.
  const std::string mega(1 << 20, 'x');
  std::ofstream(part, std::ios::binary) << mega;
  std::atomic<int64_t> seen = 0, looks = 0;
  auto brought = std::async(std::launch::async, [&] {
    return cache_->bring({.manifest = manifest_name(0, 1),
                          .root = roots_.at(1),
                          .on_progress =
                              [&](int64_t bytes, int64_t) {
                                seen = bytes;
                                ++looks;
                              }},
                         0, *log_file_);
  });
  EXPECT_TRUE(eventually([&] { return looks >= 3; }));
  EXPECT_EQ(seen, 0);
  // In their place others come, and then more than there were.
  for (int chunk = 0; chunk < 6; ++chunk) {
    const int64_t before = seen;
    std::fstream(part, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(chunk * std::ssize(mega) / 3)
        .write(mega.data(), std::ssize(mega) / 3);
    EXPECT_TRUE(eventually([&] { return seen > before; })) << chunk;
  }
  fs::remove(part);
  other.reset();
  const auto fetched = brought.get();
  EXPECT_TRUE(fetched) << fetched.failure().message;
}

// Of what the relay of a host has fetched for others, the next version tells.
TEST_F(WeightCacheTest, BytesForOtherHostsCountToo) {
  publish(1);
  const std::string payload = payload_name(manifest_name(0, 1));
  ASSERT_TRUE(cache_->bring_file(
      roots_.at(1), payload, {}, [](int64_t) {}, 0, *log_file_));
  const double bytes = static_cast<double>(fs::file_size(published() / payload));
  auto metrics = bring(1);
  EXPECT_EQ(metrics["bytes_full"], bytes);
  EXPECT_GT(metrics["bytes_received"], bytes);
}

// Whatever other hosts have, a version crosses the link once: the relay makes the other forms.
TEST_F(WeightCacheTest, ARelayTakesAVersionInOneFormAndMakesTheOthers) {
  for (int64_t version = 1; version <= 3; ++version) publish(version);
  bring(1);
  const auto ask = [&](int64_t version, const std::string& file) {
    const auto brought = cache_->bring_file(
        roots_.at(version), file, {}, [](int64_t) {}, 0, *log_file_);
    EXPECT_TRUE(brought) << brought.failure().message;
    return cache_->folder() / roots_.at(version) / file;
  };
  const auto way = [&](int64_t from, int64_t to, int64_t mbit = 0) {
    return way_name({0, to, roots_.at(to), roots_.at(from), mbit});
  };
  asked_.clear();
  // Whole, for who has none; by the way from its own version this host gets it itself.
  EXPECT_EQ(read_file(ask(3, "p0-v3.safetensors")).value(),
            read_file(published() / "p0-v3.safetensors").value());
  EXPECT_EQ(asked_, (std::vector<std::string>{way(1, 3)}));
  // From that version, for who has it too, and from one that is not here.
  EXPECT_TRUE(is_delta_between(ask(3, way(1, 3)), roots_.at(1), roots_.at(3)));
  EXPECT_EQ(fs::file_size(ask(3, way(2, 3))), fs::file_size(here(3)));
  EXPECT_EQ(asked_.size(), 1U);
  // From one that has come since.
  bring(2);
  asked_.clear();
  const fs::path made = ask(3, way(2, 3, 64));
  EXPECT_TRUE(asked_.empty());
  ASSERT_TRUE(is_delta_between(made, roots_.at(2), roots_.at(3)));
  EXPECT_LT(fs::file_size(made), fs::file_size(here(3)));
  const fs::path out = host_.folder() / "made.safetensors";
  const auto done =
      reconstruct(here(2), made, read_manifest(published() / "p0-v3.json").value(), out);
  ASSERT_TRUE(done) << done.failure().message;
  EXPECT_EQ(read_file(out).value(), read_file(here(3)).value());
  // Another link is no other file, and names are bounded: other hosts choose them.
  std::error_code error;
  EXPECT_TRUE(fs::equivalent(ask(3, way(2, 3, 65)), made, error));
  int64_t refused_at = 66;
  while (refused_at < 1000 &&
         cache_->bring_file(
             roots_.at(3), way(2, 3, refused_at), {}, [](int64_t) {}, 0, *log_file_))
    ++refused_at;
  EXPECT_LT(refused_at, 400);
  for (int64_t mbit = 64; mbit < refused_at; ++mbit)
    fs::remove(here(3).parent_path() / way(2, 3, mbit));
  fs::remove(here(3).parent_path() / way(2, 3));
  // From a base that is damaged here it would lead elsewhere.
  flip_last_byte(here(2));
  EXPECT_EQ(fs::file_size(ask(3, way(2, 3, 128))), fs::file_size(here(3)));
  EXPECT_FALSE(cache_->bring_file(
      roots_.at(3), "p0-v3.from-v2.delta", {}, [](int64_t) {}, 0, *log_file_));
}

// A payload of gigabytes is not read again for each host that asks.
TEST_F(WeightCacheTest, ARelayProvesAPayloadOnceUntilItsFileChanges) {
  publish(1);
  bring(1);
  const auto ask = [&] {
    asked_.clear();
    const auto brought = cache_->bring_file(
        roots_.at(1), payload_name(manifest_name(0, 1)), {}, [](int64_t) {}, 0, *log_file_);
    EXPECT_TRUE(brought) << brought.failure().message;
    return !asked_.empty();
  };
  const auto is_whole = [&] {
    return read_file(here(1)).value() == read_file(published() / "p0-v1.safetensors").value();
  };
  // A disk that gives other bytes than it took says nothing of it.
  const auto rot = [&] {
    const auto written = fs::last_write_time(here(1));
    std::fstream(here(1), std::ios::in | std::ios::out | std::ios::binary)
        .seekp(-1, std::ios::end)
        .put('x');
    fs::last_write_time(here(1), written);
    EXPECT_FALSE(is_whole());
  };
  EXPECT_FALSE(ask()) << "it is here";
  rot();
  EXPECT_FALSE(ask()) << "it was proved";
  EXPECT_FALSE(is_whole());
  // Written since, it may be anything.
  fs::last_write_time(here(1), fs::last_write_time(here(1)) + std::chrono::seconds(1));
  EXPECT_TRUE(ask());
  EXPECT_TRUE(is_whole());
  EXPECT_FALSE(ask());
  // The host's own worker, which has found it damaged, perhaps, believes no proof of before.
  rot();
  bring(1);
  EXPECT_TRUE(is_whole());
}

// The relay's thread and the worker in whose process it is want the same version at once: it
// crosses the link once, whoever comes first.
TEST_F(WeightCacheTest, ARelaysOwnWorkerAndItsFetcherShareOneFetch) {
  std::mutex mu;
  std::map<std::string, int> fetches;  // from the run
  std::atomic<bool> begun = false, other_waits = false;
  WeightCache cache(host_.folder() / "both",
                    [&](const WeightFile& file, const fs::path& target, const std::stop_token& stop,
                        const WeightSources::Progress& progress) {
                      if (!file.name.ends_with(".json")) {
                        {
                          const std::lock_guard lock(mu);
                          ++fetches[file.name];
                        }
                        begun = true;
                        EXPECT_TRUE(eventually([&] { return other_waits.load(); })) << file.name;
                      }
                      return sources_->fetch(file, target, stop, progress);
                    });
  const std::string address = fmt::format("tcp://127.0.0.1:{}", wire::free_port());
  const WeightRelay relay(
      {.listen = address,
       .own = run_->endpoint().keys->own,
       .weights = cache.folder(),
       .lock = host_.folder() / "relay",
       .is_guest = [](std::string_view) { return true; },
       .fetch =
           [&](const Digest& root, const std::string& file, const std::stop_token& stop,
               const std::function<void(int64_t)>& on_progress) {
             return cache.bring_file(
                 root, file, stop,
                 [&](int64_t number) {
                   if (begun) other_waits = true;
                   on_progress(number);
                 },
                 0, *log_file_);
           }},
      *log_file_);
  const wire::Endpoint endpoint(address, wire::ClientKeys{host_.endpoint("west").keys->own,
                                                          run_->endpoint().keys->own.public_key});
  const auto ask_relay = [&](int64_t version) {
    return fetch_file({.patience = kGatePatience}, endpoint,
                      name_at_relay(roots_.at(version), payload_name(manifest_name(0, version))),
                      host_.folder() / fmt::format("guest-v{}", version), {});
  };
  const auto bring_own = [&](int64_t version) {
    return cache.bring({.manifest = manifest_name(0, version),
                        .root = roots_.at(version),
                        .on_progress =
                            [&](int64_t, int64_t) {
                              if (begun) other_waits = true;
                            }},
                       0, *log_file_);
  };
  // The first version whole, the others by their ways.
  for (int64_t version = 1; version <= 4; ++version) {
    publish(version);
    begun = other_waits = false;
    const bool relay_first = version % 2 == 0;
    auto first = std::async(std::launch::async, [&]() -> std::string {
      if (relay_first) {
        const auto got = ask_relay(version);
        return got ? "" : got.failure().message;
      }
      const auto got = bring_own(version);
      return got ? "" : got.failure().message;
    });
    ASSERT_TRUE(eventually([&] { return begun.load(); })) << version;
    if (relay_first) {
      const auto got = bring_own(version);
      EXPECT_TRUE(got) << got.failure().message;
    } else {
      const auto got = ask_relay(version);
      EXPECT_TRUE(got) << got.failure().message;
    }
    EXPECT_EQ(first.get(), "");
    EXPECT_EQ(std::ssize(fetches), version);
    EXPECT_EQ(read_file(host_.folder() / fmt::format("guest-v{}", version)).value(),
              read_file(published() / payload_name(manifest_name(0, version))).value());
  }
  for (const auto& [file, times] : fetches) EXPECT_EQ(times, 1) << file;
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(cache.folder())) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".json") || fetches.contains(name)) bytes += fs::file_size(entry.path());
  }
  EXPECT_EQ(sources_->received(), (std::map<std::string, int64_t>{{"run", bytes}}));
}

// Who asks a relay names the root, and may name any.
TEST_F(WeightCacheTest, RootsThatNobodyHasTakeTheRoomOfNoVersion) {
  for (const int64_t version : {1, 2}) {
    publish(version);
    bring(version);
    // So old that they are not kept for who is about to map them.
    fs::last_write_time(here(version).parent_path(),
                        fs::file_time_type::clock::now() - std::chrono::minutes(5 - version));
  }
  for (const char digit : {'1', '2', '3', '4', '5'})
    for (const char* file : {"p0-v1.json", "p0-v1.safetensors"}) {
      const Digest root(32, digit);
      EXPECT_FALSE(cache_->bring_file(
          root, file, {}, [](int64_t) {}, 0, *log_file_));
      EXPECT_FALSE(fs::exists(cache_->folder() / root));
    }
  for (const int64_t version : {1, 2}) EXPECT_TRUE(fs::exists(here(version))) << version;
}

// What a relay has made is proved by what it leads to.
TEST_F(WeightCacheTest, AWayThatLeadsElsewhereIsRefusedAndTheNextSourceAsked) {
  for (int64_t version = 1; version <= 3; ++version) publish(version);
  for (const std::string what : {"payload", "changes", "root"}) {
    SCOPED_TRACE(what);
    const fs::path lie = host_.folder() / "lie";
    fs::remove(lie);
    if (what == "payload") {
      fs::copy_file(published() / "p0-v2.safetensors", lie);
    } else if (what == "root") {
      // A version on the way, whose folder would be another one's.
      const std::vector<std::byte> bytes(8);
      const TensorBytes tensor{"x", Dtype::kF32, {2}, bytes};
      const DeltaEnds ends{.from_version = 1,
                           .to_version = 2,
                           .from_root = roots_.at(1),
                           .to_root = (host_.folder() / "elsewhere").string()};
      ASSERT_TRUE(write_delta(lie, ends, std::span(&tensor, 1), std::span(&tensor, 1), {}));
    } else {
      // The right ends, and the changes of another version.
      ASSERT_TRUE(make_delta(published(), 0, 1, 2));
      WeightManifest manifest = read_manifest(published() / "p0-v2.json").value();
      manifest.root = roots_.at(3);
      const fs::path forged = host_.folder() / "forged";
      fs::create_directories(forged);
      fs::copy_file(published() / "p0-v2.safetensors", forged / "p0-v2.safetensors");
      std::ofstream(forged / "p0-v2.json") << to_json(manifest);
      ASSERT_TRUE(make_delta_between(published() / "p0-v1.json", forged / "p0-v2.json", lie));
      ASSERT_TRUE(is_delta_between(lie, roots_.at(1), roots_.at(3)));
    }
    std::vector<std::string> refused;
    bool lies = true;
    WeightCache far(
        host_.folder() / ("far-" + what),
        [&](const WeightFile& file, const fs::path& target, const std::stop_token& stop,
            const WeightSources::Progress& progress) -> Result<FetchCounters> {
          if (lies && file.name == way_name({0, 3, roots_.at(3), roots_.at(1)})) {
            EXPECT_GE(file.max_bytes, static_cast<int64_t>(fs::file_size(lie)));
            fs::copy_file(lie, target, fs::copy_options::overwrite_existing);
            return FetchCounters{};
          }
          return sources_->fetch(file, target, stop, progress);
        },
        [&](const fs::path& target, const std::string& why) {
          refused.push_back(why);
          EXPECT_FALSE(fs::exists(target));
          return std::exchange(lies, false);
        });
    for (const int64_t version : {1, 3}) {
      const auto fetched = far.bring(
          {.manifest = manifest_name(0, version), .root = roots_.at(version)}, 0, *log_file_);
      ASSERT_TRUE(fetched) << fetched.failure().message;
      const auto proved = prove_weights(fetched.value().manifest, roots_.at(version), layout_);
      EXPECT_TRUE(proved) << proved.failure().message;
    }
    ASSERT_EQ(refused.size(), 1U);
    EXPECT_NE(refused[0].find(what == "root" ? "no root of a version" : "tensor "),
              std::string::npos)
        << refused[0];
    EXPECT_FALSE(fs::exists(host_.folder() / "elsewhere"));
  }
}

TEST(MeasuredLink, IsAPowerOfTwoOnceEnoughHasCome) {
  EXPECT_EQ(measured_mbit(1000, 0.001), 0) << "a manifest says nothing";
  EXPECT_EQ(measured_mbit(int64_t{1} << 30, 0), 0);
  EXPECT_EQ(measured_mbit(12'500'000, 1), 64);  // 100 Mbit/s
  EXPECT_EQ(measured_mbit(13'500'000, 1), 64) << "the same delta on another day";
  EXPECT_EQ(measured_mbit(1'250'000'000, 1), 8192);
  EXPECT_EQ(measured_mbit(int64_t{1} << 21, 1000), 1) << "slower than a Mbit/s";
}

// What has come so far says by what the next way is chosen.
TEST_F(WeightCacheTest, TheLinkIsMeasuredByWhatCame) {
  layout_ = ParameterLayout([] {
    ModelConfig large = small_model();
    large.vocab_size = 20'000;  // 1.2 MiB in bfloat16
    return large;
  }());
  Parameters weights(layout_);
  const auto publish_large = [&](int64_t version) {
    weights.flat()[0] = static_cast<float>(version);
    const WeightManifest manifest = make_manifest(weights, 0, version, "", {}, Dtype::kBF16);
    ASSERT_TRUE(publish_weights(published(), manifest, weights));
    roots_[version] = manifest.root;
    for (const std::string& file : {manifest_name(0, version), manifest.payload})
      share("weights/" + file, *find_weight_file(published(), file));
    for (const auto& [from, base] : roots_)
      for (int64_t mbit = 1; mbit <= 1 << 20; mbit *= 2) {
        const std::string file = way_name({0, version, manifest.root, base, mbit});
        share("weights/" + file, *find_weight_file(published(), file));
      }
  };
  const auto bring_measured = [&](int64_t version) {
    return cache_->bring({.manifest = manifest_name(0, version), .root = roots_.at(version)}, {},
                         *log_file_);
  };
  publish_large(1);
  ASSERT_TRUE(bring_measured(1));
  publish_large(2);
  ASSERT_TRUE(bring_measured(2));
  // It has asked for a way by its link, and not whole: nobody shares the one without a link.
  bool asked = false;
  for (const auto& entry : fs::directory_iterator(cache_->folder() / roots_.at(2))) {
    const auto way = parse_way_name(entry.path().filename().string());
    asked = asked || (way && way->link_mbit > 0);
  }
  EXPECT_TRUE(asked);
}

TEST_F(WeightCacheTest, AStopEndsItSoon) {
  publish(1);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_FALSE(cache_->bring(
      {.manifest = manifest_name(0, 1), .root = roots_.at(1), .stop = stop.get_token()}, 0,
      *log_file_));
}

}  // namespace
}  // namespace tailrace
