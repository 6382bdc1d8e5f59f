#include "core/wire/greeting.h"

#include <gtest/gtest.h>

#include "core/base/random.h"
#include "core/messages/message.h"
#include "core/wire/tcp_address.h"

namespace tailrace::wire {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Greeting sample() {
  return {.build = "0f3a",
          .version = "0.9.1",
          .incarnation = 18'446'744'073'709'551'615u,
          .role = Role::kReward,
          .pool = "large",
          .cluster = "east",
          .host = "gpu-7.west.example",
          .relay = "tcp://10.1.0.7:7702"};
}

void expect_sense(const Greeting& greeting) {
  EXPECT_NE(greeting.incarnation, 0u);
  EXPECT_TRUE(greeting.role == Role::kReward || greeting.role == Role::kRollout);
  for (const std::string* name : {&greeting.pool, &greeting.cluster})
    EXPECT_TRUE(name->empty() || is_site_name(*name)) << *name;
  EXPECT_TRUE(greeting.relay.empty() || is_address_to_reach(greeting.relay)) << greeting.relay;
  EXPECT_TRUE(greeting.host.empty() || is_host_name(greeting.host)) << greeting.host;
  for (const std::string* text : {&greeting.build, &greeting.version})
    for (const char c : *text) EXPECT_GE(static_cast<unsigned char>(c), ' ');
}

// Frozen: a build of any age must read it.
TEST(Greeting, ItsFormIsFrozen) {
  EXPECT_EQ(text_of(encode(sample())),
            "tailrace-greeting 1\n"
            "build 0f3a\n"
            "version 0.9.1\n"
            "incarnation 18446744073709551615\n"
            "role reward\n"
            "pool large\n"
            "cluster east\n"
            "host gpu-7.west.example\n"
            "relay tcp://10.1.0.7:7702\n");
  EXPECT_EQ(text_of(encode(GreetingAnswer{.kind = GreetingAnswer::Kind::kWelcome,
                                          .name = "reward-3",
                                          .run = "quickstart",
                                          .cluster = "east",
                                          .pool = "large"})),
            "tailrace-greeting 1\n"
            "welcome reward-3\n"
            "run quickstart\n"
            "pool large\n"
            "cluster east\n");
  EXPECT_EQ(text_of(encode(GreetingAnswer{.kind = GreetingAnswer::Kind::kRefused, .reason = "no"})),
            "tailrace-greeting 1\nrefused no\n");
  EXPECT_EQ(text_of(encode(GreetingAnswer{.kind = GreetingAnswer::Kind::kLater, .reason = "wait"})),
            "tailrace-greeting 1\nlater wait\n");
}

TEST(Greeting, ComesBackAsItWent) {
  const auto greeting = decode_greeting(encode(sample()));
  ASSERT_TRUE(greeting);
  EXPECT_EQ(encode(*greeting), encode(sample()));
  const auto least = decode_greeting(encode(Greeting{.incarnation = 1}));
  ASSERT_TRUE(least);
  EXPECT_EQ(least->role, Role::kRollout);
  EXPECT_EQ(least->pool + least->cluster + least->host, "");
  using Kind = GreetingAnswer::Kind;
  for (const Kind kind : {Kind::kWelcome, Kind::kRefused, Kind::kLater}) {
    const GreetingAnswer answer{.kind = kind,
                                .name = kind == Kind::kWelcome ? "rollout-2" : "",
                                .reason = kind == Kind::kWelcome ? "" : "a reason for a person",
                                .run = "quickstart",
                                .cluster = "east",
                                .pool = "large"};
    const auto back = decode_greeting_answer(encode(answer));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->kind, kind);
    EXPECT_EQ(back->name, answer.name);
    EXPECT_EQ(back->reason, answer.reason);
    EXPECT_EQ(back->run, answer.run);
    EXPECT_EQ(back->cluster, answer.cluster);
    EXPECT_EQ(back->pool, answer.pool);
  }
}

// A refusal that says nothing is a refusal still.
TEST(Greeting, AnAnswerWithoutAReasonIsAnAnswer) {
  using Kind = GreetingAnswer::Kind;
  for (const Kind kind : {Kind::kRefused, Kind::kLater}) {
    const auto back = decode_greeting_answer(encode(GreetingAnswer{.kind = kind}));
    ASSERT_TRUE(back);
    EXPECT_EQ(back->kind, kind);
  }
}

TEST(Greeting, KeysThatItDoesNotKnowAreSkipped) {
  const auto greeting = decode_greeting(
      bytes_of("tailrace-greeting 1\nincarnation 7\nfuture a b c\n\nword\nrole rollout\n host x"));
  ASSERT_TRUE(greeting);
  EXPECT_EQ(greeting->incarnation, 7u);
  EXPECT_EQ(greeting->host, "");
  const auto answer = decode_greeting_answer(
      bytes_of("tailrace-greeting 1\r\nfuture x\r\nwelcome rollout-1\r\nrun a b\r\n"));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->name, "rollout-1");
  EXPECT_EQ(answer->run, "a b");
}

