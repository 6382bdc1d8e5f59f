#include "rollout/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/time.h"
#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/sample.h"

namespace tailrace {
namespace {

// Logits are made in pieces: of at most 16 MiB where a cache is to hold them, and of 256 MiB on a
// GPU, where a piece reads the whole head.
constexpr int64_t kLogitFloats = 4 << 20, kDeviceLogitFloats = 64 << 20;
constexpr int64_t kMib = 1 << 20;

int blocks_per_sequence(const EngineOptions& options) {
  return static_cast<int>((options.max_context_tokens + options.block_tokens - 1) /
                          options.block_tokens);
}

// A sequence has at most one row of logits in a pass, and a row is a token of the batch.
int64_t max_logit_rows(const EngineOptions& options) {
  return std::min(options.max_sequences, options.max_batch_tokens);
}

int64_t logit_rows_per_chunk(const ModelConfig& config, const EngineOptions& options,
                             Device device) {
  const int64_t suits = device.kind == DeviceKind::kCpu ? kLogitFloats : kDeviceLogitFloats;
  const int64_t floats = options.logit_floats > 0 ? options.logit_floats : suits;
  return std::clamp<int64_t>(floats / config.num_ids(), 1, max_logit_rows(options));
}

bool overlaps(const EngineOptions& options, Device device) {
  return options.overlaps.value_or(device.kind != DeviceKind::kCpu);
}
size_t num_steps(const EngineOptions& options, Device device) {
  return overlaps(options, device) ? 2 : 1;
}
bool has_graphs(const EngineOptions& options, Device device) {
  return device.kind != DeviceKind::kCpu && options.graphs.value_or(true);
}
// Blocks of the cache that no sequence has.
int num_spare_blocks(const EngineOptions& options, Device device) {
  return has_graphs(options, device) ? 1 : 0;
}

// Bytes of the workspaces: on the device, and on the host beside it.
struct WorkspaceBytes {
  size_t device = 0, host = 0;

