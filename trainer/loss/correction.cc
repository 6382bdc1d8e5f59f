#include "trainer/loss/correction.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {

namespace {

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

// The exponent that decides about each token.
void exponents(CorrectionLevel level, std::span<const double> log_weight,
               std::span<const int32_t> turn, std::span<double> x) {
  switch (level) {
    case CorrectionLevel::kToken:
      std::ranges::copy(log_weight, x.begin());
      return;
    case CorrectionLevel::kSequence: {
      // The importance weight of a sequence is the product over its tokens, whose logarithms add
      // up.
      double sum = 0;
      for (double w : log_weight) sum += w;
      std::ranges::fill(x, sum);
      return;
    }
    case CorrectionLevel::kSequenceMean:
      if (!x.empty()) std::ranges::fill(x, mean_of(log_weight));
      return;
    case CorrectionLevel::kTurnMean:
      for (size_t begin = 0; begin < x.size();) {
        size_t end = begin + 1;
        while (end < x.size() && turn[end] == turn[begin]) ++end;
        std::ranges::fill(x.subspan(begin, end - begin),
                          mean_of(log_weight.subspan(begin, end - begin)));
        begin = end;
      }
      return;
  }
}

}  // namespace

bool rejects(CorrectionKind kind) {
  return kind != CorrectionKind::kNone && kind != CorrectionKind::kTis;
}

int64_t correction_weights(const CorrectionOptions& options, std::span<const double> log_weight,
                           std::span<const int32_t> turn, std::span<double> weight) {
  if (options.kind == CorrectionKind::kNone) {
    std::ranges::fill(weight, 1.0);
    return 0;
  }
  exponents(options.level, log_weight, turn, weight);
  // Compared in the log domain: a long sequence's product may overflow.
  const double high = std::log(options.cap);
  const double low = rejects(options.kind) ? std::log(options.low) : 0;
  int64_t cut = 0;
  if (options.kind == CorrectionKind::kMis && !log_weight.empty() &&
      std::ranges::min(log_weight) < std::log(options.veto)) {
    std::ranges::fill(weight, 0.0);
    return std::ssize(weight);
  }
  for (double& w : weight) {
    const double x = w;
    if (options.kind == CorrectionKind::kTis) {
      w = x > high ? options.cap : std::exp(x);
      cut += x > high;
    } else if (x < low || x > high) {
      w = 0;
      ++cut;
    } else {
      w = options.kind == CorrectionKind::kMask ? 1 : std::exp(x);
    }
  }
  return cut;
}

double effective_sample_share(std::span<const double> log_weight) {
  TR_CHECK(!log_weight.empty());
  // Against the largest, which changes nothing in the quotient: squares of weights overflow.
  const double largest = std::ranges::max(log_weight);
  double sum = 0, squares = 0;
  for (double x : log_weight) {
    const double weight = std::exp(x - largest);
    sum += weight;
    squares += weight * weight;
  }
  return sum * sum / (static_cast<double>(log_weight.size()) * squares);
}

void CorrectionOptions::visit(OptionVisitor& v) {
  const auto idle = [&](bool is_idle, std::string_view lacks) {
    return idle_if(is_idle,
                   kind == CorrectionKind::kNone
                       ? "{kind} is none"
                       : fmt::format("{{kind}} is {}, which has no {}", name_of(kind), lacks),
                   {"kind"});
  };
  const bool none = kind == CorrectionKind::kNone;
  v.field("kind", kind,
          {.help = "with w = exp(l_old - l_inf), which is 1 for tokens that the current weights "
                   "sampled from the whole distribution, in the trainer's numerics class. tis: "
                   "multiply the loss by min(w, cap); icepop: by w, or 0 outside of [low, cap]; "
                   "mis: the same, and 0 for a sequence in which any w is below veto; mask: by 1, "
                   "or 0 outside of [low, cap]"});
  v.field("level", level,
          {.help = "whose w: of a token, the product over a sequence, or the geometric mean over a "
                   "sequence or a turn",
           .idle = idle(none, "level")});
  v.field("low", low,
          {.help = "least weight (icepop, mis, mask)",
           .min = 0,
           .max = kMaxCount,
           .idle = idle(!rejects(kind), "least weight")});
  v.field("cap", cap,
          {.help = "largest weight", .min = 1e-6, .max = kMaxCount, .idle = idle(none, "cap")});
  v.field("veto", veto,
          {.help = "a token below it takes its whole sequence out of the loss (mis)",
           .min = 0,
           .max = 1,
           .idle = idle(kind != CorrectionKind::kMis, "veto")});
  v.field(
      "rejected", rejected,
      {.help = "count: tokens of weight 0 stay in the denominators; leave: they are not in them",
       .idle = idle(!rejects(kind), "weight 0")});
  v.field("normalize", normalize,
          {.help = "divide the weights, behind the cap, by their mean over the tokens of an update",
           .idle = idle(none, "weights")});
  v.field("sequence_mask", sequence_mask,
          {.help = "failures that the policy no longer writes leave the loss: tokens of a negative "
                   "advantage in a sequence with mean(l_inf - l) above this; 0: off",
           .min = 0,
           .max = 20});
}

void validate(const CorrectionOptions& o, std::string_view section) {
  if (rejects(o.kind) && o.low > o.cap)
    throw UserError::at(join_key(section, "low"),
                        "is {}, above {} = {}: every token would be rejected. Try 0.5.", o.low,
                        join_key(section, "cap"), o.cap);
}

}  // namespace tailrace
