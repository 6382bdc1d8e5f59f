// One planted mistake a kernel: the emulation must name each, and nothing in the kernels without.
// Built twice, as kernels are: what only the checker can see is skipped without it.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/stream_graph.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/host/emulation_control.h"

namespace tailrace::cuda {
namespace {

using emulation::checks_on;
using emulation::Order;

constexpr Stream kStream{.device = {DeviceKind::kCuda, 0}};
constexpr int kThreads = 64;

// Memory of the device that a test may read and write between launches.
template <class T>
struct Array {
  explicit Array(size_t n, T value = T{})
      : data(static_cast<T*>(emulation::allocate(n * sizeof(T)))), size(n) {
    std::fill(data, data + n, value);
  }
  ~Array() { emulation::release(data); }
  Array(const Array&) = delete;

  T* data;
  size_t size;
};

using Kernel = void (*)(const float*, float*);

struct Outcome {
  std::vector<std::string> errors;
  std::vector<float> y;
};

// x is full of ones.
Outcome run(Kernel kernel, int blocks = 1, int threads = kThreads) {
  Array<float> x(kThreads, 1.0f), y(kThreads, 0.0f);
  launch(kernel, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
         kThreads * sizeof(float), kStream, x.data, y.data);
  return {emulation::take_errors(), {y.data, y.data + y.size}};
}

void expect_named(Kernel kernel, const std::string& wanted, int blocks = 1) {
  for (const Order order : {Order::kForward, Order::kReverse}) {
    emulation::set_order(order);
    const Outcome outcome = run(kernel, blocks);
    ASSERT_FALSE(outcome.errors.empty()) << "wanted: " << wanted;
    EXPECT_NE(outcome.errors[0].find(wanted), std::string::npos) << outcome.errors[0];
  }
  emulation::set_order(Order::kForward);
}

void expect_silent(Kernel kernel, int blocks = 1, int threads = kThreads) {
  for (const Order order : {Order::kForward, Order::kReverse}) {
    emulation::set_order(order);
    const Outcome outcome = run(kernel, blocks, threads);
    EXPECT_TRUE(outcome.errors.empty()) << outcome.errors[0];
    for (const float v : outcome.y) EXPECT_FALSE(std::isnan(v));
  }
  emulation::set_order(Order::kForward);
}

#define TR_NEEDS_CHECKER() \
  if (!checks_on()) GTEST_SKIP() << "this build does not check accesses"

int thread_id() { return static_cast<int>(threadIdx.x); }

// ---- kernels without mistakes

__global__ void right(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[(threadIdx.x + 40) % blockDim.x];
}
TEST(Emulation, BarrierOrdersSharedMemory) { expect_silent(right); }

__global__ void right_static(const float* x, float* y) {
  __shared__ float s[2][kThreads];
  s[1][threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[1][kThreads - 1 - threadIdx.x];
}
TEST(Emulation, BarrierOrdersStaticSharedMemory) { expect_silent(right_static); }

TEST(Emulation, LaunchesOfSeveralThreadsTakeTurns) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      Array<float> x(kThreads, 1.0f), y(kThreads);
      for (int j = 0; j < 50; ++j) {
        std::fill(y.data, y.data + kThreads, 0.0f);
        launch(right_static, dim3(1), dim3(kThreads), 0, kStream, x.data, y.data);
        for (int k = 0; k < kThreads; ++k) EXPECT_EQ(y.data[k], 1.0f);
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& e : emulation::take_errors()) ADD_FAILURE() << e;
}

__global__ void right_warp(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  const float v = s[threadIdx.x ^ 1] + s[threadIdx.x / 32 * 32];
  __syncwarp();
  s[threadIdx.x] = v;
  __syncwarp();
  y[threadIdx.x] = s[threadIdx.x ^ 3];
}
TEST(Emulation, SyncwarpOrdersMemoryOfItsWarp) { expect_silent(right_warp); }

__global__ void right_half(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  const unsigned mask = threadIdx.x % 32 < 16 ? 0xFFFFu : 0xFFFF0000u;
  __syncwarp(mask);
  y[threadIdx.x] = s[threadIdx.x ^ 1] + __shfl_xor_sync(mask, x[threadIdx.x], 8);
}
TEST(Emulation, HalvesOfAWarpSynchronise) { expect_silent(right_half); }

__global__ void right_reads(const float* x, float* y) {  // all read one place, then one writes it
  auto* s = dynamic_shared<float>();
  if (threadIdx.x == 0) s[0] = x[0];
  __syncthreads();
  const float v = s[0];
  __syncthreads();
  if (threadIdx.x == 33) s[0] = 2 * v;
  __syncthreads();
  y[threadIdx.x] = s[0];
}
TEST(Emulation, WriteBehindManyReadersAndABarrier) { expect_silent(right_reads); }

__global__ void right_blocks(const float* x, float* y) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] + x[0];
}
TEST(Emulation, BlocksReadTheSameAndWriteTheirOwn) { expect_silent(right_blocks, 2, 32); }

__global__ void right_early_end(const float* x, float* y) {
  if (threadIdx.x >= 50) return;
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[49 - threadIdx.x];
}
TEST(Emulation, ThreadsThatHaveEndedAreNotAwaited) { expect_silent(right_early_end); }

__global__ void right_copies(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  if (threadIdx.x < 16) copy_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  commit_copies();
  await_copies<0>();
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
}
TEST(Emulation, AwaitedCopies) { expect_silent(right_copies); }

