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

#ifndef __CUDACC__
[[noreturn]] void check_failed_as(const char* file, int line, const char* condition,
                                  fmt::string_view format, fmt::format_args args);

// Where a check fails there is one call, and no text is made.
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void check_failed_with(const char* file, int line,
                                                              const char* condition,
                                                              fmt::format_string<Args...> format,
                                                              const Args&... args) {
  check_failed_as(file, line, condition, format, fmt::make_format_args(args...));
}
#endif

}  // namespace tailrace

#ifdef __CUDACC__  // which does not read fmt: without the values
#define TR_CHECK(condition, ...)                                            \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::tailrace::check_failed(__FILE__, __LINE__, #condition, "on a GPU"); \
  } while (false)
#else
#define TR_CHECK(condition, ...)                                                     \
  do {                                                                               \
    if (!(condition)) [[unlikely]]                                                   \
      ::tailrace::check_failed_with(__FILE__, __LINE__, #condition, "" __VA_ARGS__); \
  } while (false)
#endif
