#include "rollout/agent/agent_runner.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

using nlohmann::ordered_json;

ordered_json row_of_task(const sandbox::Task& task) {
  ordered_json row = parse_ordered_json(task.data);
  return row.is_object() ? row : ordered_json();
}

// A refused call is mostly why a program failed, and its client may not show the reason.
std::string with_refusal(std::string failure, const gateway::CapturedAttempt& attempt) {
  if (attempt.num_refused == 0) return failure;
  return fmt::format("the gateway refused {}: {}; {}",
                     attempt.num_refused == 1
                         ? std::string("a call of it")
                         : fmt::format("{} calls of it, the last one", attempt.num_refused),
                     attempt.last_refusal, failure);
}

std::string text_of_message(const ordered_json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : "";
}

// The evidence for a verifier: the row with the last answer, or the conversation (reward/command).
std::string evidence_of(const gateway::CapturedAttempt& attempt, const sandbox::Task& task,
                        const sandbox::AgentProgram& program,
                        const std::optional<AgentReward>& reward) {
  const ordered_json messages = parse_ordered_json(attempt.conversation),
                     prompt = parse_ordered_json(attempt.first_messages);
  const auto last_text = [](const ordered_json& list) {
    return list.is_array() && !list.empty() ? text_of_message(list.back()) : "";
  };
  ordered_json row = row_of_task(task);
  row["response"] = last_text(messages);
  if (!program.is_retold) return json_text(row);
  ordered_json told = {{"prompt", last_text(prompt)},
                       {"messages", messages},
                       {"response", last_text(messages)},
                       {"row", row_of_task(task)},
                       {"turns", attempt.num_answers}};
  if (reward) told["environment_reward"] = reward->reward;
  if (program.keeps_evidence) told["evidence"] = json_text(row);
  return json_text(told);
}

}  // namespace

AgentRunner::~AgentRunner() {
  for (const auto& [id, running] : running_) {
    if (running.seat.number == 0) continue;
    processes_.stop(running.seat.number);
    (void)gateway_.end(running.seat.key);
  }
}

void AgentRunner::start(EpisodeSpec spec, std::string env,
                        std::shared_ptr<const sandbox::AgentProgram> program) {
  const int64_t id = next_id_++;
  const bool is_new = by_lease_.emplace(std::pair(spec.lane, spec.lease), id).second;
  TR_CHECK(is_new, "an episode of lease {} runs already", to_string(spec.lease));
  running_.emplace(
      id, Running{.spec = std::move(spec), .env = std::move(env), .program = std::move(program)});
  begin_waiting();
}

// In the order in which they came.
void AgentRunner::begin_waiting() {
  for (auto& [id, running] : running_)
    if (running.seat.number == 0 && seats_[running.program].num_taken < running.program->at_once)
      begin(id, running);
}

void AgentRunner::begin(int64_t id, Running& running) {
  const EpisodeSpec& spec = running.spec;
  Seats& seats = seats_[running.program];
  ++seats.num_taken;
  if (seats.free.empty()) {
    running.seat.number = next_seat_++;
  } else {
    running.seat = std::move(seats.free.back());
    seats.free.pop_back();
  }
  gateway::AttemptSpec attempt{.key = spec.key,
                               .sampling = spec.sampling,
                               .max_context_tokens = spec.limits.max_context_tokens,
                               .max_response_tokens = spec.limits.max_response_tokens,
                               .max_calls = spec.limits.max_turns,
                               .keeps_sets = spec.keeps_sets,
                               .max_request_bytes = running.program->max_request_bytes,
                               .name = fmt::format("agent {} (episode {})", running.env, id)};
  attempt.sampling.max_new_tokens = spec.limits.max_action_tokens;
  running.seat.key = gateway_.begin(attempt, std::move(running.seat.key));
  const ordered_json task = {{"episode", id},
                             {"seed", spec.task.seed},
                             {"row", row_of_task(spec.task)},
                             {"evaluates", spec.lane == Lane::kEval}};
  const uint16_t port = running.program->is_isolated ? kSandboxPort : 0;
  processes_.start({.seat = running.seat.number,
                    .episode = id,
                    .program = running.program,
                    .base_url = gateway_.base_url(running.seat.key, port),
                    .api_key = running.seat.key,
                    .task = json_text(task),
                    .seed = spec.task.seed});
}

std::vector<std::string> AgentRunner::take_notes(bool is_end) {
  std::vector<std::string> notes = gateway_.take_refusals(is_end);
  std::ranges::move(processes_.take_notes(is_end), std::back_inserter(notes));
  return notes;
}

