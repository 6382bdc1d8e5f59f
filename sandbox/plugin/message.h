// The protocol between a library in a process of its own and its user: framed messages over a
// socket, packed in the order of their fields.
//
// Both ends are one build of Tailrace; the process between is the library's, so what comes is
// checked: a message that is cut, too long or of another shape is a Failure.
//
// Thread: any, one at a time for each socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/result.h"
#include "core/base/time.h"
#include "sandbox/environment.h"

namespace tailrace::sandbox {

class Packer {
 public:
  template <class T>
  Packer& number(T value) {
    static_assert(std::is_arithmetic_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Packer& text(std::string_view text) {
    number<uint64_t>(text.size());
    bytes_.append(text);
    return *this;
  }
  Packer& settings(const EnvironmentSettings& settings);
  Packer& failure(const Failure& failure) {
    return number<uint8_t>(0).text(failure.message).number(failure.is_final);
  }
  Packer& success() { return number<uint8_t>(1); }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Gives 0 and nothing once the message has ended; ok() says whether it ever did, and whole() that
// nothing is left either.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : left_(bytes) {}

  template <class T>
  T number() {
    static_assert(std::is_arithmetic_v<T>);
    // Bytes of a process that a library may have spoilt: most are no bool.
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = number<uint8_t>();
      if (byte > 1) ok_ = false;
      return byte == 1;
    }
    T value{};
    if (take(sizeof value)) std::memcpy(&value, taken_.data(), sizeof value);
    return value;
  }
  std::string text();
  EnvironmentSettings settings();
  Failure failure() {
    std::string message = text();
    if (message.empty()) message = "it gives no reason";
    return {std::move(message), number<bool>()};
  }
  // How many items follow, of at least one byte each.
  uint64_t count();

  bool ok() const { return ok_; }
  bool whole() const { return ok_ && left_.empty(); }

 private:
  bool take(uint64_t bytes);

  std::string_view left_, taken_;
  bool ok_ = true;
};

void pack(Packer& packer, const EnvironmentInfo& info);
EnvironmentInfo unpack_info(Unpacker& unpacker);
void pack(Packer& packer, const StepResult& result);
StepResult unpack_step(Unpacker& unpacker);
void pack_metrics(Packer& packer, const MetricList& metrics);
MetricList unpack_metrics(Unpacker& unpacker);

// Why nothing came or went.
enum class SocketEnd : uint8_t { kLate, kClosed, kMalformed };

// As many bytes as the socket takes now; none: it is closed.
std::optional<size_t> send_some(int socket, std::string_view bytes);

// Whole messages. `timeout`: of the whole of it; none: for ever.
std::optional<SocketEnd> send_message(int socket, std::string_view bytes,
                                      std::optional<Time> timeout);
// At most `most` bytes.
std::optional<SocketEnd> receive_message(int socket, uint64_t most, std::optional<Time> timeout,
                                         std::string& bytes);

}  // namespace tailrace::sandbox
