#include "tests/hosts/link_packet.h"

#include <algorithm>
#include <cstring>

#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr size_t kDeviceHeader = sizeof(DeviceHeader);

template <class Header>
Header read_header(std::span<const std::byte> bytes, size_t at) {
  Header header;
  TR_CHECK(at + sizeof header <= bytes.size());
  std::memcpy(&header, bytes.data() + at, sizeof header);
  return header;
}

template <class Header>
void write_header(std::vector<std::byte>& bytes, size_t at, const Header& header) {
  std::memcpy(bytes.data() + at, &header, sizeof header);
}

// The sum of RFC 1071 over 16-bit words in network order, not yet complemented.
uint32_t internet_sum(std::span<const std::byte> bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2)
    sum += std::to_integer<uint32_t>(bytes[i]) << 8 | std::to_integer<uint32_t>(bytes[i + 1]);
  return sum;
}

uint16_t fold(uint32_t sum) {
  while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
  return htons(static_cast<uint16_t>(sum));
}

}  // namespace

LinkPacket::LinkPacket(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {
  const auto device = read_header<DeviceHeader>(bytes_, 0);
  if (device.burst_type == DeviceHeader::kNoBurst) return;
  TR_CHECK(device.burst_type == DeviceHeader::kTcpBurst && device.segment_bytes > 0,
           "the device was asked for bursts of TCP alone; type {}", device.burst_type);
  const size_t ip_bytes = size_t{4} * read_header<iphdr>(bytes_, kDeviceHeader).ihl;
  const size_t tcp_bytes = size_t{4} * read_header<tcphdr>(bytes_, kDeviceHeader + ip_bytes).doff;
  header_bytes_ = static_cast<int64_t>(ip_bytes + tcp_bytes);
  segment_bytes_ = device.segment_bytes;
  const int64_t payload = static_cast<int64_t>(ip().size()) - header_bytes_;
  segments_ =
      static_cast<int>(std::max<int64_t>(1, (payload + segment_bytes_ - 1) / segment_bytes_));
}

int64_t LinkPacket::wire_bytes() const {
  return static_cast<int64_t>(ip().size()) + (segments_ - 1) * header_bytes_;
}

std::span<const std::byte> LinkPacket::ip() const {
  return std::span(bytes_).subspan(kDeviceHeader);
}

LinkPacket LinkPacket::slice(int first, int count) const {
  TR_CHECK(first >= 0 && count >= 1 && first + count <= segments_, "{} + {} of {}", first, count,
           segments_);
  if (count == segments_) return *this;
  const int64_t head = static_cast<int64_t>(kDeviceHeader) + header_bytes_;
  const int64_t begin = head + first * segment_bytes_;
  const int64_t end = std::min(static_cast<int64_t>(bytes_.size()), begin + count * segment_bytes_);
  std::vector<std::byte> part(bytes_.begin(), bytes_.begin() + head);
  part.insert(part.end(), bytes_.begin() + begin, bytes_.begin() + end);

  auto device = read_header<DeviceHeader>(part, 0);
  device.header_bytes = static_cast<uint16_t>(header_bytes_);
  if (count == 1) {
    device.burst_type = DeviceHeader::kNoBurst;
    device.segment_bytes = 0;
  }
  write_header(part, 0, device);

  auto ip = read_header<iphdr>(part, kDeviceHeader);
  const size_t ip_bytes = size_t{4} * ip.ihl;
  ip.tot_len = htons(static_cast<uint16_t>(part.size() - kDeviceHeader));
  ip.id = htons(static_cast<uint16_t>(ntohs(ip.id) + first));
  ip.check = 0;
  write_header(part, kDeviceHeader, ip);
  ip.check =
      static_cast<uint16_t>(~fold(internet_sum(std::span(part).subspan(kDeviceHeader, ip_bytes))));
  write_header(part, kDeviceHeader, ip);

  auto tcp = read_header<tcphdr>(part, kDeviceHeader + ip_bytes);
  tcp.seq = htonl(static_cast<uint32_t>(ntohl(tcp.seq) + first * segment_bytes_));
  if (first > 0) tcp.res2 &= 1;  // CWR is of the first segment (bit 1), ECE (bit 0) of all
  if (first + count < segments_) tcp.fin = tcp.psh = 0;
  // The sum of the pseudo header, which the receiver's kernel expects where the packet has not
  // been summed yet (kNeedsSum).
  const auto tcp_length = static_cast<uint32_t>(part.size() - kDeviceHeader - ip_bytes);
  tcp.check =
      fold(internet_sum(std::span(part).subspan(kDeviceHeader + 12, 8)) + IPPROTO_TCP + tcp_length);
  write_header(part, kDeviceHeader + ip_bytes, tcp);
  return LinkPacket(std::move(part));
}

}  // namespace tailrace
