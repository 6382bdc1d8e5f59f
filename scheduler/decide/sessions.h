// Workers come and go, and so does the scheduler (law 8).
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on_worker_up(Context& context, const WorkerUp& event);
void on_worker_down(Context& context, const WorkerDown& event);
void on_worker_failed(Context& context, const WorkerFailed& event);
void on_restarted(Context& context, const Restarted& event);

// Workers that have not come back since the scheduler did.
void expire_absences(Context& context);

}  // namespace tailrace::scheduler