TEST(Greeting, WhatMakesNoSenseIsNone) {
  const std::string begin = "tailrace-greeting 1\n", rest = "incarnation 7\nrole rollout\n";
  ASSERT_TRUE(decode_greeting(bytes_of(begin + rest)));
  for (const std::string& text : {std::string(),
                                  std::string("tailrace"),
                                  begin,
                                  rest,
                                  "tailrace-greeting 2\n" + rest,
                                  "tailrace-greeting 10\n" + rest,
                                  "Tailrace-greeting 1\n" + rest,
                                  " " + begin + rest,
                                  begin + "role rollout\n",
                                  begin + "incarnation 7\n",
                                  begin + "incarnation 0\nrole rollout\n",
                                  begin + "incarnation -7\nrole rollout\n",
                                  begin + "incarnation seven\nrole rollout\n",
                                  begin + "incarnation 7x\nrole rollout\n",
                                  begin + "incarnation 18446744073709551616\nrole rollout\n",
                                  begin + "incarnation 7\nrole trainer\n",
                                  begin + "incarnation 7\nrole \n",
                                  begin + rest + "pool a b\n",
                                  begin + rest + "pool ../x\n",
                                  begin + rest + "cluster \x01\n",
                                  begin + rest + "host .hidden\n",
                                  begin + rest + "host a/b\n",
                                  begin + rest + "relay tcp://*:7702\n",
                                  begin + rest + "relay 10.1.0.7\n",
                                  begin + rest + "build " + std::string(kMaxGreetingBytes, 'b')})
    EXPECT_FALSE(decode_greeting(bytes_of(text))) << text;
  for (const std::string& text : {begin, begin + "welcome \n", begin + "welcome a b\n",
                                  begin + "welcome ../x\n", begin + "welcomes rollout-1\n"})
    EXPECT_FALSE(decode_greeting_answer(bytes_of(text))) << text;
}

TEST(Greeting, AValueStaysOnItsLine) {
  Greeting greeting = sample();
  greeting.build = "1\npool small\r\x1b[2J";
  greeting.version = std::string(3000, 'v');
  const auto back = decode_greeting(encode(greeting));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->build, "1 pool small [2J");
  EXPECT_EQ(back->pool, "large");
  EXPECT_EQ(back->version.size(), 1000u);
  const auto answer = decode_greeting_answer(encode(
      GreetingAnswer{.kind = GreetingAnswer::Kind::kRefused, .reason = "a\nwelcome rollout-1"}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, GreetingAnswer::Kind::kRefused);
  EXPECT_EQ(answer->reason, "a welcome rollout-1");
}

TEST(Greeting, EveryCutAndEveryFlipIsNoneOrMakesSense) {
  const std::vector<std::byte> whole = encode(sample());
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    if (const auto greeting = decode_greeting(cut)) expect_sense(*greeting);
    (void)decode_greeting_answer(cut);
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::vector<std::byte> flipped = whole;
      flipped[at] = static_cast<std::byte>(value);
      const auto greeting = decode_greeting(flipped);
      if (greeting) expect_sense(*greeting);
      if (at < 19) {
        EXPECT_EQ(greeting.has_value(), flipped == whole) << at;
      }
    }
  }
}

TEST(Greeting, RandomLinesAreNoneOrMakeSense) {
  Rng rng(17);
  const std::vector<std::string> words = {
      "build",    "incarnation", "role", "rollout", "reward",
      "pool",     "cluster",     "host", "name",    "welcome",
      "refused",  "later",       " ",    "\n",      "\n",
      "\n",       "\r",          "7",    "\x01",    "-",
      "\xff\xfe", ".",           "/",    "99999",   std::string(1, '\0')};
  for (int i = 0; i < 20'000; ++i) {
    std::string text = "tailrace-greeting 1\n";
    for (int64_t n = rng.below(24); n > 0; --n)
      text += words[static_cast<size_t>(rng.below(std::ssize(words)))];
    const auto bytes = bytes_of(text);
    if (const auto greeting = decode_greeting(bytes)) expect_sense(*greeting);
    if (const auto answer = decode_greeting_answer(bytes)) {
      EXPECT_TRUE(answer->name.empty() || is_site_name(answer->name));
      EXPECT_EQ(answer->kind == GreetingAnswer::Kind::kWelcome, !answer->name.empty());
      for (const char c : answer->reason + answer->run + answer->cluster + answer->pool)
        EXPECT_GE(static_cast<unsigned char>(c), ' ');
    }
  }
}

}  // namespace
}  // namespace tailrace::wire
