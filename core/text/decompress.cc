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

// 15 bits are the largest window, and 16 asks for the header and the checksum of gzip.
constexpr int kGzipWindow = 15 + 16;
// The window of zstd that its own tool takes without being asked (128 MiB).
constexpr int kZstdWindow = 27;

// The result of one call of a library.
struct Turn {
  size_t taken = 0, made = 0;
  bool ended = false;       // a member or frame
  std::string damage = {};  // empty: none
};

}  // namespace

class Unpacker::Library {
 public:
  virtual ~Library() = default;
  virtual bool ready() const = 0;
  virtual void begin() = 0;  // another member or frame
  virtual Turn turn(std::string_view packed, std::string& piece) = 0;
};

class Unpacker::Inflate final : public Library {
 public:
  Inflate() : ready_(inflateInit2(&stream_, kGzipWindow) == Z_OK) {}
  ~Inflate() override {
    if (ready_) inflateEnd(&stream_);
  }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;

  bool ready() const override { return ready_; }
  void begin() override { inflateReset(&stream_); }
  Turn turn(std::string_view packed, std::string& piece) override {
    // zlib does not write to its input; the pointer only lacks the const. Its sizes have 32 bits.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(std::min(packed.size(), Unpacker::kPiece));
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

class Unpacker::Unzstd final : public Library {
 public:
  Unzstd() : stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (stream_) ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindow);
  }

  bool ready() const override { return stream_ != nullptr; }
  void begin() override { ZSTD_DCtx_reset(stream_.get(), ZSTD_reset_session_only); }
  Turn turn(std::string_view packed, std::string& piece) override {
    ZSTD_inBuffer in{packed.data(), std::min(packed.size(), Unpacker::kPiece), 0};
    ZSTD_outBuffer out{piece.data(), piece.size(), 0};
    const size_t left = ZSTD_decompressStream(stream_.get(), &out, &in);
    Turn turn{in.pos, out.pos, left == 0};
    if (ZSTD_isError(left)) turn.damage = ZSTD_getErrorName(left);
    return turn;
  }

 private:
  std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
};

std::optional<Packing> packing_of(std::string_view bytes) {
  if (bytes.starts_with("\x1f\x8b")) return Packing::kGzip;
  if (bytes.starts_with("\x28\xb5\x2f\xfd")) return Packing::kZstd;
  return std::nullopt;
}

Unpacker::Unpacker(Packing packing) : packing_(packing) {
  if (packing == Packing::kGzip) {
    library_ = std::make_unique<Inflate>();
  } else {
    library_ = std::make_unique<Unzstd>();
  }
}
Unpacker::~Unpacker() = default;
Unpacker::Unpacker(Unpacker&&) noexcept = default;

Result<bool> Unpacker::turn(std::string_view& packed, bool are_last, std::string& text) {
  beat();
  const std::string_view name = name_of(packing_);
  if (!library_->ready()) return Failure{"there is no memory to decompress it"};
  // A file may be several members or frames, one behind the other, as `cat a.gz b.gz` writes. The
  // magic is looked at before each, and it may be cut by the end of a piece.
  if (is_between_) {
    if (packed.empty() && are_last) return false;
    constexpr size_t kMagic = 4;  // of the longer one
    if (packed.size() < kMagic && !are_last) return false;
    if (packing_of(packed) != packing_)
      return Failure{fmt::format("there is something else behind its {} data", name)};
    library_->begin();
    is_between_ = false;
  }
  const Turn turn = library_->turn(packed, piece_);
  if (!turn.damage.empty())
    return Failure{fmt::format("its {} data is damaged ({})", name, turn.damage)};
  packed.remove_prefix(turn.taken);
  text.append(piece_, 0, turn.made);
  is_between_ = turn.ended;
  if (turn.ended || turn.taken > 0 || turn.made > 0) return true;
  // Nothing is left to take, and nothing to give.
  if (are_last) return Failure{fmt::format("its {} data is cut: the end is missing", name)};
  return false;
}

}  // namespace tailrace::text
