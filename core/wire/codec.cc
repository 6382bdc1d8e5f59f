#include "core/wire/codec.h"

#include "core/messages/check.h"
#include "core/wire/messages_generated.h"

namespace tailrace::wire {

fbs::Lease to_fbs(const LeaseId& id) {
  const MemberId& m = id.member;
  return fbs::Lease(fbs::Member(m.policy, m.dataset, m.epoch, m.prompt, m.launch, m.member),
                    id.attempt);
}

LeaseId read_lease(const fbs::Lease& id) {
  const fbs::Member& m = id.member();
  LeaseId lease{{m.policy(), m.dataset(), m.epoch(), m.prompt(), m.launch(), m.member()},
                id.attempt()};
  if (m.policy() < 0 || m.dataset() < 0 || m.epoch() < 0 || m.prompt() < 0 || m.launch() < 0 ||
      m.member() < 0 || id.attempt() < 0) {
    throw Malformed("negative part in id {}", to_string(lease));
  }
  return lease;
}

Lane read_lane(uint8_t lane) {
  if (lane > static_cast<uint8_t>(Lane::kEval)) throw Malformed("lane {}", lane);
  return static_cast<Lane>(lane);
}

flatbuffers::Offset<MetricVector> write_metrics(Builder& builder, const MetricList& metrics) {
  std::vector<flatbuffers::Offset<fbs::Metric>> tables;
  tables.reserve(metrics.size());
  for (const auto& [key, value] : metrics) {
    tables.push_back(fbs::CreateMetric(builder, builder.CreateString(key), value));
  }
  return builder.CreateVector(tables);
}

MetricList read_metrics(const MetricVector& metrics) {
  // Offsets may be shared: a small message could name one long text a million times.
  if (metrics.size() > Check::kMaxMetrics) throw Malformed("{} metrics", metrics.size());
  MetricList list;
  list.reserve(metrics.size());
  for (const fbs::Metric* metric : metrics) {
    if (metric->name()->size() > Check::kMaxMetricName)
      throw Malformed("a metric's name of {} characters", metric->name()->size());
    list.emplace_back(metric->name()->str(), metric->value());
  }
  return list;
}

std::vector<std::byte> to_bytes(const Builder& builder) {
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {begin, begin + builder.GetSize()};
}

std::span<const std::byte> aligned(std::span<const std::byte> bytes,
                                   std::vector<std::byte>& storage) {
  // FlatBuffers reads numbers where they lie; 8 is the widest.
  if (reinterpret_cast<uintptr_t>(bytes.data()) % 8 == 0) return bytes;
  storage.assign(bytes.begin(), bytes.end());
  return storage;
}

}  // namespace tailrace::wire
