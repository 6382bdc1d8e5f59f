// Rows of sequences that a draw has ended become rows that nobody reads. A thread a row.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/gpu_ops.h"
#include "kernels/cuda/rows.cuh"

namespace tailrace::cuda {
namespace {

struct EndCall {
  const int32_t *drawn, *stops, *from;
  int32_t *ids, *positions, *block_tables;
  int64_t rows;
  int max_blocks;
  int32_t spare;
};

__global__ void __launch_bounds__(kRowThreads) end_drawn_kernel(EndCall call) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x;
  if (t >= call.rows) return;
  const int32_t row = call.from[t];
  if (row < 0) return;
  const int32_t id = call.drawn[row];
  bool ends = false;
  for (int64_t i = 0; i < kDrawnStops; ++i)
    ends |= id >= 0 && call.stops[row * kDrawnStops + i] == id;
  if (!ends) return;
  call.ids[t] = 0;
  call.positions[t] = 0;
  call.block_tables[t * call.max_blocks] = call.spare;
}

}  // namespace

void end_drawn(const Stream& stream, const EndDrawn& args) {
  const int64_t rows = std::ssize(args.ids);
  TR_CHECK(std::ssize(args.from) == rows && std::ssize(args.positions) == rows &&
               std::ssize(args.block_tables) == rows * args.max_blocks &&
               std::ssize(args.stops) == std::ssize(args.drawn) * kDrawnStops,
           "{} rows: from [{}], positions [{}], tables [{}], {} draws with {} stops", rows,
           args.from.size(), args.positions.size(), args.block_tables.size(), args.drawn.size(),
           args.stops.size());
  if (rows == 0) return;
  launch(
      end_drawn_kernel, dim3(static_cast<unsigned>((rows + kRowThreads - 1) / kRowThreads)),
      dim3(kRowThreads), 0, stream,
      EndCall{args.drawn.data(), args.stops.data(), args.from.data(), args.ids.data(),
              args.positions.data(), args.block_tables.data(), rows, args.max_blocks, args.spare});
}

}  // namespace tailrace::cuda
