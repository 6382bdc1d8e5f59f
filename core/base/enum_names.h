// The names that a person writes for the values of an enum: one table, beside the enum's
// definition, that reads, prints, documents and checks it.
//
//   enum class RatioUnit : uint8_t { kToken, kTurn };
//   constexpr auto enum_names(RatioUnit) {
//     return name_table<RatioUnit>({{RatioUnit::kToken, "token"}, {RatioUnit::kTurn, "turn"}});
//   }
//
//   name_of(RatioUnit::kTurn)    // "turn"
//   value_of<RatioUnit>("turn")  // RatioUnit::kTurn
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

namespace tailrace {

template <class Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

// The names by their enumerators' numbers. Does not compile unless the rows stand in the order of
// the enumerators, which count from 0, and no name stands twice.
template <class Enum, size_t kSize>
consteval std::array<std::string_view, kSize> name_table(const EnumName<Enum> (&rows)[kSize]) {
  std::array<std::string_view, kSize> names;
  for (size_t i = 0; i < kSize; ++i) {
    if (static_cast<size_t>(rows[i].value) != i) throw "a row is not at its enumerator's number";
    for (size_t j = 0; j < i; ++j)
      if (names[j] == rows[i].name) throw "a name stands twice";
    names[i] = rows[i].name;
  }
  return names;
}

template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires {
  enum_names(Enum{});
};

template <NamedEnum Enum>
inline constexpr auto kEnumNames = enum_names(Enum{});

template <NamedEnum Enum>
constexpr std::string_view name_of(Enum value) {
  return kEnumNames<Enum>.at(static_cast<size_t>(value));
}

// Empty: no enumerator has this name.
template <NamedEnum Enum>
constexpr std::optional<Enum> value_of(std::string_view name) {
  const auto& names = kEnumNames<Enum>;
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<Enum>(i);
  return {};
}

}  // namespace tailrace
