// A role's log: one file, and warnings and errors on stderr as well.
//
// A line is one fact for a person, with its ids: log.info("step done step={} reward={:.3f}", ...).
// Never in an inner loop. A full disk loses lines, never the run.
//
// Thread: any.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/enum_names.h"

namespace tailrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
constexpr auto enum_names(LogLevel) {
  using enum LogLevel;
  return name_table<LogLevel>(
      {{kDebug, "debug"}, {kInfo, "info"}, {kWarning, "warning"}, {kError, "error"}});
}

class Log {
 public:
  // `role` is printed in each line ("rollout-0"). Appends to `file`; empty: no file, and then
  // everything from `level` on goes to stderr. Throws UserError when the file cannot be opened, or
  // is a pipe.
  Log(std::string role, const std::filesystem::path& file, LogLevel level = LogLevel::kInfo);
  ~Log();
  Log(const Log&) = delete;

  template <class... Args>
  void debug(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kDebug))
      write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) {
    if (enabled(LogLevel::kInfo))
      write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  template <class... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
  }

  // Warnings and errors go to `sink` too: of a worker whose file nobody of the run sees. Before
  // other threads write. `sink` is called on the thread that writes, and does not wait.
  void also_to(std::function<void(LogLevel, std::string_view)> sink) { sink_ = std::move(sink); }

  bool enabled(LogLevel level) const { return level >= level_; }
  void write(LogLevel level, std::string_view line);
  void flush();

 private:
  struct Impl;
  LogLevel level_;
  std::function<void(LogLevel, std::string_view)> sink_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tailrace
