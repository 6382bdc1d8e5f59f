#include "rollout/engine/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/time.h"
#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/log_softmax.h"
#include "kernels/ops/sample.h"
#include "rollout/engine/sampler.h"

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

// Of the device, and of the host beside it.
struct WorkspaceBytes {
  size_t device = 0, host = 0;

  WorkspaceBytes(const ModelConfig& config, const EngineOptions& options, int num_threads,
                 const Placement& placement = {}) {
    Workspace on_device = Workspace::measuring(), on_host = Workspace::measuring();
    const MirrorMemory memory{on_device, on_host, placement};
    const EngineArrays arrays(memory, config, options);
    const int64_t rows = arrays.logits.host.rows, vocab = arrays.logits.host.cols;
    // A pass and the draw behind it take the same memory.
    const size_t pass = Model::workspace_bytes(config, options.max_batch_tokens,
                                               static_cast<int>(options.max_context_tokens),
                                               num_threads, placement),
                 draw = sample_workspace_bytes(rows, vocab, placement.device);
    on_device.take<std::byte>(static_cast<int64_t>(std::max(pass, draw)));
    device = on_device.peak();
    if (!memory.is_one()) {
      DrawnRows(on_host, rows);
      on_host.take<std::byte>(static_cast<int64_t>(sample_workspace_bytes(rows, vocab)));
    }
    host = on_host.peak();
  }
};

BatchRoom batch_room(const ModelConfig& config, const EngineOptions& options, int num_blocks) {
  return {.tokens = options.max_batch_tokens,
          .sequences = max_logit_rows(options),
          .blocks_per_sequence = blocks_per_sequence(options),
          .vocab = config.vocab_size,
          .blocks = num_blocks};
}

// Calls f(begin, end, inv_temperature). kept_log_sum_exp() takes one temperature: rows that share
// theirs with the next ones go together.
template <class F>
void for_each_temperature(std::span<const SamplingRow> rows, const F& f) {
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const float inv_temperature = rows[begin].inv_temperature;
    while (end < rows.size() && rows[end].inv_temperature == inv_temperature) ++end;
    f(static_cast<int64_t>(begin), static_cast<int64_t>(end), inv_temperature);
  }
}

}  // namespace

EngineArrays::EngineArrays(const MirrorMemory& memory, const ModelConfig& config,
                           const EngineOptions& options)
    : hidden(take_tensor(memory.device, memory.placement, max_logit_rows(options),
                         config.hidden_size, memory.placement.operands)),
      logits(memory, logit_rows_per_chunk(config, options, memory.placement.device),
             config.num_ids()),
      kept_ids(memory, logits.host.rows * logits.host.cols),
      kept_offsets(memory, memory.is_one() ? 0 : logits.host.rows + 1),
      draws(memory, hidden.rows) {}

int num_kv_blocks(const ModelConfig& config, const EngineOptions& options,
                  const Placement& placement) {
  if (options.max_context_tokens < 2 || options.max_context_tokens > config.max_positions) {
    throw UserError::at(
        "rollout.max_context_tokens",
        "is {}; the model knows positions 0 to {}.\n       Try max_context_tokens = {}.",
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
        "       Try kv_cache_blocks = {}.",
        options.kv_cache_blocks, options.max_context_tokens, one, options.block_tokens,
        one * options.max_sequences);
  }
  // One full context must fit: the oldest request can then always finish, whatever the others hold.
  int64_t affordable = options.kv_cache_mb * kMib / block_bytes;
  if (affordable < one) {
    throw UserError::at(
        "rollout.kv_cache_mb",
        "is {}: room for {} blocks of {} tokens, but one sequence of max_context_tokens = {} needs "
        "{}.\n       Try kv_cache_mb = {}.",
        options.kv_cache_mb, affordable, options.block_tokens, options.max_context_tokens, one,
        (one * block_bytes + kMib - 1) / kMib);
  }
  // More than this is never used: all sequences at full length, and as much for idle sessions and
  // prompts.
  return static_cast<int>(std::min({affordable, 2 * one * options.max_sequences, kMaxKvBlocks}));
}

