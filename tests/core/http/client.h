// A client that says byte by byte what it sends, for tests of servers. Each wait has a deadline.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"

namespace tailrace::http {

struct Answer {
  int status = 0;  // 0: the connection ended or the time was over before there was a whole answer
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};                            // without its chunks
  bool is_whole = false;
};

class Client {
 public:
  explicit Client(uint16_t port);
  explicit Client(FileDescriptor connected);

  void send(std::string_view bytes);
  // The next answer of the connection. `is_head`: it has no body.
  Answer read_answer(bool is_head = false);
  // Reads until `part` has come; false: it did not.
  bool read_until(std::string_view part);
  // Whether the server ends the connection; what else comes is dropped.
  bool is_closed_by_server();
  void shut_down_sending();
  void close() { socket_.reset(); }
  const std::string& unread() const { return in_; }
  int socket() const { return socket_.get(); }

 private:
  bool read_more();

  FileDescriptor socket_;
  std::string in_;
};

std::string post(std::string_view target, std::string_view body, std::string_view headers = "");

}  // namespace tailrace::http
