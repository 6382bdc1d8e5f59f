#include "core/http/post.h"

#include <charconv>
#include <utility>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>

namespace tailrace::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = beast::http;

bool is_port(std::string_view text) {
  int port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

// The steps of one request on one connection; the first that fails ends it.
class Post {
 public:
  Post(const Url& url, std::string_view target, std::string body, const PostOptions& options)
      : url_(url),
        resolver_(context_),
        stream_(context_),
        wait_(options.wait),
        limit_(static_cast<uint64_t>(options.max_body_bytes)) {
    request_.version(11);
    request_.method(bhttp::verb::post);
    request_.target(url.path + std::string(target));
    request_.set(bhttp::field::host,
                 url.port == "80" ? url.host : fmt::format("{}:{}", url.host, url.port));
    request_.set(bhttp::field::content_type, "application/json");
    request_.set(bhttp::field::connection, "close");
    if (!options.bearer.empty())
      request_.set(bhttp::field::authorization, "Bearer " + options.bearer);
    request_.body() = std::move(body);
    request_.prepare_payload();
    parser_.body_limit(limit_);
  }

  Result<Posted> run() {
    // Names are looked up on a thread of the resolver, which no deadline of a socket stops.
    stream_.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(wait_));
    resolver_.async_resolve(url_.host, url_.port, [this](auto error, const auto& found) {
      if (failed(error, "is not known")) return;
      stream_.async_connect(found, [this](auto failure, const auto&) {
        if (failed(failure, "does not answer")) return;
        bhttp::async_write(stream_, request_, [this](auto unsent, size_t) {
          if (failed(unsent, "takes no request")) return;
          read();
        });
      });
    });
    context_.run_for(std::chrono::duration_cast<std::chrono::milliseconds>(wait_));
    if (is_done_)
      return Posted{static_cast<int>(parser_.get().result_int()), std::move(parser_.get().body())};
    return Failure{
        fmt::format("{} {}", url_.text(), why_.empty() ? "has not answered in time" : why_)};
  }

 private:
  // The length that an answer says is not held against the limit by the parser.
  void read() {
    bhttp::async_read_header(stream_, buffer_, parser_, [this](auto unread, size_t) {
      if (failed(unread, "gives no answer")) return;
      if (const auto length = parser_.content_length(); length && *length > limit_) {
        failed(make_error_code(bhttp::error::body_limit), "gives no answer");
        return;
      }
      bhttp::async_read(stream_, buffer_, parser_, [this](auto cut, size_t) {
        is_done_ = !failed(cut, "gives no whole answer");
      });
    });
  }
  bool failed(const beast::error_code& error, std::string_view what) {
    if (!error) return false;
    why_ = error == beast::error::timeout ? "has not answered in time"
                                          : fmt::format("{}: {}", what, error.message());
    return true;
  }

  const Url& url_;
  asio::io_context context_;
  asio::ip::tcp::resolver resolver_;
  beast::tcp_stream stream_;
  Time wait_;
  uint64_t limit_;  // of the answer's body
  bhttp::request<bhttp::string_body> request_;
  bhttp::response_parser<bhttp::string_body> parser_;
  beast::flat_buffer buffer_;
  std::string why_;
  bool is_done_ = false;
};

}  // namespace

std::string Url::text() const {
  return port == "80" ? fmt::format("http://{}{}", host, path)
                      : fmt::format("http://{}:{}{}", host, port, path);
}

Result<Url> parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const auto refuse = [&](std::string_view why) {
    return Failure{fmt::format("'{}' {}; write http://HOST:PORT/v1", text, why)};
  };
  if (text.starts_with("https://")) return refuse("is https, which is not spoken here");
  if (!text.starts_with(kScheme)) return refuse("is no address of a server");
  text.remove_prefix(kScheme.size());
  for (const char c : text)
    if (c <= ' ' || c == 127) return refuse("has a blank in it");
  Url url;
  const size_t slash = std::min(text.find('/'), text.size());
  std::string_view place = text.substr(0, slash);
  url.path = text.substr(slash);
  while (url.path.ends_with('/')) url.path.pop_back();
  if (place.find('@') != place.npos) return refuse("names a user");
  if (const size_t colon = place.rfind(':'); colon != place.npos) {
    url.port = place.substr(colon + 1);
    if (!is_port(url.port)) return refuse("has no port from 1 to 65535 behind its ':'");
    place = place.substr(0, colon);
  }
  url.host = place;
  if (url.host.empty()) return refuse("names no host");
  return url;
}

Result<Posted> post_json(const Url& url, std::string_view target, std::string body,
                         const PostOptions& options) {
  return Post(url, target, std::move(body), options).run();
}

}  // namespace tailrace::http
