// What has crossed a link, for a test that asks whether a text can be read there. The bytes of
// each TCP connection are put in order by their sequence numbers, so that a text is found which
// two packets share; of other protocols each packet's payload is kept as it is.
//
// Everything is kept in memory.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/mutex.h"

namespace tailrace {

class Recording {
 public:
  // An IPv4 packet with its header. Anything else is kept whole.
  void add(std::span<const std::byte> packet);

  // Whether `text` is in what one connection carried one way, or in one packet of another protocol.
  bool contains(std::string_view text) const;
  // Payload, with the headers of TCP; what was sent again counts again.
  int64_t bytes() const;

 private:
  struct Stream {
    uint32_t begin = 0;  // sequence number of the first byte
    std::string bytes;
  };
  void add_segment(std::string flow, std::string_view segment) TR_REQUIRES(mu_);

  mutable Mutex mu_;
  std::map<std::string, Stream> open_ TR_GUARDED_BY(mu_);  // by addresses and ports
  std::vector<std::string> closed_ TR_GUARDED_BY(mu_);     // their ports were used again
  std::vector<std::string> other_packets_ TR_GUARDED_BY(mu_);
  int64_t bytes_ TR_GUARDED_BY(mu_) = 0;
};

}  // namespace tailrace
