#include "core/base/version.h"

#include <cstddef>
#include <cstring>
#include <span>

#include <fmt/format.h>
#include <link.h>

namespace tailrace {
namespace {

constexpr std::string_view kVendor("GNU\0", 4);

// The descriptor of the build ID among the notes of a segment: each has a header, a name and a
// descriptor, both filled up to four bytes.
std::string find_build_id(std::span<const std::byte> notes) {
  const auto filled = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    notes = notes.subspan(sizeof note);
    const size_t name = filled(note.n_namesz), descriptor = filled(note.n_descsz);
    if (name + descriptor > notes.size()) return {};
    const std::string_view vendor(reinterpret_cast<const char*>(notes.data()), note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && vendor == kVendor) {
      std::string id;
      for (const std::byte byte : notes.subspan(name, note.n_descsz))
        id += fmt::format("{:02x}", static_cast<unsigned>(byte));
      return id;
    }
    notes = notes.subspan(name + descriptor);
  }
  return {};
}

}  // namespace

std::string_view version() { return TAILRACE_VERSION; }

std::string build_id() {
  std::string id;
  // The first object is the program itself; those behind it are its libraries.
  const auto look = [](dl_phdr_info* info, size_t, void* found) {
    for (const ElfW(Phdr) & header : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
      if (header.p_type != PT_NOTE) continue;
      const auto* begin = reinterpret_cast<const std::byte*>(info->dlpi_addr + header.p_vaddr);
      auto& text = *static_cast<std::string*>(found);
      text = find_build_id({begin, header.p_memsz});
      if (!text.empty()) break;
    }
    // Ends the walk after the first object.
    return 1;
  };
  ::dl_iterate_phdr(look, &id);
  return id;
}

}  // namespace tailrace
