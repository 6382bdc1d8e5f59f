// The decode engine: continuous batching over a paged KV cache.
//
// Design rule 3 holds bit for bit: a sampled log-probability is the one that Model::forward and
// linear_logprob give for the whole sequence, whatever the batch, the cut of prefill, the page
// layout, preemption, prefix hits or the thread count.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/clock.h"
#include "core/generate.h"
#include "core/model/mirror.h"
#include "core/model/model.h"
#include "core/run/memory_need.h"
#include "core/text/tokenizer.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "rollout/engine/batch_planner.h"
#include "rollout/engine/options.h"
#include "rollout/engine/step_graphs.h"
#include "rollout/engine/step_in_flight.h"
#include "rollout/engine/stop_matcher.h"
#include "rollout/engine/weight_gate.h"

namespace tailrace {

struct EngineStats {
  int64_t steps = 0;        // forward passes
  int64_t graph_steps = 0;  // of those: one call each
  int64_t captures = 0;     // of graphs
  int64_t sampled_tokens = 0;
  int64_t decode_tokens = 0;   // rows computed one at a time behind a sampled token
  int64_t prefill_tokens = 0;  // all other rows
  double busy_seconds = 0;     // inside step()
  PlannerStats planner;

  double prefix_hit_fraction() const {
    return planner.requested_tokens == 0 ? 0
                                         : static_cast<double>(planner.prefix_hit_tokens) /
                                               static_cast<double>(planner.requested_tokens);
  }
};

// Blocks of the KV cache that an engine makes: the options' own number, or what kv_cache_mb affords
// and can be of use. Throws UserError when one full context does not fit, or not the model.
int num_kv_blocks(const ModelConfig& config, const EngineOptions& options,
                  const Placement& placement = {});

// The memory that an engine allocates: KV cache, and workspace of activations, logits and sampler.
// Throws as num_kv_blocks().
PlacedMemory engine_memory(const ModelConfig& config, const EngineOptions& options, int num_threads,
                           const Placement& placement = {});

// The arrays that a step writes behind the model, taken from `memory` in order. Logits are made in
// chunks of rows, and the draws from them are kept of all rows that want logits.
struct EngineArrays {
  Tensor hidden;                        // [rows, hidden], of the device
  Tensor logits;                        // [rows of a chunk, vocab], of the device
  Mirror<int32_t> kept_ids;             // [rows of a chunk * vocab], as sample() has them
  std::vector<MirroredDraws> draws;     // [rows], of each step that may be in flight
  std::vector<Mirror<int32_t>> chosen;  // [sparse layers * tokens * k], the same; or empty

  EngineArrays(const MirrorMemory& memory, const ModelConfig& config, const EngineOptions& options);
};

// A request that does not leave room for one more token in the context (a prompt or an observation
// that is too long) is answered with kContextFull and no tokens; the session stays as it was, and
// one that would have been new does not begin.
//
// On a GPU one step is in flight: step() asks for the next one before it reads what the last one
// drew, so that the device does not wait for the host. A sequence whose stop token or stop string
// is found then is in one step too many, of which nothing counts. In a graph the device itself sees
// the stop tokens, and what has ended becomes a row that nobody reads (end_drawn()). Whoever ends a
// session that is in flight, or installs weights, waits for it. All of this changes no token and no
// bit.
//
// There a step that decodes alone is a graph (step_graphs.h), captured at the second step of its
// size. Copies from and to the host are part of it, by the fixed addresses of the step's pinned
// arrays. Graphs stay for the last two places of the weights.
//
// step() throws UserError when logits are not finite; so do release() and install(), which may read
// what a step drew.
//
// Thread: one at a time. Allocates its memory when it is made.
class Engine final : public Generator {
 public:
  // `model`, `clock`, and what `stream` names, which is of the model's device, are borrowed.
  // `tokenizer` too; it may be null when no request has stop strings. Throws UserError when the
  // options do not fit the model or each other.
  Engine(const Model& model, const text::Tokenizer* tokenizer, const EngineOptions& options,
         const Stream& stream, const Clock& clock);
  ~Engine() override;
  Engine(const Engine&) = delete;

  // Switches to weights whose digest the caller has proved. May be called between any two steps:
  // sessions go on, their tokens are computed again under the new version. The gate ends open.
  void install(std::shared_ptr<const PackedWeights> weights, int64_t version);
  // Until the first install it is frozen, and step() makes no progress.
  WeightGate& gate() { return gate_; }
  // Until the next install: no step any more, and nothing of the KV cache is kept.
  void freeze();

  void submit(GenerateRequest request) override;
  void release(SessionId session) override;
  std::vector<Generation> step() override;
  bool idle() const override;
  std::span<const GeneratedToken> so_far(SessionId session) const override;
  int64_t max_context_tokens() const override { return max_context_; }
  int64_t version() const override { return gate_.version(); }

  EngineStats stats() const;
  int num_blocks() const { return num_blocks_; }
  // Blocks that neither a session nor the prefix cache holds.
  int num_free_blocks() const { return planner_.num_free_blocks(); }
  int num_cached_blocks() const { return planner_.num_cached_blocks(); }

 private:
  // A step: what the pass computes and for whom; the work itself, of which nothing is read before
  // it is done, unless a request wants sets or the device cannot draw a row; then what was drawn,
  // and what becomes of it. Between the last two another step may be planned and enqueued.
  void plan(StepInFlight& step);
  void plan_draws(StepInFlight& step);
  void choose_graph(StepInFlight& step);
  void enqueue(StepInFlight& step);
  void compute(StepInFlight& step);
  void collect(StepInFlight& step);
  // Until no step is in flight.
  void drain();
  void check_finite(const StepInFlight& step);
  void draw(StepInFlight& step, int64_t begin, const Tensor& logits);
  void store_choices(const StepInFlight& step);
  void record_choices(Sequence& sequence);
  void forget_choices(Sequence& sequence);
  GeneratedToken drawn_token(StepInFlight& step, const Sequence& sequence, size_t row);
  std::optional<FinishReason> reason_to_stop(const Sequence& sequence) const;
  const StopMatcher* matcher(const std::vector<std::string>& stop_strings);

  const Model& model_;
  const text::Tokenizer* tokenizer_;
  Stream stream_;
  const Clock& clock_;
  int64_t max_context_;
  std::shared_ptr<const PackedWeights> weights_;
  WeightGate gate_;
  int num_blocks_;
  KvCache kv_;  // with one block more where there are graphs: their rows for nobody write there
  std::unordered_map<SessionId, std::unique_ptr<Sequence>> sessions_;
  BatchPlanner planner_;
  Buffer memory_, host_memory_;  // the second where the device is not the CPU
  Workspace workspace_, host_workspace_;
  EngineArrays arrays_;
  std::vector<StepInFlight> steps_;  // used in turn: one, or two where one stays in flight
  size_t next_step_ = 0;
  StepInFlight* in_flight_ = nullptr;  // between two calls of step()
  StepGraphs graphs_;                  // after all that they name
  std::vector<Generation> ready_;      // finished outside a forward pass
  std::map<std::vector<std::string>, std::unique_ptr<StopMatcher>> matchers_;
  EngineStats stats_;
};

}  // namespace tailrace
