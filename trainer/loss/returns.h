// The numbers that tokens get in place of their turn's advantage: generalised advantages against a
// value head, penalties in the reward, whitening. They need log-probabilities or values of the
// weights that a step starts from, and so come after those are known.
//
// All spans are of the trained tokens of one trajectory, in their order: what the policy did not
// write (observations) is not among them, so that nothing of it leaks in and nothing stops there.
//
// Thread: any; pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace tailrace {

// The treatment of the advantages that a batch is made with.
enum class ReturnKind : uint8_t {
  kStand,  // nothing
  // The penalties of a sample are part of its reward, and compared as that was: with the mean of
  // its group, or of the others in it.
  kCentred,
  kLeaveOneOut,
  kToGo,  // they are rewards of tokens, and become what follows   REINFORCE++, 2501.03262
  kGae,   // they are rewards of tokens, and become gae() against values
};

inline bool is_of_tokens(ReturnKind kind) {
  return kind == ReturnKind::kToGo || kind == ReturnKind::kGae;
}

struct ReturnOptions {
  ReturnKind kind = ReturnKind::kStand;  // no key: return_kind() of a batch's options (credit.h)
  double gamma = 1;                      // a token
  double lambda = 0.95;                  // of gae()
  bool whiten = false;                   // over the trained tokens of a step
};

// Generalised advantage estimation (1506.02438):
//   delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1}
//   rewards [tokens], values [tokens]  V_t of what precedes token t
//   bootstrap    V behind the last token: 0 at a natural end (that is what 0 says: an episode that
//                a limit cut would learn to be short)
// Writes advantages [tokens] and returns [tokens] = A_t + V_t.
void gae(std::span<const double> rewards, std::span<const double> values, double bootstrap,
         double gamma, double lambda, std::span<double> advantages, std::span<double> returns);

// A_t += sum over j >= t of gamma^(j - t) x_j: rewards of single tokens beside one at the end.
void add_rewards_to_go(std::span<const double> token_rewards, double gamma,
                       std::span<double> advantages);

// (A - mean) / sqrt(var + 1e-8) in place, over all of them; var by n - 1. Fewer than two stay.
void whiten(std::span<double> values);

}  // namespace tailrace
