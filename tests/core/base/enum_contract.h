// What every enum with a table of names keeps: each enumerator has a name of its own, and a config
// file reads and prints it.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include "core/base/enum_names.h"
#include "core/config/config_printer.h"
#include "core/config/yaml_config.h"

namespace tailrace {

// Compilers write "kValue = tailrace::RatioUnit::kTurn" for an enumerator, and "kValue =
// (tailrace::RatioUnit)7" for a number that is none.
template <auto kValue>
constexpr bool is_enumerator() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::string_view mark = "kValue = ";
  return text[text.find(mark) + mark.size()] != '(';
}

template <class Enum>
int num_enumerators() {
  return []<size_t... kIndex>(std::index_sequence<kIndex...>) {
    return (0 + ... + int{is_enumerator<static_cast<Enum>(kIndex)>()});
  }
  (std::make_index_sequence<64>());
}

template <class Enum>
struct EnumHolder {
  Enum value{};
  void visit(OptionVisitor& v) { v.field("value", value, {}); }
};

// That names differ, and stand at their enumerators' numbers, is checked where they are compiled.
template <class Enum>
void check_enum_names() {
  SCOPED_TRACE(name_of(Enum{}));
  EXPECT_EQ(static_cast<int>(kEnumNames<Enum>.size()), num_enumerators<Enum>());
  for (const std::string_view name : kEnumNames<Enum>) {
    EXPECT_FALSE(name.empty());
    const std::string text = "value: " + std::string(name) + "\n";
    EnumHolder<Enum> holder;
    bind_config(parse_config(text, "a.yaml", {}), holder);
    EXPECT_EQ(name_of(holder.value), name);
    EXPECT_EQ(print_config(holder), text);
  }
}

}  // namespace tailrace