  WorkspaceBytes(const ModelConfig& config, const EngineOptions& options, int num_threads,
                 const Placement& placement = {}) {
    Workspace on_device = Workspace::measuring(), on_host = Workspace::measuring();
    const MirrorMemory memory{on_device, on_host, placement};
    const EngineArrays arrays(memory, config, options);
    const int64_t rows = arrays.logits.rows, vocab = arrays.logits.cols;
    // A pass and the draw behind it take the same memory.
    const size_t pass = Model::workspace_bytes(config, options.max_batch_tokens,
                                               static_cast<int>(options.max_context_tokens),
                                               num_threads, placement),
                 draw = sample_workspace_bytes(rows, vocab, placement.device);
    on_device.take<std::byte>(static_cast<int64_t>(std::max(pass, draw)));
    device = on_device.peak();
    host = on_host.peak();
  }
};

BatchRoom batch_room(const ModelConfig& config, const EngineOptions& options, int num_blocks,
                     Device device) {
  return {.tokens = options.max_batch_tokens,
          .sequences = max_logit_rows(options),
          .blocks_per_sequence = blocks_per_sequence(options),
          .takes_draws = overlaps(options, device),
          .vocab = config.vocab_size,
          .blocks = num_blocks};
}

}  // namespace

EngineArrays::EngineArrays(const MirrorMemory& memory, const ModelConfig& config,
                           const EngineOptions& options)
    : hidden(take_tensor(memory.device, memory.placement, max_logit_rows(options),
                         config.hidden_size, memory.placement.operands)),
      logits(take_tensor(memory.device, memory.placement,
                         logit_rows_per_chunk(config, options, memory.placement.device),
                         config.num_ids(), Dtype::kF32)),
      kept_ids(memory, logits.rows * logits.cols) {
  const int64_t choices =
      options.keep_choices ? options.max_batch_tokens * config.expert_shape().per_token() : 0;
  for (size_t i = 0; i < num_steps(options, memory.placement.device); ++i) {
    draws.emplace_back(memory, hidden.rows);
    chosen.emplace_back(memory, choices);
  }
}

int num_kv_blocks(const ModelConfig& config, const EngineOptions& options,
                  const Placement& placement) {
  if (options.max_context_tokens < 2 || options.max_context_tokens > config.max_positions) {
    throw UserError::at(
        "rollout.max_context_tokens",
        "is {}; the model knows positions 0 to {}.\n       Try rollout.max_context_tokens = {}.",
        options.max_context_tokens, config.max_positions - 1, config.max_positions);
  }
  int64_t block_bytes = KvCache::bytes_per_block(config, static_cast<int>(options.block_tokens),
                                                 options.keep_choices, placement);
  int64_t one = blocks_per_sequence(options);
  if (options.kv_cache_blocks > 0) {
    if (options.kv_cache_blocks >= one) return static_cast<int>(options.kv_cache_blocks);
    throw UserError::at(
        "rollout.kv_cache_blocks",
        "is {}, but one sequence of max_context_tokens = {} needs {} blocks of {} tokens.\n"
        "       Try rollout.kv_cache_blocks = {}.",
        options.kv_cache_blocks, options.max_context_tokens, one, options.block_tokens,
        one * options.max_sequences);
  }
  // One full context must fit: the oldest request can then always finish, whatever the others hold.
  const int64_t spare = num_spare_blocks(options, placement.device);
  const int64_t affordable = options.kv_cache_mb * kMib / block_bytes - spare;
  if (affordable < one) {
    throw UserError::at(
        "rollout.kv_cache_mb",
        "is {}: room for {} blocks of {} tokens, but one sequence of max_context_tokens = {} needs "
        "{}.\n       Try rollout.kv_cache_mb = {}.",
        options.kv_cache_mb, affordable, options.block_tokens, options.max_context_tokens, one,
        ((one + spare) * block_bytes + kMib - 1) / kMib);
  }
  // More than this is never used: all sequences at full length, and as much for idle sessions and
  // prompts.
  return static_cast<int>(std::min({affordable, 2 * one * options.max_sequences, kMaxKvBlocks}));
}

PlacedMemory engine_memory(const ModelConfig& config, const EngineOptions& options, int num_threads,
                           const Placement& placement) {
  const int num_blocks =
      num_kv_blocks(config, options, placement) + num_spare_blocks(options, placement.device);
  const WorkspaceBytes workspace(config, options, num_threads, placement);
  const int64_t batch =
      static_cast<int64_t>(num_steps(options, placement.device)) *
      BatchBuilder::bytes(batch_room(config, options, num_blocks, placement.device));
  const bool on_cpu = placement.device.kind == DeviceKind::kCpu;
  const auto cache_bytes = [&](bool keeps_choices) {
    return KvCache::bytes(config, num_blocks, static_cast<int>(options.block_tokens), keeps_choices,
                          placement);
  };
  std::vector<MemoryItem> items = {{"KV cache", cache_bytes(on_cpu && options.keep_choices)},
                                   {fmt::format("workspace of {} tokens", options.max_batch_tokens),
                                    static_cast<int64_t>(workspace.device) + batch}};
  if (on_cpu) return {.host = std::move(items)};
  return {.host = {{"what goes to the device and comes from it",
                    static_cast<int64_t>(workspace.host) + batch +
                        static_cast<int64_t>(Workspace::aligned(static_cast<size_t>(
                            cache_bytes(options.keep_choices) - cache_bytes(false))))}},
          .device = std::move(items)};
}

Engine::Engine(const Model& model, const text::Tokenizer* tokenizer, const EngineOptions& options,
               const Stream& stream, const Clock& clock)
    : model_(model),
      tokenizer_(tokenizer),
      stream_(stream),
      clock_(clock),
      max_context_(options.max_context_tokens),
      num_blocks_(num_kv_blocks(model.config(), options, model.placement())),
      kv_(model.config(), num_blocks_ + num_spare_blocks(options, stream.device),
          static_cast<int>(options.block_tokens), options.keep_choices, model.placement()),
      planner_(kv_, {.max_batch_tokens = options.max_batch_tokens,
                     .max_sequences = options.max_sequences,
                     .num_blocks = num_blocks_}),
      // Taken once, so that a run that starts does not die of memory hours later.
      memory_(
          WorkspaceBytes(model.config(), options, num_threads(stream), model.placement()).device,
          stream.device),
      host_memory_(Buffer::pinned(
          WorkspaceBytes(model.config(), options, num_threads(stream), model.placement()).host,
          stream.device)),
      workspace_(memory_),
      host_workspace_(host_memory_),
      arrays_({workspace_, host_workspace_, model.placement()}, model.config(), options) {
  TR_CHECK(stream.device == model.placement().device, "a stream of device {}, a model of device {}",
           stream.device.index, model.placement().device.index);
  for (size_t i = 0; i < arrays_.draws.size(); ++i)
    steps_.emplace_back(batch_room(model.config(), options, kv_.num_blocks(), stream.device),
                        stream.device, arrays_.draws[i], arrays_.chosen[i]);
  if (has_graphs(options, stream.device) && StreamGraph::is_available(stream))
    graphs_ = StepGraphs(max_logit_rows(options), max_context_);
}

Engine::~Engine() {
  for (const StepInFlight& step : steps_) step.done.wait();
  for (auto& [id, sequence] : sessions_) planner_.remove(*sequence);
}

void Engine::install(std::shared_ptr<const PackedWeights> weights, int64_t version) {
  TR_CHECK(weights != nullptr && version >= 0, "version {}", version);
  freeze();
  gate_.begin_install();
  // Before the weights change: KV of the old ones must not be read under the new version.
  planner_.forget_kv(version);
  // Nor what they chose where nothing was drawn from it yet: the new weights will draw.
  for (auto& [id, sequence] : sessions_)
    if (sequence->sampled.empty()) forget_choices(*sequence);
  const std::byte* const place = weights->memory().data;
  if (!graphs_.knows(place))
    for (const StepInFlight& step : steps_) step.done.wait();  // also one that was of no use
  graphs_.moved_to(place);
  weights_ = std::move(weights);
  gate_.verified(version);
  gate_.open();
}

void Engine::freeze() {
  drain();
  if (gate_.state() == WeightGate::State::kOpen) gate_.close();
  if (gate_.state() == WeightGate::State::kClosed) gate_.freeze();
}

void Engine::submit(GenerateRequest request) {
  TR_CHECK(request.sampling.max_new_tokens >= 1, "max_new_tokens {}",
           request.sampling.max_new_tokens);
  for (TokenId token : request.new_tokens) {
    TR_CHECK(token >= 0 && token < model_.config().num_ids(), "token {} of a vocabulary of {}",
             token, model_.config().num_ids());
  }
  auto found = sessions_.find(request.session);
  bool is_new = found == sessions_.end();
  int64_t length = is_new ? 0 : found->second->length();
  TR_CHECK(!request.new_tokens.empty() || length > 0, "session {}: an empty prompt",
           request.session);
  // An environment's answer may be of any length, so this is an answer and not a check.
  if (length + static_cast<int64_t>(request.new_tokens.size()) >= max_context_) {
    ready_.push_back({request.session, {}, FinishReason::kContextFull});
    return;
  }
  if (is_new) {
    found = sessions_.emplace(request.session, std::make_unique<Sequence>()).first;
    found->second->session = request.session;
    found->second->prompt_tokens = static_cast<int64_t>(request.new_tokens.size());
  }
  Sequence& sequence = *found->second;
  TR_CHECK(sequence.phase == Sequence::Phase::kIdle, "session {} has a request already",
           request.session);
  sequence.tokens.insert(sequence.tokens.end(), request.new_tokens.begin(),
                         request.new_tokens.end());
  sequence.stops = matcher(request.sampling.stop_strings);
  sequence.sampling = std::move(request.sampling);
  sequence.key = request.key;
  sequence.wants_kept = request.wants_kept;
  sequence.max_length = sequence.length() + std::min(sequence.sampling.max_new_tokens,
                                                     max_context_ - sequence.length());
  sequence.sampled.clear();
  planner_.enqueue(sequence);
}

void Engine::release(SessionId session) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  Sequence& sequence = *found->second;
  if (sequence.in_flight > 0) drain();
  // It may have ended with what was in flight: its owner, who gives it up, has not heard of that.
  for (Generation& answer : ready_)
    if (answer.session == session && !answer.tokens.empty()) answer.reason = FinishReason::kAborted;
  // Its owner still hears what was sampled so far.
  if (sequence.phase != Sequence::Phase::kIdle)
    ready_.push_back({session, std::move(sequence.sampled), FinishReason::kAborted,
                      std::move(sequence.choices)});
  planner_.remove(sequence);
  sessions_.erase(found);
}

