// The trainer worker beside a scheduler that only knows trainers.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/wire/server.h"
#include "core/wire/trajectory_codec.h"
#include "core/wire/worker_client.h"
#include "tests/trainer/fixtures.h"
#include "trainer/worker/worker.h"

namespace tailrace {

using namespace std::chrono_literals;

// A scheduler that only knows the trainer: answers each question with the batch of that step.
class FakeScheduler {
 public:
  explicit FakeScheduler(const std::string& endpoint) : server_(endpoint, {}) {}

  std::vector<wire::Message> heard;
  std::map<int64_t, Digest> digests;  // of published versions
  int64_t save_interval = 2;          // in versions
  int64_t steps = 4;                  // of the run: which part of it a step is
  std::vector<size_t> parts;     // of a batch, in groups: the last one has the rest; empty: whole
  size_t ranks = 1;              // at most 2
  std::optional<double> reward;  // of all samples; nullopt: each its own
  // Told to rank 0 right before the one that counts.
  std::optional<uint64_t> formation_before;
  // The batch of this step reaches rank 0 alone; then the scheduler is gone.
  std::optional<int64_t> dies_at;
  uint64_t formation = 0xabcd;  // of the last meeting
  int repeats = 0;              // of the first step's list, once its first bodies have gone out
  std::string numerics_class = testing::kNumericsClass;  // of who sampled
  // What to do beside answering; true: nothing more is to come.
  std::function<bool(FakeScheduler&, const wire::Message&)> on_message = [](auto&, auto&) {
    return false;
  };

  // Serves until on_message says so and the worker has left.
  void run() {
    auto deadline = std::chrono::steady_clock::now() + 60s;
    while (!done_ && std::chrono::steady_clock::now() < deadline) {
      for (wire::ServerEvent& event : server_.receive(20ms)) {
        if (auto* up = std::get_if<wire::WorkerUp>(&event)) on_up(*up);
        if (auto* incoming = std::get_if<wire::Incoming>(&event)) take(*incoming);
      }
    }
    EXPECT_TRUE(done_) << "timed out";
    server_.flush(5s);
  }
  // To all ranks.
  void send(const wire::Message& message) {
    for (size_t rank = 0; rank < sessions_.size(); ++rank) send(rank, message);
  }
  void send(size_t rank, const wire::Message& message) {
    EXPECT_TRUE(server_.send(fmt::format("trainer-{}", rank), sessions_[rank], message))
        << wire::describe(message);
  }
  void shut_down() { send(wire::Shutdown{"test"}); }

  template <class M>
  std::vector<M> all() const {
    std::vector<M> found;
    for (const wire::Message& m : heard) {
      if (auto* one = std::get_if<M>(&m)) found.push_back(*one);
    }
    return found;
  }

 private:
  void on_up(const wire::WorkerUp& up) {
    const auto rank = static_cast<size_t>(up.hello.rank);
    if (sessions_.size() <= rank) sessions_.resize(rank + 1);
    sessions_[rank] = up.session;
    // In place of one that has gone.
    if (rank > 0 && asked_ == 0) asked_ = given_;
    answer();
  }

  // Once all ranks are there. The others hear first that they are to meet, and of the batch: they
  // wait for rank 0 with it.
  void answer() {
    if (sessions_.size() < ranks || asked_ == 0) return;
    const int64_t step = given_ = std::exchange(asked_, 0);
    if (step == dies_at) return send(0, batch(step));
    if (ranks == 1 || (step > 1 && formed_)) return send_batch(step);
    const auto form = [this](size_t rank, uint64_t number) {
      send(rank, wire::FormRanks{.formation = number,
                                 .rank = static_cast<int32_t>(rank),
                                 .size = static_cast<int32_t>(ranks)});
    };
    ++formation;
    formed_ = true;
    for (size_t rank = ranks; rank-- > 0;) {
      if (rank == 0 && formation_before) form(rank, *formation_before);
      form(rank, formation);
      send(rank, batch(step));
      std::this_thread::sleep_for(100ms);
    }
  }

  void take(const wire::Incoming& incoming) {
    server_.acknowledge(incoming.worker, incoming.sequence);
    heard.push_back(incoming.message);
    if (auto* published = std::get_if<wire::Published>(&incoming.message)) {
      digests[published->version] = published->digest;
      if (published->version > 0 && published->version % save_interval == 0)
        send(0, wire::Save{.version = published->version});
    }
    if (on_message(*this, incoming.message)) {
      shut_down();
      done_ = true;
    } else if (auto* wants = std::get_if<wire::TrainerWants>(&incoming.message)) {
      asked_ = wants->step;
      answer();
    } else if (auto* fetch = std::get_if<wire::Fetch>(&incoming.message)) {
      send(incoming.worker == "trainer-0" ? 0 : 1, payload(*fetch));
      if (given_ == dies_at) done_ = true;
      // The first part is being computed, and the list begins anew.
      if (repeats-- > 0) send_batch(1);
    }
  }

