// The fields of a plain struct, listed once: equality, bytes (archive.h), descriptions and checks
// all go through this list.
//
//   struct Save {
//     PolicyId policy = 0;
//     int64_t version = 0;
//     TR_FIELDS(Save, policy, version);
//   };
//
// A list that is more than a list is written out, as a template `void fields(V& visit)`.
#pragma once

#include <string_view>

#define TR_FIELDS(Type, ...)                                    \
  static constexpr std::string_view kFieldNames = #__VA_ARGS__; \
  template <class V>                                            \
  void fields(V& visit) {                                       \
    visit(__VA_ARGS__);                                         \
  }                                                             \
  friend bool operator==(const Type&, const Type&) = default
