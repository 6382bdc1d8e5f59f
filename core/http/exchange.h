// One request's answer between the threads that give it and the thread that writes it.
//
// Thread: any for what Reply calls; what the connection calls says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/http/request.h"
#include "kernels/base/mutex.h"

namespace tailrace::http {

// Runs work on the server's thread.
//
// Thread: any.
class Poster {
 public:
  virtual ~Poster() = default;
  // False: the server has ended, and the work will not run.
  virtual bool post(std::function<void()> work) = 0;
};

// The properties of a request that decide the form of its answer.
struct AnswerForm {
  bool is_http10 = false;  // knows no chunks: the end of the connection ends a stream
  bool is_head = false;    // the header of the answer alone
  bool keep_alive = true;
};

// Bytes of a whole answer.
std::string whole_answer(const AnswerForm& form, int status, std::string_view body,
                         std::string_view content_type, const Headers& headers = {});

// Body of an error in the form of OpenAI's API. `type` is a word such as "server_error".
std::string error_body(std::string_view message, std::string_view type);

class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Poster> poster, const AnswerForm& form, int64_t max_unsent_bytes)
      : poster_(std::move(poster)), form_(form), max_unsent_bytes_(max_unsent_bytes) {}

  // For a Reply: when its last copy is destroyed, the exchange is given up.
  std::shared_ptr<Exchange> handle();

  void send(int status, std::string_view body, std::string_view content_type,
            const Headers& headers);
  void stream(std::string_view chunk);
  void end();
  bool is_gone() const;
  void when_gone(std::function<void()> tell);
  void when_written(std::function<void(bool)> tell);

  // The rest: on the server's thread.
  struct Output {
    std::string bytes;  // to be written next
    bool is_last = false;
  };
  bool is_open() const;  // nothing of the answer was given
  bool is_http10() const { return form_.is_http10; }
  bool is_cut() const;  // the connection shall end at once, whatever is being written
  Output take();
  void wrote(size_t num_bytes);
  // The answer is written, or its client has gone. Once; runs the callbacks.
  void settle(bool is_written);
  // Called when there is output; nullptr: no more.
  void on_output(std::function<void()> pump) { pump_ = std::move(pump); }
  bool keeps_alive() const;  // whether another request may follow the written answer

 private:
  enum class Phase { kOpen, kStreaming, kEnded };
  enum class Outcome { kPending, kWritten, kGone };

  void give_up();
  void wake();

  const std::shared_ptr<Poster> poster_;
  const AnswerForm form_;
  const int64_t max_unsent_bytes_;
  std::function<void()> pump_;  // the server's thread only

  mutable Mutex mu_;
  Phase phase_ TR_GUARDED_BY(mu_) = Phase::kOpen;
  Outcome outcome_ TR_GUARDED_BY(mu_) = Outcome::kPending;
  std::string out_ TR_GUARDED_BY(mu_);
  int64_t unsent_bytes_ TR_GUARDED_BY(mu_) = 0;  // of out_ and of what was taken
  bool is_cut_ TR_GUARDED_BY(mu_) = false;
  bool is_given_up_ TR_GUARDED_BY(mu_) = false;
  // A stream that was given up lacks its end; the end of the connection says so.
  bool is_broken_off_ TR_GUARDED_BY(mu_) = false;
  bool is_awake_ TR_GUARDED_BY(mu_) = false;  // the server's thread will pump
  std::function<void()> tell_gone_ TR_GUARDED_BY(mu_);
  std::function<void(bool)> tell_written_ TR_GUARDED_BY(mu_);
};

}  // namespace tailrace::http
