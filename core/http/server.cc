#include "core/http/server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "core/base/error.h"
#include "core/http/exchange.h"
#include "core/http/listening_socket.h"
#include "kernels/base/mutex.h"

namespace tailrace::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;
using Socket = asio::generic::stream_protocol::socket;
using Parser = beast::http::request_parser<beast::http::string_body>;

constexpr size_t kReadBytes = size_t{64} << 10;
// How long a connection that the server ends may still send: bytes that nobody reads would take the
// last answer from its reader (a reset).
constexpr Time kLinger = std::chrono::seconds(2);
// Behind an error of accept() that does not go away at once, such as too many open files.
constexpr Time kAcceptPause = std::chrono::milliseconds(100);
constexpr int kAcceptsAtOnce = 64;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kStreamComment = ":\n\n";  // of server-sent events

// An error in a request, as it is answered.
struct Refusal {
  int status;
  std::string message;
};

Refusal refusal_of(const error_code& error, const std::string& bytes,
                   const ServerOptions& options) {
  using Fault = beast::http::error;
  if (error == Fault::header_limit)
    return {431, fmt::format("the header of the request has more than {} bytes",
                             options.max_header_bytes)};
  if (error == Fault::body_limit)
    return {413,
            fmt::format("the body of the request has more than {} bytes{}", options.max_body_bytes,
                        options.body_limit.empty() ? "" : " (" + options.body_limit + ")")};
  // The first byte of a handshake of TLS.
  if (bytes.starts_with('\x16'))
    return {400, "the connection begins with TLS; the URL of this server begins with http://"};
  if (error == Fault::bad_version) return {505, "the request is not of HTTP/1.0 or HTTP/1.1"};
  return {400, fmt::format("the request is not HTTP/1.1: {}", error.message())};
}

// All but its body.
Request head_of(const beast::http::request<beast::http::string_body>& message) {
  Request request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    request.headers.emplace_back(std::move(name), std::string(field.value()));
  }
  return request;
}

// The rest of the files is for the process.
int64_t most_connections(const ServerOptions& options) {
  if (options.max_connections > 0) return options.max_connections;
  rlimit files{};
  constexpr int64_t kMost = 131'072;
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= 2 * kMost) return kMost;
  return std::clamp<int64_t>(static_cast<int64_t>(files.rlim_cur) / 4 * 3, 1, kMost);
}

}  // namespace

class Loop final : public Poster {
 public:
  bool post(std::function<void()> work) override {
    MutexLock lock(mu_);
    if (has_ended_) return false;
    asio::post(io, std::move(work));
    return true;
  }

  // The last work that is taken.
  void post_last(std::function<void()> work) {
    MutexLock lock(mu_);
    has_ended_ = true;
    asio::post(io, std::move(work));
  }

  asio::io_context io{1};

 private:
  Mutex mu_;
  bool has_ended_ TR_GUARDED_BY(mu_) = false;
};

struct Shared;

// One client. The states follow each other in a ring: a request is read, answered, and its answer
// written; the last answer ends in draining. Bytes are read in all of them.
//
// Thread: the server's.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, Socket socket, bool is_refused);

  void start();
  // The connection ends at once.
  void close();

 private:
  enum class State { kReading, kAnswering, kDraining, kClosed };

  void wait_readable();
  void on_readable();
  void on_end_of_input();
  void parse();
  void begin_request();
  void on_header();
  void dispatch();
  void refuse(const Refusal& refusal);
  void refuse(const Refusal& refusal, const Request& head);
  void count_body(int64_t bytes);
  void pump();
  void write_own();
  void write_some();
  void on_written(const error_code& error, size_t num_bytes);
  void finish_answer();
  void drain();
  void set_deadline(Time patience);
  void clear_deadline();
  void on_deadline();

  Shared& shared_;
  Socket socket_;
  asio::steady_timer timer_;
  State state_ = State::kReading;
  std::string in_;                // read and not parsed
  bool is_waiting_ = false;       // for bytes of the client
  bool has_ended_input_ = false;  // the client sends no more, but may still read
  const bool is_refused_;         // one connection too many

  std::optional<Parser> parser_;
  bool has_header_ = false, has_begun_ = false;
  int64_t header_bytes_ = 0;  // of the request
  int64_t body_bytes_ = 0;    // of its body so far
  int64_t body_mark_ = 0;     // of them that have won time

  std::shared_ptr<Exchange> exchange_;
  std::string own_;      // bytes to write that are no handler's answer
  std::string writing_;  // what is being written, from written_ on
  size_t written_ = 0;
  bool is_exchange_ = false;  // writing_ is the exchange's
  bool is_last_ = false;      // nothing of the answer follows writing_
};

