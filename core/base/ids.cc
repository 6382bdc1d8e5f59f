#include "core/base/ids.h"

#include <fmt/format.h>

namespace tailrace {

TaskId task_of(const MemberId& member) {
  return {member.policy, member.dataset, member.epoch, member.prompt};
}

MemberId member_id(const TaskId& task, int32_t launch, int32_t member) {
  return {.policy = task.policy,
          .dataset = task.dataset,
          .epoch = task.epoch,
          .prompt = task.prompt,
          .launch = launch,
          .member = member};
}

std::string to_string(const TaskId& id) {
  return fmt::format("policy={} dataset={} epoch={} prompt={}", id.policy, id.dataset, id.epoch,
                     id.prompt);
}

std::string to_string(const MemberId& id) {
  return fmt::format("{} launch={} member={}", to_string(task_of(id)), id.launch, id.member);
}

std::string to_string(const LeaseId& id) {
  return fmt::format("{} attempt={}", to_string(id.member), id.attempt);
}

}  // namespace tailrace
