// Workers without models, each a thread with a real connection: they answer the protocol of
// core/wire/README.md at once, and can be killed and started again.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "core/wire/trajectory_codec.h"
#include "core/wire/worker_client.h"

// Not tailrace::scheduler: its events and actions share names with messages.
namespace tailrace::fakes {

using std::chrono::milliseconds;

inline wire::LinkOptions fast_link() {
  wire::LinkOptions link;
  link.heartbeat = milliseconds(50);
  link.timeout = milliseconds(2000);
  link.resend = milliseconds(100);
  link.linger = milliseconds(100);
  return link;
}

// Half of its tokens are the prompt.
inline Trajectory make_trajectory(const LeaseId& lease, Lane lane, int64_t version,
                                  int num_tokens = 6) {
  Trajectory t;
  t.lease = lease;
  t.lane = lane;
  t.env = "fake";
  t.turns = 1;
  t.numerics_classes = {"x"};
  Segment segment;
  for (int i = 0; i < num_tokens; ++i) {
    const bool sampled = i >= num_tokens / 2;
    segment.tokens.push_back(i + static_cast<TokenId>(lease.member.prompt % 7));
    segment.roles.push_back(sampled ? TokenRole::kSampled : TokenRole::kPrompt);
    segment.logprobs.push_back(sampled ? -0.5f : 0.0f);
    segment.versions.push_back(sampled ? version : -1);
    segment.classes.push_back(sampled ? 0 : -1);
  }
  if (num_tokens > 0) segment.turn_begins = {num_tokens / 2};
  t.segments.push_back(segment);
  t.metrics = {{"success", static_cast<double>(lease.member.member % 2)}};
  return t;
}

class FakeWorker {
 public:
  FakeWorker(Role role, std::string name, std::string endpoint)
      : role_(role), name_(std::move(name)), endpoint_(std::move(endpoint)) {}
  virtual ~FakeWorker() { kill(); }

  void start() {
    stop_ = false;
    thread_ = std::thread([this] { loop(); });
  }
  // Without a word, as far as the protocol goes.
  void kill() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool shut_down() const { return shut_down_; }
  // Sees every message before the worker does, on the worker's thread.
  std::function<void(const wire::Message&)> hears = [](const wire::Message&) {};

 protected:
  virtual void begin(wire::WorkerClient&) {}
  virtual void on(wire::WorkerClient& client, const wire::Message& message) = 0;

 private:
  void loop() {
    wire::WorkerClient client({.role = role_,
                               .worker = name_,
                               .incarnation = 0,
                               .pid = 1,
                               .slots = 4,
                               .numerics_class = "x"},
                              endpoint_, fast_link());
    bool begun = false;
    while (!stop_ && !shut_down_) {
      const auto message = client.receive(milliseconds(20));
      if (!message) continue;
      hears(*message);
      if (std::holds_alternative<wire::Shutdown>(*message)) {
        shut_down_ = true;
      } else if (std::holds_alternative<wire::Welcome>(*message)) {
        if (!begun) begin(client);
        begun = true;
        if (begun) welcome_again(client);
      } else {
        on(client, *message);
      }
    }
  }
  virtual void welcome_again(wire::WorkerClient&) {}

  Role role_;
  std::string name_, endpoint_;
  std::atomic<bool> stop_{false}, shut_down_{false};
  std::thread thread_;
};

class FakeRollout : public FakeWorker {
 public:
  FakeRollout(std::string name, const std::string& endpoint, milliseconds pace = milliseconds(0))
      : FakeWorker(Role::kRollout, std::move(name), endpoint), pace_(pace) {}
  ~FakeRollout() override { kill(); }
  std::atomic<int> fail_next{0};
  std::atomic<int> num_tokens{6};

 protected:
  void begin(wire::WorkerClient&) override { version_ = -1; }
  void on(wire::WorkerClient& client, const wire::Message& message) override {
    if (const auto* stage = std::get_if<wire::Stage>(&message)) {
      client.send(wire::StageProgress{stage->policy, stage->version, stage->digest, 5, 10});
      client.send(wire::Staged{stage->policy, stage->version, stage->digest, {{"stage_ms", 2}}});
    } else if (const auto* change = std::get_if<wire::Switch>(&message)) {
      version_ = change->version;
      client.send(wire::Installed{change->policy, change->version, change->digest});
    } else if (const auto* grant = std::get_if<wire::Grant>(&message)) {
      std::this_thread::sleep_for(pace_);  // stands for the work
      Trajectory t = make_trajectory(grant->lease, grant->lane, version_, num_tokens);
      if (fail_next > 0) {
        --fail_next;
        t.segments.clear();
        t.outcome = Outcome::kEnvFailed;
        t.evidence = "the fake environment broke";
      } else if (grant->lease.member.prompt % 2 == 0) {
        t.reward = static_cast<double>(grant->lease.member.member);
      } else {
        t.verifier = "fake";
        t.evidence = fmt::format("{}", grant->lease.member.member);
      }
      adjust(t);
      client.send(wire::TrajectoryResult{wire::encode_trajectory(t)});
    }
  }
  // The last word on a result.
  virtual void adjust(Trajectory&) {}