PlacedMemory engine_memory(const ModelConfig& config, const EngineOptions& options, int num_threads,
                           const Placement& placement) {
  const int num_blocks = num_kv_blocks(config, options, placement);
  const WorkspaceBytes workspace(config, options, num_threads, placement);
  const int64_t batch = BatchBuilder::bytes(batch_room(config, options, num_blocks));
  std::vector<MemoryItem> items = {
      {"KV cache", KvCache::bytes(config, num_blocks, static_cast<int>(options.block_tokens),
                                  options.keep_choices, placement)},
      {fmt::format("workspace of {} tokens", options.max_batch_tokens),
       static_cast<int64_t>(workspace.device) + batch}};
  if (placement.device.kind == DeviceKind::kCpu) return {.host = std::move(items)};
  return {.host = {{"what goes to the device and comes from it",
                    static_cast<int64_t>(workspace.host) + batch}},
          .device = std::move(items)};
}

Engine::Engine(const Model& model, const text::Tokenizer* tokenizer, const EngineOptions& options,
               const Stream& stream, const Clock& clock)
    : model_(model),
      tokenizer_(tokenizer),
      stream_(stream),
      clock_(clock),
      max_context_(options.max_context_tokens),
      kv_(model.config(), num_kv_blocks(model.config(), options, model.placement()),
          static_cast<int>(options.block_tokens), options.keep_choices, model.placement()),
      planner_(kv_, {.max_batch_tokens = options.max_batch_tokens,
                     .max_sequences = options.max_sequences}),
      builder_(batch_room(model.config(), options, kv_.num_blocks()), stream.device),
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
}

Engine::~Engine() {
  for (auto& [id, sequence] : sessions_) planner_.remove(*sequence);
}

void Engine::install(std::shared_ptr<const PackedWeights> weights, int64_t version) {
  TR_CHECK(weights != nullptr && version >= 0, "version {}", version);
  if (gate_.state() == WeightGate::State::kOpen) gate_.close();
  if (gate_.state() == WeightGate::State::kClosed) gate_.freeze();
  gate_.begin_install();
  // Before the weights change: KV of the old ones must not be read under the new version.
  planner_.forget_kv(version);
  // Nor what they chose where nothing was drawn from it yet: the new weights will draw.
  for (auto& [id, sequence] : sessions_)
    if (sequence->sampled.empty()) forget_choices(*sequence);
  weights_ = std::move(weights);
  gate_.verified(version);
  gate_.open();
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
  // What an environment says may be of any length, so this is an answer and not a check.
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
  sequence.sampled.clear();
  planner_.enqueue(sequence);
}

void Engine::release(SessionId session) {
  auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  Sequence& sequence = *found->second;
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
  if (gate_.may_step()) {
    Time start = clock_.now();
    plan();
    enqueue();
    collect();
    stats_.busy_seconds += seconds_of(clock_.now() - start);
  }
  return std::exchange(ready_, {});
}

void Engine::plan() {
  planner_.plan(gate_.may_admit());
  builder_.clear();
  rows_.clear();
  for (Sequence* sequence : planner_.running()) {
    if (sequence->planned == 0) continue;
    std::span<const TokenId> tokens(sequence->tokens);
    tokens = tokens.subspan(static_cast<size_t>(sequence->num_computed),
                            static_cast<size_t>(sequence->planned));
    // Only the last position says what comes next; a piece of a prompt wants no logits.
    bool to_the_end = sequence->planned == sequence->uncomputed();
    auto last = static_cast<int32_t>(sequence->planned - 1);
    builder_.add(tokens, static_cast<int32_t>(sequence->num_computed), sequence->blocks.ids(),
                 {&last, to_the_end ? size_t{1} : size_t{0}});
    if (to_the_end) rows_.push_back(sequence);
    bool decodes = sequence->planned == 1 && !sequence->sampled.empty();
    (decodes ? stats_.decode_tokens : stats_.prefill_tokens) += sequence->planned;
  }
  if (builder_.num_tokens() > 0) ++stats_.steps;
}