__global__ void right_pipeline(const float* x, float* y) {  // two groups under way
  auto* s = dynamic_shared<float>();
  const bool copies = threadIdx.x < 4;
  float sum = 0;
  for (int i = 0; i < 2; ++i) {
    if (copies) copy_async16(s + 16 * i + 4 * threadIdx.x, x + 16 * i + 4 * threadIdx.x);
    commit_copies();
  }
  for (int i = 0; i < 4; ++i) {
    await_copies<1>();
    __syncthreads();
    sum += s[16 * (i % 2) + static_cast<int>(threadIdx.x % 16)];
    __syncthreads();
    if (copies && i + 2 < 4)
      copy_async16(s + 16 * (i % 2) + 4 * threadIdx.x, x + 16 * (i + 2) + 4 * threadIdx.x, 12);
    commit_copies();
  }
  y[threadIdx.x] = sum;
}
TEST(Emulation, PipelineOfCopies) {
  expect_silent(right_pipeline);
  const Outcome outcome = run(right_pipeline);
  EXPECT_EQ(outcome.y[0], 4);
  EXPECT_EQ(outcome.y[3], 2);  // bytes 12 .. 15 were not copied
}

__global__ void right_atomics(const float*, float* y) {
  __shared__ int counts[2];
  auto* total = reinterpret_cast<int*>(y);
  if (threadIdx.x < 2) counts[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&counts[threadIdx.x % 2], 1);
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(total, counts[0] + counts[1]);
  if (threadIdx.x == 1) atomicMax(total + 1, static_cast<int>(blockIdx.x));
}
TEST(Emulation, AtomicsDoNotRace) {
  expect_silent(right_atomics, 3);
  const Outcome outcome = run(right_atomics, 3);
  EXPECT_EQ(__float_as_int(outcome.y[0]), 3 * kThreads);
  EXPECT_EQ(__float_as_int(outcome.y[1]), 2);
}

constexpr float kTable[4] = {1, 2, 3, 4};
__global__ void right_constants(const float*, float* y) {
  y[threadIdx.x] = kTable[threadIdx.x % 4];
}
TEST(Emulation, ConstantsOfTheProgramCanBeRead) { expect_silent(right_constants); }

// ---- exchanges

__global__ void exchanges(int* out) {
  const int lane = thread_id() % 32;
  int* own = out + 16 * thread_id();
  own[0] = __shfl_sync(~0u, lane, 5);
  own[1] = __shfl_sync(~0u, lane, 5, 8);
  own[2] = __shfl_xor_sync(~0u, lane, 16);
  own[3] = __shfl_down_sync(~0u, lane, 3);
  own[4] = __shfl_down_sync(~0u, lane, 3, 8);
  own[5] = __shfl_up_sync(~0u, lane, 3);
  own[6] = __shfl_up_sync(~0u, lane, 3, 8);
  own[7] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  own[8] = __any_sync(~0u, lane == 7);
  own[9] = __all_sync(~0u, lane == 7);
  own[10] = static_cast<int>(__shfl_sync(~0u, int64_t{lane} << 40, 9) >> 40);
  own[11] = static_cast<int>(__shfl_sync(~0u, static_cast<double>(lane), 9));
}
TEST(Emulation, ExchangesOfAWarp) {
  Array<int> out(16 * kThreads);
  launch(exchanges, dim3(1), dim3(kThreads), 0, kStream, out.data);
  EXPECT_TRUE(emulation::take_errors().empty());
  int thirds = 0;
  for (int i = 0; i < 32; i += 3) thirds |= 1 << i;
  for (int t = 0; t < kThreads; ++t) {
    const int lane = t % 32;
    const int* own = out.data + 16 * t;
    EXPECT_EQ(own[0], 5);
    EXPECT_EQ(own[1], lane / 8 * 8 + 5);
    EXPECT_EQ(own[2], lane ^ 16);
    EXPECT_EQ(own[3], lane + 3 < 32 ? lane + 3 : lane);
    EXPECT_EQ(own[4], lane % 8 + 3 < 8 ? lane + 3 : lane);
    EXPECT_EQ(own[5], lane >= 3 ? lane - 3 : lane);
    EXPECT_EQ(own[6], lane % 8 >= 3 ? lane - 3 : lane);
    EXPECT_EQ(own[7], thirds);
    EXPECT_EQ(own[8], 1);
    EXPECT_EQ(own[9], 0);
    EXPECT_EQ(own[10], 9);
    EXPECT_EQ(own[11], 9);
  }
}

