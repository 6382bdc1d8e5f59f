#include "core/wire/tcp_address.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(TcpAddress, IsAHostAndAPort) {
  for (const char* text : {"tcp://*:7117", "tcp://0.0.0.0:1", "tcp://10.0.0.7:65535",
                           "tcp://gpu-7.west.example:80", "tcp://[::1]:5555", "tcp://a_b:5"}) {
    const auto address = parse_tcp_address(text);
    ASSERT_TRUE(address) << text;
    EXPECT_EQ(address->text(), text);
  }
  for (const char* text : {"",
                           "tcp://",
                           "tcp://a",
                           "tcp://:80",
                           "tcp://a:",
                           "tcp://a:0",
                           "tcp://a:65536",
                           "tcp://a:8o",
                           "tcp://a:-1",
                           "tcp://a:+1",
                           "tcp://a: 1",
                           "tcp://a b:1",
                           "tcp://::1:80",
                           "tcp://[]:80",
                           "tcp://[a:1",
                           "tcp://a/b:1",
                           "ipc://a:1",
                           "http://a:80",
                           "a:80",
                           "TCP://a:1",
                           "tcp://a:99999999999999999999"})
    EXPECT_FALSE(parse_tcp_address(text)) << text;
}

TEST(TcpAddress, OthersAreToldOneThatTheyCanReach) {
  for (const char* text : {"tcp://10.0.0.7:1", "tcp://gpu-7.west.example:80", "tcp://[::1]:5555"})
    EXPECT_TRUE(is_address_to_reach(text)) << text;
  for (const char* text : {"", "tcp://*:7117", "tcp://0.0.0.0:1", "tcp://[::]:1", "ipc://a:1"})
    EXPECT_FALSE(is_address_to_reach(text)) << text;
  EXPECT_FALSE(is_address_to_reach("tcp://" + std::string(300, 'a') + ":1"));
}

TEST(TcpAddress, ANameIsBoundAtAllAddresses) {
  EXPECT_EQ(address_to_bind("tcp://gpu-7:80"), "tcp://*:80");
  for (const char* text : {"tcp://10.0.0.7:1", "tcp://[::1]:5555", "tcp://*:1", "none"})
    EXPECT_EQ(address_to_bind(text), text);
}

}  // namespace
}  // namespace tailrace
