#include "core/wire/admission.h"

#include <algorithm>

namespace tailrace::wire {
namespace {

// The sessions of one name before its pace counts: a worker that is killed a few times in a row
// comes back at once each time.
constexpr int64_t kSessionsAtOnce = 32;
// A process that was replaced asks again at once or never.
constexpr size_t kMaxReplaced = 16;

}  // namespace

Admission::Admission(Time pace) : pace_(pace), new_names_(kMaxWorkers, pace) {}

Admission::Answer Admission::ask(const std::string& worker, uint64_t incarnation, uint64_t attempt,
                                 Time now) {
  auto found = names_.find(worker);
  if (found == names_.end()) {
    if (!new_names_.take(now) || !make_room()) return Answer::kRefused;
    found = names_.emplace(worker, Name{.sessions = RateLimit(kSessionsAtOnce, pace_)}).first;
  }
  Name& name = found->second;
  if (std::ranges::find(name.replaced, incarnation) != name.replaced.end())
    return Answer::kReplaced;
  if (name.incarnation == incarnation && attempt < name.attempt) return Answer::kOld;
  if (name.open && name.incarnation == incarnation && name.attempt == attempt)
    return Answer::kAgain;
  if (!name.sessions.take(now)) return Answer::kRefused;
  if (name.incarnation != 0 && name.incarnation != incarnation) {
    name.replaced.push_back(name.incarnation);
    if (name.replaced.size() > kMaxReplaced) name.replaced.pop_front();
  }
  name.incarnation = incarnation;
  name.attempt = attempt;
  name.open = true;
  return Answer::kBegin;
}

void Admission::on_end(const std::string& worker) {
  Name& name = names_.at(worker);
  name.open = false;
  name.ended = ++num_ends_;
}

// Forgets the name that has been without a session for longest, where there is no room.
bool Admission::make_room() {
  if (num_names() < kMaxWorkers) return true;
  auto oldest = names_.end();
  for (auto it = names_.begin(); it != names_.end(); ++it) {
    if (!it->second.open && (oldest == names_.end() || it->second.ended < oldest->second.ended))
      oldest = it;
  }
  if (oldest == names_.end()) return false;
  names_.erase(oldest);
  return true;
}

}  // namespace tailrace::wire