constexpr int kRow = 24;  // elements: rows of 16 and a gap
// c[16, 8] = a[16, 16] b, with b as [8, 16] (loaded plainly) and as [16, 8] (loaded transposed).
__global__ void product(const Bf16* a, const Bf16* b, const Bf16* b_transposed, float* c) {
  auto* s = dynamic_shared<Bf16>();
  Bf16 *sa = s, *sb = s + 16 * kRow, *st = sb + 8 * kRow;
  for (int i = thread_id(); i < 16 * 16; i += 32) sa[i / 16 * kRow + i % 16] = a[i];
  for (int i = thread_id(); i < 8 * 16; i += 32) sb[i / 16 * kRow + i % 16] = b[i];
  for (int i = thread_id(); i < 16 * 8; i += 32) st[i / 8 * kRow + i % 8] = b_transposed[i];
  __syncthreads();
  const int lane = thread_id();
  uint32_t fa[4], fb[2], ft[2], f4[4];
  ldmatrix_x4(fa, sa + lane % 16 * kRow + lane / 16 * 8);
  ldmatrix_x2(fb, sb + lane % 8 * kRow + lane / 8 % 2 * 8);
  ldmatrix_x2_trans(ft, st + lane % 16 * kRow);
  ldmatrix_x4_trans(f4, st + lane % 16 * kRow);
  float d[3][4] = {};
  mma_bf16(d[0], fa, fb);
  mma_bf16(d[1], fa, ft);
  mma_bf16(d[1], fa, ft);
  const uint32_t first[2] = {f4[0], f4[1]};
  mma_bf16(d[2], fa, first);
  for (int j = 0; j < 3; ++j)
    for (int r = 0; r < 4; ++r)
      c[128 * j + (lane / 4 + r / 2 * 8) * 8 + lane % 4 * 2 + r % 2] = d[j][r];
}
TEST(Emulation, MatricesAreLoadedAndMultiplied) {
  Array<Bf16> a(256), b(128), t(128);
  Array<float> c(3 * 128);
  for (int i = 0; i < 256; ++i) a.data[i] = to_bf16(static_cast<float>(i * 37 % 23 - 11) / 8);
  for (int n = 0; n < 8; ++n)
    for (int k = 0; k < 16; ++k)
      b.data[16 * n + k] = t.data[8 * k + n] =
          to_bf16(static_cast<float>((n * 5 + k * 7) % 19 - 9));
  for (const Order order : {Order::kForward, Order::kReverse}) {
    emulation::set_order(order);
    launch(product, dim3(1), dim3(32), 40 * kRow * sizeof(Bf16), kStream, a.data, b.data, t.data,
           c.data);
    for (const std::string& e : emulation::take_errors()) ADD_FAILURE() << e;
    for (int i = 0; i < 16; ++i)
      for (int n = 0; n < 8; ++n) {
        double sum = 0;
        for (int k = 0; k < 16; ++k)
          sum += static_cast<double>(to_float(a.data[16 * i + k])) * to_float(b.data[16 * n + k]);
        EXPECT_EQ(c.data[8 * i + n], sum);  // exact: small numbers
        EXPECT_EQ(c.data[128 + 8 * i + n], 2 * sum);
        EXPECT_EQ(c.data[256 + 8 * i + n], sum);
      }
  }
  emulation::set_order(Order::kForward);
}

// ---- bounds

__global__ void past_the_end(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
TEST(EmulationChecker, ReadBehindGlobalMemory) {
  TR_NEEDS_CHECKER();
  expect_named(past_the_end, "out of bounds: byte 256 of an allocation of 256");
}

__global__ void far_past_the_end(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x + 20000];
}
TEST(EmulationChecker, ReadFarBehindGlobalMemory) {
  TR_NEEDS_CHECKER();
  expect_named(far_past_the_end, "of an allocation of 256");
}

__global__ void before_the_begin(const float* x, float* y) {
  y[static_cast<int>(threadIdx.x) - 1] = x[0];
}
TEST(EmulationChecker, WriteBeforeGlobalMemory) {
  if (checks_on()) return expect_named(before_the_begin, "out of bounds: byte -4");
  // Seen when the memory is released, or when somebody waits.
  run(before_the_begin);
  const auto errors = emulation::take_errors();
  ASSERT_EQ(errors.size(), 1);
  EXPECT_NE(errors[0].find("somebody wrote out of bounds, before an allocation"),
            std::string::npos);
}

__global__ void past_shared(const float*, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x + 1] = 0;
  __syncthreads();
  y[threadIdx.x] = 0;
}
TEST(EmulationChecker, WriteBehindDynamicSharedMemory) {
  TR_NEEDS_CHECKER();
  expect_named(past_shared, "out of bounds: byte 256 of 256 of shared memory");
}

__global__ void past_static_shared(const float*, float* y) {
  __shared__ float s[kThreads];
  s[threadIdx.x + 1] = 0;
  __syncthreads();
  y[threadIdx.x] = s[1];
}
TEST(EmulationChecker, WriteBehindStaticSharedMemory) {
  TR_NEEDS_CHECKER();
  expect_named(past_static_shared, "index out of bounds of its array: 0x40");
}

struct Tiles {
  float first[16], second[48];
};
__global__ void past_member(const float*, float* y) {
  auto* s = dynamic_shared<Tiles>();
  s->first[threadIdx.x] = 0;
  __syncthreads();
  y[threadIdx.x] = 0;
}
TEST(EmulationChecker, IndexPastAnArrayInsideOfSharedMemory) {
  TR_NEEDS_CHECKER();
  expect_named(past_member, "index out of bounds of its array");
}

__global__ void released(const float* const* x, float* y) { y[threadIdx.x] = (*x)[threadIdx.x]; }
TEST(EmulationChecker, MemoryOfTheHostAndReleasedMemory) {
  TR_NEEDS_CHECKER();
  Array<float> y(kThreads);
  Array<const float*> pointer(1);
  const std::vector<float> host(kThreads, 1.0f);
  static float variable[kThreads];
  for (const float* x : {host.data(), static_cast<const float*>(variable)}) {
    pointer.data[0] = x;
    launch(released, dim3(1), dim3(kThreads), 0, kStream, pointer.data, y.data);
    const auto errors = emulation::take_errors();
    ASSERT_EQ(errors.size(), 1);
    EXPECT_NE(errors[0].find("memory of the host"), std::string::npos) << errors[0];
  }
  {
    Array<float> x(kThreads);
    pointer.data[0] = x.data;
  }
  launch(released, dim3(1), dim3(kThreads), 0, kStream, pointer.data, y.data);
  const auto errors = emulation::take_errors();
  ASSERT_EQ(errors.size(), 1);
  EXPECT_NE(errors[0].find("out of bounds"), std::string::npos) << errors[0];
}

TEST(EmulationChecker, MemoryOfAnotherDevice) {
  TR_NEEDS_CHECKER();
  Array<float> x(kThreads), y(kThreads);
  launch(right, dim3(1), dim3(kThreads), 256, Stream{.device = {DeviceKind::kCuda, 1}}, x.data,
         y.data);
  const auto errors = emulation::take_errors();
  ASSERT_EQ(errors.size(), 1);
  EXPECT_NE(errors[0].find("memory of device 0 in a kernel on device 1"), std::string::npos);
}

