// The bytes of a delta: chunks of kDeltaChunk elements, one after the other. A chunk is
//
//   form        one byte: ChunkForm
//   changed     how many elements (of kValues and kDense: the whole chunk's, and no number)
//   positions   kGaps: how many unchanged elements stand before each changed one, in a byte; 255
//               stands for so many, and more follow. kWideGaps: the low bytes of those numbers,
//               then what is above them as kGaps has them. kBitmap: a bit an element.
//   symbols     of the changed elements, or of all (kDense), as in delta_loops.h: for 2 bytes one
//               plane, then the escapes in two; for 4 bytes four planes. kValues: the planes of the
//               target itself.
//
// Numbers and planes are those of byte_plane.h.
#include "core/weights/delta_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "core/weights/byte_plane.h"
#include "core/weights/delta_loops.h"
#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

enum class ChunkForm : uint8_t { kSame, kGaps, kWideGaps, kBitmap, kDense, kValues };

// Where one form takes over from another: 1 of so many elements has changed.
constexpr int64_t kSparseForGaps = 400;  // a gap is 255 and more for half of the elements
constexpr int64_t kDenseForBitmap = 10;  // a bit an element costs less time than a byte a change
constexpr double kDenseForAll = 0.5;     // Huffman codes have a bit at least

constexpr uint8_t kGapGoesOn = 255;

struct Scratch {
  std::vector<uint64_t> bitmap;
  std::array<std::vector<uint8_t>, 4> planes;
  std::vector<uint16_t> escapes;
  std::vector<uint8_t> low, high;  // of gaps, or of escapes

  template <class T>
  static T* grow(std::vector<T>& buffer, int64_t size) {
    if (std::ssize(buffer) < size) buffer.resize(static_cast<size_t>(size));
    return buffer.data();
  }
  // Room for a chunk of n elements, `symbols` of which are coded, without room for escapes.
  DeltaPlanes sized(int64_t n, int64_t symbols, int64_t element_bytes) {
    DeltaPlanes pointers;
    pointers.bitmap = grow(bitmap, (n + 63) / 64);
    for (size_t i = 0; i < (element_bytes == 2 ? 1u : 4u); ++i)
      pointers.planes[i] = grow(planes[i], symbols + kDeltaSlack);
    return pointers;
  }
  DeltaPlanes sized_for_scan(int64_t n, int64_t element_bytes) {
    DeltaPlanes pointers = sized(n, n, element_bytes);
    if (element_bytes == 2) pointers.escapes = grow(escapes, n);
    return pointers;
  }
};

// The bytes of a bitmap of n elements.
std::span<const uint8_t> bytes_of(const uint64_t* bitmap, int64_t n) {
  return {reinterpret_cast<const uint8_t*>(bitmap), static_cast<size_t>((n + 7) / 8)};
}
std::span<uint8_t> bytes_of(uint64_t* bitmap, int64_t n) {
  return {reinterpret_cast<uint8_t*>(bitmap), static_cast<size_t>((n + 7) / 8)};
}

// ---- encode

double entropy_bits(const uint8_t* bytes, int64_t size) {
  std::array<int64_t, 256> counts{};
  for (int64_t i = 0; i < size; ++i) ++counts[bytes[i]];
  double bits = 0;
  for (const int64_t count : counts)
    if (count != 0)
      bits -= static_cast<double>(count) *
              std::log2(static_cast<double>(count) / static_cast<double>(size));
  return bits;
}

// Elements of a chunk that are looked at before a form is chosen: runs that lie evenly in it.
constexpr int64_t kSampleRuns = 32, kSampleRun = 64;

void put_gap(int64_t gap, std::vector<uint8_t>& out) {
  for (; gap >= kGapGoesOn; gap -= kGapGoesOn) out.push_back(kGapGoesOn);
  out.push_back(static_cast<uint8_t>(gap));
}

template <class U>
int64_t count_changed(std::span<const std::byte> base, std::span<const std::byte> target) {
  int64_t changed = 0;
  for (size_t at = 0; at < base.size(); at += sizeof(U)) {
    U from, to;
    std::memcpy(&from, base.data() + at, sizeof(U));
    std::memcpy(&to, target.data() + at, sizeof(U));
    changed += from != to;
  }
  return changed;
}