bool AgentRunner::abort(const LeaseId& lease, Lane lane) {
  const auto found = by_lease_.find({lane, lease});
  if (found == by_lease_.end()) return false;
  const auto at = running_.find(found->second);
  if (const Running& running = at->second; running.seat.number != 0) {
    processes_.stop(running.seat.number);
    (void)gateway_.end(running.seat.key);
    --seats_[running.program].num_taken;
  }
  running_.erase(at);
  by_lease_.erase(found);
  begin_waiting();
  return true;
}

std::vector<BodyId> AgentRunner::running() const {
  std::vector<BodyId> ids;
  for (const auto& [lane_and_lease, id] : by_lease_)
    ids.push_back({lane_and_lease.first, lane_and_lease.second});
  return ids;
}

std::vector<FinishedEpisode> AgentRunner::poll() {
  std::vector<FinishedEpisode> finished;
  for (AgentEnd& end : processes_.collect()) {
    const auto at = running_.find(end.episode);
    if (at == running_.end()) continue;  // aborted meanwhile
    const bool waits = end.waits;
    finished.push_back(finish(at->second, std::move(end)));
    Running& running = at->second;
    Seats& seats = seats_[running.program];
    --seats.num_taken;
    if (waits) seats.free.push_back(std::move(running.seat));
    by_lease_.erase({running.spec.lane, running.spec.lease});
    running_.erase(at);
  }
  if (!finished.empty()) begin_waiting();
  return finished;
}

FinishedEpisode AgentRunner::finish(const Running& running, AgentEnd end) {
  gateway::CapturedAttempt attempt = gateway_.end(running.seat.key);
  const EpisodeSpec& spec = running.spec;
  FinishedEpisode episode;
  Trajectory& trajectory = episode.trajectory;
  trajectory.lease = spec.lease;
  trajectory.lane = spec.lane;
  trajectory.env = running.env;
  trajectory.seed = spec.task.seed;
  trajectory.sampling = spec.sampling;
  trajectory.sampling.max_new_tokens = spec.limits.max_action_tokens;
  trajectory.numerics_classes = {spec.numerics_class};
  trajectory.turns = static_cast<int32_t>(attempt.num_answers);
  trajectory.turn_anchors = std::move(attempt.anchors);
  trajectory.generate_seconds = attempt.generate_seconds;
  trajectory.env_seconds = std::max(0.0, end.seconds - attempt.generate_seconds);
  const bool has_tokens = !attempt.segments.empty();
  trajectory.segments = std::move(attempt.segments);
  if (!has_tokens) trajectory.segments.emplace_back();

  const bool cut = attempt.over_limit;
  if (end.failure.empty() && !has_tokens) end.failure = "it never had an answer of the policy";
  // An attempt that failed by the policy's doing is not repeated until one succeeds.
  if (!end.failure.empty() && !(cut && has_tokens)) {
    trajectory.outcome = Outcome::kEnvFailed;
    episode.failure = with_refusal(std::move(end.failure), attempt);
    return episode;
  }
  trajectory.outcome = cut ? Outcome::kTruncated : Outcome::kFinished;
  if (end.reward) trajectory.metrics = end.reward->metrics;
  trajectory.metrics.emplace_back("agent_calls", static_cast<double>(attempt.num_answers));
  trajectory.metrics.emplace_back("agent_segments",
                                  static_cast<double>(trajectory.segments.size()));
  trajectory.metrics.emplace_back("agent_begun_anew", static_cast<double>(attempt.num_begun_anew));
  trajectory.metrics.emplace_back("agent_asked_again",
                                  static_cast<double>(attempt.num_asked_again));
  trajectory.metrics.emplace_back("agent_unheard", static_cast<double>(attempt.num_unheard));
  trajectory.metrics.emplace_back("agent_refused", static_cast<double>(attempt.num_refused));
  trajectory.metrics.emplace_back("malformed_tool_calls",
                                  static_cast<double>(attempt.num_malformed_calls));
  if (running.program->verifier.empty()) {
    trajectory.reward = end.reward ? end.reward->reward : 0.0;
    if (cut) trajectory.evidence = "it asked for more than its limits";
  } else {
    trajectory.verifier = running.program->verifier;
    trajectory.evidence = evidence_of(attempt, spec.task, *running.program, end.reward);
  }
  return episode;
}

}  // namespace tailrace