// ---- races

__global__ void no_barrier(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[(threadIdx.x + 40) % blockDim.x];
}
TEST(EmulationChecker, MissingBarrier) {
  TR_NEEDS_CHECKER();
  expect_named(no_barrier, "shared");
}

__global__ void static_no_barrier(const float* x, float* y) {
  __shared__ float s[kThreads];
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[63 - threadIdx.x];
}
TEST(EmulationChecker, MissingBarrierOfStaticMemory) {
  TR_NEEDS_CHECKER();
  expect_named(static_no_barrier, "shared");
}

__global__ void no_second_barrier(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  for (int i = 0; i < 2; ++i) {
    s[threadIdx.x] = x[threadIdx.x] + static_cast<float>(i);
    __syncthreads();
    y[threadIdx.x] = s[(threadIdx.x + 40) % blockDim.x];
  }
}
TEST(EmulationChecker, TileThatIsOverwrittenWhileOthersRead) {
  TR_NEEDS_CHECKER();
  expect_named(no_second_barrier, "another");
}

// The last of the readers writes: kReader of its own warp or of another has read it too.
template <unsigned kReader>
__global__ void write_by_a_reader(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  if (threadIdx.x == 0) s[0] = x[0];
  __syncthreads();
  if (threadIdx.x == kReader || threadIdx.x == 63) y[threadIdx.x] = s[0];
  if (threadIdx.x == 63) s[0] = y[63];
}
TEST(EmulationChecker, WriteByOneOfSeveralReaders) {
  TR_NEEDS_CHECKER();
  expect_named(write_by_a_reader<1>, "another");
  expect_named(write_by_a_reader<40>, "another");
}

__global__ void no_syncwarp(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  (void)__shfl_xor_sync(~0u, 1.0f, 1);  // orders no memory
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}
TEST(EmulationChecker, ShuffleInPlaceOfSyncwarp) {
  TR_NEEDS_CHECKER();
  expect_named(no_syncwarp, "reads what another writes: shared");
}

__global__ void syncwarp_of_the_wrong_lanes(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  const bool writes = threadIdx.x % 32 >= 16;
  if (writes) s[threadIdx.x] = x[threadIdx.x];
  (void)__shfl_sync(~0u, 1, 0);
  __syncwarp(writes ? 0xFFFF0000u : 0xFFFFu);
  y[threadIdx.x] = writes ? 0 : s[threadIdx.x + 16];
}
TEST(EmulationChecker, SyncwarpWithoutTheOther) {
  TR_NEEDS_CHECKER();
  expect_named(syncwarp_of_the_wrong_lanes, "reads what another writes: shared");
}

__global__ void syncwarp_of_another_warp(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = s[threadIdx.x ^ 32];
}
TEST(EmulationChecker, SyncwarpOrdersNothingBetweenWarps) {
  TR_NEEDS_CHECKER();
  expect_named(syncwarp_of_another_warp, "shared");
}

__global__ void global_race(const float*, float* y) { y[threadIdx.x / 2] = 1; }
TEST(EmulationChecker, ThreadsWriteOneGlobalPlace) {
  TR_NEEDS_CHECKER();
  expect_named(global_race, "writes what another writes: global");
}

__global__ void blocks_write(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x]; }
TEST(EmulationChecker, BlocksWriteOnePlace) {
  TR_NEEDS_CHECKER();
  expect_named(blocks_write, "writes what another writes: global", 2);
}

__global__ void blocks_read_and_write(const float*, float* y) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) y[1] = y[0];
  if (blockIdx.x == 1) y[2] = y[0];
  if (blockIdx.x == 2) y[0] = 1;
}
TEST(EmulationChecker, BlockWritesWhatAnotherReads) {
  TR_NEEDS_CHECKER();
  expect_named(blocks_read_and_write, "another", 3);
}

__global__ void read_and_write_by_own_block(const float*, float* y) {
  if (threadIdx.x != 0) return;
  const float v = *static_cast<volatile float*>(y);
  if (blockIdx.x == 1 && blockDim.x > 1) y[0] = v + 1;  // block 0 reads it too
}
TEST(EmulationChecker, BlockWritesWhatItAndAnotherRead) {
  TR_NEEDS_CHECKER();
  expect_named(read_and_write_by_own_block, "another", 2);
}

__global__ void atomic_and_plain(const float*, float* y) {
  auto* count = reinterpret_cast<int*>(y);
  atomicAdd(count, 1);
  if (threadIdx.x == 5) y[1] = static_cast<float>(*count);
}
TEST(EmulationChecker, PlainReadOfWhatOthersAddTo) {
  TR_NEEDS_CHECKER();
  expect_named(atomic_and_plain, "another");
}

// ---- memory that nobody wrote

__global__ void unwritten(const float*, float* y) {
  y[threadIdx.x] = dynamic_shared<float>()[threadIdx.x];
}
TEST(EmulationChecker, SharedMemoryThatNobodyWrote) {
  if (checks_on()) return expect_named(unwritten, "nobody wrote: shared");
  EXPECT_TRUE(std::isnan(run(unwritten).y[5]));
}

__global__ void unwritten_since(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  if (blockIdx.x == 0) s[threadIdx.x] = x[threadIdx.x];
  if (blockIdx.x == gridDim.x - 1) y[threadIdx.x] = s[threadIdx.x];
}
TEST(EmulationChecker, SharedMemoryOfTheBlockBefore) {
  TR_NEEDS_CHECKER();
  emulation::set_order(Order::kForward);
  const Outcome outcome = run(unwritten_since, 2);
  ASSERT_FALSE(outcome.errors.empty());
  EXPECT_NE(outcome.errors[0].find("nobody wrote"), std::string::npos);
}

