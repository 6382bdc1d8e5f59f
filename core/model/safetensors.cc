#include "core/model/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <ranges>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_reader.h"
#include "core/base/json_text.h"
#include "core/base/progress.h"
#include "core/model/rounding.h"

namespace tailrace {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the bound of the reference implementation

constexpr std::array<std::pair<std::string_view, Dtype>, 6> kDtypeNames = {{{"F32", Dtype::kF32},
                                                                            {"F16", Dtype::kF16},
                                                                            {"BF16", Dtype::kBF16},
                                                                            {"I64", Dtype::kI64},
                                                                            {"I32", Dtype::kI32},
                                                                            {"U8", Dtype::kU8}}};

std::optional<Dtype> dtype_of(std::string_view name) {
  for (const auto& [known, dtype] : kDtypeNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

// Parses one header. All messages begin with the path and, where one is meant, the tensor.
class HeaderReader {
 public:
  HeaderReader(std::string path, std::string_view header, std::span<const std::byte> data)
      : path_(std::move(path)), header_(header), data_(data) {}

  void read(std::map<std::string, TensorView, std::less<>>& tensors,
            std::map<std::string, std::string>& metadata) {
    const Json json = parse();
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__") {
        read_metadata(entry, metadata);
      } else {
        tensors.emplace(name, read_tensor(name, entry));
      }
    }
    check_coverage();
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}: not a valid safetensors file: {}", path_,
                    fmt::format(format, std::forward<Args>(args)...));
  }

  Json parse() const {
    auto [json, fault, wide_integer, num_steps] =
        read_json(header_, {.max_values = kMaxFileValues, .refuses_doubled_keys = true});
    if (fault && fault->kind == JsonFault::Kind::kDouble)
      refuse("its header has the key '{}' twice", fault->key);
    if (fault) refuse("its header is not JSON ({})", fault->what);
    if (!json.is_object()) refuse("its header is not a JSON object");
    return std::move(json);
  }

  void read_metadata(const Json& entry, std::map<std::string, std::string>& metadata) const {
    // Other writers say null where they have nothing to say, and transformers reads their files.
    if (entry.is_null()) return;
    if (!entry.is_object()) refuse("__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) refuse("__metadata__ '{}' is not a string", key);
      metadata[key] = value.get<std::string>();
    }
  }

  TensorView read_tensor(const std::string& name, const Json& entry) {
    if (!entry.is_object()) refuse("tensor '{}' is not an object", name);
    for (const auto& [key, value] : entry.items()) {
      // A key of a later format might say how the data is to be read.
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse("tensor '{}' has the unknown key '{}'", name, key);
      }
    }
    TensorView view;
    view.dtype = read_dtype(name, entry);
    const int64_t num_elements = read_shape(name, entry, view.shape);
    const auto [begin, end] = read_offsets(name, entry);
    const auto element_bytes = static_cast<uint64_t>(size_of(view.dtype));
    // Cannot overflow: the division keeps the product out.
    if ((end - begin) % element_bytes != 0 ||
        (end - begin) / element_bytes != static_cast<uint64_t>(num_elements)) {
      refuse("tensor '{}' has {} elements of {} bytes but {} bytes of data", name, num_elements,
             element_bytes, end - begin);
    }
    // Checked together at the end: overlaps show only when all are known.
    ranges_.push_back({begin, end, name});
    view.data = data_.subspan(begin, end - begin);
    return view;
  }

  Dtype read_dtype(const std::string& name, const Json& entry) const {
    const auto found = entry.find("dtype");
    if (found == entry.end() || !found->is_string()) refuse("tensor '{}' has no dtype", name);
    const auto dtype = dtype_of(found->get_ref<const std::string&>());
    if (!dtype) {
      refuse("tensor '{}' has the dtype {}; accepted are F32, F16, BF16, I64, I32 and U8", name,
             found->get_ref<const std::string&>());
    }
    return *dtype;
  }

  int64_t read_shape(const std::string& name, const Json& entry,
                     std::vector<int64_t>& shape) const {
    const auto found = entry.find("shape");
    if (found == entry.end() || !found->is_array()) refuse("tensor '{}' has no shape", name);
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    uint64_t product = 1;
    for (const Json& size : *found) {
      // -1 and 3.0 fail here.
      if (!size.is_number_unsigned())
        refuse("tensor '{}' has a size that is no natural number", name);
      const auto value = size.get<uint64_t>();
      // Sizes of 2^32 and 2^32 would multiply to 0 and pass for an empty tensor.
      if (value > kMax || (value != 0 && product > kMax / value)) {
        refuse("tensor '{}' has more elements than can be counted", name);
      }
      product *= value;
      shape.push_back(static_cast<int64_t>(value));
    }
    return static_cast<int64_t>(product);
  }

  std::pair<uint64_t, uint64_t> read_offsets(const std::string& name, const Json& entry) const {
    const auto found = entry.find("data_offsets");
    if (found == entry.end() || !found->is_array() || found->size() != 2 ||
        !(*found)[0].is_number_unsigned() || !(*found)[1].is_number_unsigned()) {
      refuse("tensor '{}' has no pair of data_offsets", name);
    }
    const auto begin = (*found)[0].get<uint64_t>(), end = (*found)[1].get<uint64_t>();
    if (begin > end) refuse("tensor '{}' ends at {} before it begins at {}", name, end, begin);
    if (end > data_.size()) {
      refuse(
          "tensor '{}' needs {} bytes of data but the file has {}: it was cut off, copy or "
          "download it "
          "again",
          name, end, data_.size());
    }
    return {begin, end};
  }

  // The format wants every byte of data in exactly one tensor.
  void check_coverage() {
    // By begin, then by end: an empty tensor comes before the one that begins at the same byte.
    std::sort(ranges_.begin(), ranges_.end());
    uint64_t covered = 0;
    std::string_view previous = "the start";
    for (const Range& range : ranges_) {
      if (range.begin < covered) refuse("tensors '{}' and '{}' overlap", previous, range.name);
      if (range.begin > covered) {
        refuse("{} bytes between '{}' and '{}' belong to no tensor", range.begin - covered,
               previous, range.name);
      }
      covered = range.end;
      previous = range.name;
    }
    if (covered != data_.size()) {
      refuse("{} bytes of data after the last tensor belong to none", data_.size() - covered);
    }
  }

  struct Range {
    uint64_t begin, end;
    std::string name;
    auto operator<=>(const Range&) const = default;
  };

  std::string path_;
  std::string_view header_;
  std::span<const std::byte> data_;
  std::vector<Range> ranges_;
};

