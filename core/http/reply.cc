#include "core/http/reply.h"

#include <utility>

#include "core/http/exchange.h"

namespace tailrace::http {

void Reply::send(int status, std::string body, std::string_view content_type, Headers headers) {
  exchange_->send(status, body, content_type, headers);
}
void Reply::stream(std::string chunk) { exchange_->stream(chunk); }
void Reply::end() { exchange_->end(); }
bool Reply::is_gone() const { return exchange_->is_gone(); }
void Reply::when_gone(std::function<void()> tell) { exchange_->when_gone(std::move(tell)); }
void Reply::when_written(std::function<void(bool)> tell) {
  exchange_->when_written(std::move(tell));
}

}  // namespace tailrace::http
