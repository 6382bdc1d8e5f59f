// Checks for our own bugs: a failed check prints the values and the place and ends the process.
//
// What comes from outside (a message, a file, a model's text) is data and never meets TR_CHECK.
#pragma once

#include <string_view>

#ifndef __CUDACC__
#include <fmt/format.h>
#endif

namespace tailrace {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               std::string_view message);

}  // namespace tailrace

#ifdef __CUDACC__  // which does not read fmt: without the values
#define TR_CHECK(condition, ...)                                            \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::tailrace::check_failed(__FILE__, __LINE__, #condition, "on a GPU"); \
  } while (false)
#else
#define TR_CHECK(condition, ...)                                                               \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::tailrace::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
#endif
