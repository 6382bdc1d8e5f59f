// A reward of your own, in a library of your own: it scores a finished episode from the evidence
// that the environment wrote.
//
//   class ShortWay : public tailrace::Reward {
//    public:
//     explicit ShortWay(const tailrace::Settings& settings);
//     tailrace::Score score(std::string_view evidence, int64_t budget_ns) override;
//   };
//
// An answer that is wrong has a reward, 0 for example. Where the reward cannot decide, throw
// tailrace::NotDecided: it is tried again and never becomes a reward. One object is used by one
// thread at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tailrace/library.h"

namespace tailrace {

struct Score {
  double reward = 0;
  std::vector<Metric> metrics = {};
};

class Reward {
 public:
  virtual ~Reward() = default;
  // `evidence`: JSON. `budget_ns`: how long it may take; whoever takes longer is ended.
  virtual Score score(std::string_view evidence, int64_t budget_ns) = 0;
  // Throws where answers to this row of a dataset (JSON) could not be scored.
  virtual void check_row(std::string_view /*row*/) {}
};

}  // namespace tailrace

struct tr_reward {
  std::unique_ptr<tailrace::Reward> reward;
  std::string reason;
  tailrace::detail::MetricViews metrics;
};

namespace tailrace::detail {

inline int32_t reward_score(tr_reward* self, tr_text evidence, int64_t budget_ns, tr_score* out) {
  const int32_t status = guarded(self->reason, [&] {
    Score score = self->reward->score(view(evidence), budget_ns);
    out->reward = score.reward;
    self->metrics.fill(std::move(score.metrics), *out);
    return int32_t{TR_OK};
  });
  if (status != TR_OK) out->reason = view(std::string_view(self->reason));
  return status;
}

inline int32_t reward_check_row(tr_reward* self, tr_text row, tr_text* reason) {
  const int32_t status = guarded(self->reason, [&] {
    self->reward->check_row(view(row));
    return int32_t{TR_OK};
  });
  if (status != TR_OK) *reason = view(std::string_view(self->reason));
  return status;
}

template <class R>
int32_t reward_create(const tr_host*, const tr_setting_value* values, uint64_t count,
                      tr_reward** made, tr_text* reason) {
  static thread_local std::string why;
  const int32_t status = guarded(why, [&] {
    auto self = std::make_unique<tr_reward>();
    self->reward = std::make_unique<R>(Settings(values, count));
    *made = self.release();
    return int32_t{TR_OK};
  });
  if (status != TR_OK) *reason = view(std::string_view(why));
  return status;
}

template <class R>
tr_reward_type reward_type() {
  tr_reward_type type{};
  type.create = reward_create<R>;
  type.destroy = [](tr_reward* self) { delete self; };
  type.score = reward_score;
  type.check_row = reward_check_row;
  return type;
}

}  // namespace tailrace::detail
