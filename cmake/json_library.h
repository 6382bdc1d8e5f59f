// nlohmann/json as the precompiled headers have it, for what its users cost:
//
//   - A value becomes something else where the code says so (get, get_to) and not by itself: each
//     place where it could would ask for all that it could become. Tests may leave it unsaid.
//   - Without the literal "..."_json, whose body is no template: every source that sees it compiles
//     a parser for it. Nobody here writes JSON into the code as a text.
#pragma once

#ifndef TAILRACE_TESTS
#define JSON_USE_IMPLICIT_CONVERSIONS 0
#endif
#define JSON_USE_GLOBAL_UDLS 0
#define _json(text, size)            \
  _unused_json(text, size) = delete; \
  template <class>                   \
  inline nlohmann::json parse_literal(text, size)
#include <nlohmann/json.hpp>
#undef _json
