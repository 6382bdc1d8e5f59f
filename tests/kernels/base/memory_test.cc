#include "kernels/base/memory.h"

#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/base/inverted_memory.h"

namespace tailrace {
namespace {

TEST(Buffer, IsAlignedAndZero) {
  Buffer buffer(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kMemoryAlignment, 0u);
  for (std::byte b : buffer.as<std::byte>()) EXPECT_EQ(b, std::byte{0});
  EXPECT_EQ(buffer.as<float>().size(), 250u);
}

// The system can then give it pages of that size.
TEST(Buffer, ALargeOneBeginsWithALargePage) {
  constexpr size_t kPage = size_t{2} << 20;
  for (const size_t bytes : {2 * kPage, 2 * kPage + 64, 5 * kPage - 64}) {
    const Buffer buffer(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.bytes().data) % kPage, 0u);
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_EQ(buffer.bytes().data[bytes - 1], std::byte{0});
  }
}

TEST(Buffer, MovesAndMayBeEmpty) {
  Buffer buffer(64);
  const std::byte* data = buffer.data();
  Buffer other(std::move(buffer));
  EXPECT_EQ(other.data(), data);
  Buffer third;
  third = std::move(other);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 64u);
  EXPECT_EQ(Buffer(0).size(), 0u);
}

TEST(Buffer, CountsWhatIsHeldAndTheMostOfIt) {
  const int64_t before = Buffer::total_bytes();
  Buffer::begin_peak();
  {
    Buffer small(1);
    Buffer large(1000);
    EXPECT_EQ(Buffer::total_bytes() - before, 64 + 1024);
    // What the first held goes with the second.
    small = std::move(large);
    EXPECT_EQ(Buffer::total_bytes() - before, 64 + 1024);
    const Buffer moved(std::move(small));
    EXPECT_EQ(Buffer::total_bytes() - before, 64 + 1024);
  }
  EXPECT_EQ(Buffer::total_bytes(), before);
  EXPECT_EQ(Buffer::peak_bytes() - before, 64 + 1024);
  Buffer::begin_peak();
  EXPECT_EQ(Buffer::peak_bytes(), before);
}

TEST(Buffer, OfADeviceIsReadByCopies) {
  const InvertedMemory::Provided provided;
  const Device device = InvertedMemory::kDevice;
  const Stream stream{.device = device};
  {
    Buffer there(256, device), again(256, device);
    std::vector<int> values(64), back(64, -1);
    copy(stream, bytes_of(std::span(back)), there.bytes());
    EXPECT_EQ(back, values);  // zero-filled
    std::iota(values.begin(), values.end(), 7);
    copy(stream, there.bytes(), bytes_of(std::span(values)));
    copy(stream, again.bytes(), there.bytes());
    copy(stream, bytes_of(std::span(back)), again.bytes());
    EXPECT_EQ(back, values);
    copy(stream, bytes_of(std::span(back).first(2)), again.bytes().part(40, 8));
    EXPECT_EQ(back[0], 17);
    EXPECT_EQ(back[1], 18);
    EXPECT_THROW(Buffer(1 << 20, device), std::bad_alloc);
    EXPECT_DEATH((void)there.data(), "memory of a device is read by copy");
    EXPECT_DEATH((void)there.as<float>(), "memory of a device is read by copy");
    EXPECT_DEATH(copy(Stream{}, there.bytes(), again.bytes()), "memory of device 3 in a stream");
    EXPECT_DEATH(copy(stream, there.bytes(), again.bytes().part(0, 8)),
                 "8 bytes to a place for 256");
    EXPECT_DEATH((void)there.bytes().part(250, 8), "8 bytes from 250 of 256");
  }
  EXPECT_TRUE(InvertedMemory::owned.empty());
}

TEST(BufferDeathTest, OfADeviceThatIsNotThereIsRefused) {
  EXPECT_DEATH(Buffer(8, {DeviceKind::kCuda, 0}), "memory of the CPU only");
}

TEST(Workspace, GivesAlignedPiecesAndTakesThemBackAtTheEndOfAScope) {
  Buffer buffer(4 * kMemoryAlignment);
  Workspace workspace(buffer);
  auto first = workspace.take<float>(1);
  {
    Workspace::Scope scope(workspace);
    auto second = workspace.take<double>(9);
    EXPECT_EQ(
        reinterpret_cast<std::byte*>(second.data()) - reinterpret_cast<std::byte*>(first.data()),
        64);
    EXPECT_EQ(workspace.used(), 3 * kMemoryAlignment);
  }
  EXPECT_EQ(workspace.used(), kMemoryAlignment);
  EXPECT_EQ(workspace.peak(), 3 * kMemoryAlignment);
}

// What the same takes need of one that has memory.
TEST(Workspace, ThatMeasuresSaysWhatIsNeeded) {
  const auto take = [](Workspace& workspace) {
    workspace.take<float>(1);
    for (const int64_t count : {9, 100, 3}) {
      Workspace::Scope scope(workspace);
      workspace.take<double>(count);
    }
    return workspace.take<float>(0).data();
  };
  Workspace measured = Workspace::measuring();
  EXPECT_EQ(take(measured), nullptr);
  EXPECT_EQ(measured.used(), kMemoryAlignment);
  Buffer buffer(measured.peak());
  Workspace workspace(buffer);
  take(workspace);
  EXPECT_EQ(workspace.peak(), measured.peak());
}

TEST(WorkspaceDeathTest, NamesTheSizesWhenItIsTooSmall) {
  Buffer buffer(64);
  Workspace workspace(buffer);
  EXPECT_DEATH(workspace.take<float>(17), "workspace of 64 bytes: 0 used, 128 wanted");
}

}  // namespace
}  // namespace tailrace
