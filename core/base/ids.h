// Names of the things that processes talk about. A task is a prompt of an epoch; a group is its
// members; a launch is one start of a group; an attempt is one lease of a piece of work (design
// section 2).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "core/base/enum_names.h"

namespace tailrace {

// The job of a worker.
enum class Role : uint8_t { kRollout, kReward, kTrainer };
constexpr auto enum_names(Role) {
  return name_table<Role>(
      {{Role::kRollout, "rollout"}, {Role::kReward, "reward"}, {Role::kTrainer, "trainer"}});
}

// One of the policies of a run, trained or frozen.
using PolicyId = int32_t;

// "rollout-0": unique in the run; the process behind it may change.
using WorkerId = std::string;

// Training or evaluation: evaluation uses held-out prompts and never reaches the trainer.
enum class Lane : uint8_t { kTrain, kEval };
constexpr auto enum_names(Lane) {
  return name_table<Lane>({{Lane::kTrain, "train"}, {Lane::kEval, "eval"}});
}

// A prompt of an epoch. In the evaluation lane `epoch` is the version under evaluation.
struct TaskId {
  PolicyId policy = 0;
  int32_t dataset = 0;
  int64_t epoch = 0;
  int64_t prompt = 0;  // index in the dataset's rows or seed stream
  friend auto operator<=>(const TaskId&, const TaskId&) = default;
};

// The row of a dataset that a prompt plays: it begins again after its last one. Of a dataset
// without rows, which draws its tasks, each prompt is a task of its own.
inline int64_t row_of(int64_t prompt, int64_t num_rows) {
  return num_rows > 0 ? prompt % num_rows : prompt;
}

struct MemberId {
  PolicyId policy = 0;
  int32_t dataset = 0;
  int64_t epoch = 0;
  int64_t prompt = 0;
  int32_t launch = 0;
  int32_t member = 0;
  friend auto operator<=>(const MemberId&, const MemberId&) = default;
};
TaskId task_of(const MemberId& member);

// Whether two are members of one launch of a prompt.
inline bool same_group(const MemberId& a, MemberId b) {
  b.member = a.member;
  return a == b;
}

// The member of a group that takes the likeliest token each time, where rollout.greedy_member asks
// for one.
inline bool is_greedy_member(Lane lane, const MemberId& member) {
  return lane == Lane::kTrain && member.member == 0;
}

// The key that a batch is sorted by, never by arrival: sums round by their order, and a batch that
// is handed out again must give the same weights. Members of a group stand side by side.
inline auto batch_order(const TaskId& id) {
  return std::tuple(id.epoch, id.prompt, id.dataset, id.policy);
}
inline auto batch_order(const MemberId& id) {
  return std::tuple(id.epoch, id.prompt, id.dataset, id.policy, id.launch, id.member);
}

MemberId member_id(const TaskId& task, int32_t launch, int32_t member);

struct LeaseId {
  MemberId member;
  int32_t attempt = 0;
  friend auto operator<=>(const LeaseId&, const LeaseId&) = default;
};

// One attempt in its lane: names the body of a trajectory, too.
struct BodyId {
  Lane lane = Lane::kTrain;
  LeaseId lease;
  int32_t turns =
      0;  // of a body: so many first turns of an attempt that was not over; 0: all of it
  friend auto operator<=>(const BodyId&, const BodyId&) = default;
};

// "policy=0 dataset=0 epoch=0 prompt=12", and so on.
std::string to_string(const TaskId& id);
std::string to_string(const MemberId& id);
std::string to_string(const LeaseId& id);

}  // namespace tailrace