int64_t count_changed(std::span<const std::byte> base, std::span<const std::byte> target,
                      int64_t element_bytes) {
  return element_bytes == 2 ? count_changed<uint16_t>(base, target)
                            : count_changed<uint32_t>(base, target);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

struct DeltaEncoder::State {
  State(DeltaCost the_cost, Isa isa)
      : cost(the_cost), loops(delta_loops(isa)), decoder(DeltaDecoder(isa)) {}

  DeltaCost cost;
  const DeltaLoops& loops;
  DeltaDecoder decoder;  // measures how long it takes to apply
  PlaneWriter writer;
  Scratch scratch, sample;
  std::vector<std::byte> sample_base, sample_target;

  auto scan(int64_t element_bytes) const { return element_bytes == 2 ? loops.scan2 : loops.scan4; }

  // kDense or kValues where most elements have changed; else a form by their number, which is not
  // known yet.
  std::optional<ChunkForm> look(const std::byte* base, const std::byte* target, int64_t n,
                                int64_t element_bytes);
  int64_t encode_chunk(const std::byte* base, const std::byte* target, int64_t n,
                       int64_t element_bytes);
  void put_values(const std::byte* target, int64_t n, int64_t element_bytes);
  void put_positions(ChunkForm form, const uint64_t* bitmap, int64_t n);
  void put_symbols(const DeltaPlanes& planes, int64_t symbols, int64_t escapes,
                   int64_t element_bytes);
  bool is_slower_than_full(Dtype dtype, std::span<const std::byte> base,
                           std::span<const std::byte> delta, double seconds);
};

std::optional<ChunkForm> DeltaEncoder::State::look(const std::byte* base, const std::byte* target,
                                                   int64_t n, int64_t element_bytes) {
  // Two thousand elements tell whether most have changed; the scan of the whole chunk then knows
  // whether to write all symbols or those of the changed ones.
  const int64_t run = std::min(kSampleRun, n), runs = n <= kSampleRun ? 1 : kSampleRuns;
  const auto run_bytes = static_cast<size_t>(run * element_bytes);
  const int64_t count = run * runs;
  sample_base.resize(static_cast<size_t>(runs) * run_bytes);
  sample_target.resize(sample_base.size());
  for (int64_t i = 0; i < runs; ++i) {
    const int64_t at = (n - run) * i / runs * element_bytes;
    std::memcpy(sample_base.data() + static_cast<size_t>(i) * run_bytes, base + at, run_bytes);
    std::memcpy(sample_target.data() + static_cast<size_t>(i) * run_bytes, target + at, run_bytes);
  }
  const DeltaPlanes planes = sample.sized_for_scan(count, element_bytes);
  const DeltaCounts counts = scan(element_bytes)(sample_base.data(), sample_target.data(), count,
                                                 /*dense=*/true, planes);
  if (static_cast<double>(counts.changed) < kDenseForAll * static_cast<double>(count)) return {};
  double symbol_bits = 16.0 * static_cast<double>(counts.escapes), value_bits = 0;
  std::vector<uint8_t> plane(static_cast<size_t>(count));
  for (int64_t p = 0; p < element_bytes; ++p) {
    if (element_bytes == 4 || p == 0)
      symbol_bits += entropy_bits(planes.planes[static_cast<size_t>(p)], count);
    for (int64_t i = 0; i < count; ++i)
      plane[static_cast<size_t>(i)] =
          static_cast<uint8_t>(sample_target[static_cast<size_t>(i * element_bytes + p)]);
    value_bits += entropy_bits(plane.data(), count);
  }
  return value_bits < symbol_bits ? ChunkForm::kValues : ChunkForm::kDense;
}

void DeltaEncoder::State::put_values(const std::byte* target, int64_t n, int64_t element_bytes) {
  for (int64_t p = 0; p < element_bytes; ++p) {
    scratch.low.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
      scratch.low[static_cast<size_t>(i)] = static_cast<uint8_t>(target[i * element_bytes + p]);
    writer.put_plane(scratch.low);
  }
}

void DeltaEncoder::State::put_positions(ChunkForm form, const uint64_t* bitmap, int64_t n) {
  if (form == ChunkForm::kBitmap) return writer.put_plane(bytes_of(bitmap, n));
  scratch.low.clear();
  scratch.high.clear();
  int64_t next = 0;  // behind the last change
  for (int64_t word = 0; word < (n + 63) / 64; ++word) {
    for (uint64_t bits = bitmap[word]; bits != 0; bits &= bits - 1) {
      const int64_t at = 64 * word + std::countr_zero(bits);
      const int64_t gap = at - next;
      next = at + 1;
      if (form == ChunkForm::kWideGaps) scratch.low.push_back(static_cast<uint8_t>(gap));
      put_gap(form == ChunkForm::kWideGaps ? gap >> 8 : gap, scratch.high);
    }
  }
  if (form == ChunkForm::kWideGaps) writer.put_plane(scratch.low);
  writer.put_plane(scratch.high);
}

void DeltaEncoder::State::put_symbols(const DeltaPlanes& planes, int64_t symbols, int64_t escapes,
                                      int64_t element_bytes) {
  if (element_bytes == 4) {
    for (const uint8_t* plane : planes.planes)
      writer.put_plane({plane, static_cast<size_t>(symbols)});
    return;
  }
  writer.put_plane({planes.planes[0], static_cast<size_t>(symbols)});
  scratch.low.clear();
  scratch.high.clear();
  for (int64_t i = 0; i < escapes; ++i) {
    scratch.low.push_back(static_cast<uint8_t>(planes.escapes[i]));
    scratch.high.push_back(static_cast<uint8_t>(planes.escapes[i] >> 8));
  }
  writer.put_plane(scratch.low);
  writer.put_plane(scratch.high);
}

int64_t DeltaEncoder::State::encode_chunk(const std::byte* base, const std::byte* target, int64_t n,
                                          int64_t element_bytes) {
  const std::optional<ChunkForm> seen = look(base, target, n, element_bytes);
  const DeltaPlanes planes = scratch.sized_for_scan(n, element_bytes);
  const DeltaCounts counts =
      scan(element_bytes)(base, target, n, /*dense=*/seen.has_value(), planes);
  if (seen) {
    writer.put_byte(static_cast<uint8_t>(*seen));
    if (*seen == ChunkForm::kValues)
      put_values(target, n, element_bytes);
    else
      put_symbols(planes, n, counts.escapes, element_bytes);
    return counts.changed;
  }
  ChunkForm form = ChunkForm::kGaps;
  if (counts.changed == 0)
    form = ChunkForm::kSame;
  else if (counts.changed * kSparseForGaps < n)
    form = ChunkForm::kWideGaps;
  else if (counts.changed * kDenseForBitmap > n)
    form = ChunkForm::kBitmap;
  writer.put_byte(static_cast<uint8_t>(form));
  if (form == ChunkForm::kSame) return 0;
  writer.put_number(counts.changed);
  put_positions(form, planes.bitmap, n);
  put_symbols(planes, counts.changed, counts.escapes, element_bytes);
  return counts.changed;
}

// Judges by the first chunk, of which `delta` are the bytes and `seconds` the time.
bool DeltaEncoder::State::is_slower_than_full(Dtype dtype, std::span<const std::byte> base,
                                              std::span<const std::byte> delta, double seconds) {
  if (cost.link_bytes_per_s <= 0) return false;
  std::vector<std::byte> out(base.size());
  const double start = now_seconds();
  const Result<void> applied = decoder.apply(dtype, TensorPayload::kDelta, delta, base, out);
  TR_CHECK(applied.ok(), "what was just encoded does not decode: {}", applied.failure().message);
  // The time until the receiver has the values: over the link alone, or coded, sent and decoded.
  const double full = static_cast<double>(base.size()) / cost.link_bytes_per_s;
  const double coded =
      static_cast<double>(delta.size()) / cost.link_bytes_per_s + seconds + now_seconds() - start;
  return full < coded;
}

DeltaEncoder::DeltaEncoder(DeltaCost cost, Isa isa) : state_(std::make_unique<State>(cost, isa)) {}
DeltaEncoder::~DeltaEncoder() = default;
DeltaEncoder::DeltaEncoder(DeltaEncoder&&) noexcept = default;

TensorDelta DeltaEncoder::encode(Dtype dtype, std::span<const std::byte> base,
                                 std::span<const std::byte> target, std::vector<std::byte> memory) {
  TR_CHECK(has_delta(dtype) && base.size() == target.size());
  const int64_t element_bytes = size_of(dtype);
  TR_CHECK(base.size() % static_cast<size_t>(element_bytes) == 0);
  TensorDelta delta{.bytes = std::move(memory)};
  delta.bytes.clear();
  // Sets with equal roots come with the same pointer (take_equal_sets()), and cost no comparison.
  const bool is_same = base.data() == target.data() || base.empty() ||
                       std::memcmp(base.data(), target.data(), base.size()) == 0;
  if (is_same) return delta;
  const int64_t elements = static_cast<int64_t>(base.size()) / element_bytes;
  state_->writer.begin(delta.bytes);
  for (int64_t first = 0; first < elements; first += kDeltaChunk) {
    beat();
    const double start = now_seconds();
    const int64_t n = std::min(kDeltaChunk, elements - first);
    const auto at = static_cast<size_t>(first * element_bytes);
    delta.changed += state_->encode_chunk(base.data() + at, target.data() + at, n, element_bytes);
    const bool slow = first == 0 && state_->is_slower_than_full(
                                        dtype, base.first(static_cast<size_t>(n * element_bytes)),
                                        delta.bytes, now_seconds() - start);
    // A delta that has become as large as the tensor is given up at once, and not at its end.
    if (!slow && delta.bytes.size() < base.size()) continue;
    delta.kind = TensorPayload::kFull;
    delta.bytes.clear();
    delta.changed = count_changed(base, target, element_bytes);
    return delta;
  }
  delta.kind = TensorPayload::kDelta;
  return delta;
}

// ---- apply

namespace {

// The next gap of `bytes`, from `at` on, which it moves; -1: they end, or it is beyond `max`.
int64_t take_gap(std::span<const uint8_t> bytes, size_t& at, int64_t max) {
  int64_t gap = 0;
  while (at < bytes.size() && gap <= max) {
    const uint8_t byte = bytes[at++];
    gap += byte;
    if (byte != kGapGoesOn) return gap <= max ? gap : -1;
  }
  return -1;
}

}  // namespace

struct DeltaDecoder::State {
  explicit State(Isa isa) : loops(delta_loops(isa)) {}

  const DeltaLoops& loops;
  PlaneReader reader;
  Scratch scratch;

  // False: damaged.
  bool apply_chunk(const std::byte* base, int64_t n, int64_t element_bytes, std::byte* out);
  bool read_values(int64_t n, int64_t element_bytes, std::byte* out);
  bool read_positions(ChunkForm form, int64_t n, int64_t changed, uint64_t* bitmap);
  bool read_bitmap(int64_t n, int64_t changed, uint64_t* bitmap);
  bool read_symbols(int64_t symbols, int64_t element_bytes, DeltaPlanes& planes);
};

bool DeltaDecoder::State::read_values(int64_t n, int64_t element_bytes, std::byte* out) {
  scratch.low.resize(static_cast<size_t>(n));
  for (int64_t p = 0; p < element_bytes; ++p) {
    if (!reader.fill(scratch.low)) return false;
    for (int64_t i = 0; i < n; ++i)
      out[i * element_bytes + p] = static_cast<std::byte>(scratch.low[static_cast<size_t>(i)]);
  }
  return true;
}

bool DeltaDecoder::State::read_bitmap(int64_t n, int64_t changed, uint64_t* bitmap) {
  const int64_t words = (n + 63) / 64;
  bitmap[words - 1] = 0;  // the plane may end within it
  if (!reader.fill(bytes_of(bitmap, n))) return false;
  if (n % 64 != 0 && bitmap[words - 1] >> (n % 64) != 0) return false;
  int64_t bits = 0;
  for (int64_t word = 0; word < words; ++word) bits += std::popcount(bitmap[word]);
  return bits == changed;
}

// Every form becomes a bitmap, so that one loop restores them all.
bool DeltaDecoder::State::read_positions(ChunkForm form, int64_t n, int64_t changed,
                                         uint64_t* bitmap) {
  if (form == ChunkForm::kBitmap) return read_bitmap(n, changed, bitmap);
  std::fill_n(bitmap, (n + 63) / 64, 0);
  const bool wide = form == ChunkForm::kWideGaps;
  if (wide) {
    scratch.low.resize(static_cast<size_t>(changed));
    if (!reader.fill(scratch.low)) return false;
  }
  // A gap of its own for each, and one more byte for each 255 that they have together.
  const int64_t most = changed + n / kGapGoesOn;
  scratch.high.resize(static_cast<size_t>(most));
  const auto size = reader.take_plane(scratch.high);
  if (!size) return false;
  const auto gaps = std::span<const uint8_t>(scratch.high).first(*size);
  size_t at = 0;
  int64_t next = 0;
  for (int64_t i = 0; i < changed; ++i) {
    int64_t gap = take_gap(gaps, at, n);
    if (gap < 0) return false;
    if (wide) gap = gap << 8 | scratch.low[static_cast<size_t>(i)];
    next += gap;
    // Before the bit is set: a damaged gap must not reach behind the bitmap.
    if (next >= n) return false;
    bitmap[next / 64] |= uint64_t{1} << (next % 64);
    ++next;
  }
  // Bytes that are left over are damage too, so that one delta has one meaning.
  return at == gaps.size();
}

bool DeltaDecoder::State::read_symbols(int64_t symbols, int64_t element_bytes,
                                       DeltaPlanes& planes) {
  if (element_bytes == 4)
    return std::all_of(planes.planes.begin(), planes.planes.end(), [&](uint8_t* plane) {
      return reader.fill({plane, static_cast<size_t>(symbols)});
    });
  if (!reader.fill({planes.planes[0], static_cast<size_t>(symbols)})) return false;
  const int64_t escapes =
      std::count(planes.planes[0], planes.planes[0] + symbols, uint8_t{kDeltaEscape});
  scratch.low.resize(static_cast<size_t>(escapes));
  scratch.high.resize(static_cast<size_t>(escapes));
  if (!reader.fill(scratch.low)) return false;
  if (!reader.fill(scratch.high)) return false;
  planes.escapes = Scratch::grow(scratch.escapes, escapes);
  for (size_t i = 0; i < scratch.low.size(); ++i)
    planes.escapes[i] = static_cast<uint16_t>(scratch.low[i] | scratch.high[i] << 8);
  return true;
}

bool DeltaDecoder::State::apply_chunk(const std::byte* base, int64_t n, int64_t element_bytes,
                                      std::byte* out) {
  const auto first = reader.take_byte();
  if (!first || *first > static_cast<uint8_t>(ChunkForm::kValues)) return false;
  const auto form = static_cast<ChunkForm>(*first);
  if (form == ChunkForm::kSame) {
    std::memcpy(out, base, static_cast<size_t>(n * element_bytes));
    return true;
  }
  if (form == ChunkForm::kValues) return read_values(n, element_bytes, out);
  const bool dense = form == ChunkForm::kDense;
  const auto symbols = dense ? std::optional(n) : reader.take_number(n);
  if (!symbols) return false;
  DeltaPlanes planes = scratch.sized(n, *symbols, element_bytes);
  if (!dense && !read_positions(form, n, *symbols, planes.bitmap)) return false;
  if (!read_symbols(*symbols, element_bytes, planes)) return false;
  (element_bytes == 2 ? loops.restore2 : loops.restore4)(base, n, dense, planes, out);
  return true;
}

DeltaDecoder::DeltaDecoder(Isa isa) : state_(std::make_unique<State>(isa)) {}
DeltaDecoder::~DeltaDecoder() = default;
DeltaDecoder::DeltaDecoder(DeltaDecoder&&) noexcept = default;

Result<void> DeltaDecoder::apply(Dtype dtype, TensorPayload kind, std::span<const std::byte> delta,
                                 std::span<const std::byte> base, std::span<std::byte> out) {
  if (!has_delta(dtype) || out.size() % static_cast<size_t>(size_of(dtype)) != 0)
    return Failure{"there are no deltas of elements of this dtype or size"};
  if (kind == TensorPayload::kFull) {
    if (delta.size() != out.size())
      return Failure{fmt::format("a full tensor of {} bytes has {}", out.size(), delta.size())};
    if (!out.empty()) std::memcpy(out.data(), delta.data(), out.size());
    return {};
  }
  if (base.size() != out.size())
    return Failure{fmt::format("its base has {} bytes and not {}", base.size(), out.size())};
  if (kind == TensorPayload::kSame) {
    if (!delta.empty()) return Failure{"a tensor that is the same has bytes"};
    if (!out.empty()) std::memcpy(out.data(), base.data(), out.size());
    return {};
  }
  const int64_t element_bytes = size_of(dtype);
  const int64_t elements = static_cast<int64_t>(out.size()) / element_bytes;
  state_->reader.begin(delta);
  for (int64_t first = 0; first < elements; first += kDeltaChunk) {
    beat();
    const auto at = static_cast<size_t>(first * element_bytes);
    if (!state_->apply_chunk(base.data() + at, std::min(kDeltaChunk, elements - first),
                             element_bytes, out.data() + at))
      return Failure{fmt::format("chunk {} of its delta is damaged", first / kDeltaChunk)};
  }
  if (!state_->reader.at_end()) return Failure{"its delta goes on behind its last chunk"};
  return {};
}

}  // namespace tailrace
