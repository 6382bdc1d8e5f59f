// Text that is compressed by gzip or zstd, told by its first bytes.
//
// Thread: any for the functions; one at a time for each Unpacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/enum_names.h"
#include "core/base/result.h"

namespace tailrace::text {

enum class Packing : uint8_t { kGzip, kZstd };
constexpr auto enum_names(Packing) {
  return name_table<Packing>({{Packing::kGzip, "gzip"}, {Packing::kZstd, "zstd"}});
}

// Nothing: the bytes are as they are.
std::optional<Packing> packing_of(std::string_view bytes);

// Unpacks piece by piece, so that whoever reads decides how much of the text there may be: a small
// file may stand for more than there is room for. Several members or frames, one behind the other,
// are one text.
class Unpacker {
 public:
  static constexpr size_t kPiece = size_t{1} << 20;

  explicit Unpacker(Packing packing);
  ~Unpacker();
  Unpacker(Unpacker&&) noexcept;

  // Takes bytes from the front of `packed`, and appends at most kPiece bytes to `text`. False: it
  // needs more bytes than there are, or, of the last ones, all is unpacked. A Failure says what is
  // wrong with the data: damaged, cut, or followed by something else.
  Result<bool> turn(std::string_view& packed, bool are_last, std::string& text);

 private:
  class Library;
  class Inflate;
  class Unzstd;

  Packing packing_;
  std::unique_ptr<Library> library_;
  std::string piece_ = std::string(kPiece, '\0');
  bool is_between_ = false;  // behind a member or frame
};

}  // namespace tailrace::text
