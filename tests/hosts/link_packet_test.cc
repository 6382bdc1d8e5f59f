#include "tests/hosts/link_packet.h"

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>

namespace tailrace {
namespace {

struct Headers {
  DeviceHeader device;
  iphdr ip;
  tcphdr tcp;
} __attribute__((packed));

LinkPacket make_packet(const std::string& payload, uint16_t segment_bytes) {
  Headers headers{};
  headers.device.flags = DeviceHeader::kNeedsSum;
  headers.device.sum_start = sizeof(iphdr);
  headers.device.sum_offset = offsetof(tcphdr, check);
  if (segment_bytes > 0) {
    headers.device.burst_type = DeviceHeader::kTcpBurst;
    headers.device.segment_bytes = segment_bytes;
  }
  headers.ip.version = 4;
  headers.ip.ihl = 5;
  headers.ip.id = htons(0xffff);
  headers.ip.protocol = IPPROTO_TCP;
  headers.ip.tot_len = htons(static_cast<uint16_t>(40 + payload.size()));
  headers.ip.saddr = htonl(0x0a4d0001);
  headers.ip.daddr = htonl(0x0a4d0002);
  headers.tcp.seq = htonl(0xfffffffe);
  headers.tcp.doff = 5;
  headers.tcp.fin = headers.tcp.psh = headers.tcp.ack = 1;
  headers.tcp.res2 = 3;
  std::vector<std::byte> bytes(sizeof headers + payload.size());
  std::memcpy(bytes.data(), &headers, sizeof headers);
  std::memcpy(bytes.data() + sizeof headers, payload.data(), payload.size());
  return LinkPacket(std::move(bytes));
}

Headers headers_of(const LinkPacket& packet) {
  Headers headers;
  std::memcpy(&headers, packet.bytes().data(), sizeof headers);
  return headers;
}

std::string payload_of(const LinkPacket& packet) {
  const auto bytes = packet.bytes().subspan(sizeof(Headers));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// All words of the IP header, with its checksum: 0xffff where that is right.
uint32_t ip_sum(const Headers& headers) {
  uint32_t sum = 0;
  for (size_t i = 0; i < sizeof(iphdr); i += 2) {
    uint16_t word;
    std::memcpy(&word, reinterpret_cast<const char*>(&headers.ip) + i, 2);
    sum += ntohs(word);
  }
  return (sum & 0xffff) + (sum >> 16);
}

TEST(LinkPacket, WithoutOffloadIsOneSegment) {
  const LinkPacket packet = make_packet("hello", 0);
  EXPECT_EQ(packet.segments(), 1);
  EXPECT_EQ(packet.wire_bytes(), 45);
  EXPECT_EQ(packet.ip().size(), 45u);
  EXPECT_EQ(payload_of(packet.slice(0, 1)), "hello");
}

TEST(LinkPacket, ABurstCountsAHeaderForEachSegment) {
  const LinkPacket packet = make_packet("aaaabbbbcc", 4);
  EXPECT_EQ(packet.segments(), 3);
  EXPECT_EQ(packet.wire_bytes(), 3 * 40 + 10);
  EXPECT_EQ(make_packet("aaaabbbb", 4).segments(), 2);
}

TEST(LinkPacket, SlicesAreWhatACardWouldHaveSent) {
  const LinkPacket packet = make_packet("aaaabbbbcc", 4);
  const LinkPacket first = packet.slice(0, 2), last = packet.slice(2, 1);
  EXPECT_EQ(payload_of(first), "aaaabbbb");
  EXPECT_EQ(payload_of(last), "cc");
  EXPECT_EQ(first.segments(), 2);
  EXPECT_EQ(last.segments(), 1);
  const Headers a = headers_of(first), b = headers_of(last);
  EXPECT_EQ(ntohs(a.ip.tot_len), 48);
  EXPECT_EQ(ntohs(b.ip.tot_len), 42);
  EXPECT_EQ(ip_sum(a), 0xffffu);
  EXPECT_EQ(ip_sum(b), 0xffffu);
  EXPECT_EQ(ntohs(b.ip.id), 1);
  EXPECT_EQ(ntohl(a.tcp.seq), 0xfffffffe);
  EXPECT_EQ(ntohl(b.tcp.seq), 6u);
  EXPECT_FALSE(a.tcp.fin || a.tcp.psh);
  EXPECT_TRUE(b.tcp.fin && b.tcp.psh);
  EXPECT_EQ(a.tcp.res2, 3);
  EXPECT_EQ(b.tcp.res2, 1);
  EXPECT_EQ(a.device.segment_bytes, 4);
  EXPECT_EQ(b.device.burst_type, DeviceHeader::kNoBurst);
  // 0a4d + 0001 + 0a4d + 0002 + 6 + 22
  EXPECT_EQ(ntohs(b.tcp.check), 0x14b9);
}

}  // namespace
}  // namespace tailrace
