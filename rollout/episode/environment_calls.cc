#include "rollout/episode/environment_calls.h"

#include <utility>

namespace tailrace {
namespace {

Result<Heard> unheard(Result<sandbox::StepResult> answer) {
  if (!answer) return answer.failure();
  return Heard{.step = std::move(answer).value()};
}

Result<sandbox::StepResult> call_here(sandbox::Environment& environment,
                                      const sandbox::EnvironmentCall& call) {
  switch (call.kind) {
    case sandbox::EnvironmentCall::Kind::kReset:
      return sandbox::first_step(environment.reset(call.task));
    case sandbox::EnvironmentCall::Kind::kStep:
      return environment.step(call.action);
    case sandbox::EnvironmentCall::Kind::kCut:
      break;
  }
  return environment.cut();
}

}  // namespace

EnvironmentCalls::Opened::~Opened() {
  if (here == nullptr) return;
  try {
    here->close();
  } catch (...) {  // the episode is over, nobody could act on it
  }
}

EnvironmentCalls::~EnvironmentCalls() {
  while (!opened_.empty()) close(opened_.begin()->first);
  hand_over({});
}

void EnvironmentCalls::hand_over(std::vector<Call> calls) {
  std::vector<Executor::Call> all = std::exchange(closing_, {});
  all.reserve(all.size() + calls.size());
  for (Call& call : calls) {
    std::shared_ptr<Opened>& opened = opened_[call.id];
    if (opened == nullptr) {
      opened = std::make_shared<Opened>();
      opened->remote = call.source->open_remote();
    }
    // A remote environment answers by itself. Any other one takes a thread of the executor until
    // its call returns.
    all.push_back(opened->remote ? begun(call, opened) : run(call, opened));
    all.back().id = call.id;
    // The observation is encoded on a thread of the executor, where the engine does not wait for
    // the tokenizer.
    all.back().then = std::move(call.encode);
  }
  executor_.hand_over(std::move(all));
}

auto EnvironmentCalls::begun(const Call& call, const std::shared_ptr<Opened>& opened) const
    -> Executor::Call {
  Executor::Call begun;
  begun.begin = [remote = opened->remote, call = call.call](auto answer) {
    remote->begin(call, [answer = std::move(answer)](Result<sandbox::StepResult> result) {
      answer(unheard(std::move(result)));
    });
  };
  return begun;
}

auto EnvironmentCalls::run(Call& call, const std::shared_ptr<Opened>& opened) const
    -> Executor::Call {
  Executor::Call run;
  run.run = [opened, source = std::move(call.source), call = std::move(call.call)] {
    // On the thread of the call: to make an environment may take long, and its deadline is the
    // call's.
    if (opened->here == nullptr) opened->here = source->open();
    return unheard(call_here(*opened->here, call));
  };
  return run;
}

auto EnvironmentCalls::collect(std::chrono::microseconds wait, bool all) -> std::vector<Answer> {
  std::vector<Answer> answers;
  for (Executor::Answer& answer : executor_.collect(wait, all)) {
    // Its thread may be in it still; the call owns it now.
    if (answer.abandoned) opened_.erase(answer.id);
    answers.push_back(
        {.id = answer.id, .heard = std::move(answer.result), .seconds = answer.seconds});
  }
  return answers;
}

void EnvironmentCalls::close(Id id) {
  const auto at = opened_.find(id);
  if (at == opened_.end()) return;
  // Where nobody waits for it.
  Executor::Call call;
  call.is_answered = false;
  call.run = [opened = std::move(at->second)]() -> Result<Heard> { return Heard{}; };
  closing_.push_back(std::move(call));
  opened_.erase(at);
}

}  // namespace tailrace
