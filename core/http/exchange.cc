#include "core/http/exchange.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"

namespace tailrace::http {
namespace {

constexpr std::pair<int, std::string_view> kReasons[] = {
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

std::string_view reason_of(int status) {
  for (const auto& [number, reason] : kReasons)
    if (number == status) return reason;
  return "Status";
}

// A value may repeat what a client sent; a line break in it would begin another header.
std::string one_line(std::string_view text) {
  std::string line(text);
  std::replace_if(
      line.begin(), line.end(),
      [](char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; },
      ' ');
  return line;
}

std::string answer_header(const AnswerForm& form, int status, std::string_view content_type,
                          const Headers& headers) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_of(status));
  if (status != 204) text += fmt::format("content-type: {}\r\n", one_line(content_type));
  if (!form.keep_alive) text += "connection: close\r\n";
  for (const auto& [name, value] : headers)
    text += fmt::format("{}: {}\r\n", one_line(name), one_line(value));
  return text;
}

}  // namespace

std::string whole_answer(const AnswerForm& form, int status, std::string_view body,
                         std::string_view content_type, const Headers& headers) {
  std::string answer = answer_header(form, status, content_type, headers);
  if (status != 204) answer += fmt::format("content-length: {}\r\n", body.size());
  answer += "\r\n";
  if (status != 204 && !form.is_head) answer += body;
  return answer;
}

std::string error_body(std::string_view message, std::string_view type) {
  return json_text(nlohmann::ordered_json{
      {"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}});
}

std::shared_ptr<Exchange> Exchange::handle() {
  // The last handle that a handler lets go of ends the exchange: a handler that throws or forgets
  // its reply leaves no client waiting. The pointer itself keeps the exchange alive.
  const std::shared_ptr<void> guard(nullptr,
                                    [self = shared_from_this()](void*) { self->give_up(); });
  return std::shared_ptr<Exchange>(guard, this);
}

void Exchange::send(int status, std::string_view body, std::string_view content_type,
                    const Headers& headers) {
  {
    MutexLock lock(mu_);
    if (phase_ != Phase::kOpen || outcome_ != Outcome::kPending) return;
    phase_ = Phase::kEnded;
    out_ = whole_answer(form_, status, body, content_type, headers);
    unsent_bytes_ = static_cast<int64_t>(out_.size());
  }
  wake();
}

void Exchange::stream(std::string_view chunk) {
  {
    MutexLock lock(mu_);
    if (phase_ == Phase::kEnded || outcome_ != Outcome::kPending) return;
    const size_t before = out_.size();
    if (phase_ == Phase::kOpen) {
      phase_ = Phase::kStreaming;
      out_ += answer_header(form_, 200, "text/event-stream", {{"cache-control", "no-cache"}});
      out_ += form_.is_http10 ? "\r\n" : "transfer-encoding: chunked\r\n\r\n";
    }
    // A client that reads too slowly is cut off: what it has not read must not fill the memory.
    if (unsent_bytes_ > max_unsent_bytes_) {
      phase_ = Phase::kEnded;
      is_cut_ = true;
    } else if (!chunk.empty() && !form_.is_head) {
      // An empty chunk would end the stream.
      if (!form_.is_http10) out_ += fmt::format("{:x}\r\n", chunk.size());
      out_ += chunk;
      if (!form_.is_http10) out_ += "\r\n";
    }
    unsent_bytes_ += static_cast<int64_t>(out_.size() - before);
  }
  wake();
}

void Exchange::end() {
  {
    MutexLock lock(mu_);
    if (phase_ != Phase::kStreaming || outcome_ != Outcome::kPending) return;
    phase_ = Phase::kEnded;
    if (!form_.is_http10 && !form_.is_head) out_ += "0\r\n\r\n";
  }
  wake();
}

void Exchange::give_up() {
  bool is_open;
  {
    MutexLock lock(mu_);
    if (phase_ == Phase::kEnded || outcome_ != Outcome::kPending) return;
    is_given_up_ = true;
    is_open = phase_ == Phase::kOpen;
    if (!is_open) {
      phase_ = Phase::kEnded;
      // A stream that its handler left has no end mark, so the client sees it break off and no half
      // answer that looks whole.
      is_broken_off_ = true;
    }
  }
  if (is_open) {
    send(500, error_body("the server gave no answer", "server_error"), "application/json", {});
  } else {
    wake();
  }
}

bool Exchange::is_gone() const {
  MutexLock lock(mu_);
  return outcome_ == Outcome::kGone || is_cut_;
}

void Exchange::when_gone(std::function<void()> tell) {
  {
    MutexLock lock(mu_);
    if (outcome_ == Outcome::kPending) {
      tell_gone_.swap(tell);  // the one before is destroyed behind the lock
      return;
    }
    if (outcome_ == Outcome::kWritten) return;
  }
  if (!poster_->post(tell)) tell();
}

void Exchange::when_written(std::function<void(bool)> tell) {
  bool is_written;
  {
    MutexLock lock(mu_);
    if (outcome_ == Outcome::kPending) {
      tell_written_.swap(tell);
      return;
    }
    is_written = outcome_ == Outcome::kWritten && !is_given_up_;
  }
  if (!poster_->post([tell, is_written] { tell(is_written); })) tell(is_written);
}

void Exchange::wake() {
  {
    MutexLock lock(mu_);
    // One wake-up is under way at most, however many chunks are streamed before the server's thread
    // runs.
    if (std::exchange(is_awake_, true)) return;
  }
  // Where the server has ended, it has settled the exchange or will.
  (void)poster_->post([self = shared_from_this()] {
    {
      MutexLock lock(self->mu_);
      self->is_awake_ = false;
    }
    // A copy: the pump may end the exchange, and with it pump_.
    if (const auto pump = self->pump_) pump();
  });
}

bool Exchange::keeps_alive() const {
  MutexLock lock(mu_);
  return form_.keep_alive && !is_broken_off_;
}

bool Exchange::is_open() const {
  MutexLock lock(mu_);
  return phase_ == Phase::kOpen;
}

bool Exchange::is_cut() const {
  MutexLock lock(mu_);
  return is_cut_;
}

Exchange::Output Exchange::take() {
  MutexLock lock(mu_);
  return {.bytes = std::exchange(out_, {}), .is_last = phase_ == Phase::kEnded};
}

void Exchange::wrote(size_t num_bytes) {
  MutexLock lock(mu_);
  unsent_bytes_ -= static_cast<int64_t>(num_bytes);
}

void Exchange::settle(bool is_written) {
  std::function<void()> gone;
  std::function<void(bool)> written;
  bool is_told_written;
  {
    MutexLock lock(mu_);
    if (outcome_ != Outcome::kPending) return;
    outcome_ = is_written ? Outcome::kWritten : Outcome::kGone;
    out_.clear();
    is_told_written = is_written && !is_given_up_;
    // Both are destroyed here, with whatever they hold.
    gone = std::exchange(tell_gone_, nullptr);
    written = std::exchange(tell_written_, nullptr);
  }
  // Called without the lock: a callback may use the exchange again.
  if (gone && !is_written) gone();
  if (written) written(is_told_written);
}

}  // namespace tailrace::http
