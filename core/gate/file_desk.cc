#include "core/gate/file_desk.h"

#include <iterator>
#include <utility>

namespace tailrace {
namespace {

// The oldest is forgotten first: a peer that hears nothing asks again.
constexpr size_t kMaxAsked = 256;

}  // namespace

FileDesk::FileDesk(wire::Socket& router, FileShelf::Find find, wire::Wakeup& bell)
    : router_(router), shelf_(std::move(find), bell) {}

void FileDesk::on(const wire::Socket::Received& received, const wire::AskFile& ask) {
  const wire::FileFacts facts = shelf_.facts(ask.name);
  router_.send(received.peer, wire::encode(facts));
  // It is told again when it is ready.
  if (facts.status != wire::FileFacts::Status::kLater) return;
  asked_.push_back({std::string(received.peer), ask.name, !shelf_.holds(ask.name)});
  if (asked_.size() > kMaxAsked) asked_.pop_front();
}

void FileDesk::answer_waiting() {
  for (auto ask = asked_.begin(); ask != asked_.end();)
    ask = is_answered(*ask) ? asked_.erase(ask) : std::next(ask);
}

// Without a look at files that are not on the shelf any more: it would put others away. Who asked
// for one asks again.
bool FileDesk::is_answered(Asked& ask) {
  if (shelf_.is_pending(ask.name)) return false;
  if (!ask.is_arriving && !shelf_.holds(ask.name)) return true;
  ask.is_arriving = false;
  const wire::FileFacts facts = shelf_.facts(ask.name);
  if (facts.status == wire::FileFacts::Status::kLater) return false;
  router_.send(ask.peer, wire::encode(facts));
  return true;
}

// Where there is none, or the peer takes none, it asks again.
void FileDesk::on(const wire::Socket::Received& received, const wire::AskChunk& ask) {
  auto chunk = shelf_.chunk(ask.digest, ask.index);
  if (chunk && router_.send(received.peer, wire::encode(std::move(*chunk)))) ++chunks_;
}

}  // namespace tailrace