void Engine::enqueue() {
  for (const auto& [from, to, tokens] : planner_.copies())
    kv_.copy_block(stream_, from, to, tokens);
  if (builder_.num_tokens() == 0) return;
  Workspace::Scope scope(workspace_);
  const auto num_rows = static_cast<int64_t>(rows_.size());
  model_.forward(stream_, workspace_, *weights_, builder_.batch(stream_), kv_,
                 arrays_.hidden.slice_rows(0, num_rows), /*sink=*/nullptr);
  kept_.resize(rows_.size());
  for (int64_t begin = 0; begin < num_rows; begin += arrays_.logits.host.rows) {
    const int64_t end = std::min(begin + arrays_.logits.host.rows, num_rows);
    const MirrorMatrix logits = arrays_.logits.slice_rows(0, end - begin);
    // In pieces of rows: [rows, vocab] is the largest buffer of a decode step, and a row does not
    // depend on its neighbours.
    linear(stream_, {.x = arrays_.hidden.slice_rows(begin, end),
                     .weight = weights_->head(),
                     .y = logits.device});
    draw(begin, logits);
  }
}

void Engine::collect() {
  if (builder_.num_tokens() == 0) return;
  wait(stream_);
  for (size_t row = 0; row < rows_.size(); ++row) {
    // One NaN or +infinity among the logits makes it so. A draw would mean nothing.
    if (!std::isfinite(arrays_.draws.lse.host[row]))
      throw UserError("the weights of version {} give logits that are not finite (at position {})",
                      gate_.version(), rows_[row]->length());
  }
  for (Sequence* sequence : planner_.running()) {
    planner_.computed(*sequence);
    if (kv_.keeps_choices()) record_choices(*sequence);
  }
  for (size_t row = 0; row < rows_.size(); ++row) {
    Sequence& sequence = *rows_[row];
    sequence.tokens.push_back(arrays_.draws.tokens.host[row]);
    sequence.sampled.push_back(drawn_token(sequence, row));
    ++stats_.sampled_tokens;
    if (auto reason = reason_to_stop(sequence)) {
      planner_.finish(sequence);
      ready_.push_back(
          {sequence.session, std::move(sequence.sampled), *reason, std::move(sequence.choices)});
      sequence.sampled.clear();
      sequence.choices.clear();
    }
  }
}

// Those that it has computed now, and those that it found in the prefix cache. What is computed
// again (after a preemption, or by new weights) is known: the first time is what sampled.
void Engine::record_choices(Sequence& sequence) {
  for (; sequence.num_chosen < sequence.num_computed; ++sequence.num_chosen) {
    const auto block = static_cast<size_t>(sequence.num_chosen / kv_.block_tokens());
    const auto ids = kv_.choices(sequence.blocks.ids()[block],
                                 static_cast<int>(sequence.num_chosen % kv_.block_tokens()));
    sequence.choices.insert(sequence.choices.end(), ids.begin(), ids.end());
  }
}

// Those that no answer has told.
void Engine::forget_choices(Sequence& sequence) {
  if (sequence.choices.empty()) return;
  sequence.num_chosen -= std::ssize(sequence.choices) / model_.config().expert_shape().per_token();
  sequence.choices.clear();
}

GeneratedToken Engine::drawn_token(const Sequence& sequence, size_t row) {
  // The version token by token: an install may come between two of them.
  const MirroredDraws& draws = arrays_.draws;
  GeneratedToken token{draws.tokens.host[row], draws.logprobs.host[row], gate_.version()};
  if (draws.kept_counts.host[row] == 0) return token;
  token.log_mass = log_mass(draws.kept_lse.host[row], draws.lse.host[row]);
  if (sequence.wants_kept) token.kept = std::move(kept_[row]);
  return token;
}