struct Shared {
  const ServerOptions options;
  const Server::Handler handler;
  const int64_t max_connections = most_connections(options);
  const std::shared_ptr<Loop> loop = std::make_shared<Loop>();
  // The server's thread only.
  std::set<std::shared_ptr<Connection>> connections = {};
  std::vector<char> scratch = std::vector<char>(kReadBytes);
  int64_t reading_bytes = 0;  // of all bodies that are being read

  Refusal too_many_connections() const {
    return {503, fmt::format("the server has {} connections already, which is its most; try again",
                             max_connections)};
  }
  void tell(const Refusal& refusal, const Request& head) const {
    if (options.on_refusal) options.on_refusal(head, refusal.status, refusal.message);
  }
};

Connection::Connection(Shared& shared, Socket socket, bool is_refused)
    : shared_(shared),
      socket_(std::move(socket)),
      timer_(shared.loop->io),
      is_refused_(is_refused) {}

void Connection::start() {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  // Notices a host that vanished while its answer is computed.
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  if (is_refused_) {
    const Refusal refusal = shared_.too_many_connections();
    shared_.tell(refusal, {});
    own_ = whole_answer({.keep_alive = false}, refusal.status,
                        error_body(refusal.message, "server_error"), "application/json",
                        {{"retry-after", "1"}});
    state_ = State::kAnswering;
    is_last_ = true;
    write_own();
  } else {
    begin_request();
  }
  wait_readable();
}

void Connection::close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  count_body(0);
  const auto self = shared_from_this();
  shared_.connections.erase(self);
  error_code ignored;
  socket_.close(ignored);
  timer_.cancel(ignored);
  if (auto exchange = std::exchange(exchange_, nullptr)) {
    exchange->on_output(nullptr);
    exchange->settle(false);
  }
}

void Connection::begin_request() {
  state_ = State::kReading;
  if (in_.empty()) in_ = std::string();  // an idle connection holds no memory
  parser_.emplace();
  parser_->body_limit(static_cast<uint64_t>(shared_.options.max_body_bytes));
  parser_->header_limit(static_cast<uint32_t>(
      std::min<int64_t>(shared_.options.max_header_bytes, std::numeric_limits<int32_t>::max())));
  has_header_ = has_begun_ = false;
  header_bytes_ = body_mark_ = 0;
  count_body(0);
  set_deadline(shared_.options.idle);
}

void Connection::wait_readable() {
  // Bytes read while an answer is computed are the next request; one header of it is enough.
  const bool is_full = state_ == State::kAnswering && in_.size() >= kReadBytes && !has_ended_input_;
  if (is_waiting_ || is_full || state_ == State::kClosed) return;
  is_waiting_ = true;
  // Behind the end of what its client sends a socket is always readable: only its break is news.
  const auto news = has_ended_input_ ? Socket::wait_error : Socket::wait_read;
  socket_.async_wait(news, [self = shared_from_this()](const error_code& error) {
    self->is_waiting_ = false;
    if (error) return self->close();
    self->on_readable();
  });
}

void Connection::on_readable() {
  if (state_ == State::kClosed) return;
  // Behind its end of input a socket has no news but that it broke.
  if (has_ended_input_) return close();
  error_code error;
  const size_t size = socket_.read_some(asio::buffer(shared_.scratch), error);
  if (error == asio::error::would_block || error == asio::error::interrupted)
    return wait_readable();
  if (error == asio::error::eof && state_ == State::kAnswering) return on_end_of_input();
  if (error) return close();
  if (state_ != State::kDraining && !is_refused_) in_.append(shared_.scratch.data(), size);
  if (state_ == State::kReading) parse();
  wait_readable();
}

