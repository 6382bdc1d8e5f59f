// An IP packet as a TUN device gives and takes it, behind a header of its own. It may be a burst:
// segments of one TCP connection that the sender's kernel hands over in one piece, as to a network
// card that cuts them apart (segmentation offload). Bursts are what makes a fast link cheap: one
// read and one write move up to 44 segments.
//
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tailrace {

// The device's header: virtio_net_hdr of <linux/virtio_net.h>, which a C++ compiler does not read.
struct DeviceHeader {
  static constexpr uint8_t kNeedsSum = 1;  // flags: the checksum is left to who delivers it
  static constexpr uint8_t kNoBurst = 0, kTcpBurst = 1;  // burst_type
  uint8_t flags;
  uint8_t burst_type;
  uint16_t header_bytes;
  uint16_t segment_bytes;
  uint16_t sum_start, sum_offset;
};

class LinkPacket {
 public:
  // What read() gave, the device's header included.
  explicit LinkPacket(std::vector<std::byte> bytes);

  int segments() const { return segments_; }  // packets on a wire
  int64_t wire_bytes() const;                 // of all of them, each with its IP and TCP header
  // Some of the segments, one at least, as a packet of their own.
  LinkPacket slice(int first, int count) const;

  std::span<const std::byte> bytes() const { return bytes_; }  // for write()
  std::span<const std::byte> ip() const;                       // without the device's header

 private:
  std::vector<std::byte> bytes_;
  int segments_ = 1;
  int64_t header_bytes_ = 0;   // IP and TCP; of bursts only
  int64_t segment_bytes_ = 0;  // payload of each but the last; of bursts only
};

}  // namespace tailrace
