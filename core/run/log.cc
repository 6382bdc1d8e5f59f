#include "core/run/log.h"

#include <mutex>
#include <vector>

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/printable.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  TR_CHECK(false, "log level {}", static_cast<int>(level));
}

// The library's own opens whatever lies there, and a pipe would hold it up for ever.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(AppendFile file) : file_(std::move(file)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (auto written = file_.append({line.data(), line.size()}); !written)
      throw spdlog::spdlog_ex(written.failure().message);
  }
  // Nothing is kept back: of a process that is killed the last lines count.
  void flush_() override {}

  AppendFile file_;
};

}  // namespace

struct Log::Impl {
  explicit Impl(std::string role) : logger(std::move(role)) {}
  spdlog::logger logger;
};

Log::Log(std::string role, const std::filesystem::path& file, LogLevel level)
    : level_(level), impl_(std::make_unique<Impl>(std::move(role))) {
  auto stderr_sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  stderr_sink->set_pattern("%n: %l: %v");
  // With a file, the terminal is for what a person must see.
  stderr_sink->set_level(file.empty() ? to_spdlog(level) : spdlog::level::warn);
  auto& sinks = impl_->logger.sinks();
  sinks.push_back(stderr_sink);
  if (!file.empty()) {
    auto opened = AppendFile::open(file);
    if (!opened) throw UserError("{}", opened.failure().message);
    auto file_sink = std::make_shared<FileSink>(std::move(opened).value());
    file_sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %n %v");
    sinks.push_back(file_sink);
  }
  impl_->logger.set_level(to_spdlog(level));
  // The last lines of a process that is killed are those that matter.
  impl_->logger.flush_on(spdlog::level::info);
  // The default handler prints once a second; a lost log line must not bury the terminal.
  bool reported = false;
  impl_->logger.set_error_handler([file, reported](const std::string& what) mutable {
    if (!reported)
      fmt::print(stderr, "log {}: {}; further lines may be lost\n", file.string(), what);
    reported = true;
  });
}

Log::~Log() { flush(); }

void Log::write(LogLevel level, std::string_view text) {
  // It may quote what a worker, a program or a policy said.
  const std::string line = printable(text);
  impl_->logger.log(to_spdlog(level), spdlog::string_view_t(line.data(), line.size()));
  if (sink_ && level >= LogLevel::kWarning) sink_(level, line);
}

void Log::flush() { impl_->logger.flush(); }

}  // namespace tailrace