// A client that has hung up looks like one that waits for its answer and sends no more. The kernel
// of the former resets the connection for whatever is written to it. So something is written that
// means nothing: another "100 Continue", or a comment in a stream. HTTP/1.0 knows no such answer;
// there the end is taken for the client's leaving.
void Connection::on_end_of_input() {
  has_ended_input_ = true;
  if (exchange_ && !exchange_->is_open()) {
    exchange_->stream(kStreamComment);
  } else if (exchange_ && exchange_->is_http10()) {
    return close();
  } else if (exchange_) {
    own_ += kContinue;
    write_own();
  }
  wait_readable();
}

// Takes from in_ what belongs to the request.
void Connection::parse() {
  while (state_ == State::kReading && !in_.empty()) {
    if (!std::exchange(has_begun_, true)) set_deadline(shared_.options.header_patience);
    error_code error;
    const size_t taken = parser_->put(asio::buffer(in_), error);
    if (error && error != beast::http::error::need_more)
      return refuse(refusal_of(error, in_, shared_.options));
    in_.erase(0, taken);
    if (!has_header_) {
      header_bytes_ += static_cast<int64_t>(taken);
      const int64_t size = header_bytes_ + (parser_->is_header_done() ? 0 : in_.size());
      if (size > shared_.options.max_header_bytes)
        return refuse(refusal_of(beast::http::error::header_limit, in_, shared_.options));
      if (parser_->is_header_done()) {
        has_header_ = true;
        parser_->eager(true);  // all chunks that are there at once
        on_header();
      }
    } else if (in_.size() > kReadBytes && taken == 0) {
      return refuse({400, "a chunk of the body begins with a line that does not end"});
    }
    if (state_ != State::kReading) return;
    // Bodies that are being read share one bound, so that many clients at once cannot take the
    // memory that each alone may have.
    count_body(static_cast<int64_t>(parser_->get().body().size()));
    if (shared_.reading_bytes > shared_.options.max_reading_bytes)
      return refuse({503, fmt::format("the server reads {} bytes of requests already, which is its "
                                      "most; try again",
                                      shared_.options.max_reading_bytes)});
    if (parser_->is_done()) return dispatch();
    if (body_bytes_ >= body_mark_ + static_cast<int64_t>(kReadBytes)) {
      // A long body wins time with each 64 KiB: one that drips runs into the deadline.
      body_mark_ = body_bytes_;
      set_deadline(shared_.options.header_patience);
    }
    if (error == beast::http::error::need_more) return;
  }
}

void Connection::count_body(int64_t bytes) {
  shared_.reading_bytes += bytes - body_bytes_;
  body_bytes_ = bytes;
}

void Connection::on_header() {
  set_deadline(shared_.options.header_patience);
  const auto& header = parser_->get();
  const auto coding = header[beast::http::field::transfer_encoding];
  if (!coding.empty() && !beast::iequals(coding, "chunked"))
    return refuse({501, "the only transfer-encoding that this server knows is chunked"});
  const auto expect = header[beast::http::field::expect];
  if (expect.empty() || header.version() < 11) return;
  if (!beast::iequals(expect, "100-continue"))
    return refuse({400, "the only expectation that this server knows is 100-continue"});
  if (parser_->is_done() || !in_.empty()) return;  // the client does not wait
  own_ += kContinue;
  write_own();
}

void Connection::dispatch() {
  auto message = parser_->release();
  parser_.reset();
  count_body(0);     // it is the handler's
  clear_deadline();  // the handler takes the time that it takes
  state_ = State::kAnswering;
  is_last_ = false;

  Request request = head_of(message);
  const AnswerForm form{.is_http10 = message.version() < 11,
                        .is_head = request.method == "HEAD",
                        .keep_alive = message.keep_alive() && message.version() >= 11};
  // A handler knows no HEAD; the exchange leaves the body out.
  if (form.is_head) request.method = "GET";
  if (!take_absolute_form(request))
    return refuse({400, "the target of the request is no URL of this server"}, request);
  request.body = std::move(message.body());

  exchange_ = std::make_shared<Exchange>(shared_.loop, form, shared_.options.max_unsent_bytes);
  exchange_->on_output([this] { pump(); });
  Reply reply(exchange_->handle());
  if (request.method == "OPTIONS") {
    reply.send(204, "", "", {{"allow", "GET, HEAD, POST, OPTIONS"}});
    return;
  }
  try {
    shared_.handler(std::move(request), reply);
  } catch (const std::exception& error) {
    reply.send(500, error_body(fmt::format("the server failed: {}", error.what()), "server_error"));
  }
}

