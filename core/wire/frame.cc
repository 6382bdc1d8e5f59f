#include "core/wire/frame.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/printable.h"
#include "core/wire/codec.h"
#include "core/wire/messages_generated.h"

namespace tailrace::wire {
namespace {

using Offset = flatbuffers::Offset<void>;

// The digit changes with the header or the meaning of a message: a peer of another build is refused
// as no frame of ours.
constexpr char kFrameIdentifier[] = "TRW9";
// More than any engine has; without a bound a peer's mistake would draw all the work there is.
constexpr int64_t kMaxSlots = 1 << 20;
constexpr size_t kMaxHeldBytes = 400;  // of a line that a person reads
constexpr int32_t kMaxRanks = 1 << 16;

// One write() and one read() a message, in the order of Message.

uint8_t code(Lane lane) { return static_cast<uint8_t>(lane); }

// Of a number that an item does not have, in a list of numbers.
constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

// Strings and vectors before the table that holds them: a FlatBuffer is built from the leaves.
Offset write(Builder& b, const Hello& m) {
  const auto worker = b.CreateString(m.worker);
  const auto numerics_class = b.CreateString(m.numerics_class);
  const auto pool = b.CreateString(m.pool);
  const auto hardware = b.CreateString(m.hardware);
  const auto cluster = b.CreateString(m.cluster);
  const auto host = b.CreateString(m.host);
  return fbs::CreateHello(b, static_cast<uint8_t>(m.role), worker, m.incarnation, m.pid, m.slots,
                          numerics_class, m.joined, pool, hardware, cluster, m.rank, host)
      .Union();
}
Offset write(Builder& b, const Heartbeat& m) {
  const auto held = m.held.empty() ? 0 : b.CreateString(m.held.substr(0, kMaxHeldBytes));
  return fbs::CreateHeartbeat(b, m.progress, held).Union();
}
flatbuffers::Offset<flatbuffers::Vector<uint8_t>> write_bytes(Builder& b,
                                                              std::span<const std::byte> bytes) {
  return b.CreateVector(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}
std::vector<std::byte> read_bytes(const flatbuffers::Vector<uint8_t>& bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

flatbuffers::Offset<flatbuffers::Vector<const fbs::BodyName*>> write_bodies(
    Builder& b, const std::vector<BodyId>& bodies) {
  std::vector<fbs::BodyName> names;
  names.reserve(bodies.size());
  for (const BodyId& id : bodies) names.emplace_back(to_fbs(id.lease), code(id.lane));
  return b.CreateVectorOfStructs(names);
}
std::vector<BodyId> read_bodies(const flatbuffers::Vector<const fbs::BodyName*>& names) {
  check_aligned(names, alignof(fbs::BodyName), "body names");
  std::vector<BodyId> bodies;
  bodies.reserve(names.size());
  for (const fbs::BodyName* id : names)
    bodies.push_back({read_lane(id->lane()), read_lease(id->lease())});
  return bodies;
}

Offset write(Builder& b, const TrajectoryResult& m) {
  return fbs::CreateTrajectoryResult(b, write_bytes(b, m.body), m.goes_on).Union();
}
Offset write(Builder& b, const Verdict& m) {
  const fbs::Lease lease = to_fbs(m.lease);
  flatbuffers::Optional<double> reward = flatbuffers::nullopt;
  if (m.reward) reward = *m.reward;
  const auto metrics = write_metrics(b, m.metrics);
  const auto failure = b.CreateString(m.failure);
  return fbs::CreateVerdict(b, &lease, code(m.lane), m.verify_attempt, reward, metrics, failure,
                            m.task_broken)
      .Union();
}
Offset write(Builder& b, const Staged& m) {
  const auto digest = b.CreateString(m.digest);
  return fbs::CreateStaged(b, m.policy, m.version, digest, write_metrics(b, m.metrics)).Union();
}
Offset write(Builder& b, const StageProgress& m) {
  const auto digest = b.CreateString(m.digest);
  return fbs::CreateStageProgress(b, m.policy, m.version, digest, m.bytes, m.total).Union();
}
Offset write(Builder& b, const Installed& m) {
  const auto digest = b.CreateString(m.digest);
  return fbs::CreateInstalled(b, m.policy, m.version, digest, write_metrics(b, m.metrics)).Union();
}
Offset write(Builder& b, const InstallFailed& m) {
  const auto digest = b.CreateString(m.digest), reason = b.CreateString(m.reason);
  return fbs::CreateInstallFailed(b, m.policy, m.version, digest, reason,
                                  static_cast<uint8_t>(m.cause))
      .Union();
}
Offset write(Builder& b, const TrainerReady& m) {
  const auto digest = b.CreateString(m.digest);
  const auto manifest = b.CreateString(m.manifest);
  const auto metrics = write_metrics(b, m.metrics);
  const auto master = b.CreateString(m.master);
  return fbs::CreateTrainerReady(b, m.policy, m.version, digest, manifest, metrics, master).Union();
}
Offset write(Builder& b, const TrainerWants& m) {
  return fbs::CreateTrainerWants(b, m.policy, m.step).Union();
}
Offset write(Builder& b, const Published& m) {
  const auto digest = b.CreateString(m.digest);
  const auto manifest = b.CreateString(m.manifest);
  const auto metrics = write_metrics(b, m.metrics);
  const auto master = b.CreateString(m.master);
  return fbs::CreatePublished(b, m.policy, m.version, digest, manifest, metrics, master).Union();
}
Offset write(Builder& b, const Durable& m) {
  return fbs::CreateDurable(b, m.policy, m.version, b.CreateString(m.path), m.oldest).Union();
}
Offset write(Builder& b, const Progress& m) {
  const auto phase = b.CreateString(m.phase);
  const auto metrics = write_metrics(b, m.metrics);
  return fbs::CreateProgress(b, phase, m.done, m.total, metrics).Union();
}
Offset write(Builder& b, const WorkerFailed& m) {
  return fbs::CreateWorkerFailed(b, b.CreateString(m.reason)).Union();
}
Offset write(Builder& b, const Fetch& m) {
  const auto bodies = write_bodies(b, m.bodies);
  return fbs::CreateFetch(b, m.request, bodies, m.offset, m.max_bytes).Union();
}
Offset write(Builder& b, const Hold& m) {
  return fbs::CreateHold(b, write_bodies(b, m.leases)).Union();
}
Offset write(Builder& b, const Welcome& m) { return fbs::CreateWelcome(b, m.session).Union(); }
Offset write(Builder& b, const Grant& m) {
  const fbs::Lease lease = to_fbs(m.lease);
  // Mostly there is none.
  const auto prefix = m.prefix.empty() ? 0 : write_bytes(b, m.prefix);
  return fbs::CreateGrant(b, &lease, code(m.lane), m.version, prefix).Union();
}
Offset write(Builder& b, const Abort& m) {
  const fbs::Lease lease = to_fbs(m.lease);
  return fbs::CreateAbort(b, &lease, code(m.lane)).Union();
}
Offset write(Builder& b, const Verify& m) {
  const fbs::Lease lease = to_fbs(m.lease);
  const auto verifier = b.CreateString(m.verifier);
  const auto evidence = b.CreateString(m.evidence);
  return fbs::CreateVerifyRequest(b, &lease, code(m.lane), m.verify_attempt, verifier, evidence)
      .Union();
}
Offset write(Builder& b, const Stage& m) {
  const auto digest = b.CreateString(m.digest);
  const auto manifest = b.CreateString(m.manifest);
  return fbs::CreateStage(b, m.policy, m.version, digest, manifest).Union();
}
Offset write(Builder& b, const Switch& m) {
  return fbs::CreateSwitch(b, m.policy, m.version, b.CreateString(m.digest)).Union();
}
Offset write(Builder& b, const Batch& m) {
  std::vector<fbs::BatchItem> items;
  items.reserve(m.items.size());
  for (const Batch::Item& item : m.items)
    items.emplace_back(to_fbs(item.lease), item.reward, item.bytes, item.checksum);
  // None in most runs. A struct of the schema cannot grow, so they stand beside the items.
  std::vector<double> judged;
  if (std::ranges::any_of(m.items, [](const auto& item) { return item.judged.has_value(); }))
    for (const Batch::Item& item : m.items) judged.push_back(item.judged.value_or(kAbsent));
  const auto list = b.CreateVectorOfStructs(items);
  return fbs::CreateBatch(b, m.policy, m.step, m.first, m.last, list, m.share_begin, m.share_end,
                          judged.empty() ? 0 : b.CreateVector(judged))
      .Union();
}
Offset write(Builder& b, const Payload& m) {
  return fbs::CreatePayload(b, m.request, write_bytes(b, m.bytes)).Union();
}
Offset write(Builder& b, const Save& m) { return fbs::CreateSave(b, m.policy, m.version).Union(); }
Offset write(Builder& b, const FormRanks& m) {
  return fbs::CreateFormRanks(b, m.policy, m.formation, m.rank, m.size).Union();
}
Offset write(Builder& b, const ReleaseWeights& m) {
  return fbs::CreateReleaseWeights(b, m.policy, m.below, m.fetched_from, m.evaluated).Union();
}
Offset write(Builder& b, const Shutdown& m) {
  return fbs::CreateShutdown(b, b.CreateString(m.reason)).Union();
}

// FlatBuffers' verifier proves that offsets stay within the frame, not that values make sense. What
// the rest of the program takes for granted is checked here.
int64_t at_least(int64_t lowest, int64_t value, std::string_view what) {
  if (value < lowest) throw Malformed("{} is {}", what, value);
  return value;
}
PolicyId read_policy(int32_t policy) {
  return static_cast<PolicyId>(at_least(0, policy, "policy"));
}

Digest read_digest(const flatbuffers::String& text) {
  // Twice what a digest has, so that a longer one may come; without a bound it would go into logs
  // and the journal as it is.
  if (text.size() > 64) throw Malformed("a digest of {} characters", text.size());
  return text.str();
}

// For a person, who reads its beginning: it goes into logs and the journal.
std::string read_text(const flatbuffers::String& text, size_t longest = 1000) {
  return std::string(text.c_str(), std::min<size_t>(text.size(), longest));
}

// A name below RUN/weights: it is joined to a path, so it must not lead out of the folder.
std::string read_file_name(const flatbuffers::String& text) {
  std::string file = text.str();
  if (file.find('/') != std::string::npos || file.find('\0') != std::string::npos || file == ".." ||
      file.empty() || file == "." || file.size() > 255) {
    throw Malformed("file name '{}'", read_text(text));
  }
  return file;
}

// Of a pool, a cluster or a kind of hardware; or none.
std::string read_name(const flatbuffers::String& text, std::string_view what) {
  std::string name = text.str();
  if (!name.empty() && !is_site_name(name)) throw Malformed("{} '{}'", what, read_text(text, 64));
  return name;
}

// Of a machine; or none.
std::string read_host(const flatbuffers::String* text) {
  if (text == nullptr || text->size() == 0) return "";
  std::string name = text->str();
  if (!is_host_name(name)) throw Malformed("host '{}'", read_text(*text, 64));
  return name;
}

int32_t read_rank(int32_t rank, int32_t size) {
  if (rank < 0 || rank >= size) throw Malformed("rank {} of {}", rank, size);
  return rank;
}

Message read(const fbs::Hello& t) {
  if (t.role() > static_cast<uint8_t>(Role::kTrainer)) throw Malformed("role {}", t.role());
  if (t.worker()->size() == 0 || t.worker()->size() > 255) {
    throw Malformed("a worker's name of {} characters", t.worker()->size());
  }
  if (t.slots() < 1 || t.slots() > kMaxSlots) throw Malformed("{} slots", t.slots());
  const bool trains = t.role() == static_cast<uint8_t>(Role::kTrainer);
  return Hello{static_cast<Role>(t.role()),
               t.worker()->str(),
               t.incarnation(),
               t.pid(),
               t.slots(),
               read_text(*t.numerics_class(), 64),
               t.joined(),
               read_name(*t.pool(), "pool"),
               read_name(*t.hardware(), "hardware"),
               read_name(*t.cluster(), "cluster"),
               read_rank(t.rank(), trains ? kMaxRanks : 1),
               read_host(t.host())};
}
Message read(const fbs::Heartbeat& t) {
  Heartbeat m{.progress = t.progress()};
  if (t.held() == nullptr) return m;
  m.held = printable(read_text(*t.held(), kMaxHeldBytes));
  std::ranges::replace(m.held, '\n', ' ');  // one line among others
  return m;
}
Message read(const fbs::TrajectoryResult& t) {
  return TrajectoryResult{read_bytes(*t.body()), t.goes_on()};
}
Message read(const fbs::Verdict& t) {
  Verdict m;
  m.lease = read_lease(*t.lease());
  m.lane = read_lane(t.lane());
  m.verify_attempt = static_cast<int32_t>(at_least(0, t.verify_attempt(), "verify_attempt"));
  if (t.reward()) {
    // One NaN would become the mean and the advantages of its whole group.
    if (!std::isfinite(*t.reward())) throw Malformed("reward {}", *t.reward());
    m.reward = *t.reward();
  }
  m.metrics = read_metrics(*t.metrics());
  m.failure = read_text(*t.failure());
  m.task_broken = t.task_broken();
  return m;
}
Message read(const fbs::Staged& t) {
  return Staged{read_policy(t.policy()), at_least(0, t.version(), "version"),
                read_digest(*t.digest()), read_metrics(*t.metrics())};
}
Message read(const fbs::StageProgress& t) {
  if (t.bytes() > t.total()) throw Malformed("{} bytes of {}", t.bytes(), t.total());
  return StageProgress{read_policy(t.policy()), at_least(0, t.version(), "version"),
                       read_digest(*t.digest()), at_least(0, t.bytes(), "bytes"), t.total()};
}
Message read(const fbs::Installed& t) {
  return Installed{read_policy(t.policy()), at_least(0, t.version(), "version"),
                   read_digest(*t.digest()), read_metrics(*t.metrics())};
}
Message read(const fbs::InstallFailed& t) {
  // A cause that is not known to this build is some other one.
  const bool is_known = t.cause() < kEnumNames<InstallCause>.size();
  return InstallFailed{read_policy(t.policy()), at_least(0, t.version(), "version"),
                       read_digest(*t.digest()), read_text(*t.reason()),
                       is_known ? static_cast<InstallCause>(t.cause()) : InstallCause::kOther};
}
Message read(const fbs::TrainerReady& t) {
  const bool has_manifest = t.manifest() != nullptr && t.manifest()->size() > 0;
  // -1: it has loaded no checkpoint, and so there is no manifest.
  return TrainerReady{read_policy(t.policy()),
                      at_least(-1, t.version(), "version"),
                      read_digest(*t.digest()),
                      has_manifest ? read_file_name(*t.manifest()) : std::string(),
                      t.metrics() != nullptr ? read_metrics(*t.metrics()) : MetricList(),
                      read_digest(*t.master())};
}
Message read(const fbs::TrainerWants& t) {
  return TrainerWants{read_policy(t.policy()), at_least(1, t.step(), "step")};
}
Message read(const fbs::Published& t) {
  return Published{read_policy(t.policy()),    at_least(0, t.version(), "version"),
                   read_digest(*t.digest()),   read_file_name(*t.manifest()),
                   read_metrics(*t.metrics()), read_digest(*t.master())};
}
Message read(const fbs::Durable& t) {
  return Durable{read_policy(t.policy()), at_least(0, t.version(), "version"), read_text(*t.path()),
                 at_least(0, t.oldest(), "oldest")};
}
Message read(const fbs::Progress& t) {
  return Progress{read_text(*t.phase()), at_least(0, t.done(), "done"),
                  at_least(0, t.total(), "total"), read_metrics(*t.metrics())};
}
Message read(const fbs::WorkerFailed& t) { return WorkerFailed{read_text(*t.reason())}; }
Message read(const fbs::Fetch& t) {
  return Fetch{at_least(0, t.request(), "request"), read_bodies(*t.bodies()),
               at_least(0, t.offset(), "offset"), at_least(1, t.max_bytes(), "max_bytes")};
}
Message read(const fbs::Hold& t) { return Hold{read_bodies(*t.leases())}; }
Message read(const fbs::Welcome& t) { return Welcome{t.session()}; }
Message read(const fbs::Grant& t) {
  return Grant{read_lease(*t.lease()), read_lane(t.lane()), at_least(0, t.version(), "version"),
               t.prefix() != nullptr ? read_bytes(*t.prefix()) : std::vector<std::byte>()};
}
Message read(const fbs::Abort& t) { return Abort{read_lease(*t.lease()), read_lane(t.lane())}; }
Message read(const fbs::VerifyRequest& t) {
  return Verify{read_lease(*t.lease()), read_lane(t.lane()),
                static_cast<int32_t>(at_least(0, t.verify_attempt(), "verify_attempt")),
                t.scored_by()->str(), t.evidence()->str()};
}
Message read(const fbs::Stage& t) {
  return Stage{read_policy(t.policy()), at_least(0, t.version(), "version"),
               read_digest(*t.digest()), read_file_name(*t.manifest())};
}
Message read(const fbs::Switch& t) {
  return Switch{read_policy(t.policy()), at_least(0, t.version(), "version"),
                read_digest(*t.digest())};
}
Message read(const fbs::Batch& t) {
  Batch m{read_policy(t.policy()),
          at_least(1, t.step(), "step"),
          at_least(0, t.first(), "first"),
          t.last(),
          {},
          t.share_begin(),
          t.share_end()};
  // Also of one that is not a number.
  if (!(m.share_begin >= 0 && m.share_begin <= m.share_end && m.share_end <= 1))
    throw Malformed("a step from {} to {} of the run", m.share_begin, m.share_end);
  check_aligned(*t.items(), alignof(fbs::BatchItem), "batch items");
  m.items.reserve(t.items()->size());
  if (t.judged() != nullptr && t.judged()->size() != t.items()->size())
    throw Malformed("{} judged values of {} items", t.judged()->size(), t.items()->size());
  for (const fbs::BatchItem* item : *t.items()) {
    if (!std::isfinite(item->reward())) throw Malformed("reward {}", item->reward());
    // A body came in one message.
    if (item->bytes() > kMaxMessageBytes) throw Malformed("a body of {} bytes", item->bytes());
    m.items.push_back({read_lease(item->lease()), item->reward(),
                       at_least(1, item->bytes(), "bytes"), item->checksum()});
    if (t.judged() == nullptr) continue;
    const double judged = t.judged()->Get(static_cast<uint32_t>(m.items.size() - 1));
    if (std::isinf(judged)) throw Malformed("judged by {}", judged);
    if (!std::isnan(judged)) m.items.back().judged = judged;
  }
  return m;
}
Message read(const fbs::Payload& t) {
  return Payload{at_least(0, t.request(), "request"), read_bytes(*t.bytes())};
}
Message read(const fbs::Save& t) {
  return Save{read_policy(t.policy()), at_least(0, t.version(), "version")};
}
Message read(const fbs::FormRanks& t) {
  if (t.size() < 2 || t.size() > kMaxRanks) throw Malformed("{} ranks", t.size());
  return FormRanks{read_policy(t.policy()), t.formation(), read_rank(t.rank(), t.size()), t.size()};
}
Message read(const fbs::ReleaseWeights& t) {
  return ReleaseWeights{read_policy(t.policy()), at_least(0, t.below(), "below"),
                        at_least(0, t.fetched_from(), "fetched_from"),
                        at_least(-1, t.evaluated(), "evaluated")};
}
Message read(const fbs::Shutdown& t) { return Shutdown{read_text(*t.reason())}; }

Message read_body(const fbs::Frame& frame) {
  switch (frame.body_type()) {
    case fbs::Body::Hello:
      return read(*frame.body_as_Hello());
    case fbs::Body::Heartbeat:
      return read(*frame.body_as_Heartbeat());
    case fbs::Body::TrajectoryResult:
      return read(*frame.body_as_TrajectoryResult());
    case fbs::Body::Verdict:
      return read(*frame.body_as_Verdict());
    case fbs::Body::Staged:
      return read(*frame.body_as_Staged());
    case fbs::Body::Installed:
      return read(*frame.body_as_Installed());
    case fbs::Body::InstallFailed:
      return read(*frame.body_as_InstallFailed());
    case fbs::Body::TrainerReady:
      return read(*frame.body_as_TrainerReady());
    case fbs::Body::TrainerWants:
      return read(*frame.body_as_TrainerWants());
    case fbs::Body::Published:
      return read(*frame.body_as_Published());
    case fbs::Body::Durable:
      return read(*frame.body_as_Durable());
    case fbs::Body::Progress:
      return read(*frame.body_as_Progress());
    case fbs::Body::WorkerFailed:
      return read(*frame.body_as_WorkerFailed());
    case fbs::Body::Fetch:
      return read(*frame.body_as_Fetch());
    case fbs::Body::Hold:
      return read(*frame.body_as_Hold());
    case fbs::Body::Welcome:
      return read(*frame.body_as_Welcome());
    case fbs::Body::Grant:
      return read(*frame.body_as_Grant());
    case fbs::Body::Abort:
      return read(*frame.body_as_Abort());
    case fbs::Body::VerifyRequest:
      return read(*frame.body_as_VerifyRequest());
    case fbs::Body::Stage:
      return read(*frame.body_as_Stage());
    case fbs::Body::Switch:
      return read(*frame.body_as_Switch());
    case fbs::Body::Batch:
      return read(*frame.body_as_Batch());
    case fbs::Body::Payload:
      return read(*frame.body_as_Payload());
    case fbs::Body::Save:
      return read(*frame.body_as_Save());
    case fbs::Body::FormRanks:
      return read(*frame.body_as_FormRanks());
    case fbs::Body::Shutdown:
      return read(*frame.body_as_Shutdown());
    case fbs::Body::StageProgress:
      return read(*frame.body_as_StageProgress());
    case fbs::Body::ReleaseWeights:
      return read(*frame.body_as_ReleaseWeights());
    case fbs::Body::NONE:
      break;
  }
  throw Malformed("unknown message type {}", static_cast<int>(frame.body_type()));
}

// Body::X is the place of X in Message plus one (0 is NONE), checked by the round-trip test of
// every type.
fbs::Body body_type(const Message& message) { return static_cast<fbs::Body>(message.index() + 1); }
static_assert(std::variant_size_v<Message> == static_cast<size_t>(fbs::Body::MAX));

fbs::Header to_fbs(const Header& header) {
  return fbs::Header(header.session, header.sequence, header.ack,
                     static_cast<uint64_t>(header.signal), header.received);
}

Header from_fbs(const fbs::Header& header) {
  return {header.session(), header.sequence(), header.ack(), static_cast<Signal>(header.signal()),
          header.received()};
}

// nullptr: not a frame. `storage` holds the bytes when they had to be moved.
const fbs::Frame* verified_frame(std::span<const std::byte> frame,
                                 std::vector<std::byte>& storage) {
  frame = aligned(frame, storage);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  if (!verifier.VerifyBuffer<fbs::Frame>(kFrameIdentifier)) return nullptr;
  return flatbuffers::GetRoot<fbs::Frame>(frame.data());
}

size_t expected_bytes(const Message& message) {
  // A builder that is too small doubles and copies: for a large body, several times over.
  size_t bytes = 512;
  if (const auto* result = std::get_if<TrajectoryResult>(&message)) bytes += result->body.size();
  if (const auto* grant = std::get_if<Grant>(&message)) bytes += grant->prefix.size();
  if (const auto* payload = std::get_if<Payload>(&message)) bytes += payload->bytes.size();
  if (const auto* batch = std::get_if<Batch>(&message))
    bytes += batch->items.size() * sizeof(fbs::BatchItem);
  return bytes;
}

}  // namespace

std::vector<std::byte> encode(const Header& header, const Message& message) {
  Builder builder(expected_bytes(message));
  const Offset body = std::visit([&](const auto& m) { return write(builder, m); }, message);
  const fbs::Header wire_header = to_fbs(header);
  builder.Finish(fbs::CreateFrame(builder, &wire_header, body_type(message), body),
                 kFrameIdentifier);
  return to_bytes(builder);
}

std::vector<std::byte> encode(const Piece& piece) {
  Builder builder(piece.bytes.size() + 512);
  const auto body = write(builder, Heartbeat{});
  const auto part =
      fbs::CreatePiece(builder, piece.offset, piece.total, write_bytes(builder, piece.bytes));
  const fbs::Header header = to_fbs(Header{});
  builder.Finish(fbs::CreateFrame(builder, &header, fbs::Body::Heartbeat, body, part),
                 kFrameIdentifier);
  return to_bytes(builder);
}

std::optional<Piece> piece_in(std::span<const std::byte> frame, std::vector<std::byte>& storage) {
  const fbs::Frame* table = verified_frame(frame, storage);
  if (table == nullptr || table->piece() == nullptr) return std::nullopt;
  const auto& bytes = *table->piece()->bytes();
  return Piece{table->piece()->offset(), table->piece()->total(),
               std::as_bytes(std::span(bytes.data(), bytes.size()))};
}

std::optional<Header> decode_header(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  // The header is found through the frame's table, so the frame is verified first.
  const fbs::Frame* table = verified_frame(frame, storage);
  if (table == nullptr || table->header()->signal() > static_cast<uint64_t>(Signal::kWelcome)) {
    return std::nullopt;
  }
  return from_fbs(*table->header());
}

Result<Decoded> decode(std::span<const std::byte> frame) {
  std::vector<std::byte> storage;
  const fbs::Frame* table = verified_frame(frame, storage);
  if (table == nullptr)
    return Failure{fmt::format("{} bytes are not a frame of ours", frame.size())};
  try {
    const uint64_t signal = table->header()->signal();
    if (signal > static_cast<uint64_t>(Signal::kWelcome))
      throw Malformed("unknown signal {}", signal);
    return Decoded{from_fbs(*table->header()), read_body(*table)};
  } catch (const Malformed& error) {
    return Failure{fmt::format("{}: {}", fbs::EnumNameBody(table->body_type()), error.what())};
  }
}

void rewrite_header(std::span<std::byte> frame, const Header& header) {
  // The header is a struct of fixed size, so its place in the frame does not depend on its values.
  fbs::Header* place = flatbuffers::GetMutableRoot<fbs::Frame>(frame.data())->mutable_header();
  *place = to_fbs(header);
}

}  // namespace tailrace::wire
