// Workers come and go, and so does the scheduler (law 8).
#pragma once

#include "scheduler/decide/context.h"

namespace tailrace::scheduler {

void on(Context& context, const WorkerUp& event);
void on(Context& context, const WorkerDown& event);
void on(Context& context, const WorkerFailed& event);
void on(Context& context, const Restarted& event);

// Workers that have not come back since the scheduler did.
void expire_absences(Context& context);

}  // namespace tailrace::scheduler