// Refuses the request that is being read.
void Connection::refuse(const Refusal& refusal) {
  Request head = head_of(parser_->get());
  (void)take_absolute_form(head);
  refuse(refusal, head);
}

// The connection ends with it: where the next request begins is not known.
void Connection::refuse(const Refusal& refusal, const Request& head) {
  shared_.tell(refusal, head);
  parser_.reset();
  count_body(0);
  in_.clear();
  state_ = State::kAnswering;
  is_last_ = true;
  own_ += whole_answer(
      {.keep_alive = false}, refusal.status,
      error_body(refusal.message, refusal.status >= 500 ? "server_error" : "invalid_request_error"),
      "application/json");
  write_own();
}

// The exchange has output or is cut, or all of the output before it was written.
void Connection::pump() {
  if (state_ != State::kAnswering || !exchange_) return;
  if (exchange_->is_cut()) return close();
  if (!writing_.empty()) return;
  Exchange::Output output = exchange_->take();
  is_last_ = output.is_last;
  is_exchange_ = true;
  writing_ = std::move(output.bytes);
  written_ = 0;
  if (writing_.empty()) {
    if (is_last_) finish_answer();
    return;
  }
  write_some();
}

// Behind what is being written.
void Connection::write_own() {
  if (!writing_.empty()) return;
  writing_ = std::exchange(own_, {});
  is_exchange_ = false;
  written_ = 0;
  write_some();
}

void Connection::write_some() {
  if (state_ == State::kAnswering) set_deadline(shared_.options.header_patience);
  socket_.async_write_some(asio::buffer(writing_.data() + written_, writing_.size() - written_),
                           [self = shared_from_this()](const error_code& error, size_t num_bytes) {
                             self->on_written(error, num_bytes);
                           });
}

void Connection::on_written(const error_code& error, size_t num_bytes) {
  if (state_ == State::kClosed) return;
  if (error) return close();
  written_ += num_bytes;
  if (exchange_ && is_exchange_) exchange_->wrote(num_bytes);
  if (written_ < writing_.size()) return write_some();
  writing_.clear();
  if (!own_.empty()) return write_own();
  if (state_ != State::kAnswering) return;
  clear_deadline();
  if (is_last_) return finish_answer();
  pump();
}

void Connection::finish_answer() {
  bool keep_alive = false;
  if (auto exchange = std::exchange(exchange_, nullptr)) {
    keep_alive = exchange->keeps_alive();
    exchange->on_output(nullptr);
    exchange->settle(true);
  }
  if (state_ == State::kClosed) return;
  if (!keep_alive) return drain();
  begin_request();
  parse();
  if (has_ended_input_ && state_ == State::kReading) return close();
  wait_readable();
}

void Connection::drain() {
  state_ = State::kDraining;
  in_.clear();
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
  if (error || has_ended_input_) return close();
  set_deadline(kLinger);
  wait_readable();
}

void Connection::set_deadline(Time patience) {
  timer_.expires_after(patience);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (!error) self->on_deadline();
  });
}

// Not cancel(): a timer that has expired already would still be heard.
void Connection::clear_deadline() { timer_.expires_at(asio::steady_timer::time_point::max()); }

void Connection::on_deadline() {
  // It was set again after it had expired.
  if (state_ == State::kClosed || timer_.expiry() > asio::steady_timer::clock_type::now()) return;
  // A connection that has sent nothing of a request is closed without a word: it was idle.
  if (state_ == State::kReading && has_begun_)
    return refuse({408, "the request did not come in time"});
  close();
}

// A socket that listens.
//
// Thread: the server's.
class Listener : public std::enable_shared_from_this<Listener> {
 public:
  explicit Listener(Shared& shared)
      : shared_(shared), listening_(shared.loop->io), pause_(shared.loop->io) {}

