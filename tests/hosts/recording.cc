#include "tests/hosts/recording.h"

#include <algorithm>
#include <utility>

namespace tailrace {
namespace {

constexpr size_t kSmallestIp = 20, kSmallestTcp = 20;
constexpr unsigned char kTcp = 6, kSyn = 2;

unsigned char byte_at(std::string_view bytes, size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}

// In network order.
uint32_t word_at(std::string_view bytes, size_t at) {
  return uint32_t{byte_at(bytes, at)} << 24 | uint32_t{byte_at(bytes, at + 1)} << 16 |
         uint32_t{byte_at(bytes, at + 2)} << 8 | uint32_t{byte_at(bytes, at + 3)};
}

}  // namespace

void Recording::add(std::span<const std::byte> packet) {
  const std::string_view bytes(reinterpret_cast<const char*>(packet.data()), packet.size());
  MutexLock lock(mu_);
  if (bytes.size() < kSmallestIp || byte_at(bytes, 0) >> 4 != 4) {
    bytes_ += static_cast<int64_t>(bytes.size());
    other_packets_.emplace_back(bytes);
    return;
  }
  const std::string_view payload =
      bytes.substr(std::min(bytes.size(), size_t{4} * (byte_at(bytes, 0) & 15)));
  bytes_ += static_cast<int64_t>(payload.size());
  if (byte_at(bytes, 9) == kTcp && payload.size() >= kSmallestTcp) {
    const std::string addresses(bytes.substr(12, 8)), ports(payload.substr(0, 4));
    add_segment(addresses + ports, payload);
  } else {
    other_packets_.emplace_back(payload);
  }
}

void Recording::add_segment(std::string flow, std::string_view segment) {
  const uint32_t sequence = word_at(segment, 4);
  const bool is_first = (byte_at(segment, 13) & kSyn) != 0;
  const std::string_view data =
      segment.substr(std::min(segment.size(), size_t{4} * (byte_at(segment, 12) >> 4)));
  auto [it, is_new] = open_.try_emplace(std::move(flow), Stream{sequence + is_first, ""});
  Stream& stream = it->second;
  if (is_first && !is_new && stream.begin != sequence + 1) {
    closed_.push_back(std::move(stream.bytes));
    stream = {sequence + 1, ""};
  }
  // As a signed distance from the end, which is right however often the numbers have gone round.
  const auto size = static_cast<int64_t>(stream.bytes.size());
  const int64_t at =
      size + static_cast<int32_t>(sequence + is_first - stream.begin - static_cast<uint32_t>(size));
  if (at < 0) return;  // a probe of keep-alive, before the first byte
  const auto end = static_cast<size_t>(at) + data.size();
  if (end > stream.bytes.size()) stream.bytes.resize(end);
  std::copy(data.begin(), data.end(), stream.bytes.begin() + at);
}

bool Recording::contains(std::string_view text) const {
  const auto has = [text](const std::string& bytes) { return bytes.find(text) != bytes.npos; };
  MutexLock lock(mu_);
  return std::any_of(open_.begin(), open_.end(),
                     [&](const auto& entry) { return has(entry.second.bytes); }) ||
         std::any_of(closed_.begin(), closed_.end(), has) ||
         std::any_of(other_packets_.begin(), other_packets_.end(), has);
}

int64_t Recording::bytes() const {
  MutexLock lock(mu_);
  return bytes_;
}

}  // namespace tailrace
