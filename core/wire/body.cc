#include "core/wire/body.h"

#include "core/wire/codec.h"
#include "core/wire/messages_generated.h"

namespace tailrace::wire {

std::vector<std::byte> to_frame(const fbs::Header& header, size_t body_bytes,
                                const std::function<void(char*)>& write, const char* identifier) {
  // A builder that is too small doubles and copies: for a large body, several times over.
  Builder builder(body_bytes + 512);
  uint8_t* place = nullptr;
  const auto body = builder.CreateUninitializedVector(body_bytes, &place);
  write(reinterpret_cast<char*>(place));
  builder.Finish(fbs::CreateFrame(builder, &header, body), identifier);
  return to_bytes(builder);
}

const fbs::Frame* verified_frame(std::span<const std::byte> frame, const char* identifier,
                                 std::vector<std::byte>& storage) {
  frame = aligned(frame, storage);
  flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(frame.data()), frame.size());
  if (!verifier.VerifyBuffer<fbs::Frame>(identifier)) return nullptr;
  return flatbuffers::GetRoot<fbs::Frame>(frame.data());
}

std::string_view body_of(const fbs::Frame& frame) {
  return {reinterpret_cast<const char*>(frame.body()->data()), size_t{frame.body()->size()}};
}

}  // namespace tailrace::wire
