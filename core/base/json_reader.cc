#include "core/base/json_reader.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tailrace {
namespace {

// Up to so many keys each is compared with each: a list is sorted no faster.
constexpr size_t kFewKeys = 8;

// Builds the value from the events of the library's lexer. Each event takes constant time, but for
// the end of an object, which sorts pointers to its keys.
template <class Json>
class Builder {
 public:
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;
  using Object = typename Json::object_t;
  using Array = typename Json::array_t;
  static constexpr bool kIsSorted = std::is_same_v<Json, nlohmann::json>;

  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool number_integer(number_integer_t value) { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t& digits) {
    // The library reads an integer beyond 64 bits as a float: one without a point or an exponent
    // was such.
    if (reading_.wide_integer.empty() && digits.find_first_of(".eE") == string_t::npos)
      reading_.wide_integer = digits;
    return add(Json(value));
  }
  bool string(string_t& value) { return add(Json(std::move(value))); }
  bool binary(binary_t&) { return false; }  // of other formats

  bool start_object(size_t) { return open(Json(Json::value_t::object)); }
  bool start_array(size_t) { return open(Json(Json::value_t::array)); }

  bool key(string_t& name) {
    ++reading_.num_steps;
    auto& object = open_.back()->template get_ref<Object&>();
    if (static_cast<int64_t>(object.size()) >= limits_.max_keys)
      return fail(JsonFault::Kind::kLimit,
                  fmt::format("too wide: an object has more than {} keys", limits_.max_keys));
    if constexpr (kIsSorted) {
      const auto [at, is_new] = object.try_emplace(std::move(name));
      if (!is_new && limits_.refuses_doubled_keys) note_double(at->first);
      slot_ = &at->second;
    } else {
      // As the vector that it is: its own emplace() looks for the key among all.
      auto& members = static_cast<typename Object::Container&>(object);
      members.emplace_back(std::piecewise_construct, std::forward_as_tuple(std::move(name)),
                           std::forward_as_tuple());
      slot_ = &members.back().second;
    }
    return true;
  }

  bool end_object() {
    if constexpr (!kIsSorted) {
      auto& object = open_.back()->template get_ref<Object&>();
      settle_doubles(static_cast<typename Object::Container&>(object));
    }
    open_.pop_back();
    return true;
  }
  bool end_array() {
    open_.pop_back();
    return true;
  }

  template <class Exception>
  bool parse_error(size_t num_read, const std::string&, const Exception& error) {
    constexpr int kOutOfRange = 406;
    reading_.fault = JsonFault{
        .kind = error.id == kOutOfRange ? JsonFault::Kind::kNumber : JsonFault::Kind::kSyntax,
        .what = error.what(),
        .num_read = num_read};
    return false;
  }

  JsonReading<Json> take() {
    if (reading_.fault) reading_.value = Json(Json::value_t::discarded);
    return std::move(reading_);
  }

 private:
  bool fail(JsonFault::Kind kind, std::string what) {
    reading_.fault = JsonFault{.kind = kind, .what = std::move(what)};
    return false;
  }
  // The first one is told. Reading goes on: of a text that is no JSON nobody asks for its keys.
  void note_double(const std::string& name) {
    if (!reading_.fault)
      reading_.fault = JsonFault{.kind = JsonFault::Kind::kDouble,
                                 .what = fmt::format("ambiguous: it has \"{}\" twice", name),
                                 .key = name};
  }

  // Where the next value goes. nullptr: there are too many of them.
  Json* place(Json&& value) {
    ++reading_.num_steps;
    if (++num_values_ > limits_.max_values) {
      fail(JsonFault::Kind::kLimit,
           fmt::format("too large: it has more than {} values", limits_.max_values));
      return nullptr;
    }
    Json* at = &reading_.value;
    if (!open_.empty() && open_.back()->is_array()) {
      auto& list = open_.back()->template get_ref<Array&>();
      list.push_back(std::move(value));
      return &list.back();
    }
    if (!open_.empty()) at = slot_;
    *at = std::move(value);
    return at;
  }

  bool add(Json&& value) { return place(std::move(value)) != nullptr; }

  bool open(Json&& value) {
    if (std::ssize(open_) >= limits_.max_depth)
      return fail(JsonFault::Kind::kLimit,
                  fmt::format("nested more than {} deep", limits_.max_depth));
    Json* const at = place(std::move(value));
    // It stays where it is while it is open: until it is closed nothing is added beside it.
    if (at != nullptr) open_.push_back(at);
    return at != nullptr;
  }

  template <class Members>  // the vector of an object
  void settle_doubles(Members& object) {
    const size_t size = object.size();
    std::optional<size_t> doubled;  // the first key that was there before
    if (size <= kFewKeys) {
      for (size_t i = 1; i < size && !doubled; ++i)
        for (size_t j = 0; j < i && !doubled; ++j)
          if (++reading_.num_steps; object[j].first == object[i].first) doubled = i;
    } else {
      sorted_.clear();
      for (size_t i = 0; i < size; ++i) sorted_.push_back(i);
      std::ranges::sort(sorted_, [&](size_t a, size_t b) {
        ++reading_.num_steps;
        const int order = object[a].first.compare(object[b].first);
        return order != 0 ? order < 0 : a < b;
      });
      for (size_t i = 1; i < size; ++i)
        if (object[sorted_[i]].first == object[sorted_[i - 1]].first)
          doubled = std::min(doubled.value_or(size), sorted_[i]);
    }
    if (!doubled) return;
    if (limits_.refuses_doubled_keys) return note_double(object[*doubled].first);
    keep_last(object);
  }

  // As Python's dict and the library's own parsers do: the place of the first, the value of the
  // last. Stable, so that of equal keys the last in the order is the last of the text.
  template <class Members>
  static void keep_last(Members& object) {
    std::vector<size_t> order(object.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, {}, [&](size_t i) -> const std::string& {
      return object[i].first;
    });
    std::vector<char> is_first(object.size(), 1);
    for (size_t i = 0, first = 0; i < order.size(); ++i) {
      if (object[order[i]].first != object[order[first]].first) first = i;
      if (i == first) continue;
      is_first[order[i]] = 0;
      object[order[first]].second = std::move(object[order[i]].second);
    }
    Members kept;
    for (size_t i = 0; i < object.size(); ++i)
      if (is_first[i] != 0) kept.emplace_back(object[i].first, std::move(object[i].second));
    object.swap(kept);
  }

  const JsonLimits& limits_;
  JsonReading<Json> reading_{.value = Json()};
  std::vector<Json*> open_;  // lists and objects, the outermost first
  Json* slot_ = nullptr;     // of the key that came last
  int64_t num_values_ = 0;
  std::vector<size_t> sorted_;  // kept from object to object
};

template <class Json>
JsonReading<Json> read(std::string_view text, const JsonLimits& limits) {
  Builder<Json> builder(limits);
  if (std::cmp_greater(text.size(), limits.max_bytes)) {
    JsonReading<Json> refused{.value = Json(Json::value_t::discarded)};
    refused.fault = JsonFault{
        .kind = JsonFault::Kind::kLimit,
        .what = fmt::format("too large: it has {} bytes; at most {} are read", text.size(),
                            limits.max_bytes)};
    return refused;
  }
  (void)Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace

JsonReading<nlohmann::json> read_json(std::string_view text, const JsonLimits& limits) {
  return read<nlohmann::json>(text, limits);
}
JsonReading<nlohmann::ordered_json> read_ordered_json(std::string_view text,
                                                      const JsonLimits& limits) {
  return read<nlohmann::ordered_json>(text, limits);
}

}  // namespace tailrace
