#include "core/wire/message.h"

#include <cmath>

#include "core/wire/codec.h"
#include "core/wire/messages_generated.h"

namespace tailrace {
namespace {

using wire_codec::Builder;
using wire_codec::Malformed;
using wire_codec::read_lane;
using wire_codec::read_lease;
using wire_codec::read_metrics;
using wire_codec::to_wire;
using wire_codec::write_metrics;
using Offset = flatbuffers::Offset<void>;

constexpr char kFrameIdentifier[] = "TRW1";
constexpr int64_t kMaxSlots = 1 << 20;

// One write() and one read() a message, in the order of Message.

uint8_t code(Lane lane) { return static_cast<uint8_t>(lane); }

Offset write(Builder& b, const Hello& m) {
  const auto worker = b.CreateString(m.worker);
  const auto numerics_class = b.CreateString(m.numerics_class);
  return wire::CreateHello(b, static_cast<uint8_t>(m.role), worker, m.incarnation, m.pid, m.slots,
                           numerics_class)
      .Union();
}
Offset write(Builder& b, const Heartbeat&) { return wire::CreateHeartbeat(b).Union(); }
Offset write(Builder& b, const TrajectoryResult& m) {
  return wire::CreateTrajectoryResult(b, wire_codec::write_trajectory(b, m.trajectory)).Union();
}
Offset write(Builder& b, const Verdict& m) {
  const wire::Lease lease = to_wire(m.lease);
  flatbuffers::Optional<double> reward = flatbuffers::nullopt;
  if (m.reward) reward = *m.reward;
  const auto metrics = write_metrics(b, m.metrics);
  const auto failure = b.CreateString(m.failure);
  return wire::CreateVerdict(b, &lease, code(m.lane), m.verify_attempt, reward, metrics, failure)
      .Union();
}
Offset write(Builder& b, const Installed& m) {
  return wire::CreateInstalled(b, m.policy, m.version, b.CreateString(m.digest)).Union();
}
Offset write(Builder& b, const InstallFailed& m) {
  return wire::CreateInstallFailed(b, m.policy, m.version, b.CreateString(m.reason)).Union();
}
Offset write(Builder& b, const TrainerReady& m) {
  const auto digest = b.CreateString(m.digest);
  const auto manifest = b.CreateString(m.manifest);
  const auto metrics = write_metrics(b, m.metrics);
  return wire::CreateTrainerReady(b, m.policy, m.version, digest, manifest, metrics).Union();
}
Offset write(Builder& b, const TrainerWants& m) {
  return wire::CreateTrainerWants(b, m.policy, m.step).Union();
}
Offset write(Builder& b, const Published& m) {
  const auto digest = b.CreateString(m.digest);
  const auto manifest = b.CreateString(m.manifest);
  const auto metrics = write_metrics(b, m.metrics);
  return wire::CreatePublished(b, m.policy, m.version, digest, manifest, metrics).Union();
}
Offset write(Builder& b, const Durable& m) {
  return wire::CreateDurable(b, m.policy, m.version, b.CreateString(m.path)).Union();
}
Offset write(Builder& b, const Progress& m) {
  const auto phase = b.CreateString(m.phase);
  const auto metrics = write_metrics(b, m.metrics);
  return wire::CreateProgress(b, phase, m.done, m.total, metrics).Union();
}
Offset write(Builder& b, const WorkerFailed& m) {
  return wire::CreateWorkerFailed(b, b.CreateString(m.reason)).Union();
}
Offset write(Builder& b, const Welcome& m) { return wire::CreateWelcome(b, m.session).Union(); }
Offset write(Builder& b, const Grant& m) {
  const wire::Lease lease = to_wire(m.lease);
  return wire::CreateGrant(b, &lease, code(m.lane), m.version).Union();
}
Offset write(Builder& b, const Abort& m) {
  const wire::Lease lease = to_wire(m.lease);
  return wire::CreateAbort(b, &lease, code(m.lane)).Union();
}
Offset write(Builder& b, const Verify& m) {
  const wire::Lease lease = to_wire(m.lease);
  const auto verifier = b.CreateString(m.verifier);
  const auto evidence = b.CreateString(m.evidence);
  return wire::CreateVerifyRequest(b, &lease, code(m.lane), m.verify_attempt, verifier, evidence)
      .Union();
}
Offset write(Builder& b, const Install& m) {
  const auto digest = b.CreateString(m.digest);
  const auto manifest = b.CreateString(m.manifest);
  return wire::CreateInstall(b, m.policy, m.version, digest, manifest).Union();
}
Offset write(Builder& b, const Batch& m) {
  std::vector<flatbuffers::Offset<wire::Blob>> blobs;
  blobs.reserve(m.trajectories.size());
  for (const auto& bytes : m.trajectories) {
    blobs.push_back(wire::CreateBlob(
        b, b.CreateVector(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size())));
  }
  return wire::CreateBatch(b, m.policy, m.step, b.CreateVector(blobs)).Union();
}
Offset write(Builder& b, const Save& m) { return wire::CreateSave(b, m.policy).Union(); }
Offset write(Builder& b, const Shutdown& m) {
  return wire::CreateShutdown(b, b.CreateString(m.reason)).Union();
}

int64_t at_least(int64_t lowest, int64_t value, std::string_view what) {
  if (value < lowest) throw Malformed("{} is {}", what, value);
  return value;
}
PolicyId read_policy(int32_t policy) {
  return static_cast<PolicyId>(at_least(0, policy, "policy"));
}

Digest read_digest(const flatbuffers::String& text) {
  if (text.size() > 64) throw Malformed("a digest of {} characters", text.size());
  return text.str();
}

// A name below RUN/weights: it is joined to a path, so it must not lead out of the folder.
std::string read_file_name(const flatbuffers::String& text) {
  std::string file = text.str();
  if (file.find('/') != std::string::npos || file.find('\0') != std::string::npos || file == "..") {
    throw Malformed("file name '{}'", file);
  }
  return file;
}

Message read(const wire::Hello& t) {
  if (t.role() > static_cast<uint8_t>(Role::kTrainer)) throw Malformed("role {}", t.role());
  if (t.worker()->size() == 0 || t.worker()->size() > 255) {
    throw Malformed("a worker's name of {} characters", t.worker()->size());
  }
  if (t.slots() < 1 || t.slots() > kMaxSlots) throw Malformed("{} slots", t.slots());
  return Hello{static_cast<Role>(t.role()), t.worker()->str(), t.incarnation(), t.pid(), t.slots(),
               t.numerics_class()->str()};
}
Message read(const wire::Heartbeat&) { return Heartbeat{}; }
Message read(const wire::TrajectoryResult& t) {
  return TrajectoryResult{wire_codec::read_trajectory(*t.trajectory())};
}
Message read(const wire::Verdict& t) {
  Verdict m;
  m.lease = read_lease(*t.lease());
  m.lane = read_lane(t.lane());
  m.verify_attempt = static_cast<int32_t>(at_least(0, t.verify_attempt(), "verify_attempt"));
  if (t.reward()) {
    if (!std::isfinite(*t.reward())) throw Malformed("reward {}", *t.reward());
    m.reward = *t.reward();
  }
  m.metrics = read_metrics(*t.metrics());
  m.failure = t.failure()->str();
  return m;
}
Message read(const wire::Installed& t) {
  return Installed{read_policy(t.policy()), at_least(0, t.version(), "version"),
                   read_digest(*t.digest())};
}
Message read(const wire::InstallFailed& t) {
  return InstallFailed{read_policy(t.policy()), at_least(0, t.version(), "version"),
                       t.reason()->str()};
}
Message read(const wire::TrainerReady& t) {
  const bool has_manifest = t.manifest() != nullptr && t.manifest()->size() > 0;
  return TrainerReady{read_policy(t.policy()), at_least(-1, t.version(), "version"),
                      read_digest(*t.digest()),
                      has_manifest ? read_file_name(*t.manifest()) : std::string(),
                      t.metrics() != nullptr ? read_metrics(*t.metrics()) : MetricList()};
}
Message read(const wire::TrainerWants& t) {
  return TrainerWants{read_policy(t.policy()), at_least(1, t.step(), "step")};
}
Message read(const wire::Published& t) {
  return Published{read_policy(t.policy()), at_least(0, t.version(), "version"),
                   read_digest(*t.digest()), read_file_name(*t.manifest()),
                   read_metrics(*t.metrics())};
}
Message read(const wire::Durable& t) {
  return Durable{read_policy(t.policy()), at_least(0, t.version(), "version"), t.path()->str()};
}
Message read(const wire::Progress& t) {
  return Progress{t.phase()->str(), at_least(0, t.done(), "done"), at_least(0, t.total(), "total"),
                  read_metrics(*t.metrics())};
}
Message read(const wire::WorkerFailed& t) { return WorkerFailed{t.reason()->str()}; }
Message read(const wire::Welcome& t) { return Welcome{t.session()}; }
Message read(const wire::Grant& t) {
  return Grant{read_lease(*t.lease()), read_lane(t.lane()), at_least(0, t.version(), "version")};
}
Message read(const wire::Abort& t) { return Abort{read_lease(*t.lease()), read_lane(t.lane())}; }
Message read(const wire::VerifyRequest& t) {
  return Verify{read_lease(*t.lease()), read_lane(t.lane()),
                static_cast<int32_t>(at_least(0, t.verify_attempt(), "verify_attempt")),
                t.scored_by()->str(), t.evidence()->str()};
}
Message read(const wire::Install& t) {
  return Install{read_policy(t.policy()), at_least(0, t.version(), "version"),
                 read_digest(*t.digest()), read_file_name(*t.manifest())};
}
Message read(const wire::Batch& t) {
  Batch m{read_policy(t.policy()), at_least(1, t.step(), "step"), {}};
  m.trajectories.reserve(t.trajectories()->size());
  for (const wire::Blob* blob : *t.trajectories()) {
    const auto* begin = reinterpret_cast<const std::byte*>(blob->bytes()->data());
    m.trajectories.emplace_back(begin, begin + blob->bytes()->size());
  }
  return m;
}
Message read(const wire::Save& t) { return Save{read_policy(t.policy())}; }
Message read(const wire::Shutdown& t) { return Shutdown{t.reason()->str()}; }

Message read_body(const wire::Frame& frame) {
  switch (frame.body_type()) {
    case wire::Body::Hello:
      return read(*frame.body_as_Hello());
    case wire::Body::Heartbeat:
      return read(*frame.body_as_Heartbeat());
    case wire::Body::TrajectoryResult:
      return read(*frame.body_as_TrajectoryResult());
    case wire::Body::Verdict:
      return read(*frame.body_as_Verdict());
    case wire::Body::Installed:
      return read(*frame.body_as_Installed());
    case wire::Body::InstallFailed:
      return read(*frame.body_as_InstallFailed());
    case wire::Body::TrainerReady:
      return read(*frame.body_as_TrainerReady());
    case wire::Body::TrainerWants:
      return read(*frame.body_as_TrainerWants());
    case wire::Body::Published:
      return read(*frame.body_as_Published());
    case wire::Body::Durable:
      return read(*frame.body_as_Durable());
    case wire::Body::Progress:
      return read(*frame.body_as_Progress());
    case wire::Body::WorkerFailed:
      return read(*frame.body_as_WorkerFailed());
    case wire::Body::Welcome:
      return read(*frame.body_as_Welcome());
    case wire::Body::Grant:
      return read(*frame.body_as_Grant());
    case wire::Body::Abort:
      return read(*frame.body_as_Abort());
    case wire::Body::VerifyRequest:
      return read(*frame.body_as_VerifyRequest());
    case wire::Body::Install:
      return read(*frame.body_as_Install());
    case wire::Body::Batch:
      return read(*frame.body_as_Batch());
    case wire::Body::Save:
      return read(*frame.body_as_Save());
    case wire::Body::Shutdown:
      return read(*frame.body_as_Shutdown());
    case wire::Body::NONE:
      break;
  }
  throw Malformed("unknown message type {}", static_cast<int>(frame.body_type()));
}

// Body::X is the place of X in Message plus one (0 is NONE), checked by the round-trip test of
// every type.
wire::Body body_type(const Message& message) {
  return static_cast<wire::Body>(message.index() + 1);
}
static_assert(std::variant_size_v<Message> == static_cast<size_t>(wire::Body::MAX));

wire::Header to_wire(const Header& header) {
  return wire::Header(header.session, header.sequence, header.ack,
                      static_cast<uint64_t>(header.signal));
}

Header from_wire(const wire::Header& header) {
  return {header.session(), header.sequence(), header.ack(), static_cast<Signal>(header.signal())};
}

// nullptr: not a frame. `storage` holds the bytes when they had to be moved.
const wire::Frame* verified_frame(std::span<const std::byte> frame,
                                  std::vector<std::byte>& storage) {
  frame = wire_codec::aligned(frame, storage);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  if (!verifier.VerifyBuffer<wire::Frame>(kFrameIdentifier)) return nullptr;
  return flatbuffers::GetRoot<wire::Frame>(frame.data());
}

size_t expected_bytes(const Message& message) {
  if (const auto* result = std::get_if<TrajectoryResult>(&message)) {
    return 1024 + static_cast<size_t>(result->trajectory.num_tokens()) * 10;
  }
  if (const auto* batch = std::get_if<Batch>(&message)) {
    size_t bytes = 1024;
    for (const auto& trajectory : batch->trajectories) bytes += trajectory.size() + 32;
    return bytes;
  }
  return 512;
}

std::string short_name(const LeaseId& id) {
  const MemberId& m = id.member;
  return fmt::format("p{}/d{}/e{}/q{}/l{}/m{}#{}", m.policy, m.domain, m.epoch, m.prompt, m.launch,
                     m.member, id.attempt);
}

std::string_view lane_mark(Lane lane) { return lane == Lane::kEval ? " eval" : ""; }

struct Describe {
  std::string operator()(const Hello& m) const {
    return fmt::format("Hello {} {} pid={} slots={}", name(m.role), m.worker, m.pid, m.slots);
  }
  std::string operator()(const Heartbeat&) const { return "Heartbeat"; }
  std::string operator()(const TrajectoryResult& m) const {
    return fmt::format("TrajectoryResult {}{} {} tokens={}", short_name(m.trajectory.lease),
                       lane_mark(m.trajectory.lane), name(m.trajectory.outcome),
                       m.trajectory.num_tokens());
  }
  std::string operator()(const Verdict& m) const {
    const std::string result =
        m.reward ? fmt::format("reward={}", *m.reward) : fmt::format("failed: {}", m.failure);
    return fmt::format("Verdict {}{} {}", short_name(m.lease), lane_mark(m.lane), result);
  }
  std::string operator()(const Installed& m) const {
    return fmt::format("Installed policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const InstallFailed& m) const {
    return fmt::format("InstallFailed policy={} version={}: {}", m.policy, m.version, m.reason);
  }
  std::string operator()(const TrainerReady& m) const {
    return fmt::format("TrainerReady policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const TrainerWants& m) const {
    return fmt::format("TrainerWants policy={} step={}", m.policy, m.step);
  }
  std::string operator()(const Published& m) const {
    return fmt::format("Published policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const Durable& m) const {
    return fmt::format("Durable policy={} version={} {}", m.policy, m.version, m.path);
  }
  std::string operator()(const Progress& m) const {
    return fmt::format("Progress {} {}/{}", m.phase, m.done, m.total);
  }
  std::string operator()(const WorkerFailed& m) const {
    return fmt::format("WorkerFailed: {}", m.reason);
  }
  std::string operator()(const Welcome& m) const {
    return fmt::format("Welcome session={:x}", m.session);
  }
  std::string operator()(const Grant& m) const {
    return fmt::format("Grant {}{} version={}", short_name(m.lease), lane_mark(m.lane), m.version);
  }
  std::string operator()(const Abort& m) const {
    return fmt::format("Abort {}{}", short_name(m.lease), lane_mark(m.lane));
  }
  std::string operator()(const Verify& m) const {
    return fmt::format("Verify {}{} by {}", short_name(m.lease), lane_mark(m.lane), m.verifier);
  }
  std::string operator()(const Install& m) const {
    return fmt::format("Install policy={} version={} {}", m.policy, m.version, m.digest);
  }
  std::string operator()(const Batch& m) const {
    return fmt::format("Batch policy={} step={} trajectories={}", m.policy, m.step,
                       m.trajectories.size());
  }
  std::string operator()(const Save& m) const { return fmt::format("Save policy={}", m.policy); }
  std::string operator()(const Shutdown& m) const { return fmt::format("Shutdown: {}", m.reason); }
};

}  // namespace

std::string_view name(Role role) {
  switch (role) {
    case Role::kRollout:
      return "rollout";
    case Role::kReward:
      return "reward";
    case Role::kTrainer:
      return "trainer";
  }
  return "unknown";
}

std::string describe(const Message& message) { return std::visit(Describe{}, message); }

std::vector<std::byte> encode(const Header& header, const Message& message) {
  Builder builder(expected_bytes(message));
  const Offset body = std::visit([&](const auto& m) { return write(builder, m); }, message);
  const wire::Header wire_header = to_wire(header);
  builder.Finish(wire::CreateFrame(builder, &wire_header, body_type(message), body),
                 kFrameIdentifier);
  return wire_codec::to_bytes(builder);
}

std::optional<Header> decode_header(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  const wire::Frame* table = verified_frame(frame, storage);
  if (table == nullptr || table->header()->signal() > static_cast<uint64_t>(Signal::kGoodbye)) {
    return std::nullopt;
  }
  return from_wire(*table->header());
}

Result<Decoded> decode(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  const wire::Frame* table = verified_frame(frame, storage);
  if (table == nullptr)
    return Failure{fmt::format("{} bytes are not a frame of ours", frame.size())};
  try {
    const uint64_t signal = table->header()->signal();
    if (signal > static_cast<uint64_t>(Signal::kGoodbye))
      throw Malformed("unknown signal {}", signal);
    return Decoded{from_wire(*table->header()), read_body(*table)};
  } catch (const Malformed& error) {
    return Failure{fmt::format("{}: {}", wire::EnumNameBody(table->body_type()), error.what())};
  }
}

void rewrite_header(std::span<std::byte> frame, const Header& header) {
  wire::Header* place = flatbuffers::GetMutableRoot<wire::Frame>(frame.data())->mutable_header();
  *place = to_wire(header);
}

bool is_from_worker(const Message& message) {
  static const size_t first_from_scheduler = Message(Welcome{}).index();
  return message.index() < first_from_scheduler;
}

}  // namespace tailrace
