#include "sandbox/plugin/hosted_library.h"

#include <utility>

#include "core/base/digest.h"
#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {

std::shared_ptr<HostedLibrary> HostedLibrary::start(const std::filesystem::path& file,
                                                    const std::filesystem::path& program,
                                                    Time patience) {
  // Here and not in the host alone: its message would name the same file less plainly.
  if (!std::filesystem::exists(file))
    throw UserError("{}: not found. A library is built as examples/maze shows.", file.string());
  LibraryFacts facts;
  const Result<Digest> digest = digest_of_file(file);
  if (!digest) throw UserError("{}", digest.failure().message);
  facts.digest = digest.value();
  std::shared_ptr<HostedLibrary> library(
      new HostedLibrary(file, std::move(facts), program, patience));
  const Result<std::string> said = library->loop_->start();
  if (!said) throw UserError("{}: {}", file.string(), said.failure().message);
  Unpacker answer(said.value());
  if (answer.number<uint8_t>() != 1) throw UserError("{}", answer.failure().message);
  library->facts_.environments = unpack_entries(answer);
  library->facts_.rewards = unpack_entries(answer);
  if (!answer.whole())
    throw UserError("{}: its process says what this build does not read", file.string());
  return library;
}

std::shared_ptr<HostedLibrary> HostedLibrary::known(const std::filesystem::path& file,
                                                    LibraryFacts facts) {
  return std::shared_ptr<HostedLibrary>(
      new HostedLibrary(file, std::move(facts), "/proc/self/exe", kPatience));
}

}  // namespace tailrace::sandbox