  // False: the descriptor is no socket.
  bool open(FileDescriptor listening) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    if (::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
      return false;
    family_ = address.ss_family;
    error_code error;
    listening_.assign(listening.get(), error);
    if (error) return false;
    (void)listening.release();
    listening_.non_blocking(true, error);
    return !error;
  }

  void accept() {
    if (!listening_.is_open()) return;
    listening_.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const error_code& error) {
                            if (!error) self->on_connections();
                          });
  }

  void close() {
    error_code ignored;
    listening_.close(ignored);
    pause_.cancel(ignored);
  }

 private:
  void on_connections();

  Shared& shared_;
  asio::posix::stream_descriptor listening_;
  asio::steady_timer pause_;
  int family_ = AF_INET;
};

void Listener::on_connections() {
  for (int i = 0; i < kAcceptsAtOnce && listening_.is_open(); ++i) {
    FileDescriptor client(
        ::accept4(listening_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!client.is_open()) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) break;
      if (errno == EINTR || errno == ECONNABORTED) continue;
      pause_.expires_after(kAcceptPause);
      pause_.async_wait([self = shared_from_this()](const error_code& error) {
        if (!error) self->accept();
      });
      return;
    }
    const auto size = static_cast<int64_t>(shared_.connections.size());
    const int64_t most = shared_.max_connections;
    // Connections that are refused linger for their answer, but not without bound.
    if (size >= most + most / 8 + 16) {
      shared_.tell(shared_.too_many_connections(), {});
      continue;
    }
    error_code error;
    Socket socket(shared_.loop->io);
    socket.assign(asio::generic::stream_protocol(family_, 0), client.get(), error);
    if (error) continue;
    (void)client.release();
    socket.non_blocking(true, error);
    auto connection = std::make_shared<Connection>(shared_, std::move(socket), size >= most);
    shared_.connections.insert(connection);
    connection->start();
  }
  accept();
}

struct Server::Impl {
  Impl(const ServerOptions& options, Handler handler)
      : shared{.options = options, .handler = std::move(handler)},
        work(shared.loop->io.get_executor()) {}

  // The server's thread, which is the first to see a connection.
  void add(FileDescriptor listening) {
    const int number = listening.get();
    auto listener = std::make_shared<Listener>(shared);
    if (!listener->open(std::move(listening))) return;
    listeners[number] = listener;
    listener->accept();
  }

  void remove(int number) {
    const auto found = listeners.find(number);
    if (found == listeners.end()) return;
    found->second->close();
    listeners.erase(found);
  }

  void end() {
    for (const auto& [number, listener] : listeners) listener->close();
    listeners.clear();
    while (!shared.connections.empty()) {
      const auto connection = *shared.connections.begin();
      connection->close();
    }
    work.reset();
  }

  Shared shared;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  std::map<int, std::shared_ptr<Listener>> listeners;  // the server's thread only
  uint16_t port = 0;
  std::jthread thread;
};

Server::Server(const ServerOptions& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {
  FileDescriptor listening = listening_socket(options.address, options.port);
  impl_->port = port_of(listening.get());
  impl_->add(std::move(listening));
  impl_->thread = std::jthread([impl = impl_.get()] { impl->shared.loop->io.run(); });
}

Server::~Server() {
  impl_->shared.loop->post_last([impl = impl_.get()] { impl->end(); });
  impl_->thread.join();
}

uint16_t Server::port() const { return impl_->port; }

void Server::catch_up() {
  // The end of a write is work that the thread gives itself when its client may have read it
  // already; a "100 Continue" may have to be written behind it.
  constexpr int kRounds = 3;
  for (int i = 0; i < kRounds; ++i) {
    auto done = std::make_shared<std::promise<void>>();
    std::future<void> is_done = done->get_future();
    if (!impl_->shared.loop->post([done] { done->set_value(); })) return;
    is_done.wait();
  }
}

void Server::listen_on(FileDescriptor listening) {
  // std::function wants a copy of what it holds.
  auto held = std::make_shared<FileDescriptor>(std::move(listening));
  (void)impl_->shared.loop->post([impl = impl_.get(), held] { impl->add(std::move(*held)); });
}

void Server::stop_listening(int listening) {
  (void)impl_->shared.loop->post([impl = impl_.get(), listening] { impl->remove(listening); });
}

}  // namespace tailrace::http
