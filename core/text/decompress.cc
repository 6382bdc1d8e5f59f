#include "core/text/decompress.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include <fmt/format.h>
#include <zlib.h>
#include <zstd.h>

#include "kernels/base/pulse.h"

namespace tailrace::text {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // of bytes and of text, at a time
// 15 bits are the largest window, and 16 asks for the header and the checksum of gzip.
constexpr int kGzipWindow = 15 + 16;
// Of zstd: what its own tool takes without being asked (128 MiB).
constexpr int kZstdWindow = 27;

// What one call of a library has done.
struct Turn {
  size_t taken = 0, made = 0;
  bool ended = false;       // a member or frame
  std::string damage = {};  // empty: none
};

class Inflate {
 public:
  Inflate() : ready_(inflateInit2(&stream_, kGzipWindow) == Z_OK) {}
  ~Inflate() {
    if (ready_) inflateEnd(&stream_);
  }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;

  bool ready() const { return ready_; }
  void begin() { inflateReset(&stream_); }
  Turn turn(std::string_view packed, std::string& piece) {
    // zlib does not write to its input; the pointer only lacks the const. Its sizes have 32 bits.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(std::min(packed.size(), kPiece));
    stream_.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream_.avail_out = static_cast<uInt>(piece.size());
    const size_t given = stream_.avail_in;
    const int state = inflate(&stream_, Z_NO_FLUSH);
    Turn turn{given - stream_.avail_in, piece.size() - stream_.avail_out, state == Z_STREAM_END};
    if (state != Z_STREAM_END && state != Z_OK && state != Z_BUF_ERROR)
      turn.damage = stream_.msg != nullptr ? stream_.msg : "zlib gives no reason";
    return turn;
  }

 private:
  z_stream stream_ = {};
  bool ready_;
};

class Unzstd {
 public:
  Unzstd() : stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (stream_) ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindow);
  }

  bool ready() const { return stream_ != nullptr; }
  void begin() { ZSTD_DCtx_reset(stream_.get(), ZSTD_reset_session_only); }
  Turn turn(std::string_view packed, std::string& piece) {
    ZSTD_inBuffer in{packed.data(), std::min(packed.size(), kPiece), 0};
    ZSTD_outBuffer out{piece.data(), piece.size(), 0};
    const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
    Turn turn{in.pos, out.pos, left == 0};
    if (ZSTD_isError(left)) turn.damage = ZSTD_getErrorName(left);
    return turn;
  }

 private:
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
};

template <class Library>
Result<std::string> all_of(Packing packing, std::string_view packed, int64_t max_bytes) {
  const std::string_view name = name_of(packing);
  Library library;
  if (!library.ready()) return Failure{"there is no memory to decompress it"};
  std::string text, piece(kPiece, '\0');
  while (true) {
    beat();
    const Turn turn = library.turn(packed, piece);
    if (!turn.damage.empty())
      return Failure{fmt::format("its {} data is damaged ({})", name, turn.damage)};
    packed.remove_prefix(turn.taken);
    if (static_cast<int64_t>(text.size() + turn.made) > max_bytes)
      return Failure{fmt::format("decompressed it has more than {} bytes", max_bytes)};
    text.append(piece, 0, turn.made);
    if (turn.ended) {
      if (packed.empty()) return text;
      if (packing_of(packed) != packing)
        return Failure{fmt::format("there is something else behind its {} data", name)};
      library.begin();
    } else if (turn.taken == 0 && turn.made == 0) {
      // Nothing is left to take, and nothing to give.
      return Failure{fmt::format("its {} data is cut: the end is missing", name)};
    }
  }
}

}  // namespace

std::optional<Packing> packing_of(std::string_view bytes) {
  if (bytes.starts_with("\x1f\x8b")) return Packing::kGzip;
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return Packing::kZstd;
  return std::nullopt;
}

Result<std::string> decompress(Packing packing, std::string_view bytes, int64_t max_bytes) {
  return packing == Packing::kGzip ? all_of<Inflate>(packing, bytes, max_bytes)
                                   : all_of<Unzstd>(packing, bytes, max_bytes);
}

}  // namespace tailrace::text