__global__ void double_them(float* x) { x[threadIdx.x] *= 2; }
__global__ void set_them(float* x) { x[threadIdx.x] = 1; }
TEST(EmulationChecker, WorkspaceThatNobodyWrote) {
  Array<float> x(kThreads, 1.0f);
  emulation::mark_unwritten(x.data, kThreads * sizeof(float));
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, x.data);
  EXPECT_TRUE(std::isnan(x.data[3]));
  const auto errors = emulation::take_errors();
  ASSERT_EQ(errors.empty(), !checks_on());
  if (checks_on()) {
    EXPECT_NE(errors[0].find("nobody wrote: global"), std::string::npos);
  }
  emulation::mark_unwritten(x.data, kThreads * sizeof(float));
  launch(set_them, dim3(1), dim3(kThreads), 0, kStream, x.data);
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, x.data);
  EXPECT_TRUE(emulation::take_errors().empty());
  EXPECT_EQ(x.data[3], 2);
}

// ---- copies

__global__ void copy_not_awaited(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = 1;  // the tile of the step before
  __syncthreads();
  if (threadIdx.x < 16) copy_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  commit_copies();
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
  await_copies<0>();
}
TEST(EmulationChecker, CopyThatIsReadBeforeItWasAwaited) {
  if (checks_on()) return expect_named(copy_not_awaited, "a copy that was not awaited");
  EXPECT_TRUE(std::isnan(run(copy_not_awaited).y[0]));
}

__global__ void copy_without_barrier(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  if (threadIdx.x < 16) copy_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  commit_copies();
  await_copies<0>();
  y[threadIdx.x] = s[63 - threadIdx.x];
}
TEST(EmulationChecker, CopyOfAnotherThreadWithoutABarrier) {
  TR_NEEDS_CHECKER();
  expect_named(copy_without_barrier, "shared");
}

__global__ void copy_into_what_others_read(const float* x, float* y) {
  auto* s = dynamic_shared<float>();
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s[63 - threadIdx.x];
  if (threadIdx.x < 16) copy_async16(s + 4 * threadIdx.x, x + 4 * threadIdx.x);
  commit_copies();
  await_copies<0>();
}
TEST(EmulationChecker, CopyIntoATileThatOthersRead) {
  TR_NEEDS_CHECKER();
  expect_named(copy_into_what_others_read, "writes what another reads: shared");
}

__global__ void copy_left(const float* x, float* y) {
  copy_async16(dynamic_shared<float>() + 4 * (threadIdx.x % 16), x);
  y[threadIdx.x] = 0;
}
TEST(Emulation, CopiesAreAwaitedBeforeAThreadEnds) {
  expect_named(copy_left, "ended with copies that were not awaited");
}

__global__ void unaligned_copy(const float* x, float* y) {
  copy_async16(dynamic_shared<float>(), x + 1);
  commit_copies();
  await_copies<0>();
  y[threadIdx.x] = 0;
}
TEST(Emulation, UnalignedCopy) { expect_named(unaligned_copy, "not aligned to 16 bytes"); }

__global__ void copy_out_of_bounds(const float* x, float* y) {
  copy_async16(dynamic_shared<float>() + 4 * threadIdx.x, x);
  commit_copies();
  await_copies<0>();
  y[threadIdx.x] = 0;
}
TEST(EmulationChecker, CopyBehindSharedMemory) {
  TR_NEEDS_CHECKER();
  expect_named(copy_out_of_bounds, "out of bounds");
}

// ---- alignment

__global__ void unaligned_vector(const float* x, float* y) {
  const float4 v = *reinterpret_cast<const float4*>(x + threadIdx.x % 4);
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
TEST(EmulationChecker, VectorThroughAnUnalignedPointer) {
  TR_NEEDS_CHECKER();
#ifdef __clang__
  GTEST_SKIP() << "clang copies a struct as bytes, and checks no alignment of it";
#endif
  expect_named(unaligned_vector, "not aligned");
}

__global__ void unaligned_word(const float* x, float* y) {
  const auto* bytes = reinterpret_cast<const char*>(x);
  y[threadIdx.x] = static_cast<float>(*reinterpret_cast<const uint32_t*>(bytes + 2));
}
TEST(EmulationChecker, WordThroughAnUnalignedPointer) {
  TR_NEEDS_CHECKER();
  expect_named(unaligned_word, "not aligned");
}

__global__ void unaligned_matrix(const float*, float* y) {
  uint32_t r[4];
  ldmatrix_x4(r, dynamic_shared<float>() + 1);
  y[threadIdx.x] = __uint_as_float(r[0]);
}
TEST(Emulation, UnalignedMatrix) { expect_named(unaligned_matrix, "ldmatrix is not aligned"); }

__global__ void matrix_of_nobody(const float*, float* y) {
  uint32_t r[4];
  ldmatrix_x4(r, dynamic_shared<float>());
  y[threadIdx.x] = __uint_as_float(r[0]);
}
TEST(EmulationChecker, MatrixThatNobodyWrote) {
  TR_NEEDS_CHECKER();
  expect_named(matrix_of_nobody, "nobody wrote: shared");
}

// ---- lanes that do not come

__global__ void lost_lane(const float* x, float* y) {
  float v = x[threadIdx.x];
  if (threadIdx.x % 2 == 0)
    v += __shfl_xor_sync(~0u, v, 2);
  else
    __syncthreads();
  y[threadIdx.x] = v;
}
TEST(Emulation, LanesAtDifferentPlacesAreADeadlock) {
  expect_named(lost_lane,
               "deadlock: 32 of 64 threads wait at __syncthreads; warp 0: lanes 55555555");
}

__global__ void some_at_barrier(const float*, float* y) {
  if (threadIdx.x < 48)
    __syncthreads();
  else
    __syncwarp();
  y[threadIdx.x] = 0;
}
TEST(Emulation, BarrierWithoutSomeIsADeadlock) { expect_named(some_at_barrier, "deadlock"); }

__global__ void outside_the_mask(const float* x, float* y) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16) v += __shfl_down_sync(0xFFFFu, v, 8);
  y[threadIdx.x] = v;
}
TEST(Emulation, ShuffleFromOutsideTheMask) { expect_named(outside_the_mask, "which is not there"); }

