#include "tests/hosts/recording.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace tailrace {
namespace {

void put(std::string& packet, size_t at, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i)
    packet[at + static_cast<size_t>(i)] = static_cast<char>(value >> (8 * (bytes - 1 - i)));
}

// An IPv4 packet of a TCP connection from the port to port 80.
std::string segment(uint32_t sequence, std::string_view data, bool is_first = false,
                    uint32_t port = 1234) {
  std::string packet(40, '\0');
  put(packet, 0, 0x45, 1);
  put(packet, 9, 6, 1);
  put(packet, 20, port, 2);
  put(packet, 22, 80, 2);
  put(packet, 24, sequence, 4);
  put(packet, 32, 0x50, 1);
  put(packet, 33, is_first ? 2 : 16, 1);
  return packet + std::string(data);
}

void add(Recording& recording, const std::string& packet) {
  recording.add(std::as_bytes(std::span(packet)));
}

TEST(Recording, PutsSegmentsInOrderAlsoWhereTheirNumbersGoRound) {
  Recording recording;
  add(recording, segment(0xfffffffc, "", /*is_first=*/true));
  add(recording, segment(2, "fghi"));
  EXPECT_FALSE(recording.contains("abcde"));
  add(recording, segment(0xfffffffd, "abcdef"));
  add(recording, segment(2, "fghi"));
  add(recording, segment(0xfffffffc, "X"));  // a probe of keep-alive
  EXPECT_TRUE(recording.contains("abcdefghi"));
  EXPECT_FALSE(recording.contains("X"));
}

TEST(Recording, KeepsConnectionsApartAlsoThoseThatUseAPortAgain) {
  Recording recording;
  add(recording, segment(1, "", /*is_first=*/true));
  add(recording, segment(2, "one "));
  add(recording, segment(2, "two ", /*is_first=*/false, /*port=*/99));
  add(recording, segment(70'000, "", /*is_first=*/true));
  add(recording, segment(70'001, "three "));
  for (const char* text : {"one ", "two ", "three "}) EXPECT_TRUE(recording.contains(text)) << text;
  EXPECT_FALSE(recording.contains("one two"));
  EXPECT_FALSE(recording.contains("one three"));
}

TEST(Recording, KeepsWhatItDoesNotUnderstand) {
  Recording recording;
  add(recording, "short");
  std::string datagram(28, '\0');
  put(datagram, 0, 0x45, 1);
  put(datagram, 9, 17, 1);
  add(recording, datagram + "a datagram");
  // Headers that claim to be longer than the packet.
  std::string cut = segment(1, "");
  put(cut, 0, 0x4f, 1);
  add(recording, cut);
  cut = segment(1, "");
  put(cut, 32, 0xf0, 1);
  add(recording, cut);
  EXPECT_TRUE(recording.contains("short"));
  EXPECT_TRUE(recording.contains("a datagram"));
}

}  // namespace
}  // namespace tailrace
