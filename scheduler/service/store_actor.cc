#include "scheduler/service/store_actor.h"

#include <future>
#include <memory>

#include <fmt/format.h>

#include "core/base/time.h"
#include "core/wire/trajectory_codec.h"
#include "scheduler/state/archive.h"

namespace tailrace::scheduler {
namespace {

// Requests that wait. Beyond them, or the bytes of their bodies, the scheduler waits for the disk,
// and with it the workers whose results it does not take.
constexpr size_t kInbox = 256;
// Between two looks at a store that is waited for: far less than who watches the owner's pulse
// waits (run.stall_seconds).
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

StoreActor::StoreActor(TrajectoryStore store, std::chrono::milliseconds patience,
                       std::function<void()> wake, BodyLimits limits, int64_t inbox_bytes)
    : store_(std::move(store)),
      wake_(std::move(wake)),
      limits_(std::move(limits)),
      inbox_(kInbox, inbox_bytes),
      patience_(patience),
      watch_(patience),
      thread_([this] { loop(); }) {}

StoreActor::~StoreActor() { inbox_.close(); }

void StoreActor::loop() {
  const PulseScope pulse(progress_);
  while (auto job = inbox_.pop()) {
    Answer answer;
    // Nothing is thrown across a thread: the owner hears of it as of any answer.
    try {
      answer = (*job)(store_);
    } catch (const std::exception& error) {
      answer = [this, why = std::string(error.what())] {
        if (failure_.empty()) failure_ = "the trajectory store: " + why;
      };
    }
    {
      MutexLock lock(mutex_);
      answers_.push_back(std::move(answer));
    }
    beat();
    // Outside the lock: who is woken takes it at once.
    wake_();
  }
}

void StoreActor::post(Job job, int64_t bytes) {
  // The service ends soon; until then nobody waits for a store that is lost.
  if (!failure_.empty()) return;
  ++unanswered_;
  while (!inbox_.push_for(job, kLook, bytes)) {
    if (!look()) return;
  }
}

// In every wait for the store, and at every turn of the owner's loop. False: it has stood still for
// too long, and failure() says so.
bool StoreActor::look() {
  // A thread that waits and looks again every now and then is well.
  beat();
  const auto now = std::chrono::steady_clock::now();
  const auto elapsed = std::chrono::floor<std::chrono::milliseconds>(now - looked_);
  if (elapsed < kLook) return failure_.empty();
  looked_ = now;
  if (idle()) {
    watch_ = StallWatch(patience_);
  } else if (watch_.look(progress_.beats(), elapsed) && failure_.empty()) {
    failure_ = fmt::format(
        "the disk of {} has taken and given nothing for {:.3g} s; look to it, then launch the run "
        "again",
        store_.directory().string(), seconds_of(patience_));
  }
  return failure_.empty();
}

void StoreActor::run_answers() {
  std::vector<Answer> ready;
  {
    MutexLock lock(mutex_);
    ready.swap(answers_);
  }
  unanswered_ -= std::ssize(ready);
  // Outside the lock: an answer may ask something new and wait for room in the inbox, which the
  // actor makes only while it can give its own answers.
  for (Answer& then : ready) {
    if (then) then();
  }
  look();
}

namespace {

int64_t num_turns(const Trajectory& trajectory) {
  int64_t turns = 0;
  for (const Segment& segment : trajectory.segments) turns += std::ssize(segment.turn_begins);
  return turns;
}

}  // namespace

void StoreActor::put(const BodyId& id, std::vector<std::byte> body,
                     std::function<void(Stored)> then) {
  const int64_t bytes = std::ssize(body);
  post(
      [this, id, body = std::move(body), then = std::move(then)](TrajectoryStore& store) -> Answer {
        Stored stored;
        // Proved here, where it costs the scheduler nothing; the bytes are stored as they came,
        // never encoded again.
        if (auto trajectory = wire::decode_trajectory(body); !trajectory) {
          stored.refused = trajectory.failure().message;
          // The trainer would refuse the whole batch, and again after each restart.
        } else if (auto unfit = find_unfit(trajectory.value(), limits_)) {
          stored.refused = fmt::format("{} {}", to_string(id.lease), *unfit);
        } else if (const int64_t turns = num_turns(trajectory.value());
                   id.turns > 0 && turns != id.turns) {
          stored.refused = fmt::format("{} says that it has {} turns, and holds {}",
                                       to_string(id.lease), id.turns, turns);
        } else if (auto put = store.put(id, body); !put) {
          stored.failure = put.failure().message;
        }
        return [then, stored] { then(stored); };
      },
      bytes);
}

void StoreActor::put_verdict(const BodyId& id, MetricList metrics,
                             std::function<void(const std::string& failure)> then) {
  post([id, note = to_bytes(metrics), then = std::move(then)](TrajectoryStore& store) -> Answer {
    // Nothing to say, and nothing older to replace.
    if (note == to_bytes(MetricList()) && !store.has_note(id)) return [then] { then(""); };
    const auto put = store.put_note(id, note);
    return [then, failure = put ? "" : put.failure().message] { then(failure); };
  });
}

namespace {

Result<void> add_verdict(const TrajectoryStore& store, const BodyId& id, MetricList& metrics) {
  const auto note = store.note_of(id);
  if (!note) return note.failure();
  if (note.value().empty()) return {};
  const auto verdict = from_bytes<MetricList>(note.value());
  if (!verdict) return Failure{fmt::format("the verdict on {} is damaged", to_string(id.lease))};
  metrics.insert(metrics.end(), verdict->begin(), verdict->end());
  return {};
}

// Reads each body and makes something of it; what fails is lost.
template <class T, class Make>
void read_each(const TrajectoryStore& store, const std::vector<BodyId>& ids, std::vector<T>& made,
               std::vector<StoreActor::Lost>& lost, const Make& make) {
  for (const BodyId& id : ids) {
    auto bytes = store.get(id);
    if (!bytes) {
      lost.push_back({id, bytes.failure().message});
      continue;
    }
    Result<T> item = make(id, bytes.value());
    if (item) {
      made.push_back(std::move(item).value());
    } else {
      lost.push_back({id, item.failure().message});
    }
  }
}

}  // namespace

template <class T>
StoreActor::Answer StoreActor::answer(Reads<T> then, std::vector<T> found, std::vector<Lost> lost) {
  return
      [this, then = std::move(then), found = std::move(found), lost = std::move(lost)]() mutable {
        if (!lost.empty()) why_lost_ = lost.front().reason;
        then(std::move(found), lost);
      };
}

void StoreActor::describe(std::vector<BodyId> ids, Reads<Described> then) {
  post([this, ids = std::move(ids), then = std::move(then)](TrajectoryStore& store) -> Answer {
    std::vector<Described> found;
    std::vector<Lost> lost;
    read_each(store, ids, found, lost,
              [&](const BodyId& id, const std::vector<std::byte>& bytes) -> Result<Described> {
                auto header = wire::read_trajectory_header(bytes);
                if (!header) return header.failure();
                // Its tokens and its reward are sound all the same.
                const auto added = add_verdict(store, id, header.value().metrics);
                return Described{std::move(header).value(), *store.find(id),
                                 added ? "" : added.failure().message};
              });
    return answer(then, std::move(found), std::move(lost));
  });
}

void StoreActor::decode(std::vector<BodyId> ids, Reads<Trajectory> then) {
  post([this, ids = std::move(ids), then = std::move(then)](TrajectoryStore& store) -> Answer {
    std::vector<Trajectory> found;
    std::vector<Lost> lost;
    read_each(store, ids, found, lost,
              [&](const BodyId& id, const std::vector<std::byte>& bytes) -> Result<Trajectory> {
                auto trajectory = wire::decode_trajectory(bytes);
                if (trajectory) (void)add_verdict(store, id, trajectory.value().metrics);
                return trajectory;
              });
    return answer(then, std::move(found), std::move(lost));
  });
}

void StoreActor::read(std::vector<BodyId> ids, int64_t offset, int64_t max_bytes,
                      Reads<std::byte> then) {
  post([this, ids = std::move(ids), offset, max_bytes,
        then = std::move(then)](TrajectoryStore& store) -> Answer {
    std::vector<std::byte> bytes;
    std::vector<Lost> lost;
    int64_t skip = offset;
    for (const BodyId& id : ids) {
      if (std::ssize(bytes) == max_bytes) break;
      // A body that comes whole before what is asked for is not read.
      const auto entry = store.find(id);
      if (entry && skip >= entry->bytes) {
        skip -= entry->bytes;
        continue;
      }
      // A batch is fetched in chunks that may end inside of a body. The body stays for the next
      // chunk, or each one would read and prove the whole record again.
      if (!recent_ || recent_->first != id) {
        recent_.reset();
        auto body = store.get(id);
        if (!body) {
          lost.push_back({id, body.failure().message});
          break;
        }
        recent_.emplace(id, std::move(body).value());
      }
      const std::vector<std::byte>& body = recent_->second;
      const auto begin = body.begin() + skip;
      const int64_t count = std::min(max_bytes - std::ssize(bytes), std::ssize(body) - skip);
      bytes.insert(bytes.end(), begin, begin + count);
      skip = 0;
    }
    return answer(then, std::move(bytes), std::move(lost));
  });
}

void StoreActor::release(std::vector<BodyId> bodies) {
  post([bodies = std::move(bodies)](TrajectoryStore& store) -> Answer {
    store.release(bodies);
    return {};
  });
}

void StoreActor::after(std::function<void()> then) {
  post([then = std::move(then)](TrajectoryStore&) -> Answer { return then; });
}

Result<void> StoreActor::sync() {
  // Shared with the job: it may come to its turn after we have given up waiting.
  auto done = std::make_shared<std::promise<Result<void>>>();
  auto synced = done->get_future();
  // Requests are done in order, so all that was put before is behind it.
  post([done](TrajectoryStore& store) -> Answer {
    done->set_value(store.sync());
    return {};
  });
  if (!failure_.empty()) return Failure{failure_};
  while (synced.wait_for(kLook) == std::future_status::timeout) {
    if (!look()) return Failure{failure_};
  }
  return synced.get();
}

void StoreActor::sync(std::function<void(const Result<void>&)> then) {
  post([then = std::move(then)](TrajectoryStore& store) -> Answer {
    return [then, synced = store.sync()] { then(synced); };
  });
}

}  // namespace tailrace::scheduler
