#include "core/http/post.h"

#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "core/http/server.h"

namespace tailrace::http {
namespace {

using namespace std::chrono_literals;

TEST(Post, BringsABodyThereAndTheAnswerBack) {
  Request heard;
  Server server({}, [&](Request request, Reply reply) {
    heard = std::move(request);
    reply.send(201, heard.body + "!");
  });
  const auto url = parse_url("http://127.0.0.1:" + std::to_string(server.port()) + "/v1/");
  ASSERT_TRUE(url) << url.failure().message;
  const auto posted = post_json(url.value(), "/score", R"({"a": 1})", {.bearer = "key"});
  ASSERT_TRUE(posted) << posted.failure().message;
  EXPECT_EQ(posted.value().status, 201);
  EXPECT_EQ(posted.value().body, R"({"a": 1}!)");
  EXPECT_EQ(heard.method, "POST");
  EXPECT_EQ(heard.target, "/v1/score");
  EXPECT_EQ(heard.header("authorization"), "Bearer key");
  EXPECT_EQ(heard.header("content-type"), "application/json");
}

TEST(Post, WaitsNoLongerThanItSays) {
  std::vector<Reply> kept;
  Server server({}, [&](Request, Reply reply) { kept.push_back(std::move(reply)); });
  const Url url{.host = "127.0.0.1", .port = std::to_string(server.port())};
  const auto begin = std::chrono::steady_clock::now();
  const auto posted = post_json(url, "/", "{}", {.wait = 200ms});
  ASSERT_FALSE(posted);
  EXPECT_NE(posted.failure().message.find("has not answered in time"), std::string::npos)
      << posted.failure().message;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
}

TEST(Post, NobodyAndTooMuchAreFailures) {
  uint16_t port = 0;
  {
    Server gone({}, [](Request, Reply) {});
    port = gone.port();
  }
  const auto nobody = post_json({.host = "127.0.0.1", .port = std::to_string(port)}, "/", "{}", {});
  ASSERT_FALSE(nobody);
  EXPECT_NE(nobody.failure().message.find("does not answer"), std::string::npos)
      << nobody.failure().message;
  Server server({}, [](Request, Reply reply) { reply.send(200, std::string(5000, 'x')); });
  const auto long_one = post_json({.host = "127.0.0.1", .port = std::to_string(server.port())}, "/",
                                  "{}", {.max_body_bytes = 1000});
  ASSERT_FALSE(long_one);
  EXPECT_NE(long_one.failure().message.find("body limit"), std::string::npos)
      << long_one.failure().message;
}

TEST(Post, AddressesAreReadAndRefused) {
  const auto plain = parse_url("http://judge");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain.value().host, "judge");
  EXPECT_EQ(plain.value().port, "80");
  EXPECT_EQ(plain.value().path, "");
  EXPECT_EQ(parse_url("http://judge:81/v1/").value().text(), "http://judge:81/v1");
  for (const auto& [text, why] : {std::pair{"https://judge", "is https"},
                                  {"judge:80", "is no address"},
                                  {"http://", "names no host"},
                                  {"http://a:0", "no port"},
                                  {"http://a:b", "no port"},
                                  {"http://me@a", "names a user"},
                                  {"http://a b", "has a blank"}}) {
    const auto url = parse_url(text);
    ASSERT_FALSE(url) << text;
    EXPECT_NE(url.failure().message.find(why), std::string::npos) << url.failure().message;
  }
}

}  // namespace
}  // namespace tailrace::http
