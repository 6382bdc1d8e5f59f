#include "cli/status/live_page.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/process/child_process.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/cli/status/run_of_steps.h"
#include "tests/core/http/client.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr char kKey[] = "0123456789abcdef";

class LivePageTest : public testing::Test {
 protected:
  LivePageTest() {
    run_.add_row(1, {{"reward/mean", 0.25}, {"policy/entropy", 1.5}});
    run_.add_row(2, {{"reward/mean", 0.5}, {"policy/entropy", 1.25}});
    run_.add_sample(1, "say it", "<script>document.title='taken'</script>");
  }

  // Steps it until the test ends.
  void page() {
    page_.emplace(run_.name(), LivePageOptions{.key = kKey});
    steps_ = std::jthread([this](const std::stop_token& end) {
      const SteadyClock clock;
      while (!end.stop_requested()) {
        page_->step(clock.now());
        std::this_thread::sleep_for(5ms);
      }
    });
  }

  static std::string request(std::string_view target, std::string_view headers = "",
                             std::string_view method = "GET") {
    return fmt::format("{} {} HTTP/1.1\r\nHost: x\r\n{}\r\n", method, target, headers);
  }
  http::Answer get(std::string_view target, std::string_view headers = "",
                   std::string_view method = "GET") {
    http::Client client(page_->port());
    client.send(request(target, headers, method));
    return client.read_answer();
  }

  RunOfSteps run_;
  std::optional<LivePage> page_;
  std::jthread steps_;
};

TEST_F(LivePageTest, IsForWhoHasTheKey) {
  page();
  EXPECT_EQ(page_->url(), fmt::format("http://127.0.0.1:{}/?key={}", page_->port(), kKey));
  for (const char* path : {"/", "/events", "/metrics", "/none"}) {
    for (const char* query : {"", "?", "?key=", "?key=0123456789abcdee", "?key=0123456789abcdef0",
                              "?akey=0123456789abcdef"}) {
      const http::Answer answer = get(std::string(path) + query);
      EXPECT_EQ(answer.status, 403) << path << query;
      EXPECT_EQ(answer.body.find("reward"), std::string::npos);
      EXPECT_NE(answer.body.find("--web"), std::string::npos);
    }
  }
  EXPECT_EQ(get("/metrics", "Authorization: Bearer wrong\r\n").status, 403);
  EXPECT_EQ(get("/metrics", "Authorization: Bearer 0123456789abcdef\r\n").status, 200);
  EXPECT_EQ(get("/?x=1&key=0123456789abcdef").status, 200);
  EXPECT_EQ(get("/none?key=0123456789abcdef").status, 404);
  EXPECT_EQ(get("/?key=0123456789abcdef", "Content-Length: 0\r\n", "POST").status, 405);
}

TEST_F(LivePageTest, ThePageLoadsNothingFromElsewhere) {
  page();
  const http::Answer answer = get("/?key=0123456789abcdef");
  ASSERT_EQ(answer.status, 200);
  const std::string policy = answer.headers.at("content-security-policy");
  EXPECT_TRUE(policy.starts_with("default-src 'none';")) << policy;
  EXPECT_EQ(answer.headers.at("referrer-policy"), "no-referrer");
  const size_t nonce = policy.find("'nonce-") + 7;
  EXPECT_NE(
      answer.body.find("nonce=\"" + policy.substr(nonce, policy.find('\'', nonce) - nonce) + '"'),
      std::string::npos);
  // Namespaces of SVG alone.
  for (size_t at = answer.body.find("//"); at != std::string::npos;
       at = answer.body.find("//", at + 1))
    EXPECT_TRUE(answer.body.substr(at).starts_with("//www.w3.org/2000/svg") ||
                answer.body.substr(at).starts_with("// ") || answer.body[at - 1] == '\\' ||
                answer.body[at + 2] == ' ')
        << answer.body.substr(at, 40);
  EXPECT_EQ(answer.body.find("/*"), std::string::npos) << "a place that nothing was put into";
}

TEST_F(LivePageTest, EventsComeAsTheRunGoesOn) {
  page();
  http::Client client(page_->port());
  client.send(request("/events?key=0123456789abcdef"));
  ASSERT_TRUE(client.read_until("event: rows\ndata: {\"reset\":true,")) << client.unread();
  ASSERT_TRUE(client.read_until("event: samples\n"));
  ASSERT_TRUE(client.read_until("event: status\n"));
  ASSERT_TRUE(client.read_until("\"steps\":10,"));
  EXPECT_NE(client.unread().find("text/event-stream"), std::string::npos);
  run_.add_row(3, {{"reward/mean", 0.875}});
  ASSERT_TRUE(client.read_until("\"reward/mean\":0.875"));
  EXPECT_NE(client.unread().find("{\"reset\":false,"), std::string::npos);
  // Another page has all of it at once, and the first one goes on.
  http::Client other(page_->port());
  other.send(request("/events?key=0123456789abcdef"));
  ASSERT_TRUE(other.read_until("\"reward/mean\":0.875"));
  other.close();
  run_.add_row(4, {{"reward/mean", 0.9375}});
  ASSERT_TRUE(client.read_until("\"reward/mean\":0.9375"));
}

