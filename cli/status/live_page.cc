#include "cli/status/live_page.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/status/live_feed.h"
#include "cli/status/prometheus.h"
#include "cli/view/curves_section.h"
#include "cli/view/report_page.h"
#include "core/base/embedded_file.h"
#include "core/base/error.h"
#include "core/base/random_key.h"
#include "core/http/server.h"
#include "kernels/base/mutex.h"

namespace tailrace {

std::span<const EmbeddedFile> live_page_files();

namespace {

using namespace std::chrono_literals;

// A reader that went away is noticed when nothing can be written to it.
constexpr auto kSignOfLife = 15s;

// Value of `key` in the query of a target; keys are written without escapes.
std::string_view key_in(std::string_view target) {
  const size_t query = target.find('?');
  if (query == target.npos) return {};
  target.remove_prefix(query + 1);
  while (!target.empty()) {
    const std::string_view part = target.substr(0, target.find('&'));
    if (part.starts_with("key=")) return part.substr(4);
    target.remove_prefix(std::min(target.size(), part.size() + 1));
  }
  return {};
}

std::string_view key_of(const http::Request& request) {
  constexpr std::string_view kBearer = "Bearer ";
  const std::string_view header = request.header("authorization");
  return header.starts_with(kBearer) ? header.substr(kBearer.size()) : key_in(request.target);
}

// A key that a person chose has to stand in a URL as it is, and must not be guessed.
std::string chosen_key(const std::string& key) {
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~";
  constexpr size_t kShortest = 16, kLongest = 128;
  if (key.empty()) return random_key();
  if (key.size() < kShortest || key.size() > kLongest ||
      key.find_first_not_of(kAllowed) != key.npos)
    throw UserError("The key of a page has {} to {} letters, digits or any of -._~.", kShortest,
                    kLongest);
  return key;
}

std::string put(std::string text, std::string_view place, std::string_view what) {
  text.replace(text.find(place), place.size(), what);
  return text;
}

std::string event_text(const LiveEvent& event) {
  // JSON on one line has no newline of its own.
  return fmt::format("event: {}\ndata: {}\n\n", event.name, event.data);
}

}  // namespace

struct LivePage::Impl {
  enum class Wish { kEvents, kMetrics };
  struct Reader {
    http::Reply reply;
    Time heard;  // when something was sent last
  };

  LiveFeed feed;
  const std::string key, nonce, page;
  Mutex mutex;
  std::vector<std::pair<Wish, http::Reply>> wishes TR_GUARDED_BY(mutex);
  std::vector<Reader> readers;
  http::Server server;

  Impl(const std::string& run, const LivePageOptions& options)
      : feed(run),
        key(chosen_key(options.key)),
        nonce(random_key()),
        page(make_page()),
        server({.address = "127.0.0.1",
                .port = options.port,
                .max_body_bytes = 1 << 10,
                .body_limit = "a page that is only read",
                .max_connections = 256,
                // A stranger without the key holds a connection for a moment only.
                .header_patience = 5s,
                .idle = 15s},
               [this](http::Request request, http::Reply reply) {
                 answer(std::move(request), std::move(reply));
               }) {}

  std::string make_page() const {
    std::string names;
    for (const std::string_view name : known_metrics())
      names += fmt::format("{}\"{}\"", names.empty() ? "" : ",", name);
    std::string text(live_page_files().front().text);
    text = put(std::move(text), "/*style*/", page_style());
    text = put(std::move(text), "/*known*/", names);
    return put(std::move(text), "/*nonce*/", nonce);
  }

  // On the server's thread.
  void answer(http::Request request, http::Reply reply) {
    const std::string_view target = request.target;
    const std::string_view path = target.substr(0, target.find('?'));
    if (!is_key(key, key_of(request)))
      return reply.send(403,
                        "The address must end in ?key=..., as 'tailrace status RUN --web' printed "
                        "it.\n",
                        "text/plain; charset=utf-8");
    if (request.method != "GET")
      return reply.send(405, "This page is only read.\n", "text/plain", {{"allow", "GET"}});
    if (path == "/")
      return reply.send(
          200, page, "text/html; charset=utf-8",
          {{"content-security-policy",
            fmt::format("default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'; "
                        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'",
                        nonce)},
           {"referrer-policy", "no-referrer"},
           {"x-content-type-options", "nosniff"},
           {"cache-control", "no-store"}});
    if (path != "/events" && path != "/metrics")
      return reply.send(404, "There is /, /events and /metrics.\n", "text/plain");
    MutexLock lock(mutex);
    wishes.emplace_back(path == "/events" ? Wish::kEvents : Wish::kMetrics, std::move(reply));
  }

  void step(Time now) {
    std::vector<std::pair<Wish, http::Reply>> asked;
    {
      MutexLock lock(mutex);
      asked.swap(wishes);
    }
    std::erase_if(readers, [](const Reader& reader) { return reader.reply.is_gone(); });
    if (asked.empty() && readers.empty()) return;
    std::string news;
    const bool shows = !readers.empty() || std::ranges::any_of(asked, [](const auto& wish) {
      return wish.first == Wish::kEvents;
    });
    for (const LiveEvent& event : feed.poll(now, shows)) news += event_text(event);
    for (Reader& reader : readers) {
      const bool quiet = news.empty() && now - reader.heard >= kSignOfLife;
      if (news.empty() && !quiet) continue;
      reader.reply.stream(quiet ? ": still there\n\n" : news);
      reader.heard = now;
    }
    for (auto& [wish, reply] : asked) {
      if (wish == Wish::kMetrics) {
        reply.send(200, prometheus_text(feed.status(), feed.newest()),
                   "text/plain; version=0.0.4; charset=utf-8");
      } else if (readers.size() == kMostReaders) {
        reply.send(503, fmt::format("{} pages are open already.\n", kMostReaders), "text/plain");
      } else {
        std::string all;
        for (const LiveEvent& event : feed.whole()) all += event_text(event);
        reply.stream(std::move(all));
        readers.push_back({std::move(reply), now});
      }
    }
  }
};

LivePage::LivePage(const std::string& run, const LivePageOptions& options)
    : impl_(std::make_unique<Impl>(run, options)) {}

LivePage::~LivePage() {
  for (auto& reader : impl_->readers) reader.reply.end();
}

std::string LivePage::url() const {
  return fmt::format("http://127.0.0.1:{}/?key={}", port(), impl_->key);
}

uint16_t LivePage::port() const { return impl_->server.port(); }

void LivePage::step(Time now) { impl_->step(now); }

}  // namespace tailrace