// The data of a tensor may begin at any byte of the file, so elements are copied out.
template <class Convert>
void convert(std::span<const std::byte> data, std::span<float> out, const Convert& to) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, data.data() + 2 * i, sizeof bits);
    out[i] = to(bits);
  }
}

// AtomicFile writes beside the file and renames at the end.
void require(const Result<void>& written) {
  if (!written)
    throw UserError("{}; an earlier file of this name is untouched", written.failure().message);
}

std::string_view chars(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// An infinity in a file is refused by all who read it.
void refuse_unless_half(const std::filesystem::path& path, const std::string& name,
                        std::span<const float> values) {
  const auto bad =
      std::ranges::find_if(values, [](float value) { return !(std::abs(value) < kF16Limit); });
  if (bad == values.end()) return;
  throw UserError(
      "{}: tensor '{}' is {} at element {}, and float16, in which the model came, ends at 65504.\n"
      "       Write it in another dtype (--dtype f32), or train a copy of the model in float32 or "
      "bfloat16; weights that large may also mean that optim.lr is too large.",
      path.string(), name, *bad, bad - values.begin());
}

AtomicFile create(const std::filesystem::path& path, bool durable) {
  Result<AtomicFile> created = AtomicFile::create(path, durable);
  if (!created) throw UserError("{}", created.failure().message);
  return std::move(created).value();
}

}  // namespace

std::string_view name_of(Dtype dtype) {
  for (const auto& [name, known] : kDtypeNames) {
    if (known == dtype) return name;
  }
  return "unknown";
}