__global__ void from_an_ended_lane(const float* x, float* y) {
  if (threadIdx.x % 32 == 3) return;
  y[threadIdx.x] = __shfl_sync(~0u, x[threadIdx.x], 3);
}
TEST(Emulation, ShuffleFromALaneThatHasEnded) {
  expect_named(from_an_ended_lane, "lane 3, which is not there");
}

__global__ void not_in_own_mask(const float* x, float* y) {
  y[threadIdx.x] = __shfl_sync(0xFFFFu, x[threadIdx.x], 0);
}
TEST(Emulation, MaskWithoutItsCaller) { expect_named(not_in_own_mask, "lacks the caller"); }

__global__ void different_exchanges(const float* x, float* y) {
  y[threadIdx.x] = threadIdx.x % 32 < 16 ? __shfl_xor_sync(~0u, x[threadIdx.x], 1)
                                         : static_cast<float>(__ballot_sync(~0u, 1));
}
TEST(Emulation, LanesInDifferentExchanges) {
  expect_named(different_exchanges, "different exchanges");
}

__global__ void mma_of_half_a_warp(const float*, float* y) {
  if (threadIdx.x % 32 < 16) return;
  float d[4] = {};
  const uint32_t a[4] = {}, b[2] = {};
  mma_bf16(d, a, b);
  y[threadIdx.x] = d[0];
}
TEST(Emulation, ProductOfHalfAWarp) {
  emulation::set_order(Order::kForward);
  EXPECT_FALSE(run(mma_of_half_a_warp).errors.empty());
  emulation::set_order(Order::kReverse);
  EXPECT_FALSE(run(mma_of_half_a_warp).errors.empty());
  emulation::set_order(Order::kForward);
}

TEST(Emulation, AfterADeadlockTheNextLaunchIsSound) {
  expect_named(lost_lane, "deadlock");
  expect_silent(right);
  expect_named(some_at_barrier, "deadlock");
  expect_silent(right_copies);
}

__global__ void deep(float* y, int depth) {
  volatile float local[1000];
  for (volatile float& v : local) v = 1;
  if (depth > 0) deep(y, depth - 1);
  y[0] = local[depth];
}
TEST(Emulation, OverflowOfAStack) {
  Array<float> y(1);
  launch(deep, dim3(1), dim3(1), 0, kStream, y.data, 16);
  const auto errors = emulation::take_errors();
  ASSERT_EQ(errors.size(), 1);
  // The first stack of all ends where other memory is.
  EXPECT_TRUE(errors[0].find("overflowed") != std::string::npos ||
              errors[0].find("out of bounds") != std::string::npos)
      << errors[0];
}

TEST(Emulation, LaunchThatAGpuRefuses) {
  Array<float> x(kThreads), y(kThreads);
  for (const auto& [grid, block, bytes] :
       {std::tuple(dim3(0), dim3(32), 0), std::tuple(dim3(1), dim3(2048), 0),
        std::tuple(dim3(1, 70000), dim3(32), 0), std::tuple(dim3(1), dim3(32), 228 * 1024)}) {
    launch(right, grid, block, static_cast<size_t>(bytes), kStream, x.data, y.data);
    EXPECT_EQ(emulation::take_errors().size(), 1);
  }
}

// ---- memory and streams

struct Provided : testing::Test {
  void SetUp() override { memory = emulation::emulated_memory(); }
  DeviceMemory memory;
  std::byte* take(size_t bytes) { return memory.allocate(bytes, 0); }
};
using EmulatedMemory = Provided;

TEST_F(EmulatedMemory, IsZeroAndAligned) {
  for (const size_t bytes : {64, 128, 1 << 20}) {
    std::byte* p = take(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % kMemoryAlignment, 0);
    EXPECT_TRUE(std::all_of(p, p + bytes, [](std::byte b) { return b == std::byte{0}; }));
    memory.release(p, 0);
  }
}

TEST_F(EmulatedMemory, ResultsArriveWithWaitAndNotBefore) {
  std::vector<float> host(kThreads, 3.0f), result(kThreads, 7.0f);
  const size_t bytes = kThreads * sizeof(float);
  std::byte* p = take(bytes);
  memory.copy(kStream, p, reinterpret_cast<const std::byte*>(host.data()), bytes);
  EXPECT_EQ(p[3], std::byte{0});  // it waits in the stream
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, reinterpret_cast<float*>(p));
  memory.copy(kStream, reinterpret_cast<std::byte*>(result.data()), p, bytes);
  EXPECT_TRUE(std::isnan(result[0]));
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, reinterpret_cast<float*>(p));
  EXPECT_TRUE(std::isnan(result[0]));
  memory.wait(kStream);
  EXPECT_EQ(result[0], 6.0f);  // of before the second launch
  memory.release(p, 0);
}