 private:
  milliseconds pace_;
  int64_t version_ = -1;
};

class FakeReward : public FakeWorker {
 public:
  FakeReward(std::string name, const std::string& endpoint)
      : FakeWorker(Role::kReward, std::move(name), endpoint) {}
  ~FakeReward() override { kill(); }

 protected:
  void on(wire::WorkerClient& client, const wire::Message& message) override {
    const auto* verify = std::get_if<wire::Verify>(&message);
    if (verify == nullptr) return;
    const double score = std::stod(verify->evidence);
    client.send(wire::Verdict{verify->lease,
                              verify->lane,
                              verify->verify_attempt,
                              score,
                              {{"verified", 2 * score + 1}},
                              ""});
  }
};

// Its disk outlives it: checkpoints, and what each step was trained on.
struct TrainerDisk {
  struct Sample {
    double reward = 0;
    std::vector<std::byte> body;
    friend bool operator==(const Sample&, const Sample&) = default;
  };
  std::mutex mu;
  int64_t checkpoint = -1;
  std::map<int64_t, std::vector<Sample>> batches;
  std::string fault;
};

class FakeTrainer : public FakeWorker {
 public:
  FakeTrainer(const std::string& endpoint, TrainerDisk& disk, int64_t steps,
              milliseconds pace = milliseconds(0))
      : FakeWorker(Role::kTrainer, "trainer-0", endpoint),
        disk_(disk),
        steps_(steps),
        pace_(pace) {}
  ~FakeTrainer() override { kill(); }
  std::atomic<int64_t> released{0};  // weights below it are let go

 protected:
  void begin(wire::WorkerClient& client) override {
    {
      std::lock_guard lock(disk_.mu);
      version_ = disk_.checkpoint;
    }
    if (version_ >= 0) return;
    client.send(wire::TrainerReady{.version = -1, .digest = ""});
    client.send(wire::Progress{"sft", 1, 1, {{"sft/loss", 2.0}}});
    save(0);
    version_ = 0;
    client.send(wire::Published{0, 0, digest(0), "m", master(0)});
    client.send(wire::Durable{0, 0, 0, "c"});
  }
  void welcome_again(wire::WorkerClient& client) override {
    bodies_.clear();
    client.send(wire::TrainerReady{.version = version_,
                                   .digest = digest(version_),
                                   .manifest = "m",
                                   .master = version_ < 0 ? "" : master(version_)});
    ask(client);
  }

  void on(wire::WorkerClient& client, const wire::Message& message) override {
    if (const auto* request = std::get_if<wire::Save>(&message)) {
      if (request->version != version_) return;
      save(version_);
      client.send(wire::Durable{0, version_, version_, "c"});
    }
    if (const auto* release = std::get_if<wire::ReleaseWeights>(&message))
      released = release->below;
    if (const auto* batch = std::get_if<wire::Batch>(&message)) {
      if (batch->step != version_ + 1) return;
      batch_ = *batch;
      bodies_.clear();
      for (const wire::Batch::Item& item : batch_.items) {
        client.send(
            wire::Fetch{.request = first_request_ + static_cast<int64_t>(&item - &batch_.items[0]),
                        .bodies = {{Lane::kTrain, item.lease}},
                        .offset = 0,
                        .max_bytes = item.bytes});
      }
    }
    if (const auto* payload = std::get_if<wire::Payload>(&message)) {
      const int64_t index = payload->request - first_request_;
      if (index < 0 || index >= std::ssize(batch_.items)) return;
      bodies_[index] = payload->bytes;
      if (bodies_.size() == batch_.items.size()) train(client);
    }
  }

 private:
  void train(wire::WorkerClient& client) {
    std::this_thread::sleep_for(pace_);
    std::vector<TrainerDisk::Sample> samples;
    for (size_t i = 0; i < batch_.items.size(); ++i) {
      samples.push_back({batch_.items[i].reward, bodies_.at(static_cast<int64_t>(i))});
      if (wire::checksum_of(samples.back().body) != batch_.items[i].checksum)
        disk_.fault = "other bytes than the batch said";
    }
    first_request_ += std::ssize(batch_.items);
    bodies_.clear();
    {
      std::lock_guard lock(disk_.mu);
      const auto known = disk_.batches.find(batch_.step);
      if (known != disk_.batches.end() && known->second != samples)
        disk_.fault = "another batch of a step";
      disk_.batches[batch_.step] = std::move(samples);
    }
    ++version_;
    client.send(wire::Published{
        0, version_, digest(version_), "m", master(version_), {{"reward/mean", 0.5}}});
    ask(client);
  }
  static std::string digest(int64_t version) { return fmt::format("{:032}", version); }
  static std::string master(int64_t version) { return fmt::format("m{:031}", version); }
  void ask(wire::WorkerClient& client) {
    if (version_ >= 0 && version_ < steps_) client.send(wire::TrainerWants{0, version_ + 1});
  }
  void save(int64_t version) {
    std::lock_guard lock(disk_.mu);
    disk_.checkpoint = version;
  }

  TrainerDisk& disk_;
  int64_t steps_;
  milliseconds pace_;
  int64_t version_ = -1;
  wire::Batch batch_;
  std::map<int64_t, std::vector<std::byte>> bodies_;
  int64_t first_request_ = 0;
};

}  // namespace tailrace::fakes
