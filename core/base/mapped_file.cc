#include "core/base/mapped_file.h"

#include <cerrno>

#include <sys/mman.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "core/base/file_descriptor.h"

namespace tailrace {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Result<FileDescriptor> opened = open_to_read(path);
  if (!opened) return opened.failure();
  const int file = opened.value().get();
  struct stat status {};
  if (::fstat(file, &status) != 0) return Failure{describe_errno("read", path, errno)};
  const auto size = static_cast<size_t>(status.st_size);
  if (size == 0) return MappedFile();  // which cannot be mapped
  // The mapping outlives the descriptor, which is closed at the end of this function.
  const void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (mapping == MAP_FAILED) return Failure{describe_errno("map", path, errno)};
  return MappedFile({static_cast<const std::byte*>(mapping), size});
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace tailrace
