// The files of a shelf, over a router: what the gate of a run and a relay of weights share. A file
// whose digests are not computed yet, or that a relay fetches itself, is told of again when it is
// ready. Chunks are given one for each request, so a slow peer delays nobody else.
//
// Thread: the router's.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/gate/file_shelf.h"
#include "core/wire/gate_frames.h"
#include "core/wire/socket.h"
#include "core/wire/wakeup.h"

namespace tailrace {

class FileDesk {
 public:
  // Borrows router and bell. The bell rings when answer_waiting() has something to do.
  FileDesk(wire::Socket& router, FileShelf::Find find, wire::Wakeup& bell);

  void on(const wire::Socket::Received& received, const wire::AskFile& ask);
  void on(const wire::Socket::Received& received, const wire::AskChunk& ask);
  void answer_waiting();

  int64_t num_chunks() const { return chunks_; }  // handed out

 private:
  struct Asked {
    std::string peer, name;
    bool is_arriving;  // it is not on the shelf before it is there
  };
  bool is_answered(Asked& ask);

  wire::Socket& router_;
  FileShelf shelf_;
  std::deque<Asked> asked_;  // answered kLater
  int64_t chunks_ = 0;
};

}  // namespace tailrace
