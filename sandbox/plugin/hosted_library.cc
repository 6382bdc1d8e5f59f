#include "sandbox/plugin/hosted_library.h"

#include <future>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "sandbox/plugin/protocol.h"

namespace tailrace::sandbox {

Result<std::string> HostedSession::call(const Packer& request, Time timeout, const char* call) {
  // Shared: it is answered once, also when nobody waits any more.
  auto promise = std::make_shared<std::promise<Result<std::string>>>();
  auto answer = promise->get_future();
  begin(request, timeout, call,
        [promise](Result<std::string> result) { promise->set_value(std::move(result)); });
  // The loop keeps the deadline; what it may wait for beside that is a new host.
  if (answer.wait_for(timeout + 2 * HostedLibrary::kPatience) == std::future_status::ready)
    return answer.get();
  return Failure{fmt::format("{} was not answered at all", call)};
}

std::shared_ptr<HostedLibrary> HostedLibrary::start(const std::filesystem::path& file,
                                                    const std::filesystem::path& program,
                                                    Time patience) {
  // Here and not in the host alone: its message would name the same file less plainly.
  if (!std::filesystem::exists(file))
    throw UserError("{}: not found. A library is built as examples/maze shows.", file.string());
  std::shared_ptr<HostedLibrary> library(new HostedLibrary(file, program, patience));
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
  std::shared_ptr<HostedLibrary> library(new HostedLibrary(file, "/proc/self/exe", kPatience));
  library->facts_ = std::move(facts);
  return library;
}

}  // namespace tailrace::sandbox
