#include "core/text/row_file.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>
#include <zlib.h>

#include "core/base/file.h"
#include "core/base/machine.h"
#include "kernels/base/pulse.h"

namespace tailrace::text {
namespace {

// zlib's sizes have 32 bits.
constexpr size_t kPiece = size_t{1} << 20;
// 15 bits are the largest window, and 16 asks for the header and the checksum of gzip.
constexpr int kGzipWindow = 15 + 16;

constexpr std::string_view kParquetMagic = "PAR1";

class Inflate {
 public:
  Inflate() : ready_(inflateInit2(&stream_, kGzipWindow) == Z_OK) {}
  ~Inflate() {
    if (ready_) inflateEnd(&stream_);
  }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;

  // A file may be several of gzip's members, one behind the other, as parallel compressors write.
  // A Failure says what is wrong with the data.
  Result<std::string> all(std::string_view packed, int64_t max_bytes) {
    if (!ready_) return Failure{"there is no memory to decompress it"};
    std::string text;
    std::string piece(kPiece, '\0');
    while (true) {
      beat();
      // zlib does not write to its input; the pointer only lacks the const.
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
      stream_.avail_in = static_cast<uInt>(std::min(packed.size(), kPiece));
      stream_.next_out = reinterpret_cast<Bytef*>(piece.data());
      stream_.avail_out = static_cast<uInt>(piece.size());
      const size_t given = stream_.avail_in;
      const int state = inflate(&stream_, Z_NO_FLUSH);
      const size_t taken = given - stream_.avail_in, made = piece.size() - stream_.avail_out;
      packed.remove_prefix(taken);
      if (static_cast<int64_t>(text.size() + made) > max_bytes)
        return Failure{fmt::format("decompressed it has more than {} bytes", max_bytes)};
      text.append(piece, 0, made);
      if (state == Z_STREAM_END) {
        if (packed.empty()) return text;
        if (!is_gzip(packed)) return Failure{"there is something else behind its gzip data"};
        inflateReset(&stream_);
      } else if (state != Z_OK && state != Z_BUF_ERROR) {
        return Failure{fmt::format("its gzip data is damaged ({})",
                                   stream_.msg != nullptr ? stream_.msg : "zlib gives no reason")};
      } else if (taken == 0 && made == 0) {
        // Nothing is left to take, and nothing to give.
        return Failure{"its gzip data is cut: the end is missing"};
      }
    }
  }

 private:
  z_stream stream_ = {};
  bool ready_;
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

Result<std::string> read_row_file(const std::filesystem::path& path, int64_t max_bytes) {
  Result<std::string> bytes = read_file(path, max_bytes);
  if (!bytes) return bytes;
  if (bytes.value().starts_with(kParquetMagic))
    return Failure{fmt::format(
        "{}: it is a Parquet file; rows are read from JSON Lines, plain or gzip.\n       Try "
        "'python3 {} {} {}'",
        path.string(), kParquetScript, path.string(),
        std::filesystem::path(path).replace_extension(".jsonl.gz").string())};
  if (!is_gzip(bytes.value())) return bytes;
  // A small file may stand for more text than there is room for.
  const int64_t room = memory_facts().available_bytes;
  Result<std::string> text =
      Inflate().all(bytes.value(), room > 0 ? std::min(max_bytes, room) : max_bytes);
  if (!text) return Failure{fmt::format("{}: {}", path.string(), text.failure().message)};
  return text;
}

}  // namespace tailrace::text