bool Engine::idle() const {
  return ready_.empty() && planner_.running().empty() && planner_.num_queued() == 0;
}

std::span<const GeneratedToken> Engine::so_far(SessionId session) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return {};
  return found->second->sampled;
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.planner = planner_.stats();
  return stats;
}

std::vector<Generation> Engine::step() {
  Time start = clock_.now();
  if (gate_.may_step()) {
    StepInFlight& next = steps_[next_step_];
    next_step_ = (next_step_ + 1) % steps_.size();
    plan(next);
    enqueue(next);
    StepInFlight* due = std::exchange(in_flight_, next.parts.empty() ? nullptr : &next);
    if (steps_.size() == 1) due = std::exchange(in_flight_, nullptr);
    if (due != nullptr) collect(*due);
    stats_.busy_seconds += seconds_of(clock_.now() - start);
  } else {
    drain();
  }
  return std::exchange(ready_, {});
}

void Engine::drain() {
  if (in_flight_ != nullptr) collect(*std::exchange(in_flight_, nullptr));
}

// Beside the KV that the step has written. What has ended meanwhile may have given its blocks back.
void Engine::store_choices(const StepInFlight& step) {
  const int64_t layers = model_.config().num_sparse_layers(), k = model_.config().experts_per_token,
                rows = step.builder.num_tokens();
  int64_t first = 0;
  for (const StepInFlight::Part& part : step.parts) {
    for (int64_t i = 0; part.sequence != nullptr && i < part.count; ++i) {
      const int64_t position = part.length - part.count + i;
      const auto block = static_cast<size_t>(position / kv_.block_tokens());
      const std::span<uint16_t> to = kv_.choices(part.sequence->blocks.ids()[block],
                                                 static_cast<int>(position % kv_.block_tokens()));
      for (int64_t layer = 0; layer < layers; ++layer) {
        const auto from =
            step.chosen.host.subspan(static_cast<size_t>((layer * rows + first + i) * k));
        for (int64_t j = 0; j < k; ++j)
          to[static_cast<size_t>(layer * k + j)] =
              static_cast<uint16_t>(from[static_cast<size_t>(j)]);
      }
    }
    first += part.count;
  }
}

