#include "core/http/server.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <optional>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/base/bounded_queue.h"
#include "core/base/error.h"
#include "tests/core/http/client.h"

namespace tailrace::http {
namespace {

using namespace std::chrono_literals;

// Answers with what was asked.
void echo(Request request, Reply reply) {
  reply.send(200, request.method + " " + request.target + " " + request.body, "text/plain");
}

template <class T>
bool comes(std::future<T>& future) {
  return future.wait_for(20s) == std::future_status::ready;
}

// What a handler handed over; nothing: it was not called in time.
std::optional<Reply> taken(std::promise<Reply>& handed) {
  auto future = handed.get_future();
  if (!comes(future)) return std::nullopt;
  return future.get();
}

TEST(HttpServer, AnswersARequestAndKeepsTheConnection) {
  Server server({}, echo);
  Client client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.send(post("/a?b=c", "body" + std::to_string(i)));
    const Answer answer = client.read_answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, "POST /a?b=c body" + std::to_string(i));
    EXPECT_EQ(answer.headers.at("content-type"), "text/plain");
  }
}

TEST(HttpServer, GivesHeadersInLowerCaseWithoutBlanks) {
  std::promise<Request> got;
  Server server({}, [&](Request request, Reply reply) {
    got.set_value(request);
    reply.send(200, "{}", "application/json", {{"x-id", "a\r\nevil: 1"}});
  });
  Client client(server.port());
  client.send("GET / HTTP/1.1\r\nX-Stainless-Retry-Count:  2 \r\nAuthorization: Bearer k\r\n\r\n");
  const Answer answer = client.read_answer();
  const Request request = got.get_future().get();
  EXPECT_EQ(request.header("x-stainless-retry-count"), "2");
  EXPECT_EQ(request.header("authorization"), "Bearer k");
  EXPECT_EQ(request.header("nothing"), "");
  EXPECT_EQ(answer.headers.at("x-id"), "a  evil: 1");
  EXPECT_FALSE(answer.headers.contains("evil"));
}