int64_t TensorView::num_elements() const {
  return static_cast<int64_t>(data.size()) / size_of(dtype);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path) {
  Result<MappedFile> opened = MappedFile::open(path);
  if (!opened) throw UserError("{}", opened.failure().message);
  file_ = std::move(opened).value();
  const std::string_view text = file_.text();
  if (text.size() < kLengthBytes) {
    throw UserError("{}: not a valid safetensors file: it has {} bytes, a header needs 8",
                    path.string(), text.size());
  }
  if (text.starts_with("version https://git-lfs"))
    throw UserError(
        "{}: the download is incomplete: this is a pointer of Git LFS and not the file itself.\n"
        "       Run git lfs pull in its folder.",
        path.string());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), kLengthBytes);
  // Subtracted on the right: a sum on the left could wrap around.
  if (header_bytes > kMaxHeaderBytes || header_bytes > text.size() - kLengthBytes) {
    throw UserError(
        "{}: not a valid safetensors file: a header of {} bytes in a file of {}; the file was "
        "cut off or is something else",
        path.string(), header_bytes, text.size());
  }
  HeaderReader(path.string(), text.substr(kLengthBytes, header_bytes),
               file_.bytes().subspan(kLengthBytes + header_bytes))
      .read(tensors_, metadata_);
}

void release_pages(const TensorView& view) {
  // Whole pages only: those at the ends have values of neighbours.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(view.data.data());
  const uintptr_t first = (begin + page - 1) / page * page,
                  end = (begin + view.data.size()) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

void to_float(const TensorView& view, std::span<float> out) {
  TR_CHECK(static_cast<int64_t>(out.size()) == view.num_elements(), "{} floats for {} elements",
           out.size(), view.num_elements());
  switch (view.dtype) {
    case Dtype::kF32:
      // Null pointers, which empty spans may hold, are undefined for memcpy even with 0 bytes.
      if (!out.empty()) std::memcpy(out.data(), view.data.data(), view.data.size());
      return;
    case Dtype::kF16:
      return convert(view.data, out, from_f16_bits);
    case Dtype::kBF16:
      return convert(view.data, out, [](uint16_t bits) { return to_float(Bf16{bits}); });
    case Dtype::kI64:
    case Dtype::kI32:
    case Dtype::kU8:
      TR_CHECK(false, "dtype {} is not a float", name_of(view.dtype));
  }
}

int64_t SafetensorsEntry::bytes() const {
  int64_t bytes = size_of(dtype);
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

std::string SafetensorsWriter::header(std::span<const Entry> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  // An object from the start: without tensors a plain value would be written as null.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const Entry& tensor : tensors) {
    TR_CHECK(!header.contains(tensor.name), "two tensors are named '{}'", tensor.name);
    header[tensor.name] = {{"dtype", name_of(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = json_text(header);
  // Spaces are allowed after the header; they align the data to 8 bytes, as other writers do.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t bytes = text.size();
  return std::string(chars(std::as_bytes(std::span(&bytes, 1)))) + text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const Entry> tensors,
                                     const std::map<std::string, std::string>& metadata,
                                     bool durable)
    : file_(create(path, durable)) {
  for (const Entry& tensor : tensors) missing_ += static_cast<uint64_t>(tensor.bytes());
  require(file_.write(header(tensors, metadata)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  TR_CHECK(bytes.size() <= missing_, "{} bytes where {} are missing", bytes.size(), missing_);
  missing_ -= bytes.size();
  require(file_.write(chars(bytes)));
}

void SafetensorsWriter::commit() {
  TR_CHECK(missing_ == 0, "{} bytes are missing", missing_);
  // Only now has the file its name: a reader sees all of it or the one before.
  require(file_.commit());
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const NamedTensor& tensor : tensors)
    entries.push_back(
        {tensor.name, tensor.written_as.value_or(tensor.view.dtype), tensor.view.shape});
  SafetensorsWriter file(path, entries, metadata);
  const auto sizes = entries | std::views::transform(&SafetensorsWriter::Entry::bytes);
  Progress progress("writing " + path.string(),
                    std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  for (const auto& [name, view, written_as] : tensors) {
    if (written_as.value_or(view.dtype) == view.dtype) {
      file.write(view.data);
      progress.add(std::ssize(view.data));
      continue;
    }
    const bool is_half = *written_as == Dtype::kF16;
    TR_CHECK(view.dtype == Dtype::kF32 && (is_half || *written_as == Dtype::kBF16),
             "'{}' cannot be written as {}", name, name_of(*written_as));
    const std::span values(reinterpret_cast<const float*>(view.data.data()),
                           static_cast<size_t>(view.num_elements()));
    const auto write = [&](std::span<const std::byte> bytes) {
      file.write(bytes);
      progress.add(std::ssize(bytes));
    };
    if (is_half) {
      refuse_unless_half(path, name, values);
      rounded_to_f16(values, write);
    } else {
      rounded_to_bf16(values, write);
    }
  }
  file.commit();
}

}  // namespace tailrace
