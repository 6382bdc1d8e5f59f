// The way that leads a receiver to a version from another one that it has, in the least time: the
// delta between the two, made now if it is not there, deltas that lie one behind the other, or the
// whole payload, an anchor.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/digest.h"
#include "core/base/ids.h"
#include "core/base/result.h"

namespace tailrace {

// The assumed speed of encoding and applying a delta, in dense bytes a second (bench weights).
constexpr double kEncodeBytesPerSecond = 2e9, kApplyBytesPerSecond = 2e9;

struct WayFacts {
  int64_t dense_bytes = 0;      // of the payload
  double link_bytes_per_s = 0;  // 0: bytes alone count
  // The bytes of the delta between the two: nothing where there is none and none can be made.
  std::optional<int64_t> direct_bytes = {};
  bool direct_is_made = false;
  // The bytes of deltas one behind the other; empty: they lead nowhere.
  std::vector<int64_t> chain_bytes = {};
  int64_t chain_to_encode = 0;  // of these, those that are not there yet
};
enum class Way : uint8_t { kWhole, kDirect, kChain };
// Seconds: what crosses the link, and what encoding and applying take.
double cost_of(Way way, const WayFacts& facts);
Way cheapest_way(const WayFacts& facts);

// A receiver's request: the next file on its way to the version of `root`, from that of `from`.
// The name says all that the receiver has and wants, so that a file under it stays right.
struct WayRequest {
  PolicyId policy = 0;
  int64_t version = 0;
  Digest root, from;
  int64_t link_mbit = 0;  // 0: not known
};
// "p0-v12.way-ROOT-FROM-1000"
std::string way_name(const WayRequest& request);
std::optional<WayRequest> parse_way_name(std::string_view name);

// The file to fetch next for the version of this root, by who has the version of the root `from`:
// a delta, behind which one asks again, or the payload. An unknown `from` gets the payload. A
// Failure: the version is not there any more, or another one carries its number.
Result<std::filesystem::path> next_on_way(const std::filesystem::path& folder,
                                          const WayRequest& request,
                                          const std::stop_token& stop = {});

}  // namespace tailrace