// As clients of a proxy send it (RFC 9112, 3.2.2).
TEST(HttpServer, TakesATargetInAbsoluteForm) {
  Server server({}, [](const Request& request, Reply reply) {
    reply.send(200, request.target + " of " + std::string(request.header("host")), "text/plain");
  });
  Client client(server.port());
  const auto ask = [&](const std::string& target) {
    client.send("GET " + target + " HTTP/1.1\r\nHost: other\r\n\r\n");
    return client.read_answer();
  };
  EXPECT_EQ(ask("/v1/models").body, "/v1/models of other");
  EXPECT_EQ(ask("http://host/v1/models").body, "/v1/models of host");
  EXPECT_EQ(ask("HTTP://host:8000/v1/models?a=http://b/c").body,
            "/v1/models?a=http://b/c of host:8000");
  EXPECT_EQ(ask("http://[::1]:80").body, "/ of [::1]:80");
  EXPECT_EQ(ask("http://host?a=b").body, "/?a=b of host");
  EXPECT_EQ(ask("/http://host/").body, "/http://host/ of other");
  for (const char* target : {"http:///v1/models", "http://", "http://:80/", "http://user@host/"}) {
    Client other(server.port());
    other.send("GET " + std::string(target) + " HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_EQ(other.read_answer().status, 400) << target;
  }
}

TEST(HttpServer, AnswersPipelinedRequestsInTheirOrder) {
  std::vector<Reply> replies;
  std::promise<void> first;
  std::mutex mu;
  Server server({}, [&](Request request, Reply reply) {
    if (request.target != "/slow") return reply.send(200, request.target);
    std::lock_guard lock(mu);
    replies.push_back(reply);
    first.set_value();
  });
  Client client(server.port());
  client.send(post("/slow", "x") + post("/fast", "y"));
  auto came = first.get_future();
  ASSERT_TRUE(comes(came));
  {
    std::lock_guard lock(mu);
    replies.front().send(200, "slow");
  }
  EXPECT_EQ(client.read_answer().body, "slow");
  EXPECT_EQ(client.read_answer().body, "/fast");
}

TEST(HttpServer, ReadsABodyInChunks) {
  Server server({}, echo);
  Client client(server.port());
  client.send("POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWi");
  client.send("ki\r\n6;name=value\r\npedia \r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST /c Wikipedia ");
  client.send(post("/d", "next"));
  EXPECT_EQ(client.read_answer().body, "POST /d next");
}

TEST(HttpServer, ReadsABodyInVeryManyChunks) {
  Server server({}, [](Request request, Reply reply) {
    reply.send(200, std::to_string(request.body.size()) + request.body.back());
  });
  Client client(server.port());
  std::string bytes = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 500'000; ++i) bytes += "1\r\nx\r\n";
  client.send(bytes + "1\r\nz\r\n0\r\nTrailer: t\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "500001z");
  client.send(post("/", "abc"));
  EXPECT_EQ(client.read_answer().body, "3c");
}

TEST(HttpServer, ReadsALargeBodyThatComesInPieces) {
  Server server({}, [](Request request, Reply reply) {
    reply.send(200, std::to_string(request.body.size()) + request.body.back());
  });
  Client client(server.port());
  std::string body(5'000'000, 'a');
  body.back() = 'z';
  client.send(post("/", body));
  EXPECT_EQ(client.read_answer().body, "5000000z");
}

TEST(HttpServer, SaysContinueToAClientThatWaitsForIt) {
  Server server({}, echo);
  Client client(server.port());
  client.send("POST /e HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 100);
  client.send("abc");
  EXPECT_EQ(client.read_answer().body, "POST /e abc");
}

TEST(HttpServer, AnswersHeadWithoutABodyAndOptionsByItself) {
  Server server({}, echo);
  Client client(server.port());
  client.send("HEAD /h HTTP/1.1\r\n\r\n");
  const Answer head = client.read_answer(/*is_head=*/true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "7");  // "GET /h "
  client.send("OPTIONS * HTTP/1.1\r\n\r\n");
  const Answer options = client.read_answer();
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "GET, HEAD, POST, OPTIONS");
}

TEST(HttpServer, EndsAConnectionWhoseClientWantsSo) {
  Server server({}, echo);
  Client client(server.port());
  client.send(post("/", "x", "Connection: close\r\n"));
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.headers.at("connection"), "close");
  EXPECT_TRUE(client.is_closed_by_server());
  Client old(server.port());
  old.send("GET /old HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.read_answer().body, "GET /old ");
  EXPECT_TRUE(old.is_closed_by_server());
}

TEST(HttpServer, StreamsFromAnotherThread) {
  std::promise<bool> written;
  std::jthread thread;
  Server server({}, [&](Request, Reply reply) {
    reply.when_written([&](bool is_whole) { written.set_value(is_whole); });
    thread = std::jthread([reply]() mutable {
      for (int i = 0; i < 100; ++i) reply.stream("data: " + std::to_string(i) + "\n\n");
      reply.stream("");
      reply.stream("data: [DONE]\n\n");
      reply.end();
      reply.stream("behind the end");
    });
  });
  Client client(server.port());
  client.send(post("/", ""));
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream");
  EXPECT_TRUE(answer.is_whole);
  EXPECT_TRUE(answer.body.starts_with("data: 0\n\ndata: 1\n\n"));
  EXPECT_TRUE(answer.body.ends_with("data: 99\n\ndata: [DONE]\n\n"));
  auto future = written.get_future();
  ASSERT_TRUE(comes(future));
  EXPECT_TRUE(future.get());
}

TEST(HttpServer, StreamsToHttp10WithoutChunks) {
  Server server({}, [](Request, Reply reply) {
    reply.stream("data: a\n\n");
    reply.stream("data: b\n\n");
    reply.end();
  });
  Client client(server.port());
  client.send("GET / HTTP/1.0\r\n\r\n");
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.body, "data: a\n\ndata: b\n\n");
}

TEST(HttpServer, GivesAChunkBeforeTheNextOneExists) {
  std::promise<Reply> handed;
  Server server({}, [&](Request, Reply reply) {
    reply.stream("data: first\n\n");
    handed.set_value(std::move(reply));
  });
  Client client(server.port());
  client.send(post("/", ""));
  EXPECT_TRUE(client.read_until("data: first\n\n"));
  auto reply = taken(handed);
  ASSERT_TRUE(reply);
  reply->stream("data: second\n\n");
  EXPECT_TRUE(client.read_until("data: second\n\n"));
}

TEST(HttpServer, AnAnswerThatNobodyGivesIsA500) {
  std::promise<bool> written;
  Server server({}, [&](Request, Reply reply) {
    reply.when_written([&](bool is_whole) { written.set_value(is_whole); });
  });
  Client client(server.port());
  client.send(post("/", ""));
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 500);
  EXPECT_NE(answer.body.find("the server gave no answer"), std::string::npos);
  auto future = written.get_future();
  ASSERT_TRUE(comes(future));
  EXPECT_FALSE(future.get());
}