TEST_F(EmulatedMemory, AMarkWaitsForWhatIsBeforeItAlone) {
  provide_memory(DeviceKind::kCuda, memory);
  std::vector<float> host(kThreads, 3.0f), first(kThreads), second(kThreads);
  const size_t bytes = kThreads * sizeof(float);
  std::byte* p = take(bytes);
  const auto read = [&](std::vector<float>& to) {
    memory.copy(kStream, reinterpret_cast<std::byte*>(to.data()), p, bytes);
  };
  StreamMark mark, unset;
  unset.wait();
  memory.copy(kStream, p, reinterpret_cast<const std::byte*>(host.data()), bytes);
  read(first);
  mark.set(kStream);
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, reinterpret_cast<float*>(p));
  read(second);
  EXPECT_TRUE(std::isnan(first[0]));
  mark.wait();
  EXPECT_EQ(first[0], 3.0f);
  EXPECT_TRUE(std::isnan(second[0]));
  mark.set(kStream);
  StreamMark moved = std::move(mark);
  moved.wait();
  EXPECT_EQ(second[0], 6.0f);
  memory.release(p, 0);
}

TEST_F(EmulatedMemory, SourcesOnTheHostAreReadLate) {
  std::vector<float> host(kThreads, 3.0f), result(kThreads);
  const size_t bytes = kThreads * sizeof(float);
  std::byte* p = take(bytes);
  memory.copy(kStream, p, reinterpret_cast<const std::byte*>(host.data()), bytes);
  host[0] = 4.0f;  // too early: the staging memory is still in use
  memory.copy(kStream, reinterpret_cast<std::byte*>(result.data()), p, bytes);
  memory.wait(kStream);
  EXPECT_EQ(result[0], 4.0f);
  memory.release(p, 0);
}

TEST_F(EmulatedMemory, CopiesOfAStreamKeepTheirOrder) {
  const size_t bytes = kThreads * sizeof(float);
  std::vector<float> host(kThreads, 3.0f);
  auto* h = reinterpret_cast<std::byte*>(host.data());
  std::byte *p = take(bytes), *q = take(bytes);
  memory.copy(kStream, p, h, bytes);
  memory.copy(kStream, q, p, bytes);
  std::vector<float> detour(kThreads);  // to the host and back
  memory.copy(kStream, reinterpret_cast<std::byte*>(detour.data()), q, bytes);
  memory.copy(kStream, p, reinterpret_cast<const std::byte*>(detour.data()), bytes);
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, reinterpret_cast<float*>(p));
  memory.copy(kStream, h, p, bytes);
  memory.wait(kStream);
  EXPECT_EQ(host[7], 6.0f);
  memory.release(p, 0);
  memory.release(q, 0);
}

TEST_F(EmulatedMemory, StreamsDoNotWaitForEachOther) {
  void* name = emulation::make_stream(0);
  const Stream other{.device = kStream.device, .native = name};
  const size_t bytes = kThreads * sizeof(float);
  std::vector<float> host(kThreads, 3.0f);
  std::byte* p = take(bytes);
  memory.copy(other, p, reinterpret_cast<const std::byte*>(host.data()), bytes);
  memory.wait(kStream);
  EXPECT_EQ(p[3], std::byte{0});
  memory.wait(other);
  EXPECT_NE(p[3], std::byte{0});
  emulation::free_stream(name, 0);
  memory.release(p, 0);
}

TEST_F(EmulatedMemory, CopyOutOfBoundsIsNamed) {
  std::vector<std::byte> host(128);
  std::byte* p = take(64);
  memory.copy(kStream, p, host.data(), 128);
  memory.copy(kStream, host.data(), p + 32, 64);
  memory.copy(kStream, host.data(), host.data() + 64, 64);
  memory.copy(Stream{.device = {DeviceKind::kCuda, 1}}, host.data(), p, 64);
  EXPECT_EQ(emulation::take_errors().size(), 4);
  memory.release(p, 0);
}

TEST_F(EmulatedMemory, PinnedMemoryStaysUntilTheStreamHasCome) {
  std::byte *p = take(64), *pinned = memory.allocate_pinned(64);
  memory.copy(kStream, p, pinned, 64);
  memory.release_pinned(pinned);
  const auto errors = emulation::take_errors();
  ASSERT_EQ(errors.size(), 1);
  EXPECT_NE(errors[0].find("released while a copy needs them"), std::string::npos);
  pinned = memory.allocate_pinned(64);
  memory.copy(kStream, pinned, p, 64);
  memory.wait(kStream);
  EXPECT_EQ(pinned[5], std::byte{0});
  memory.release_pinned(pinned);
  memory.release(p, 0);
}

TEST_F(EmulatedMemory, CopyMakesMarkedMemoryWritten) {
  const size_t bytes = kThreads * sizeof(float);
  std::vector<float> host(kThreads, 3.0f);
  std::byte* p = take(bytes);
  emulation::mark_unwritten(p, bytes);
  memory.copy(kStream, p, reinterpret_cast<const std::byte*>(host.data()), bytes);
  launch(double_them, dim3(1), dim3(kThreads), 0, kStream, reinterpret_cast<float*>(p));
  memory.wait(kStream);
  memory.release(p, 0);
}

// A graph of a copy to the device, a kernel with a number of the host's, and a copy back.
__global__ void scale_them(float* x, float factor) { x[threadIdx.x] *= factor; }

struct EmulatedGraph : EmulatedMemory {
  static constexpr size_t kBytes = kThreads * sizeof(float);
  Stream stream{.device = kStream.device};
  std::byte *p = nullptr, *from = nullptr, *to = nullptr;
  float factor = 2;
  StreamGraph graph;

  void SetUp() override {
    EmulatedMemory::SetUp();
    provide_graphs(DeviceKind::kCuda, emulation::emulated_graphs());
    stream.native = emulation::make_stream(0);
    p = take(kBytes);
    from = memory.allocate_pinned(kBytes);
    to = memory.allocate_pinned(kBytes);
    fill(3);
  }
  void TearDown() override {
    emulation::free_stream(stream.native, 0);
    memory.release_pinned(from);
    memory.release_pinned(to);
    memory.release(p, 0);
  }
  void fill(float value) { std::fill_n(reinterpret_cast<float*>(from), kThreads, value); }
  float result() const { return reinterpret_cast<const float*>(to)[kThreads - 1]; }
  void ask() {
    memory.copy(stream, p, from, kBytes);
    launch(scale_them, dim3(1), dim3(kThreads), 0, stream, reinterpret_cast<float*>(p), factor);
    memory.copy(stream, to, p, kBytes);
  }
  void capture() {
    graph.begin(stream);
    ask();
    graph.end();
  }
};

