// What a run of a mode says of itself, from its metrics and its timeline.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace tailrace {

struct ModeRun {
  int64_t steps = 0;
  double seconds = 0;         // from the first weights to the last publication
  double tokens = 0;          // sampled, of the samples that were trained
  double loss_tokens = 0;     // those of them that a loss was made of (policy/loss_tokens)
  double reward = 0;          // mean of the last quarter of the steps
  double turns = 0;           // of a sample: a mode that trains short ones first has fewer
  double sample_seconds = 0;  // sum over the trained samples of the time in their worker
  double masked = 0;          // share of `tokens` that were too old for the loss
  double staleness_mean = 0, staleness_max = 0;
  double mismatch = 0;  // the largest of a step, in nats

  // The trainer's own time, from the last byte of a batch to the last update; and all of it, from
  // the hand-over of a step to its publication, which fetching and publishing are part of.
  double train_seconds = 0, handed_seconds = 0;

  // Shares of the rollout workers' places (of those ever in use at once) that waited, by cause.
  std::map<std::string, double> idle;

  // What the modes do differently, as shares.
  double tail = 0;        // of the places' time: waited for samples that still ran elsewhere
  double overlap = 0;     // of the places: generated while the trainer had a step
  double partial = 0;     // of the trained tokens: of older weights than the last of their sample
  double redundancy = 0;  // of the sampled tokens: no step trains them

  // Tokens that are too old, or of a group without a signal, were sampled and nothing is learned
  // from them: they are no throughput.
  double tokens_per_s() const { return loss_tokens / seconds; }
  // Share of a room of so many samples that held one that was trained.
  double used(int64_t room) const { return sample_seconds / (seconds * static_cast<double>(room)); }
};

// Throws WrongResult for a run that has not made `steps` steps of `samples` samples, or that had no
// token in a loss.
ModeRun read_mode_run(const std::filesystem::path& directory, int64_t steps, int64_t samples);

}  // namespace tailrace
