// The one parser of JSON that others have written. Its work and its memory grow with the length of
// the text and no faster, whatever the text holds, and it stops at the first limit that is passed.
//
// The library's own parsers are not used for such text: the one with a callback looks through all
// siblings at each end of an object, and the one that keeps the order of keys compares each key
// with all keys before it. Both cost n^2.
//
// Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tailrace {

struct JsonLimits {
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
  int64_t max_values = 16'000'000;  // of all kinds, at all depths; a list of n numbers has n + 1
  int32_t max_depth = 500;          // of lists and objects: who writes it again recurses
  int64_t max_keys = std::numeric_limits<int64_t>::max();  // of one object
  // A key that an object has twice is a fault. Otherwise the last value counts, at the first place.
  bool refuses_doubled_keys = false;
};

// Values of a file of a model folder: a vocabulary of millions of tokens with its merges.
inline constexpr int64_t kMaxFileValues = 64'000'000;

struct JsonFault {
  enum class Kind {
    kSyntax,  // it is not JSON
    kNumber,  // it is JSON with a number that no double holds
    kLimit,   // a limit was passed
    kDouble,  // a key is there twice
  };
  Kind kind = Kind::kSyntax;
  // "nested more than 100 deep"; of kSyntax and kNumber what the library says of it.
  std::string what;
  size_t num_read = 0;   // bytes up to the fault, of kSyntax and kNumber
  std::string key = {};  // of kDouble
};

template <class Json>
struct JsonReading {
  Json value;  // is_discarded() where there is a fault
  std::optional<JsonFault> fault = {};
  // The first whole number that 64 bits do not hold, of which `value` has a float with other
  // digits; empty: there is none.
  std::string wide_integer = {};
  // Values and keys that were built, and comparisons of keys: what the work is proportional to.
  int64_t num_steps = 0;
};

// The second keeps the order of keys. Keys of the first are sorted.
JsonReading<nlohmann::json> read_json(std::string_view text, const JsonLimits& limits);
JsonReading<nlohmann::ordered_json> read_ordered_json(std::string_view text,
                                                      const JsonLimits& limits);

}  // namespace tailrace