TEST_F(EmulatedGraph, ACaptureDoesNothing) {
  emulation::reset_stats();
  capture();
  memory.wait(stream);
  EXPECT_EQ(emulation::stats().launches, 0);
  EXPECT_EQ(p[5], std::byte{0});
  EXPECT_TRUE(std::isnan(result()));
}

TEST_F(EmulatedGraph, ALaunchReadsWhatIsThereAndRepeatsTheArguments) {
  capture();
  factor = 5;
  for (const float value : {3.0f, 4.0f}) {
    fill(value);
    graph.launch(stream);
    EXPECT_TRUE(std::isnan(result()));  // it has come when somebody has waited
    memory.wait(stream);
    EXPECT_EQ(result(), 2 * value);
  }
  // What is asked of the stream otherwise is done as ever.
  ask();
  memory.wait(stream);
  EXPECT_EQ(result(), 5 * 4.0f);
  StreamGraph moved = std::move(graph);
  EXPECT_TRUE(graph.empty());  // NOLINT
  moved.launch(stream);
  memory.wait(stream);
  EXPECT_EQ(result(), 2 * 4.0f);
}

TEST_F(EmulatedGraph, WhatACaptureForbidsIsNamed) {
  void* mark = memory.make_mark(0);
  graph.begin(stream);
  memory.wait(stream);
  memory.set_mark(stream, mark);
  memory.wait_for_mark(stream, mark);
  memory.release(memory.allocate(64, 0), 0);
  memory.release_pinned(memory.allocate_pinned(64));
  ask();
  graph.end();
  EXPECT_EQ(emulation::take_errors().size(), 7);
  graph.launch(stream);
  memory.wait(stream);
  EXPECT_EQ(result(), 6.0f);
  memory.free_mark(mark, 0);
}

TEST_F(EmulatedGraph, MemoryThatIsGoneIsNamed) {
  // The first launch of a process takes memory for its threads, which might be what is gone below.
  launch(scale_them, dim3(1), dim3(kThreads), 0, stream, reinterpret_cast<float*>(p), factor);
  std::byte* gone = take(kBytes);
  graph.begin(stream);
  launch(scale_them, dim3(1), dim3(kThreads), 0, stream, reinterpret_cast<float*>(gone), factor);
  memory.copy(stream, to, gone, kBytes);
  graph.end();
  memory.release(gone, 0);
  if (!checks_on()) return;
  graph.launch(stream);
  EXPECT_EQ(emulation::take_errors().size(), 2);
}

TEST_F(EmulatedGraph, AnotherStreamIsNotCaptured) {
  void* other_name = emulation::make_stream(0);
  const Stream other{.device = stream.device, .native = other_name};
  graph.begin(stream);
  memory.copy(other, p, from, kBytes);
  graph.end();
  memory.wait(other);
  EXPECT_NE(p[3], std::byte{0});
  emulation::free_stream(other_name, 0);
}

void make_a_deadlock() {
  Array<float> x(kThreads), y(kThreads);
  launch(lost_lane, dim3(1), dim3(kThreads), 0, kStream, x.data, y.data);
}
TEST(EmulationDeathTest, WaitEndsTheProcessWithErrorsThatNobodyTook) {
  EXPECT_DEATH((make_a_deadlock(), emulation::wait(kStream)), "found no error.*\n.*deadlock");
}
TEST(EmulationDeathTest, SoDoesTheEndOfTheProcess) {
  EXPECT_EXIT((make_a_deadlock(), std::exit(0)), testing::ExitedWithCode(1), "deadlock");
}

TEST(EmulationChecker, ErrorsNameTheirPlace) {
  TR_NEEDS_CHECKER();
  const Outcome outcome = run(past_the_end);
  ASSERT_EQ(outcome.errors.size(), 1);
  EXPECT_NE(outcome.errors[0].find("thread 63"), std::string::npos);
  EXPECT_NE(outcome.errors[0].find("past_the_end"), std::string::npos) << outcome.errors[0];
}

TEST(Emulation, CountsBankConflicts) {
  emulation::reset_stats();
  Array<Bf16> a(256), b(128);
  Array<float> c(3 * 128);
  launch(product, dim3(1), dim3(32), 40 * kRow * sizeof(Bf16), kStream, a.data, b.data, b.data,
         c.data);
  EXPECT_TRUE(emulation::take_errors().empty());
  EXPECT_EQ(emulation::stats().launches, 1);
  EXPECT_EQ(emulation::stats().threads, 32);
  EXPECT_EQ(emulation::stats().bank_conflicts, 0);  // rows of 48 bytes
}

__global__ void indices(int* out, int width, int height) {
  const auto at = static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
  const int own = (static_cast<int>(threadIdx.z) * height + static_cast<int>(threadIdx.y)) * width +
                  thread_id();
  out[at * 24 + own] = at * 24 + own;
}
TEST(Emulation, IndicesOfThreadsAndBlocks) {
  Array<int> out(24 * 30);
  launch(indices, dim3(2, 3, 5), dim3(4, 3, 2), 0, kStream, out.data, 4, 3);
  EXPECT_TRUE(emulation::take_errors().empty());
  for (int i = 0; i < 24 * 30; ++i) EXPECT_EQ(out.data[i], i);
}

}  // namespace
}  // namespace tailrace::cuda
