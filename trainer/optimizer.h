// AdamW, or Muon beside it, with a learning-rate schedule and clipping by global norm, over the
// flat parameters of a model.
//
// Muon updates each matrix of a layer by itself: q, k and v, gate and up, and each expert, however
// the model's files join them. Embeddings, head, norms and biases stay with AdamW.
//
// Thread: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/collective/collective.h"
#include "core/model/parameters.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/ops/adamw.h"
#include "kernels/ops/muon.h"
#include "trainer/options.h"

namespace tailrace {

// Rate of update number `update`, from 1: a rise in the warm-up times a fall with the run.
//
//   rise   update / warmup_updates, and 1 behind the warm-up. It counts the updates that were made.
//   fall   constant, or linear or cosine from 1 to min_lr_ratio. It goes by `done`, the share of
//          the run that lies behind the update's begin: [0, 1). It begins at `warm_up_end`, the
//          share that lies behind the warm-up: `done` of the first update that is not in it, which
//          so has the whole rate; without a warm-up of the first. Those in it do not read it.
//
// With N updates and without a warm-up, linear gives lr to the first and, towards 0, lr / N to the
// last: the end is reached behind the last update, so that none has the rate 0 unless lr is 0.
double learning_rate(const OptimOptions& options, int64_t update, double done, double warm_up_end);

// The numbers of an update (norm, clipping, skip, count, rate) stay in memory of the device:
// apply() only asks the stream for it, and each of its updates leaves a report that is read later.
class Optimizer {
 public:
  // Borrows the layout, and what the stream names. `options` must be valid.
  Optimizer(const Stream& stream, const ParameterLayout& layout, const OptimOptions& options);
  Optimizer(const Optimizer&) = delete;  // copies to the host may be under way
  ~Optimizer() { wait(stream_); }
  static int64_t bytes(const ParameterLayout& layout, OptimizerKind kind, Device device = {});

  struct Report {
    double grad_norm = 0;  // global L2 norm before clipping
    double lr = 0;
    bool skipped = false;  // a gradient was NaN or infinite: nothing was changed
  };
  // Update number t = updates() + 1 has learning_rate(t, done, warm_up_end). Norms and biases decay
  // only with decay_norms, all else always. Waits for nothing, but that it takes in the reports of
  // kPending updates that nobody asked for, and those at the begin of a fall, behind a warm-up if
  // there is one: which update was the first of it decides the rates of the rest.
  void apply(const Parameters& gradients, Parameters& parameters, double done = 0);

  // Calls of apply() whose counts are kept: updates() + skipped() without waiting.
  int64_t tries() const { return tries_; }

  // These wait for the stream.
  // Of the updates since the last call, load() or share(), in their order.
  std::vector<Report> take_reports();
  Report last_report();  // of the last apply(), which must have been; also take_reports() gives it
  int64_t updates() const { return state().updates; }  // applied
  int64_t skipped() const { return state().skipped; }  // refused for NaN or infinity

  // The moments, counts and the end of the warm-up of rank 0, to all ranks.
  void share(Collective& ranks);

  // Moments by parameter name (what Muon updates has one of them; before the first update all are 0
  // and not in the file), the counts, and warm_up_end once it is known. Of a file that lacks it
  // behind the warm-up (of an earlier build, or of a longer warm-up) it is the share that the
  // warm-up has of the updates that were made, of `done` of the next one. load() throws UserError
  // when the file does not fit, or is of another kind.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path);

 private:
  // A range of parameters that AdamW updates.
  struct Range {
    int64_t begin, end;  // in floats
    int64_t second;      // of the second moments: where those of `begin` are
    bool decays;
  };
  // A matrix that Muon updates.
  struct Place {
    int64_t begin, rows, cols;
  };
  // The rule that updates each part of a layout, and the memory it takes beside the first moments.
  struct Division {
    Division(const ParameterLayout& layout, OptimizerKind kind, bool decay_norms);

    std::vector<Range> ranges;  // neighbours differ in `decays`, or are not side by side
    std::vector<Place> matrices;
    std::vector<int64_t> seconds;  // of each entry where its second moments begin; -1: none
    int64_t num_seconds = 0;       // floats
    size_t scratch_bytes = 0;      // of Muon
  };
  static constexpr int64_t kPending = 64;  // updates that may be under way

  UpdateState state() const;
  void set_counts(int64_t updates, int64_t skipped);
  int64_t first_behind() const { return options_.warmup_updates + 1; }  // the number of the update
  std::optional<double> warm_up_end() const;  // of a stream that was waited for
  // As it was saved, where the counts lie behind the warm-up.
  void set_warm_up_end(std::optional<double> end);
  void settle();
  std::span<const float> send_rates(double done);
  template <class Float>
  std::span<Float> staged(std::span<Float> values, std::vector<float>& copy) const;
  void send(std::span<const float> host, std::span<float> values) const;
  // The buffer's memory, for ops.
  std::span<float> second_moments() {
    return {reinterpret_cast<float*>(v_.bytes().data), static_cast<size_t>(division_.num_seconds)};
  }
  std::span<const float> second_moments() const {
    return {reinterpret_cast<const float*>(v_.bytes().data),
            static_cast<size_t>(division_.num_seconds)};
  }

  Stream stream_;
  OptimOptions options_;
  Division division_;
  Parameters m_;  // the momentum of Muon, too
  Buffer v_;      // [num_seconds]
  Buffer scratch_;
  // An UpdateState, and the rates of the updates that may be under way. No table of all rates: how
  // long a schedule may be has no bound that memory would hold.
  Buffer device_;
  std::span<UpdateState> state_;  // [1]
  // [kPending, kPending] row i: of the i-th update that is pending, whose number is first_rate_ to
  // first_rate_ + i. Which of these it is, the device knows: those before it may have been skipped.
  std::span<float> rates_;
  std::span<double> squares_;  // [kSquaresBlocks] scratch of the norm; on a GPU
  int64_t first_rate_ = 1;     // behind the last update that was settled
  // Pinned: the state behind each update that is pending, and rates_ as they are sent.
  Buffer host_;
  std::span<UpdateState> pending_states_;  // [kPending]
  std::span<float> sent_rates_;            // as rates_
  std::vector<double> pending_done_;       // [pending_]
  int64_t pending_ = 0, tries_ = 0;
  // End of the warm-up for learning_rate(); nothing until the first update behind it is settled.
  std::optional<double> warm_up_end_;
  std::vector<Report> reports_;  // settled and not taken
  Report last_;
};

}  // namespace tailrace
