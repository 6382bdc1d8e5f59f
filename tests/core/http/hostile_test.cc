// Clients that are cut, slow, too large, or speak something else.
#include <future>
#include <random>
#include <thread>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "core/base/bounded_queue.h"
#include "core/http/server.h"
#include "tests/core/http/client.h"

namespace tailrace::http {
namespace {

using namespace std::chrono_literals;

void answer_ok(Request request, Reply reply) {
  reply.send(200, std::to_string(request.body.size()));
}

// Another client is served as before.
void expect_serves(const Server& server) {
  Client client(server.port());
  client.send(post("/", "abc"));
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "3");
}

TEST(HttpHostile, ACutInEveryPlaceOfARequestHurtsNobody) {
  std::atomic<int> served = 0;
  Server server({}, [&](Request request, Reply reply) {
    ++served;
    answer_ok(std::move(request), std::move(reply));
  });
  const std::string whole = post("/cut", "0123456789");
  for (size_t size = 0; size < whole.size(); ++size) {
    Client client(server.port());
    client.send(std::string_view(whole).substr(0, size));
    client.close();
  }
  expect_serves(server);
  EXPECT_EQ(served, 1);
}

TEST(HttpHostile, ARequestByteByByteIsRead) {
  Server server({}, answer_ok);
  Client client(server.port());
  for (const char byte : post("/slow", "0123456789")) client.send({&byte, 1});
  EXPECT_EQ(client.read_answer().body, "10");
}

TEST(HttpHostile, ACutInTheMiddleOfAStreamIsNoticed) {
  std::promise<void> gone;
  std::vector<Reply> replies;
  Server server({}, [&](Request request, Reply reply) {
    if (request.target == "/") return answer_ok(std::move(request), std::move(reply));
    reply.when_gone([&] { gone.set_value(); });
    reply.stream("data: a\n\n");
    replies.push_back(std::move(reply));
  });
  Client client(server.port());
  client.send(post("/stream", ""));
  ASSERT_TRUE(client.read_until("data: a"));
  client.close();
  ASSERT_EQ(gone.get_future().wait_for(20s), std::future_status::ready);
  expect_serves(server);
}

TEST(HttpHostile, ASlowSenderIsToldAndEnds) {
  Server server({.header_patience = 150ms}, answer_ok);
  Client header(server.port()), body(server.port()), silent(server.port());
  header.send("POST / HTTP/1.1\r\nHost:");
  body.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\n123");
  EXPECT_EQ(header.read_answer().status, 408);
  EXPECT_TRUE(header.is_closed_by_server());
  const Answer answer = body.read_answer();
  EXPECT_EQ(answer.status, 408);
  EXPECT_NE(answer.body.find("did not come in time"), std::string::npos);
  // A connection without a request has the time of `idle`.
  silent.send(post("/", "a"));
  EXPECT_EQ(silent.read_answer().status, 200);
}

TEST(HttpHostile, TooLargeHeadersAndBodiesAreRefused) {
  Server server({.max_body_bytes = 1000, .max_header_bytes = 2000}, answer_ok);
  const auto answer_of = [&](const std::string& bytes) {
    Client client(server.port());
    client.send(bytes);
    const Answer answer = client.read_answer();
    EXPECT_TRUE(client.is_closed_by_server());
    return answer;
  };
  const Answer body = answer_of(post("/", std::string(1001, 'x')));
  EXPECT_EQ(body.status, 413);
  EXPECT_EQ(body.body, R"({"error":{"message":"the body of the request has more than 1000 bytes",)"
                       R"("type":"invalid_request_error","param":null,"code":null}})");
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" +
                      std::string(1024, 'x') + "\r\n0\r\n\r\n")
                .status,
            413);
  const Answer header =
      answer_of("GET / HTTP/1.1\r\nX-Long: " + std::string(3000, 'x') + "\r\n\r\n");
  EXPECT_EQ(header.status, 431);
  EXPECT_NE(header.body.find("more than 2000 bytes"), std::string::npos);
  EXPECT_EQ(answer_of("GET /" + std::string(3000, 'x')).status, 431);
  EXPECT_EQ(answer_of("GET / HTTP/1.1\r\nX-Endless: " + std::string(100'000, 'x')).status, 431);
  // A whole request of the largest size.
  Client client(server.port());
  client.send(post("/", std::string(1000, 'x')));
  EXPECT_EQ(client.read_answer().body, "1000");
}

TEST(HttpHostile, ABodyThatIsRefusedInTheMiddleStillGivesItsAnswer) {
  Server server({.max_body_bytes = 1000}, answer_ok);
  Client client(server.port());
  // Far more than the kernel holds: the answer must not be lost in a reset.
  client.send(post("/", std::string(20 << 20, 'x')));
  EXPECT_EQ(client.read_answer().status, 413);
}

TEST(HttpHostile, BodiesTogetherAreBounded) {
  Server server({.max_reading_bytes = 100'000}, answer_ok);
  Client slow(server.port());
  slow.send("POST / HTTP/1.1\r\nContent-Length: 90001\r\n\r\n" + std::string(90'000, 'x'));
  // The server reads the first body in its own time.
  int status = 200;
  for (int i = 0; i < 2000 && status == 200; ++i) {
    Client other(server.port());
    other.send(post("/", std::string(20'000, 'x')));
    status = other.read_answer().status;
  }
  EXPECT_EQ(status, 503);
  slow.send("y");
  EXPECT_EQ(slow.read_answer().body, "90001");
  Client other(server.port());
  other.send(post("/", std::string(20'000, 'x')));
  EXPECT_EQ(other.read_answer().body, "20000");
  slow.send("POST / HTTP/1.1\r\nContent-Length: 90001\r\n\r\n" + std::string(90'000, 'x'));
  slow.close();
  expect_serves(server);
}

TEST(HttpHostile, AFloodOfPipelinedRequestsWaitsForTheFirstAndIsAnsweredInOrder) {
  std::promise<Reply> handed;
  Server server({}, [&](Request request, Reply reply) {
    if (request.target == "/first") return handed.set_value(std::move(reply));
    reply.send(200, request.body);
  });
  Client client(server.port());
  client.send(post("/first", ""));
  auto first = handed.get_future();
  ASSERT_EQ(first.wait_for(20s), std::future_status::ready);
  std::jthread sender([&] {
    for (int i = 0; i < 5000; ++i) client.send(post("/", std::to_string(i)));
  });
  first.get().send(200, "first");
  EXPECT_EQ(client.read_answer().body, "first");
  int right = 0;
  for (int i = 0; i < 5000; ++i) right += client.read_answer().body == std::to_string(i);
  EXPECT_EQ(right, 5000);
}

TEST(HttpHostile, WhatIsNotHttpIsRefused) {
  Server server({}, answer_ok);
  const auto answer_of = [&](std::string_view bytes) {
    Client client(server.port());
    client.send(bytes);
    return client.read_answer();
  };
  EXPECT_EQ(answer_of("hello\r\n\r\n").status, 400);
  EXPECT_EQ(answer_of("GET / HTTP/2.0\r\n\r\n").status, 505);
  EXPECT_EQ(answer_of("GET / HTTP/1.1\r\nno colon\r\n\r\n").status, 400);
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n").status, 400);
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n").status,
            400);
  EXPECT_EQ(
      answer_of(
          "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
          .status,
      400);
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n").status, 400);
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n").status, 501);
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nExpect: cake\r\nContent-Length: 1\r\n\r\n").status, 400);
  const Answer tls = answer_of(std::string_view("\x16\x03\x01\x02\x00\x01\x00", 7));
  EXPECT_EQ(tls.status, 400);
  EXPECT_NE(tls.body.find("begins with http://"), std::string::npos);
  // A line of a chunk that never ends.
  EXPECT_EQ(answer_of("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                      std::string(200'000, 'x'))
                .status,
            400);
  expect_serves(server);
}

// Each answer is told of once, whoever was first: the client that leaves, the thread that answers,
// or the end of the server.
TEST(HttpHostile, ClientsThatLeaveAtAnyTimeAreToldOfOnce) {
  constexpr int kClients = 4, kRounds = 60;
  std::atomic<int> asked = 0, told = 0, gone_behind_whole = 0;
  BoundedQueue<Reply> inbox(kClients * kRounds);
  std::jthread worker([&] {
    std::mt19937 random(1);
    while (auto reply = inbox.pop()) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      switch (random() % 4) {
        case 0:
          break;  // nobody answers
        case 1:
          reply->send(200, std::string(random() % 100'000, 'x'));
          break;
        default:
          for (int k = static_cast<int>(random() % 20); k >= 0; --k)
            reply->stream(std::string(1 + random() % 5000, 'x'));
          if (random() % 2 == 0) reply->end();
      }
    }
  });
  {
    Server server({}, [&](Request, Reply reply) {
      ++asked;
      auto is_gone = std::make_shared<bool>(false);
      reply.when_gone([is_gone] { *is_gone = true; });
      reply.when_written([&, is_gone](bool is_whole) {
        ++told;
        gone_behind_whole += is_whole && *is_gone;
      });
      EXPECT_TRUE(inbox.push_for(reply, 20s));
    });
    std::vector<std::jthread> clients;
    for (int c = 0; c < kClients; ++c) {
      clients.emplace_back([&, c] {
        std::mt19937 random(100 + c);
        for (int i = 0; i < kRounds; ++i) {
          Client client(server.port());
          client.send(post("/", "abc"));
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 600));
          if (random() % 3 == 0) (void)client.read_answer();
        }
      });
    }
    for (std::jthread& client : clients) client.join();
  }
  inbox.close();
  worker.join();
  EXPECT_EQ(told, asked);
  EXPECT_GT(asked, kClients * kRounds / 3);
  EXPECT_EQ(gone_behind_whole, 0);
}

TEST(HttpHostile, RandomBytesAndBrokenRequestsHurtNobody) {
  Server server({.max_body_bytes = 4096, .max_header_bytes = 4096}, answer_ok);
  std::mt19937 random(20261126);
  const std::string good =
      post("/fuzz", "{\"a\": 1}", "Expect: 100-continue\r\n") +
      "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good;
    if (i % 4 == 0) {
      bytes.resize(1 + random() % 2000);
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      for (int k = 1 + static_cast<int>(random() % 4); k > 0; --k)
        bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Client client(server.port());
    client.send(bytes);
    client.shut_down_sending();
    EXPECT_TRUE(client.is_closed_by_server()) << "round " << i;
  }
  expect_serves(server);
}

}  // namespace
}  // namespace tailrace::http