  // Depends on the step only, so that a repeated run trains on the same.
  wire::Batch batch(int64_t step) {
    const auto share = [&](int64_t done) {
      return std::min(1.0, static_cast<double>(done) / static_cast<double>(steps));
    };
    wire::Batch message{
        .step = step, .items = {}, .share_begin = share(step - 1), .share_end = share(step)};
    for (Trajectory& t : testing::random_trajectories(3, static_cast<uint64_t>(step))) {
      t.numerics_classes = {numerics_class};
      if (reward) t.reward = *reward;
      const auto bytes = wire::encode_trajectory(t);
      message.items.push_back({.lease = t.lease,
                               .reward = *t.reward,
                               .bytes = std::ssize(bytes),
                               .checksum = wire::checksum_of(bytes)});
      bodies_[t.lease] = bytes;
    }
    return message;
  }

  void send_batch(int64_t step) {
    const wire::Batch whole = batch(step);
    size_t first = 0;
    for (const size_t groups : parts) {
      wire::Batch part{
          .step = step, .first = static_cast<int64_t>(first), .last = false, .items = {}};
      for (size_t end = first + 4 * groups; first < end; ++first)
        part.items.push_back(whole.items[first]);
      send(part);
    }
    wire::Batch rest = whole;
    rest.first = static_cast<int64_t>(first);
    rest.items.assign(whole.items.begin() + static_cast<std::ptrdiff_t>(first), whole.items.end());
    send(rest);
  }

  wire::Payload payload(const wire::Fetch& fetch) {
    std::vector<std::byte> all;
    for (const BodyId& id : fetch.bodies) {
      const auto& body = bodies_.at(id.lease);
      all.insert(all.end(), body.begin(), body.end());
    }
    const auto begin = all.begin() + fetch.offset;
    return {fetch.request, {begin, begin + std::min<int64_t>(fetch.max_bytes, all.end() - begin)}};
  }

  wire::WorkerServer server_;
  std::vector<uint64_t> sessions_;  // by rank
  int64_t asked_ = 0;               // the step that is not given yet; 0: none
  int64_t given_ = 0;               // the last one that was
  bool formed_ = false;
  std::map<LeaseId, std::vector<std::byte>> bodies_;  // of the newest batch of each lease
  bool done_ = false;
};

class TrainerWorkerTest : public ::testing::Test {
 protected:
  TemporaryDirectory dir_;
  std::string endpoint_ = "ipc://" + (dir_.path() / "s").string();

  TrainerWorkerConfig config(const char* run = "run") {
    TrainerWorkerConfig config;
    config.endpoint = endpoint_;
    config.link.linger = 100ms;  // the fake stops listening when it has seen enough
    config.run.root = dir_.path() / run;
    config.seed = 5;
    config.steps = 4;
    config.model = testing::tiny_model();
    config.max_sequence_tokens = 64;
    config.optim.lr = 1e-2;
    config.train.threads = 1;
    config.checkpoint.keep_last = 2;
    return config;
  }

  // The worker in a thread beside the scheduler; returns its exit status.
  int serve(const TrainerWorkerConfig& config, FakeScheduler& scheduler) {
    auto status = std::async(std::launch::async, [&] {
      Log log("trainer-0", dir_.path() / "log");
      SteadyClock clock;
      return run_trainer_worker(config, log, clock);
    });
    scheduler.run();
    return status.get();
  }

  std::filesystem::path write_rows(const std::string& extra = "") {
    std::filesystem::path path = dir_.path() / "rows.jsonl";
    std::ofstream file(path);
    for (int i = 0; i < 40; ++i) file << "{\"input_ids\": [" << i % 19 << ", 2, 3, 4, 5]}\n";
    file << extra;
    return path;
  }
};

inline bool is_published(const wire::Message& message, int64_t version) {
  auto* published = std::get_if<wire::Published>(&message);
  return published && published->version == version;
}
inline bool is_durable(const wire::Message& message, int64_t version) {
  auto* durable = std::get_if<wire::Durable>(&message);
  return durable && durable->version == version;
}

}  // namespace tailrace
