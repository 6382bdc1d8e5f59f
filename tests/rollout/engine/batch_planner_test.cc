#include "rollout/engine/batch_planner.h"

#include <memory>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/rollout/engine/engine_harness.h"

namespace tailrace {
namespace {

// Plans passes and says that they are over, without computing anything.
class Passes {
 public:
  explicit Passes(BatchPlanner::Limits limits) : kv_(tiny_config(), 64, 8), planner_(kv_, limits) {}
  ~Passes() {
    for (const auto& sequence : sequences_) planner_.remove(*sequence);
  }

  BatchPlanner& planner() { return planner_; }
  void submit(SessionId session, const std::vector<TokenId>& prompt) {
    auto& sequence = *sequences_.emplace_back(std::make_unique<Sequence>());
    sequence.session = session;
    sequence.tokens = prompt;
    sequence.prompt_tokens = sequence.length();
    sequence.max_length = 100;
    planner_.enqueue(sequence);
  }
  // The sequences of the next pass, in its order.
  std::vector<Sequence*> pass() {
    EXPECT_TRUE(planner_.plan(/*may_admit=*/true, /*may_preempt=*/true));
    std::vector<Sequence*> batch;
    for (Sequence* sequence : planner_.running())
      if (sequence->planned > 0) batch.push_back(sequence);
    for (Sequence* sequence : batch) {
      planner_.started(*sequence, -1);
      planner_.computed(*sequence, sequence->planned);
      if (sequence->uncomputed() == 0) sequence->tokens.push_back(1);
    }
    return batch;
  }

 private:
  KvCache kv_;
  BatchPlanner planner_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

std::vector<SessionId> sessions_of(const std::vector<Sequence*>& batch) {
  std::vector<SessionId> sessions;
  for (const Sequence* sequence : batch) sessions.push_back(sequence->session);
  return sessions;
}

// A GPU reads shared blocks once for sequences that follow each other in a pass.
TEST(BatchPlanner, MembersOfAGroupFollowEachOther) {
  // Prompts come in pieces, so that groups begin one after the other.
  Passes passes({.max_batch_tokens = 30, .max_sequences = 32, .num_blocks = 64});
  std::vector<SessionId> submitted;
  for (int group = 0; group < 3; ++group) {
    std::vector<TokenId> prompt(20);
    std::iota(prompt.begin(), prompt.end(), 10 * group);
    for (int member = 0; member < 4; ++member) {
      submitted.push_back(4 * group + member);
      passes.submit(submitted.back(), prompt);
    }
  }
  std::vector<Sequence*> batch;
  for (int i = 0; i < 8; ++i) batch = passes.pass();
  ASSERT_EQ(sessions_of(batch), submitted);
  for (size_t i = 1; i < batch.size(); ++i) {
    for (size_t block : {0, 1})
      EXPECT_EQ(batch[i]->blocks.ids()[block] == batch[i - 1]->blocks.ids()[block], i % 4 != 0);
  }
  // Those that end leave the others as they are.
  passes.planner().finish(*batch[5]);
  submitted.erase(submitted.begin() + 5);
  EXPECT_EQ(sessions_of(passes.pass()), submitted);
}

}  // namespace
}  // namespace tailrace
