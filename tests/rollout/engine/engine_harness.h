// What the tests of the decode engine share: small models, an engine that is ready, and what the
// trainer would compute for the same tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/model/model.h"
#include "kernels/base/thread_pool.h"
#include "kernels/ops/log_softmax.h"
#include "rollout/engine/engine.h"

namespace tailrace {

ModelConfig tiny_config();    // 2 x 32, 4/2 heads, vocab 61, 128 positions
ModelConfig sparse_config();  // the same, of 6 experts
ModelConfig gemma_config();   // the same with all that Gemma 3 adds, local and global layers
// 2 x 256, 14/2 heads of 128, vocab 4099, 1024 positions: what is worth a second thread.
ModelConfig wide_config();

// 2 x 576, 9/3 heads of 64, vocab 700: layers of SmolLM2-135M.
ModelConfig smol_config();

// A model with weights. Two of the same seed are equal.
struct TestModel {
  explicit TestModel(const ModelConfig& config, uint64_t seed = 1, const Elements& of = {});
  explicit TestModel(const std::string& directory);  // below tests/data
  std::shared_ptr<const PackedWeights> pack() const;

  Elements elements;
  Model model;
  Parameters parameters;
};

// The log-probability of each token but the first, from one training pass over the whole sequence;
// with `kept`, as a draw from its set.
std::vector<float> teacher_forced(const TestModel& model, const std::vector<TokenId>& tokens,
                                  float inv_temperature, KeptSets kept = {});
// The experts of each token in such a pass, [tokens, sparse layers * k].
std::vector<uint16_t> teacher_choices(const TestModel& model, const std::vector<TokenId>& tokens);

struct EngineSetup {
  int64_t block_tokens = 16, max_batch_tokens = 64, max_sequences = 32, max_context_tokens = 128;
  int64_t kv_blocks = 0;  // 0: plenty
  int num_threads = 1;
  bool keep_choices = false;
  bool overlaps = false;
};

// An engine with its weights installed as version 0.
class TestEngine {
 public:
  explicit TestEngine(const TestModel& model, const EngineSetup& setup = {},
                      const text::Tokenizer* tokenizer = nullptr);
  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }

  // Loops that were really divided among its threads.
  int64_t num_divided() const { return pool_.num_divided(); }

  // Steps until idle; answers by session.
  std::map<SessionId, Generation> finish();

 private:
  ThreadPool pool_;
  SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
};

EngineOptions engine_options(const EngineSetup& setup);

std::vector<TokenId> random_tokens(int64_t count, int64_t vocab, uint64_t seed);
GenerateRequest request_of(SessionId session, std::vector<TokenId> tokens, int64_t max_new_tokens,
                           double temperature = 1.0);

}  // namespace tailrace