TEST(HttpServer, AStreamThatNobodyEndsIsCut) {
  Server server({}, [](Request, Reply reply) { reply.stream("data: a\n\n"); });
  Client client(server.port());
  client.send(post("/", ""));
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "data: a\n\n");
  EXPECT_FALSE(answer.is_whole);
}

TEST(HttpServer, AHandlerThatThrowsIsA500WithItsWords) {
  Server server({}, [](Request, Reply) { throw std::runtime_error("no \"weights\""); });
  Client client(server.port());
  client.send(post("/", ""));
  const Answer answer = client.read_answer();
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.body,
            R"({"error":{"message":"the server failed: no \"weights\"","type":"server_error",)"
            R"("param":null,"code":null}})");
}

TEST(HttpServer, NoticesAtOnceAClientThatHangsUpWhileItsAnswerIsComputed) {
  std::promise<void> gone;
  std::promise<bool> written;
  std::promise<Reply> handed;
  Server server({}, [&](Request, Reply reply) {
    reply.when_gone([&] { gone.set_value(); });
    reply.when_written([&](bool is_whole) { written.set_value(is_whole); });
    handed.set_value(std::move(reply));
  });
  Client client(server.port());
  client.send(post("/", ""));
  auto reply = taken(handed);
  ASSERT_TRUE(reply);
  EXPECT_FALSE(reply->is_gone());
  client.close();
  auto future = gone.get_future();
  ASSERT_TRUE(comes(future));
  EXPECT_TRUE(reply->is_gone());
  EXPECT_FALSE(written.get_future().get());
  reply->send(200, "too late");
  // It has gone already.
  std::promise<void> again;
  reply->when_gone([&] { again.set_value(); });
  auto told = again.get_future();
  EXPECT_TRUE(comes(told));
}

// As `curl` and `nc` may: what is sent ends with the request.
TEST(HttpServer, AClientThatEndsItsSendingSideGetsItsAnswer) {
  for (const bool is_stream : {false, true}) {
    std::promise<Reply> handed;
    std::atomic<bool> is_gone = false;
    Server server({}, [&](Request, Reply reply) {
      reply.when_gone([&] { is_gone = true; });
      if (is_stream) reply.stream("data: 1\n\n");
      handed.set_value(std::move(reply));
    });
    Client client(server.port());
    client.send(post("/", "abc"));
    if (is_stream) {
      EXPECT_TRUE(client.read_until("data: 1\n\n"));
    }
    client.shut_down_sending();
    auto reply = taken(handed);
    ASSERT_TRUE(reply);
    // The server has seen the end.
    EXPECT_TRUE(client.read_until(is_stream ? ":\n\n" : "100 Continue"));
    std::promise<bool> written;
    reply->when_written([&](bool is_whole) { written.set_value(is_whole); });
    if (is_stream) {
      reply->stream("data: 2\n\n");
      reply->end();
    } else {
      EXPECT_EQ(client.read_answer().status, 100);
      reply->send(200, "{}");
    }
    const Answer answer = client.read_answer();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, is_stream ? "data: 1\n\n:\n\ndata: 2\n\n" : "{}");
    EXPECT_TRUE(client.is_closed_by_server());
    EXPECT_TRUE(written.get_future().get());
    EXPECT_FALSE(is_gone);
  }
}

TEST(HttpServer, RequestsBeforeTheEndOfWhatIsSentAreAllAnswered) {
  Server server({}, [](Request request, Reply reply) { reply.send(200, request.body); });
  Client client(server.port());
  client.send(post("/", "one") + post("/", "two") + "POST / HTTP/1.1\r\nHos");
  client.shut_down_sending();
  EXPECT_EQ(client.read_answer().body, "one");
  EXPECT_EQ(client.read_answer().body, "two");
  EXPECT_TRUE(client.is_closed_by_server());
}

