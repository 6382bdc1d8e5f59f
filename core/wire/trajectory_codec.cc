#include "core/wire/trajectory_codec.h"

#include <cstring>
#include <utility>

#include <xxhash.h>

#include "core/wire/codec.h"
#include "core/wire/frame.h"
#include "core/wire/messages_generated.h"

namespace tailrace::wire {
namespace {

// The digit changes with the table: bodies of another build are refused, not misread.
constexpr char kTrajectoryIdentifier[] = "TRT7";

constexpr size_t kMaxStopStrings = 1024, kMaxStopBytes = size_t{1} << 20;
constexpr size_t kMaxClasses = 64, kMaxClassName = 256;
// The rest of a body is small beside its sets: one that carries them is not refused for its size.
static_assert(kMaxKeptIds * int64_t{sizeof(TokenId)} <= kMaxMessageBytes / 2);

flatbuffers::Offset<fbs::Sampling> write_sampling(Builder& builder, const SamplingParams& s) {
  return fbs::CreateSampling(builder, s.temperature, s.top_k, s.top_p, s.min_p, s.max_new_tokens,
                             builder.CreateVector(s.stop_tokens),
                             builder.CreateVectorOfStrings(s.stop_strings));
}

SamplingParams read_sampling(const fbs::Sampling& table) {
  SamplingParams s;
  s.temperature = table.temperature();
  s.top_k = table.top_k();
  s.top_p = table.top_p();
  s.min_p = table.min_p();
  s.max_new_tokens = table.max_new_tokens();
  if (const auto* tokens = table.stop_tokens())
    s.stop_tokens.assign(tokens->begin(), tokens->end());
  if (const auto* strings = table.stop_strings()) {
    // As in read_metrics(): what is shared must not grow without end.
    size_t bytes = 0;
    for (const auto* text : *strings) bytes += text->size();
    if (strings->size() > kMaxStopStrings || bytes > kMaxStopBytes)
      throw Malformed("{} stop strings of {} bytes", strings->size(), bytes);
    for (const auto* text : *strings) s.stop_strings.push_back(text->str());
  }
  return s;
}

// Versions and classes come in long runs (a turn is sampled by one of each): runs keep a long
// trajectory small.
template <class Run, class Value>
flatbuffers::Offset<flatbuffers::Vector<const Run*>> write_runs(Builder& builder,
                                                                const std::vector<Value>& values) {
  std::vector<Run> runs;
  for (size_t begin = 0; begin < values.size();) {
    size_t end = begin + 1;
    while (end < values.size() && values[end] == values[begin]) ++end;
    runs.emplace_back(values[begin], static_cast<Value>(end - begin));
    begin = end;
  }
  return builder.CreateVectorOfStructs(runs);
}

// Adds up before it fills, so that a huge count in a small message costs nothing.
template <class Run, class Value>
std::vector<Value> read_runs(const flatbuffers::Vector<const Run*>& runs,
                             Value (Run::*value)() const, size_t num_tokens,
                             std::string_view what) {
  check_aligned(runs, alignof(Run), what);
  size_t total = 0;
  for (const Run* run : runs) {
    if (run->count() < 1 || static_cast<uint64_t>(run->count()) > num_tokens - total) {
      throw Malformed("{} with one of {} where {} tokens are left", what, run->count(),
                      num_tokens - total);
    }
    total += static_cast<size_t>(run->count());
  }
  if (total != num_tokens)
    throw Malformed("{} of {} tokens for {} tokens", what, total, num_tokens);
  std::vector<Value> values;
  values.reserve(num_tokens);
  for (const Run* run : runs)
    values.insert(values.end(), static_cast<size_t>(run->count()), (run->*value)());
  return values;
}

// Nothing is written of what is empty: most runs truncate nothing.
template <class T>
flatbuffers::Offset<flatbuffers::Vector<T>> write_optional(Builder& builder,
                                                           const std::vector<T>& values) {
  return values.empty() ? flatbuffers::Offset<flatbuffers::Vector<T>>()
                        : builder.CreateVector(values);
}

template <class T>
size_t size_of(const flatbuffers::Vector<T>* values) {
  return values == nullptr ? 0 : values->size();
}

template <class T>
void read_optional(const flatbuffers::Vector<T>* from, std::vector<T>& to) {
  if (from == nullptr) return;
  check_aligned(*from, alignof(T), "numbers");
  to.assign(from->begin(), from->end());
}

flatbuffers::Offset<fbs::Segment> write_segment(Builder& builder, const Segment& segment) {
  static_assert(sizeof(TokenRole) == 1);
  const auto tokens = builder.CreateVector(segment.tokens);
  const auto roles = builder.CreateVector(reinterpret_cast<const uint8_t*>(segment.roles.data()),
                                          segment.roles.size());
  const auto logprobs = builder.CreateVector(segment.logprobs);
  const auto versions = write_runs<fbs::VersionRun>(builder, segment.versions);
  const auto turn_begins = builder.CreateVector(segment.turn_begins);
  const auto classes = write_runs<fbs::ClassRun>(builder, segment.classes);
  const auto log_masses = write_optional(builder, segment.log_masses);
  const auto kept_counts = write_optional(builder, segment.kept_counts);
  const auto kept_ids = write_optional(builder, segment.kept_ids);
  const auto choices = write_optional(builder, segment.choices);
  const auto turn_numbers = write_optional(builder, segment.turn_numbers);
  const auto teacher_logprobs = write_optional(builder, segment.teacher_logprobs);
  const auto top_ids = write_optional(builder, segment.teacher_top_ids);
  const auto top_logprobs = write_optional(builder, segment.teacher_top_logprobs);
  return fbs::CreateSegment(builder, segment.parent, segment.parent_tokens, tokens, roles, logprobs,
                            versions, turn_begins, classes, log_masses, kept_counts, kept_ids,
                            choices, turn_numbers, teacher_logprobs, top_ids, top_logprobs);
}

Segment read_segment(const fbs::Segment& table) {
  Segment segment;
  segment.parent = table.parent();
  segment.parent_tokens = table.parent_tokens();
  const size_t n = table.tokens()->size();
  if (table.roles()->size() != n || table.logprobs()->size() != n) {
    throw Malformed("{} tokens but {} roles and {} log-probabilities", n, table.roles()->size(),
                    table.logprobs()->size());
  }
  segment.tokens.assign(table.tokens()->begin(), table.tokens()->end());
  segment.logprobs.assign(table.logprobs()->begin(), table.logprobs()->end());
  segment.roles.resize(n);
  if (n > 0) std::memcpy(segment.roles.data(), table.roles()->data(), n);
  segment.versions = read_runs(*table.versions(), &fbs::VersionRun::version, n, "version runs");
  segment.classes = read_runs(*table.classes(), &fbs::ClassRun::numerics_class, n, "class runs");
  if (size_of(table.log_masses()) > n || size_of(table.kept_counts()) > n)
    throw Malformed("{} masses and {} sets of {} tokens", size_of(table.log_masses()),
                    size_of(table.kept_counts()), n);
  read_optional(table.log_masses(), segment.log_masses);
  read_optional(table.kept_counts(), segment.kept_counts);
  read_optional(table.kept_ids(), segment.kept_ids);
  read_optional(table.choices(), segment.choices);
  if (table.turn_begins()->size() > n || size_of(table.turn_numbers()) > n)
    throw Malformed("{} turns with {} numbers of {} tokens", table.turn_begins()->size(),
                    size_of(table.turn_numbers()), n);
  segment.turn_begins.assign(table.turn_begins()->begin(), table.turn_begins()->end());
  read_optional(table.turn_numbers(), segment.turn_numbers);
  if (size_of(table.teacher_logprobs()) > n)
    throw Malformed("{} scores of a teacher for {} tokens", size_of(table.teacher_logprobs()), n);
  read_optional(table.teacher_logprobs(), segment.teacher_logprobs);
  read_optional(table.teacher_top_ids(), segment.teacher_top_ids);
  read_optional(table.teacher_top_logprobs(), segment.teacher_top_logprobs);
  return segment;
}

flatbuffers::Offset<fbs::Trajectory> write_trajectory(Builder& builder, const Trajectory& t) {
  std::vector<flatbuffers::Offset<fbs::Segment>> segments;
  segments.reserve(t.segments.size());
  for (const Segment& segment : t.segments) segments.push_back(write_segment(builder, segment));
  const fbs::Lease lease = to_fbs(t.lease);
  const fbs::ExpertShape experts(t.experts.sparse_layers, t.experts.chosen, t.experts.experts);
  const auto env = builder.CreateString(t.env);
  const auto segment_vector = builder.CreateVector(segments);
  const auto verifier = builder.CreateString(t.verifier);
  const auto evidence = builder.CreateString(t.evidence);
  const auto sampling = write_sampling(builder, t.sampling);
  const auto metrics = write_metrics(builder, t.metrics);
  const auto classes = builder.CreateVectorOfStrings(t.numerics_classes);
  const auto env_waits = write_optional(builder, t.env_waits);
  const auto turn_rewards = write_optional(builder, t.turn_rewards);
  const auto turn_anchors = write_optional(builder, t.turn_anchors);
  flatbuffers::Optional<double> reward = flatbuffers::nullopt;
  if (t.reward) reward = *t.reward;
  return fbs::CreateTrajectory(
      builder, &lease, static_cast<uint8_t>(t.lane), env, t.seed, segment_vector,
      static_cast<uint8_t>(t.outcome), reward, verifier, evidence, sampling, t.turns, t.env_seconds,
      t.generate_seconds, metrics, t.num_tokens(), t.num_sampled(), t.min_version(),
      t.max_version(), classes, t.experts == ExpertShape{} ? nullptr : &experts, env_waits,
      turn_rewards, turn_anchors);
}

EpisodeFacts read_facts(const fbs::Trajectory& table) {
  EpisodeFacts facts;
  facts.lease = read_lease(*table.lease());
  facts.lane = read_lane(table.lane());
  facts.env = table.env()->str();
  facts.seed = table.seed();
  facts.outcome = static_cast<Outcome>(table.outcome());
  if (table.reward()) facts.reward = *table.reward();
  facts.verifier = table.scored_by()->str();
  facts.evidence = table.evidence()->str();
  facts.sampling = read_sampling(*table.sampling());
  facts.turns = table.turns();
  facts.env_seconds = table.env_seconds();
  facts.generate_seconds = table.generate_seconds();
  facts.metrics = read_metrics(*table.metrics());
  return facts;
}

// Without the tokens: the scheduler decides by these and never holds the rest.
TrajectoryHeader read_header(const fbs::Trajectory& table, int64_t) {
  TrajectoryHeader header{read_facts(table), table.num_tokens(), table.num_sampled(),
                          table.min_version(), table.max_version()};
  if (auto fault = find_fault(header))
    throw Malformed("trajectory {}: {}", to_string(header.lease), *fault);
  return header;
}

std::vector<std::string> read_classes(const fbs::Trajectory& table) {
  const auto& names = *table.numerics_classes();
  // As in read_metrics(): what is shared must not grow without end.
  if (names.size() > kMaxClasses) throw Malformed("{} numerics classes", names.size());
  std::vector<std::string> classes;
  for (const auto* name : names) {
    if (name->size() > kMaxClassName)
      throw Malformed("the name of a numerics class has {} bytes", name->size());
    classes.push_back(name->str());
  }
  return classes;
}

Trajectory read_all(const fbs::Trajectory& table, int64_t max_tokens) {
  // Segments may be shared as well, and one without tokens costs a message four bytes: what there
  // is is counted before anything is copied.
  if (std::cmp_greater(table.segments()->size(), kMaxSegments))
    throw Malformed("{} segments, at most {} are taken", table.segments()->size(), kMaxSegments);
  int64_t num_tokens = 0, num_kept = 0, num_choices = 0;
  for (const fbs::Segment* segment : *table.segments()) {
    num_tokens += segment->tokens()->size();
    num_kept += static_cast<int64_t>(size_of(segment->kept_ids()));
    num_choices += static_cast<int64_t>(size_of(segment->choices()));
  }
  if (num_tokens != table.num_tokens() || num_tokens > max_tokens) {
    throw Malformed("segments of {} tokens, the header says {}, at most {} fit", num_tokens,
                    table.num_tokens(), max_tokens);
  }
  if (num_kept > max_tokens)
    throw Malformed("sets of {} ids, at most {} fit", num_kept, max_tokens);
  // A choice has two bytes.
  if (num_choices / 2 > max_tokens)
    throw Malformed("{} choices of experts, at most {} fit", num_choices, 2 * max_tokens);
  Trajectory t{read_facts(table), read_classes(table), {}};
  if (const auto* experts = table.experts())
    t.experts = {experts->sparse_layers(), experts->chosen(), experts->experts()};
  read_optional(table.env_waits(), t.env_waits);
  read_optional(table.turn_rewards(), t.turn_rewards);
  read_optional(table.turn_anchors(), t.turn_anchors);
  t.segments.reserve(table.segments()->size());
  for (const fbs::Segment* segment : *table.segments())
    t.segments.push_back(read_segment(*segment));
  if (auto fault = find_fault(t)) throw Malformed("trajectory {}: {}", to_string(t.lease), *fault);
  // Whoever decided by the header must have decided rightly.
  if (t.num_tokens() != table.num_tokens() || t.num_sampled() != table.num_sampled() ||
      t.min_version() != table.min_version() || t.max_version() != table.max_version()) {
    throw Malformed("trajectory {}: its header does not fit its tokens", to_string(t.lease));
  }
  return t;
}

// The result of `read` on the table, or why the bytes are none.
template <class T>
Result<T> read_verified(std::span<const std::byte> bytes,
                        T (*read)(const fbs::Trajectory&, int64_t max_tokens)) {
  std::vector<std::byte> storage;
  bytes = aligned(bytes, storage);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (!verifier.VerifyBuffer<fbs::Trajectory>(kTrajectoryIdentifier)) {
    return Failure{fmt::format("{} bytes are not an encoded trajectory", bytes.size())};
  }
  try {
    // A token has four bytes of id at least.
    return read(*flatbuffers::GetRoot<fbs::Trajectory>(bytes.data()), std::ssize(bytes) / 4);
  } catch (const Malformed& error) {
    return Failure{error.what()};
  }
}

}  // namespace

std::vector<std::byte> encode_trajectory(const Trajectory& trajectory) {
  const auto num_tokens = static_cast<size_t>(trajectory.num_tokens());
  // A token has 4 bytes of id, 1 of role and 4 of log-probability; the runs are few. With
  // truncation come 4 of its mass, 4 of its count and the ids; with experts 2 of each choice.
  size_t bytes = 1024 + num_tokens * 10 + 4 * trajectory.env_waits.size() +
                 8 * (trajectory.turn_rewards.size() + trajectory.turn_anchors.size());
  for (const Segment& segment : trajectory.segments)
    bytes +=
        4 * (segment.log_masses.size() + segment.kept_counts.size() + segment.kept_ids.size()) +
        4 * segment.teacher_logprobs.size() + 8 * segment.teacher_top_ids.size() +
        2 * segment.choices.size();
  Builder builder(bytes);
  builder.Finish(write_trajectory(builder, trajectory), kTrajectoryIdentifier);
  return to_bytes(builder);
}

Result<Trajectory> decode_trajectory(std::span<const std::byte> bytes) {
  return read_verified(bytes, read_all);
}

Result<TrajectoryHeader> read_trajectory_header(std::span<const std::byte> bytes) {
  return read_verified(bytes, read_header);
}

uint64_t checksum_of(std::span<const std::byte> bytes) {
  // Against bytes that were mixed up or lost on the way, not against an enemy.
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace tailrace::wire