TEST_F(LivePageTest, PagesAreBounded) {
  page();
  std::vector<std::unique_ptr<http::Client>> clients;
  for (size_t i = 0; i < LivePage::kMostReaders; ++i) {
    clients.push_back(std::make_unique<http::Client>(page_->port()));
    clients.back()->send(request("/events?key=0123456789abcdef"));
    ASSERT_TRUE(clients.back()->read_until("event: status\n"));
  }
  EXPECT_EQ(get("/events?key=0123456789abcdef").status, 503);
  EXPECT_EQ(get("/metrics?key=0123456789abcdef").status, 200);
  // The place of one that has gone is free again.
  clients.pop_back();
  for (int tries = 0;; ++tries) {
    http::Client client(page_->port());
    client.send(request("/events?key=0123456789abcdef"));
    ASSERT_TRUE(client.read_until("\r\n\r\n"));
    if (client.unread().starts_with("HTTP/1.1 200")) break;
    ASSERT_LT(tries, 200);
    std::this_thread::sleep_for(20ms);
  }
}

TEST_F(LivePageTest, ForPrometheus) {
  page();
  const http::Answer answer = get("/metrics?key=0123456789abcdef");
  EXPECT_EQ(answer.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_NE(answer.body.find("\ntailrace_reward_mean 0.5\n"), std::string::npos) << answer.body;
}

TEST_F(LivePageTest, AKeyStandsInAnAddressAsItIs) {
  for (const char* key : {"short", "0123456789 abcdef", "0123456789&abcdef", "0123456789abcde\n"})
    EXPECT_THROW(LivePage(run_.name(), {.key = key}), UserError) << key;
  const LivePage first(run_.name(), {}), second(run_.name(), {});
  EXPECT_NE(first.url().substr(first.url().find("key=")),
            second.url().substr(second.url().find("key=")));
  EXPECT_THROW(LivePage(run_.name(), {.port = first.port(), .key = {}}), UserError)
      << "the port is taken";
}

std::string text_of(const std::filesystem::path& file) {
  const auto text = read_file(file);
  return text ? text.value() : "";
}

// A real browser (Debian: chromium-driver), told what to do by WebDriver.
class Browser {
 public:
  explicit Browser(const std::filesystem::path& log)
      : driver_(ChildProcess::spawn({"/usr/bin/chromedriver", "--port=0"}, log).value()) {
    constexpr std::string_view kPort = "successfully on port ";
    for (int i = 0; i < 600 && port_ == 0; ++i) {
      const std::string text = text_of(log);
      const size_t at = text.find(kPort);
      if (at != text.npos) port_ = static_cast<uint16_t>(std::stoi(text.substr(at + kPort.size())));
      std::this_thread::sleep_for(50ms);
    }
    const json made = call("POST", "",
                           {{"capabilities",
                             {{"alwaysMatch",
                               {{"goog:loggingPrefs", {{"browser", "ALL"}}},
                                {"goog:chromeOptions",
                                 {{"args",
                                   {"--headless=new", "--no-sandbox", "--disable-gpu",
                                    "--disable-dev-shm-usage", "--window-size=390,844"}}}}}}}}});
    if (made.contains("sessionId")) session_ = "/" + made.at("sessionId").get<std::string>();
  }
  ~Browser() {
    if (works()) call("DELETE", "", json::object());
  }

  bool works() const { return !session_.empty(); }
  void open(const std::string& url) { call("POST", "/url", {{"url", url}}); }
  json evaluate(const std::string& script) {
    return call("POST", "/execute/sync", {{"script", script}, {"args", json::array()}});
  }
  // The page's complaints.
  json log() { return call("POST", "/se/log", {{"type", "browser"}}); }

 private:
  json call(std::string_view method, std::string_view path, const json& body) {
    http::Client client(port_);
    const std::string text = body.dump();
    client.send(
        fmt::format("{} /session{}{} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Type: "
                    "application/json\r\nContent-Length: {}\r\n\r\n{}",
                    method, session_, path, port_, text.size(), text));
    const http::Answer answer = client.read_answer();
    return answer.is_whole ? json::parse(answer.body).value("value", json()) : json::object();
  }

  ChildProcess driver_;
  uint16_t port_ = 0;
  std::string session_;
};

TEST_F(LivePageTest, InABrowser) {
  if (!std::filesystem::exists("/usr/bin/chromedriver"))
    GTEST_SKIP() << "no browser: install chromium-driver";
  page();
  Browser browser(run_.folder / "chromedriver.log");
  ASSERT_TRUE(browser.works()) << text_of(run_.folder / "chromedriver.log");
  browser.open(page_->url());
  const auto until = [&](const std::string& condition) {
    for (int i = 0; i < 400; ++i) {
      if (browser.evaluate("return " + condition) == true) return true;
      std::this_thread::sleep_for(50ms);
    }
    return false;
  };
  ASSERT_TRUE(until("document.querySelectorAll('.chart').length == 2")) << browser.log();
  EXPECT_EQ(browser.evaluate("return document.querySelector('.chart output').textContent"), "0.5");
  EXPECT_EQ(browser.evaluate("return document.getElementById('link').textContent"), "live");
  ASSERT_TRUE(until("document.querySelectorAll('#workers tbody tr').length == 1"));
  // A row that comes while somebody looks.
  run_.add_row(3, {{"reward/mean", 0.75}, {"eval/success", 1.0}});
  EXPECT_TRUE(until("document.querySelector('.chart output').textContent == '0.75'"));
  // The text of a sample is text.
  ASSERT_TRUE(until("document.querySelectorAll('.sample').length == 1"));
  EXPECT_EQ(browser.evaluate("return document.querySelector('.sample mark').textContent"),
            "<script>document.title='taken'</script>");
  EXPECT_NE(browser.evaluate("return document.title"), "taken");
  // Nothing is wider than a phone.
  EXPECT_EQ(browser.evaluate("return document.documentElement.scrollWidth <= innerWidth"), true);
  EXPECT_EQ(browser.log(), json::array());
}

}  // namespace
}  // namespace tailrace