TEST(HttpServer, ARefusalReachesAClientThatEndsItsSendingSide) {
  Server server({}, [](Request, Reply reply) { reply.send(200, "{}"); });
  Client client(server.port());
  client.send("no HTTP\r\n\r\n");
  client.shut_down_sending();
  EXPECT_EQ(client.read_answer().status, 400);
  EXPECT_TRUE(client.is_closed_by_server());
}

// A stream too: the end of what it sends may also be that of its client.
TEST(HttpServer, NoticesAtOnceAClientThatHangsUpInAStreamThatIsSilent) {
  std::promise<void> gone;
  std::promise<Reply> handed;
  Server server({}, [&](Request, Reply reply) {
    reply.when_gone([&] { gone.set_value(); });
    reply.stream("data: 1\n\n");
    handed.set_value(std::move(reply));
  });
  Client client(server.port());
  client.send(post("/", ""));
  EXPECT_TRUE(client.read_until("data: 1\n\n\r\n"));
  auto reply = taken(handed);
  client.close();
  auto future = gone.get_future();
  EXPECT_TRUE(comes(future));
}

TEST(HttpServer, TellsNothingOfGoingBehindAWholeAnswer) {
  std::promise<void> written;
  std::atomic<int> gone = 0;
  std::promise<Reply> handed;
  Server server({}, [&](Request, Reply reply) {
    reply.when_gone([&] { ++gone; });
    reply.when_written([&](bool) { written.set_value(); });
    handed.set_value(reply);
    reply.send(200, "{}");
  });
  Client client(server.port());
  client.send(post("/", ""));
  EXPECT_EQ(client.read_answer().status, 200);
  auto future = written.get_future();
  ASSERT_TRUE(comes(future));
  client.close();
  auto reply = taken(handed);
  ASSERT_TRUE(reply);
  reply->when_gone([&] { ++gone; });
  EXPECT_FALSE(reply->is_gone());
  std::promise<bool> told;
  reply->when_written([&](bool is_whole) { told.set_value(is_whole); });
  EXPECT_TRUE(told.get_future().get());
  EXPECT_EQ(gone, 0);
}

TEST(HttpServer, AStreamThatItsClientDoesNotReadCountsAsGoneAndBlocksNobody) {
  std::promise<Reply> handed;
  std::promise<void> gone;
  Server server({.max_unsent_bytes = 1 << 20}, [&](Request request, Reply reply) {
    if (request.target != "/stream") return reply.send(200, "{}");
    reply.when_gone([&] { gone.set_value(); });
    handed.set_value(std::move(reply));
  });
  Client lazy(server.port()), other(server.port());
  lazy.send(post("/stream", ""));
  auto reply = taken(handed);
  ASSERT_TRUE(reply);
  const std::string chunk(64 << 10, 'x');
  // What the kernel holds on the way is some MiB.
  for (int i = 0; i < 10'000 && !reply->is_gone(); ++i) {
    reply->stream(chunk);
    if (i == 100) {
      other.send(post("/", ""));
      EXPECT_EQ(other.read_answer().status, 200);
    }
  }
  EXPECT_TRUE(reply->is_gone());
  auto future = gone.get_future();
  EXPECT_TRUE(comes(future));
  other.send(post("/", ""));
  EXPECT_EQ(other.read_answer().status, 200);
}

TEST(HttpServer, AClientThatReadsNothingOfItsAnswerIsGoneInTime) {
  std::promise<bool> written;
  Server server({.header_patience = 200ms}, [&](Request, Reply reply) {
    reply.when_written([&](bool is_whole) { written.set_value(is_whole); });
    reply.send(200, std::string(64 << 20, 'x'));
  });
  Client client(server.port());
  client.send(post("/", ""));
  auto future = written.get_future();
  ASSERT_TRUE(comes(future));
  EXPECT_FALSE(future.get());
}

TEST(HttpServer, AnswersManyParallelRequestsFromAnotherThread) {
  BoundedQueue<std::pair<Request, Reply>> inbox(4096);
  std::jthread worker([&] {
    while (auto item = inbox.pop()) item->second.send(200, item->first.body);
  });
  {
    Server server({}, [&](Request request, Reply reply) {
      std::pair item(std::move(request), std::move(reply));
      (void)inbox.push_for(item, 20s);
    });
    std::vector<std::jthread> clients;
    std::atomic<int> right = 0;
    for (int c = 0; c < 16; ++c) {
      clients.emplace_back([&, c] {
        Client client(server.port());
        for (int i = 0; i < 50; ++i) {
          const std::string body = std::to_string(c) + "/" + std::to_string(i);
          client.send(post("/", body));
          right += client.read_answer().body == body;
        }
      });
    }
    clients.clear();
    EXPECT_EQ(right, 16 * 50);
  }
  inbox.close();
}