// Draws the rows from `begin` on, whose logits these are.
void Engine::draw(int64_t begin, const MirrorMatrix& logits) {
  const int64_t count = logits.host.rows, vocab = logits.host.cols;
  const auto sequences = std::span<Sequence* const>(rows_).subspan(begin, count);
  const MirroredDraws draws = arrays_.draws.slice(begin, count);
  const Mirror<int32_t>& ids = arrays_.kept_ids;
  const auto wants_set = [&](int64_t row) {
    return sequences[row]->wants_kept && truncates(draws.how.host[row], vocab);
  };
  bool by_host = false, wants_sets = false;
  for (int64_t row = 0; row < count; ++row) {
    const Sequence& sequence = *sequences[row];
    // The number belongs to (key, absolute position of the new token): neither the batch nor a
    // preemption can change a draw.
    draws.how.host[row] =
        sampling_row(sequence.sampling, sample_uniform(sequence.key, sequence.length()));
    by_host = by_host || !can_sample(stream_.device, draws.how.host[row]);
    wants_sets = wants_sets || wants_set(row);
  }
  draws.how.send(stream_);
  sample(stream_, workspace_,
         {.logits = logits.device,
          .rows = draws.how.device,
          .drawn = draws.tokens.device,
          .lse = draws.lse.device,
          .logprobs = draws.logprobs.device,
          .kept_lse = draws.kept_lse.device,
          .kept_counts = draws.kept_counts.device,
          .kept_ids = ids.device.first(count * vocab)});
  draws.fetch(stream_);
  if (wants_sets) {
    // How many ids there are decides what is copied.
    wait(stream_);
    const auto set_of = [&](int64_t row) {
      return ids.slice(row * vocab, draws.kept_counts.host[row]);
    };
    for (int64_t row = 0; row < count; ++row)
      if (wants_set(row) && draws.kept_counts.host[row] > 0) set_of(row).fetch(stream_);
    wait(stream_);
    for (int64_t row = 0; row < count; ++row) {
      const auto set = set_of(row).host;
      if (wants_set(row)) kept_[begin + row].assign(set.begin(), set.end());
    }
  }
  if (by_host) draw_on_host(begin, logits);
}

// Draws those rows that the device cannot draw. The others stay as the device drew them: who else
// is in a batch must not change a draw.
void Engine::draw_on_host(int64_t begin, const MirrorMatrix& logits) {
  const int64_t count = logits.host.rows, vocab = logits.host.cols;
  const auto sequences = std::span<Sequence* const>(rows_).subspan(begin, count);
  const MirroredDraws draws = arrays_.draws.slice(begin, count);
  logits.fetch(stream_);
  wait(stream_);
  Workspace::Scope scope(host_workspace_);
  const DrawnRows own(host_workspace_, count);
  const std::span<int32_t> ids = arrays_.kept_ids.host;
  sample({.device = {}, .pool = stream_.pool}, host_workspace_,
         {.logits = logits.host,
          .rows = draws.how.host,
          .drawn = own.tokens,
          .lse = own.lse,
          .logprobs = own.logprobs,
          .kept_lse = own.kept_lse,
          .kept_counts = own.kept_counts,
          .kept_ids = ids.first(count * vocab)});
  // A set lies where its row's part of the ids begins, and goes to where the one before it ends,
  // which is never behind that.
  const Mirror<int64_t> offsets = arrays_.kept_offsets.slice(0, count + 1);
  offsets.host[0] = 0;
  for (int64_t row = 0; row < count; ++row) {
    offsets.host[row + 1] = offsets.host[row];
    const SamplingRow& how = draws.how.host[row];
    // collect() refuses a row whose lse is not finite.
    if (can_sample(stream_.device, how) || !std::isfinite(draws.lse.host[row])) continue;
    draws.tokens.host[row] = own.tokens[row];
    draws.kept_counts.host[row] = own.kept_counts[row];
    // The device's numbers, not the host's: those that linear_logprob() gives.
    draws.logprobs.host[row] =
        logits.host.row(row)[own.tokens[row]] * how.inv_temperature - draws.lse.host[row];
    const auto set = ids.subspan(row * vocab, own.kept_counts[row]);
    if (sequences[row]->wants_kept) kept_[begin + row].assign(set.begin(), set.end());
    std::ranges::copy(set, ids.begin() + offsets.host[row]);
    offsets.host[row + 1] += std::ssize(set);
  }
  const int64_t num_kept = offsets.host[count];
  if (num_kept == 0) return;
  offsets.send(stream_);
  arrays_.kept_ids.slice(0, num_kept).send(stream_);
  const KeptSets kept{offsets.device, arrays_.kept_ids.device};
  for_each_temperature(draws.how.host, [&](int64_t from, int64_t to, float inv_temperature) {
    kept_log_sum_exp(stream_, {.logits = logits.device.slice_rows(from, to),
                               .kept = kept.slice(from, to),
                               .inv_temperature = inv_temperature,
                               .kept_lse = draws.kept_lse.device.subspan(from, to - from)});
  });
  draws.kept_lse.fetch(stream_);
  // The ids are written again by the next chunk.
  wait(stream_);
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