// Choices of tokens computed now, and of those found in the prefix cache. A token that is computed
// again (after a preemption, or by new weights) is known: its first choices are those that sampled.
void Engine::record_choices(Sequence& sequence) {
  for (; sequence.num_chosen < sequence.num_computed; ++sequence.num_chosen) {
    const auto block = static_cast<size_t>(sequence.num_chosen / kv_.block_tokens());
    const auto ids = kv_.choices(sequence.blocks.ids()[block],
                                 static_cast<int>(sequence.num_chosen % kv_.block_tokens()));
    sequence.choices.insert(sequence.choices.end(), ids.begin(), ids.end());
  }
}

// Forgets the choices that no answer has told.
void Engine::forget_choices(Sequence& sequence) {
  if (sequence.choices.empty()) return;
  sequence.num_chosen -= std::ssize(sequence.choices) / model_.config().expert_shape().per_token();
  sequence.choices.clear();
}

GeneratedToken Engine::drawn_token(StepInFlight& step, const Sequence& sequence, size_t row) {
  // The version token by token: an install may come between two of them.
  const MirroredDraws& draws = step.draws;
  GeneratedToken token{draws.tokens.host[row], draws.logprobs.host[row], step.version};
  if (draws.kept_counts.host[row] == 0) return token;
  token.log_mass = log_mass(draws.kept_lse.host[row], draws.lse.host[row]);
  if (sequence.wants_kept) token.kept = std::move(step.kept[row]);
  return token;
}

std::optional<FinishReason> Engine::reason_to_stop(const Sequence& sequence) const {
  const SamplingParams& sampling = sequence.sampling;
  if (std::ranges::find(sampling.stop_tokens, sequence.tokens.back()) != sampling.stop_tokens.end())
    return FinishReason::kStopToken;
  // In this order: an answer that ends by itself with its last permitted token has ended, it was
  // not cut.
  auto num_sampled = sequence.sampled.size();
  if (sequence.stops != nullptr &&
      sequence.stops->completes(std::span(sequence.tokens).last(num_sampled)))
    return FinishReason::kStopString;
  if (static_cast<int64_t>(num_sampled) >= sampling.max_new_tokens) return FinishReason::kLength;
  if (sequence.length() >= max_context_) return FinishReason::kContextFull;
  return std::nullopt;
}

const StopMatcher* Engine::matcher(const std::vector<std::string>& stop_strings) {
  if (stop_strings.empty()) return nullptr;
  TR_CHECK(tokenizer_ != nullptr, "stop strings need a tokenizer");
  // Kept for the engine's life: making one decodes the whole vocabulary, and an environment has one
  // list for all its episodes.
  auto& matcher = matchers_[stop_strings];
  if (matcher == nullptr) {
    matcher = std::make_unique<StopMatcher>(*tokenizer_, stop_strings, model_.config().num_ids());
  }
  return matcher.get();
}

}  // namespace tailrace