TEST(HttpServer, HoldsAThousandIdleConnections) {
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < 4096) GTEST_SKIP() << "at most " << files.rlim_max << " open files here";
  files.rlim_cur = std::max<rlim_t>(files.rlim_cur, 4096);
  ::setrlimit(RLIMIT_NOFILE, &files);
  Server server({}, echo);
  std::vector<Client> clients;
  for (int i = 0; i < 1000; ++i) clients.emplace_back(server.port());
  for (Client& client : clients) client.send(post("/", "x"));
  int right = 0;
  for (Client& client : clients) right += client.read_answer().status == 200;
  EXPECT_EQ(right, 1000);
}

TEST(HttpServer, LeavesTheProcessAQuarterOfItsFiles) {
  rlimit files = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit few = {.rlim_cur = 120, .rlim_max = files.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  Server server({}, echo);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);  // the clients are of this process
  std::vector<Client> clients;
  for (int i = 0; i < 91; ++i) {
    clients.emplace_back(server.port());
    clients.back().send(post("/", "x"));
    EXPECT_EQ(clients.back().read_answer().status, i < 90 ? 200 : 503) << i;
  }
}

TEST(HttpServer, TellsWhatItRefusesByItself) {
  BoundedQueue<std::string> told(16);
  const auto tell = [&](const Request& head, int status, const std::string& message) {
    EXPECT_NE(message, "");
    EXPECT_EQ(head.body, "");
    std::string line = std::to_string(status) + " " + head.target + " " +
                       std::string(head.header("authorization"));
    (void)told.push_for(line, 1s);
  };
  Server server({.max_body_bytes = 10,
                 .max_reading_bytes = 8,
                 .max_header_bytes = 500,
                 .header_patience = 200ms,
                 .on_refusal = tell},
                echo);
  const auto refused = [&](const std::string& bytes) {
    Client client(server.port());
    client.send(bytes);
    EXPECT_GE(client.read_answer().status, 400);
    return told.pop().value_or("");
  };
  EXPECT_EQ(refused(post("/a", std::string(11, 'x'), "Authorization: k\r\n")), "413 /a k");
  EXPECT_EQ(refused(post("/b", std::string(9, 'x'))), "503 /b ");
  EXPECT_EQ(refused("GET /" + std::string(600, 'x')), "431  ");
  EXPECT_EQ(refused("nonsense\r\n\r\n").substr(0, 3), "400");
  EXPECT_EQ(refused("POST /c HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), "408 /c ");
  EXPECT_EQ(refused("POST /d HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n"), "501 /d ");
  EXPECT_EQ(refused("GET /e HTTP/2.5\r\n\r\n").substr(0, 3), "505");
  EXPECT_EQ(refused("GET http://user@host/ HTTP/1.1\r\n\r\n"), "400 http://user@host/ ");
}

TEST(HttpServer, RefusesOneConnectionTooManyUntilAnotherEnds) {
  std::atomic<int> num_told = 0;
  Server server({.max_connections = 2,
                 .on_refusal = [&](const Request&, int status,
                                   const std::string&) { num_told += status == 503; }},
                echo);
  Client a(server.port()), b(server.port());
  a.send(post("/", ""));
  b.send(post("/", ""));
  EXPECT_EQ(a.read_answer().status, 200);
  EXPECT_EQ(b.read_answer().status, 200);
  Client c(server.port());
  c.send(post("/", ""));
  const Answer answer = c.read_answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(num_told, 1);
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  EXPECT_TRUE(c.is_closed_by_server());
  c.close();
  a.close();
  // The server notices both in its own time.
  int status = 503;
  for (int i = 0; i < 2000 && status == 503; ++i) {
    Client d(server.port());
    d.send(post("/", ""));
    status = d.read_answer().status;
  }
  EXPECT_EQ(status, 200);
}

TEST(HttpServer, EndsAnIdleConnection) {
  Server server({.idle = 100ms}, echo);
  Client client(server.port());
  client.send(post("/", ""));
  EXPECT_EQ(client.read_answer().status, 200);
  EXPECT_TRUE(client.is_closed_by_server());
}

TEST(HttpServer, DestructionTellsThoseWhoStillCompute) {
  std::vector<Reply> replies;
  std::atomic<int> gone = 0, unwritten = 0;
  std::promise<void> both;
  std::vector<Client> clients;
  {
    Server server({}, [&](Request, Reply reply) {
      reply.when_gone([&] { ++gone; });
      reply.when_written([&](bool is_whole) { unwritten += !is_whole; });
      reply.stream("data: begun\n\n");
      replies.push_back(std::move(reply));
      if (replies.size() == 8) both.set_value();
    });
    for (int i = 0; i < 8; ++i) {
      clients.emplace_back(server.port());
      clients.back().send(post("/", ""));
    }
    auto future = both.get_future();
    ASSERT_TRUE(comes(future));
  }
  EXPECT_EQ(gone, 8);
  EXPECT_EQ(unwritten, 8);
  for (Reply& reply : replies) {
    EXPECT_TRUE(reply.is_gone());
    reply.stream("data: more\n\n");
    reply.end();
    bool is_told = false;
    reply.when_gone([&] { is_told = true; });  // at once: there is no thread any more
    EXPECT_TRUE(is_told);
  }
  for (Client& client : clients) EXPECT_TRUE(client.is_closed_by_server());
}

FileDescriptor listening(uint16_t& port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(socket.get(), 16), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  port = ntohs(address.sin_port);
  return socket;
}

TEST(HttpServer, ListensOnASocketThatIsHandedToIt) {
  Server server({}, echo);
  uint16_t port = 0;
  FileDescriptor socket = listening(port);
  const int number = socket.get();
  server.listen_on(std::move(socket));
  Client client(port), first(server.port());
  client.send(post("/second", ""));
  EXPECT_EQ(client.read_answer().body, "POST /second ");
  first.send(post("/first", ""));
  EXPECT_EQ(first.read_answer().body, "POST /first ");
  server.stop_listening(number);
  // Its connections live on.
  client.send(post("/third", ""));
  EXPECT_EQ(client.read_answer().body, "POST /third ");
  // The port is free as soon as the server's thread has closed it.
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  server.listen_on(FileDescriptor());  // no socket: nothing happens
  first.send(post("/first", ""));
  EXPECT_EQ(first.read_answer().status, 200);
}

TEST(HttpServer, ServesIpv6AndUnixSockets) {
  // A socket of the file system, abstract.
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("tailrace-http-test-{}", ::getpid());
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(socket.get(), 16), 0);
  Server server({}, echo);
  server.listen_on(std::move(socket));
  FileDescriptor peer(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(peer.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  Client client(std::move(peer));
  client.send(post("/unix", "x"));
  EXPECT_EQ(client.read_answer().body, "POST /unix x");

  FileDescriptor probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 v6 = {};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  if (::bind(probe.get(), reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) != 0)
    GTEST_SKIP() << "no IPv6 here";
  Server server6({.address = "::1"}, echo);
  v6.sin6_port = htons(server6.port());
  FileDescriptor peer6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(peer6.get(), reinterpret_cast<sockaddr*>(&v6), sizeof(v6)), 0);
  Client client6(std::move(peer6));
  client6.send(post("/six", "x"));
  EXPECT_EQ(client6.read_answer().body, "POST /six x");
}

std::string message_of(const ServerOptions& options) {
  try {
    Server server(options, echo);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

TEST(HttpServer, SaysWhyItCannotListen) {
  Server server({}, echo);
  EXPECT_EQ(message_of({.port = server.port()}),
            "cannot listen at 127.0.0.1 port " + std::to_string(server.port()) +
                ": another program listens there. Choose another port, or 0 for any that is free.");
  EXPECT_EQ(message_of({.address = "localhost"}),
            "cannot listen at \"localhost\": it is no IP address. Give one in digits, such as "
            "127.0.0.1 (this machine only) or 0.0.0.0 (every network).");
  EXPECT_EQ(message_of({.address = "192.0.2.1"}),
            "cannot listen at 192.0.2.1 port 0: this machine does not have that address. Choose "
            "one of its own (`ip address` lists them), or 127.0.0.1.");
}

}  // namespace
}  // namespace tailrace::http
