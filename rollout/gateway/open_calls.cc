#include "rollout/gateway/open_calls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "core/base/random.h"
#include "core/base/time.h"

namespace tailrace::gateway {

OpenCalls::OpenCalls(GeneratorDriver& generator, const CallWriter& writer, std::string model,
                     ScoreTokens scores, NoteRefusal note_refusal, const Clock& clock)
    : generator_(generator),
      writer_(writer),
      model_(std::move(model)),
      scores_(std::move(scores)),
      note_refusal_(std::move(note_refusal)),
      clock_(clock) {}

OpenCalls::~OpenCalls() { generator_.close(*this); }

void OpenCalls::begin(Call call) {
  // A thread that reads may have placed the call just before the end of its attempt, and handed it
  // over behind that.
  if (call.attempt->has_ended()) return release_unbegun(call);  // its reply is gone with it
  call.attempt->call_began(clock_.now());
  const int64_t id = call.id;
  const Capture::Place& place = call.branches.front().place;
  call.head = {.id = fmt::format("{}-{}", call.request.is_chat ? "chatcmpl" : "cmpl", id),
               .model = model_,
               .created = static_cast<int64_t>(unix_seconds())};
  // The n answers of a prompt have it in common.
  for (size_t i = 0; i < call.branches.size(); i += static_cast<size_t>(call.request.n))
    call.usage.prompt_tokens += std::ssize(call.branches[i].place.context);
  call.usage.cached_tokens = place.session != 0 ? static_cast<int64_t>(place.num_known) : 0;
  const auto at = calls_.emplace(id, std::move(call)).first;
  Call& open = at->second;
  for (size_t i = 0; i < open.branches.size(); ++i) writer_.echo(open, i);
  if (open.only_echoes()) {
    for (Branch& branch : open.branches) {
      branch.is_done = true;
      branch.choice.reason = FinishReason::kLength;
    }
    return complete(at);
  }
  for (size_t i = 0; i < open.branches.size(); ++i) submit(open, open.branches[i], i);
}

void OpenCalls::release_unbegun(const Call& call) {
  for (const Branch& branch : call.branches)
    if (branch.place.session != 0) generator_.release(branch.place.session);
}

void OpenCalls::submit(Call& call, Branch& branch, size_t index) {
  const Capture::Place& place = branch.place;
  branch.session = place.session != 0 ? place.session : generator_.open(*this);
  branches_[branch.session] = {call.id, index};
  // The session of the answer before has its tokens in KV, so that only what is new is sent. A
  // fresh one is given all.
  const size_t known = place.session != 0 ? place.num_known : 0;
  GenerateRequest request;
  request.session = branch.session;
  request.new_tokens.assign(place.context.begin() + static_cast<std::ptrdiff_t>(known),
                            place.context.end());
  request.sampling = call.request.sampling;
  // Answers to several prompts have different room.
  request.sampling.max_new_tokens =
      std::min(request.sampling.max_new_tokens,
               call.attempt->spec().max_context_tokens - std::ssize(place.context));
  request.wants_kept = call.attempt->spec().keeps_sets;
  const uint64_t seed = call.request.seed.value_or(0);
  // Draws follow from the sample, what was said and the number among equal calls, so that an
  // attempt that is played again samples the same. With a seed and no key the answer is the seed's
  // alone.
  request.key = {call.attempt->is_anonymous() && call.request.seed
                     ? mix({seed, static_cast<uint64_t>(place.ordinal)})
                     : mix({call.attempt->spec().key.value, hash_of(place.context),
                            static_cast<uint64_t>(place.ordinal), seed})};
  generator_.submit(std::move(request));
}

void OpenCalls::answered(Generation generation) {
  const auto found = branches_.find(generation.session);
  // Dropped meanwhile: its client has gone, or its attempt has ended.
  if (found == branches_.end()) return;
  const auto [id, index] = found->second;
  branches_.erase(found);
  const auto at = calls_.find(id);
  if (at == calls_.end()) return;
  Call& call = at->second;
  Branch& branch = call.branches[index];
  branch.is_done = true;
  writer_.take(call, branch, generation);
  if (call.request.stream && !branch.choice.tokens.empty()) writer_.stream_rest(call, index);
  // Answers count together when the last of them is there: a call that is cut off leaves no token.
  if (std::ranges::all_of(call.branches, [](const Branch& b) { return b.is_done; })) complete(at);
}

void OpenCalls::complete(Calls::iterator at) {
  if (!at->second.wants_scores()) return finish(at);
  to_score_.emplace_back(at->first, 0);
}

void OpenCalls::score_next() {
  while (!to_score_.empty()) {
    auto& [id, index] = to_score_.front();
    const auto at = calls_.find(id);
    if (at != calls_.end()) {
      Call& call = at->second;
      CallWriter::score(call, index, scores_);
      if (++index < call.branches.size()) return;
    }
    to_score_.pop_front();
    if (at != calls_.end()) return finish(at);
  }
}

// All its answers are there: now they count.
CapturedCall OpenCalls::capture_answers(Call& call) {
  CapturedCall captured;
  for (Branch& branch : call.branches) {
    if (!branch.choice.tokens.empty()) {
      call.attempt->commit(branch.place, branch.choice,
                           CallWriter::message_of(branch.choice.answer), branch.session,
                           call.digest, captured);
    } else {
      // An answer without a token means that the context is full, which is the policy's doing; or
      // that none was wanted.
      call.attempt->discard(branch.place, /*is_full=*/!call.only_echoes());
      if (branch.session != 0) generator_.release(branch.session);
    }
  }
  return captured;
}

void OpenCalls::finish(Calls::iterator at) {
  Call& call = at->second;
  CapturedCall captured = capture_answers(call);
  std::vector<Choice> choices;
  for (Branch& branch : call.branches) choices.push_back(std::move(branch.choice));
  if (!call.only_echoes() &&
      std::ranges::all_of(choices, [](const Choice& c) { return c.tokens.empty(); })) {
    refuse_full(call);
  } else {
    // Before anything is written: a short answer may be with its client at once.
    CallWriter::note_whether_heard(call, captured);
    Answered answered{call.head, call.usage, std::move(choices), std::move(captured)};
    if (call.request.stream) {
      CallWriter::end_stream(call);
    } else {
      writer_.respond(call, answered);
    }
    call.attempt->remember(call.name, std::move(answered));
  }
  close(call);
  calls_.erase(at);
}

void OpenCalls::refuse_full(Call& call) {
  const ApiError error{400, "the context is full", "invalid_request_error",
                       "context_length_exceeded", ""};
  note_refusal_(error, *call.attempt);
  call.reply.send(error.status, error.json());
}

void OpenCalls::stream() {
  for (auto& [id, call] : calls_) {
    if (!call.request.stream) continue;
    for (size_t i = 0; i < call.branches.size(); ++i) {
      const Branch& branch = call.branches[i];
      if (!branch.is_done) writer_.stream(call, i, generator_.so_far(branch.session));
    }
  }
}

void OpenCalls::drop(int64_t id) {
  if (const auto at = calls_.find(id); at != calls_.end()) drop(at);
}

void OpenCalls::drop_all(const Attempt& attempt) {
  for (auto at = calls_.begin(); at != calls_.end();)
    at = at->second.attempt.get() == &attempt ? drop(at) : std::next(at);
}

OpenCalls::Calls::iterator OpenCalls::drop(Calls::iterator at) {
  Call& call = at->second;
  for (Branch& branch : call.branches) {
    branches_.erase(branch.session);
    if (branch.session != 0) generator_.release(branch.session);
    call.attempt->discard(branch.place, /*is_full=*/false);
  }
  close(call);
  return calls_.erase(at);
}

void OpenCalls::close(const Call& call) {
  call.attempt->call_ended(clock_.now());
  // A call without a key is an attempt of its own, and nobody goes on behind its answers.
  if (!call.attempt->is_anonymous()) return;
  for (const SessionId session : call.attempt->sessions()) generator_.release(session);
}

}  // namespace tailrace::gateway
