// The fate of bodies that the state counts on and that cannot be read back.
#pragma once

#include <functional>
#include <vector>

#include "core/run/log.h"
#include "scheduler/service/store_actor.h"
#include "scheduler/state/event.h"

namespace tailrace::scheduler {

// decide() launches their groups again, or says why it cannot.
inline void lose_bodies(const std::vector<StoreActor::Lost>& lost,
                        const std::function<void(const Event&)>& feed, Log& log) {
  BodiesLost event;
  for (const StoreActor::Lost& body : lost) {
    log.error("{}: {}", to_string(body.body.lease), body.reason);
    event.bodies.push_back(body.body);
  }
  feed(event);
}

}  // namespace tailrace::scheduler
