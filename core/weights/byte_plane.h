// Planes of bytes, coded by zstd: how a delta stores gaps, bitmaps and symbols.
//
// Planes have skewed bytes and hardly any repetition, so zstd is told to look for few matches: what
// remains is Huffman coding, which is faster and gives fewer bytes. It still takes chance for a
// match where most bytes are among a few, and is slow there, and a code has a bit at least. So
// small values are packed first, as digits of 4, 2 or 1 bits of which several make a byte. The
// largest digit stands for its value and those above; what they exceed it by is another plane.
//
// A plane is
//
//   size, digit       how many values; bits of a digit, 8 being the value itself
//   digits, excess    each: its size (of the digits: none, it follows), the size in which it is
//                     stored, and that: as it is where the two are equal, else a frame of zstd
//
// Numbers are LEB128.
//
// Thread: one at a time for each object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tailrace {

class PlaneWriter {
 public:
  PlaneWriter();
  ~PlaneWriter();

  // The bytes that follow go behind those that `out` has. Borrows it.
  void begin(std::vector<std::byte>& out) { out_ = &out; }
  void put_byte(uint8_t byte) { out_->push_back(static_cast<std::byte>(byte)); }
  void put_number(int64_t number);  // not negative
  void put_plane(std::span<const uint8_t> plane);

 private:
  struct Zstd;
  void put_stored(std::span<const uint8_t> bytes);

  std::unique_ptr<Zstd> zstd_;
  std::vector<std::byte>* out_ = nullptr;
  std::vector<uint8_t> digits_, excess_, packed_;
};

// Takes such bytes apart, and believes nothing of what they say: an answer is empty, or false,
// where they are damaged. Nothing is allocated beyond the sizes that the caller gives.
class PlaneReader {
 public:
  PlaneReader();
  ~PlaneReader();

  void begin(std::span<const std::byte> bytes) { rest_ = bytes; }
  bool at_end() const { return rest_.empty(); }
  std::optional<uint8_t> take_byte();
  std::optional<int64_t> take_number(int64_t max);
  // Into the front of `out`: how many values there are, at most as many as it has room for.
  std::optional<size_t> take_plane(std::span<uint8_t> out);
  // As many as `out` has.
  [[nodiscard]] bool fill(std::span<uint8_t> out) { return take_plane(out) == out.size(); }

 private:
  struct Zstd;
  [[nodiscard]] bool take_stored(std::span<uint8_t> out);

  std::unique_ptr<Zstd> zstd_;
  std::span<const std::byte> rest_;
  std::vector<uint8_t> digits_, excess_;
};

}  // namespace tailrace
