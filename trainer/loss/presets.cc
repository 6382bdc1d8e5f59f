#include "trainer/loss/presets.h"

#include <algorithm>
#include <iterator>

#include "core/config/config_printer.h"
#include "trainer/loss/options.h"

namespace tailrace {
namespace {

// A preset is a row: the values of its paper where they are not the defaults. `correction`,
// `sampling_mask` and `router_replay` mend the machine and not the algorithm, so that they stay as
// they are by default. Algorithms that are about stale samples say what corrects for them.
// Rows stand in the order of the enumerators. They are not constexpr, because clang takes no string
// of libstdc++ 12 for a constant.
const AlgoOptions kPresets[] = {
    {.name = AlgoPreset::kDefault},
    {.name = AlgoPreset::kPpo,
     .advantage = AdvantageKind::kGae,
     .returns = {.gamma = 1, .lambda = 0.95, .whiten = true},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2}},
    {.name = AlgoPreset::kGrpo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean},
     .kl = {.coef = 0.04}},
    {.name = AlgoPreset::kDrGrpo,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSumConst}},
    // Its clip range (0.2, 0.28), mean over tokens, missing KL term and filter are the defaults.
    // Groups that the filter drops are replaced: refills_groups().
    {.name = AlgoPreset::kDapo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .length = {.penalty = LengthPenalty::kSoftOverlong}},
    // Whole samples are what it learns from: their log-probabilities are sums. The penalty is
    // TRL's.
    {.name = AlgoPreset::kRloo,
     .advantage = AdvantageKind::kLeaveOneOut,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kReinforce},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSum},
     .kl = {.coef = 0.05, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward}},
    // The penalty of both forms is that of OpenRLHF.
    {.name = AlgoPreset::kReinforcePp,
     .advantage = AdvantageKind::kReward,
     .returns = {.whiten = true},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .kl = {.coef = 0.01, .estimator = KlEstimator::kK1, .placement = KlPlacement::kReward}},
    {.name = AlgoPreset::kReinforcePpBaseline,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .returns = {.whiten = true},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .kl = {.coef = 0.01, .estimator = KlEstimator::kK2}},
    // Without the KL penalty that it has for rewards which are a model's.
    {.name = AlgoPreset::kRemax,
     .advantage = AdvantageKind::kGreedy,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kReinforce},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenSum}},
    {.name = AlgoPreset::kLitePpo,
     .advantage = AdvantageKind::kGroupMeanBatchStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2}},
    // Its clip range is hundreds of times narrower than a token's: a ratio that is a geometric mean
    // over a sequence stays that much nearer to 1.
    {.name = AlgoPreset::kGspo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .ratio = RatioUnit::kSequence,
     .surrogate = {.clip_low = 3e-4, .clip_high = 4e-4},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    {.name = AlgoPreset::kGspoToken,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .ratio = RatioUnit::kSequenceToken,
     .surrogate = {.clip_low = 3e-4, .clip_high = 4e-4},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    // The largest weight is 5, as ScaleRL and TRL have it: 1 + clip_high. It has DAPO's filter.
    {.name = AlgoPreset::kCispo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .surrogate = {.kind = SurrogateKind::kCispo, .clip_high = 4}},
    // Its advantages are signed rewards, 1 and -1; those of a group have both signs too. See
    // weighs_behaviour().
    {.name = AlgoPreset::kTopr,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kTopr},
     .correction = {.kind = CorrectionKind::kNone}},
    // Its length penalty comes after a warm-up of its own: algo.length.penalty=kimi.
    {.name = AlgoPreset::kKimi,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kKimi, .drift_coef = 0.1}},
    {.name = AlgoPreset::kSapo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.kind = SurrogateKind::kSapo, .tau_pos = 1.0, .tau_neg = 1.05},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
    // Without a critic; of our baselines the nearest to its advantages, which are centred and
    // scaled over the batch. Its trust region is around l_old and its weight against l_inf apart
    // from that: this kind of correction at this level. The cap is of its code, which leaves out
    // what is beyond it; here it is cut.
    {.name = AlgoPreset::kDecoupledPpo,
     .advantage = AdvantageKind::kGroupMeanBatchStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .correction = {.kind = CorrectionKind::kTis, .level = CorrectionLevel::kToken, .cap = 5}},
    {.name = AlgoPreset::kIcePop,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .correction = {.kind = CorrectionKind::kIcePop, .low = 0.5, .cap = 5}},
    // Its reward is above 0 for success alone, so that the negative half needs a baseline. Discount
    // and bound are not published; these are in the range that its family uses.
    {.name = AlgoPreset::kIpa,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .credit = {.kind = CreditKind::kTurnReturn, .gamma = 0.95},
     .ratio = RatioUnit::kTurn,
     .surrogate = {.kind = SurrogateKind::kIpa},
     .correction = {.kind = CorrectionKind::kMask,
                    .level = CorrectionLevel::kTurnMean,
                    .low = 0,
                    .cap = 1.2}},
    {.name = AlgoPreset::kGigpo,
     .advantage = AdvantageKind::kGroupMeanStd,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .credit = {.kind = CreditKind::kGigpo, .gamma = 0.95, .weight = 1},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean},
     .kl = {.coef = 0.01}},
    {.name = AlgoPreset::kTurningPoint,
     .filter_zero_signal = ZeroSignalFilter::kNone,
     .credit = {.kind = CreditKind::kTurningPoint},
     .surrogate = {.clip_low = 0.2, .clip_high = 0.2},
     .aggregation = {.kind = AggregationKind::kSeqMeanTokenMean}},
};

static_assert(std::size(kPresets) == kEnumNames<AlgoPreset>.size(), "each preset has one row");
const AlgoOptions& row_of(AlgoPreset preset) { return kPresets[static_cast<size_t>(preset)]; }

// Options that mend the machine, or a number, and are no part of an algorithm: a person's values
// stay. So do those of `correction`, unless the row is about it.
constexpr std::string_view kNotOfTheAlgorithm[] = {
    "name", "std_eps", "filter_metric", "kl.reference", "sampling_mask", "router_replay"};
constexpr std::string_view kTeacher = "distill.";  // who teaches beside it is no part of it
constexpr std::string_view kCorrection = "correction";

}  // namespace

const AlgoOptions& AlgoOptions::preset(AlgoPreset preset) { return row_of(preset); }

std::vector<std::string> AlgoOptions::preset_keys(AlgoPreset preset) {
  const std::vector<SectionDoc> rows = describe_options(row_of(preset));
  const std::vector<SectionDoc> defaults = describe_options(AlgoOptions{});
  std::vector<std::string> keys;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto &values = rows[i].options, &standard = defaults[i].options;
    if (rows[i].key == kCorrection &&
        std::ranges::equal(values, standard, {}, &OptionDoc::value, &OptionDoc::value))
      continue;
    for (const OptionDoc& option : values) {
      const bool is_part =
          std::ranges::find(kNotOfTheAlgorithm, option.key) == std::end(kNotOfTheAlgorithm) &&
          !option.key.starts_with(kTeacher);
      // A key that the row leaves without effect is no part of it either.
      if (is_part && !option.idle) keys.push_back(option.key);
    }
  }
  return keys;
}

bool refills_groups(AlgoPreset preset) { return preset == AlgoPreset::kDapo; }

}  // namespace tailrace
