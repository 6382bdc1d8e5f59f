#include "core/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF data is little-endian");

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kFirstVersion = 2, kLastVersion = 3;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = uint64_t{1} << 20;
constexpr uint32_t kMaxSizes = 4;
// Beyond any key or name, and short enough for a message.
constexpr uint64_t kMaxNameBytes = 1024;

enum class Kind : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kArray,
  kU64,
  kI64,
  kF64,
};
// Bytes of a value; a text and an array have at least these.
constexpr uint64_t kKindBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

bool is_whole(Kind kind) {
  return kind != Kind::kF32 && kind != Kind::kF64 && kind != Kind::kBool && kind != Kind::kText &&
         kind != Kind::kArray;
}

// Walks over the part in front of the data. All messages begin with the path.
class HeadReader {
 public:
  HeadReader(std::string path, std::string_view bytes) : path_(std::move(path)), bytes_(bytes) {}

  void read(std::map<std::string, GgufValue, std::less<>>& metadata,
            std::map<std::string, GgufTensor, std::less<>>& tensors) {
    read_version();
    const auto num_tensors = count("tensors", 8 + 4 + 4 + 8);
    const auto num_values = count("keys of metadata", 8 + 4 + 1);
    for (uint64_t i = 0; i < num_values; ++i) {
      where_ = fmt::format("metadata {} of {}", i + 1, num_values);
      const std::string key = name("a key");
      where_ = fmt::format("the key '{}'", shown_name(key));
      GgufValue value = read_value();
      if (!metadata.emplace(key, std::move(value)).second) refuse("it is there twice");
    }
    read_tensors(num_tensors, tensors);
    place_tensors(alignment(metadata), tensors);
  }

 private:
  struct Place {
    uint64_t begin, end;
    std::string name;
    auto operator<=>(const Place&) const = default;
  };

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    throw UserError("{}: not a valid GGUF file: {}{}{}", path_, where_, where_.empty() ? "" : ": ",
                    fmt::format(format, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse_cut(uint64_t needed) const {
    refuse(
        "{} bytes are needed at byte {}, and the file has {}: it was cut off, copy or download "
        "it again",
        needed, at_, bytes_.size());
  }

  [[noreturn]] void refuse_long() const {
    refuse("metadata and list of tensors have more than {} MiB, beyond those of any model",
           kMaxGgufHeadBytes >> 20);
  }

  // Bytes that are left of the file, and of the part that its head may have.
  uint64_t in_file() const { return bytes_.size() - at_; }
  uint64_t left() const { return std::min<uint64_t>(bytes_.size(), kMaxGgufHeadBytes) - at_; }
  std::string_view take(uint64_t size) {
    if (size > in_file()) refuse_cut(size);
    if (size > left()) refuse_long();
    const std::string_view taken = bytes_.substr(at_, size);
    at_ += size;
    return taken;
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(number<uint64_t>()); }
  std::string name(std::string_view what) {
    const auto size = number<uint64_t>();
    if (size > kMaxNameBytes)
      refuse("{} has {} bytes; at most {} are accepted", what, size, kMaxNameBytes);
    return printable(take(size));
  }
  // A count of things of at least `least` bytes each.
  uint64_t count(std::string_view what, uint64_t least) {
    const auto num = number<uint64_t>();
    // A count comes from the file: it is held against the bytes that are there before anything is
    // reserved.
    if (num > in_file() / least)
      refuse("it says that it has {} {}, for which its {} bytes are too few", num, what,
             bytes_.size());
    if (num > left() / least) refuse_long();
    return num;
  }

  void read_version() {
    if (bytes_.starts_with("version https://git-lfs"))
      throw UserError(
          "{}: the download is incomplete: this is a pointer of Git LFS and not the file itself.\n"
          "       Run git lfs pull in its folder.",
          path_);
    if (!bytes_.starts_with(kMagic)) refuse("it does not begin with GGUF");
    at_ = kMagic.size();
    const auto version = number<uint32_t>();
    if (version >= kFirstVersion && version <= kLastVersion) return;
    // A small number in the other byte order.
    if (version > 0 && (version & 0xFFFF) == 0)
      throw UserError("{}: the file is big-endian, which is not read.", path_);
    throw UserError("{}: GGUF version {} is not read; accepted are {} and {}.", path_, version,
                    kFirstVersion, kLastVersion);
  }

  Kind kind() {
    const auto number_of = number<uint32_t>();
    if (number_of >= std::size(kKindBytes)) refuse("its type is {}, which is none", number_of);
    return static_cast<Kind>(number_of);
  }

  int64_t whole(Kind kind) {
    switch (kind) {
      case Kind::kU8:
        return number<uint8_t>();
      case Kind::kI8:
        return number<int8_t>();
      case Kind::kU16:
        return number<uint16_t>();
      case Kind::kI16:
        return number<int16_t>();
      case Kind::kU32:
        return number<uint32_t>();
      case Kind::kI32:
        return number<int32_t>();
      case Kind::kI64:
        return number<int64_t>();
      default: {
        const auto value = number<uint64_t>();
        if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
          refuse("{} is above all numbers that mean something here", value);
        return static_cast<int64_t>(value);
      }
    }
  }
  double real(Kind kind) {
    if (kind == Kind::kF64) return number<double>();
    // As people write it: 1e-5 and not 9.999999747378752e-06.
    const auto value = number<float>();
    const std::string text = fmt::format("{}", value);
    double written = value;
    std::from_chars(text.data(), text.data() + text.size(), written);
    return written;
  }
  bool truth() {
    const auto byte = number<uint8_t>();
    if (byte > 1) refuse("a truth value is {}; it must be 0 or 1", byte);
    return byte == 1;
  }

  GgufValue read_value() {
    const Kind its = kind();
    if (its == Kind::kText) return text();
    if (its == Kind::kBool) return truth();
    if (its == Kind::kArray) return read_array();
    if (is_whole(its)) return whole(its);
    return real(its);
  }

  GgufArray read_array() {
    const Kind its = kind();
    // No model has one, and reading it would recurse as deep as a file asks for.
    if (its == Kind::kArray) refuse("an array of arrays is not read");
    const uint64_t size = count("elements", kKindBytes[static_cast<size_t>(its)]);
    const auto filled = [&](auto array, auto element) -> GgufArray {
      array.reserve(size);
      for (uint64_t i = 0; i < size; ++i) array.push_back(element());
      return array;
    };
    if (its == Kind::kText)
      return filled(std::vector<std::string_view>(), [this] { return text(); });
    if (its == Kind::kBool) return filled(std::vector<bool>(), [this] { return truth(); });
    if (is_whole(its)) return filled(std::vector<int64_t>(), [&] { return whole(its); });
    return filled(std::vector<double>(), [&] { return real(its); });
  }

  uint64_t alignment(const std::map<std::string, GgufValue, std::less<>>& metadata) {
    where_ = "the key 'general.alignment'";
    const auto found = metadata.find("general.alignment");
    if (found == metadata.end()) return kDefaultAlignment;
    const auto* value = std::get_if<int64_t>(&found->second);
    if (value == nullptr || *value < 1 || *value > static_cast<int64_t>(kMaxAlignment) ||
        !std::has_single_bit(static_cast<uint64_t>(*value)))
      refuse("it must be a power of two up to {}", kMaxAlignment);
    return static_cast<uint64_t>(*value);
  }

  void read_tensors(uint64_t num, std::map<std::string, GgufTensor, std::less<>>& tensors) {
    for (uint64_t i = 0; i < num; ++i) {
      where_ = fmt::format("tensor {} of {}", i + 1, num);
      const std::string its = name("its name");
      where_ = fmt::format("tensor '{}'", shown_name(its));
      GgufTensor tensor;
      const auto num_sizes = number<uint32_t>();
      if (num_sizes < 1 || num_sizes > kMaxSizes)
        refuse("it has {} sizes; a tensor has 1 to {}", num_sizes, kMaxSizes);
      uint64_t elements = 1;
      for (uint32_t at = 0; at < num_sizes; ++at) {
        const auto size = number<uint64_t>();
        // A value has at least two bits in every type.
        if (size < 1 || size > 4 * bytes_.size() / elements)
          refuse(
              "it has more values than the file has room for: it was cut off, copy or download it "
              "again");
        elements *= size;
        // ggml says the fastest dimension first, safetensors the slowest.
        tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
      }
      const auto type_number = number<uint32_t>();
      const auto type = ggml_type_of(type_number);
      if (!type)
        throw UserError("{}: tensor '{}' is of the type {}, which is not read; accepted: {}.",
                        path_, shown_name(its), name_of_ggml_number(type_number), all_ggml_types());
      tensor.type = *type;
      const auto [values, block_bytes] = block_shape(*type);
      if (tensor.row_size() % values != 0)
        refuse("its rows have {} values, which are no whole blocks of {}", tensor.row_size(),
               values);
      const uint64_t begin = number<uint64_t>();
      const uint64_t size =
          elements / static_cast<uint64_t>(values) * static_cast<uint64_t>(block_bytes);
      // Each alone, so that their sum below cannot overflow.
      if (begin > bytes_.size() || size > bytes_.size()) refuse_far(begin, size);
      places_.push_back({begin, begin + size, its});
      if (!tensors.emplace(its, std::move(tensor)).second) refuse("it is there twice");
    }
  }
  [[noreturn]] void refuse_far(uint64_t begin, uint64_t size) const {
    refuse(
        "it has {} bytes from byte {} of the data, and the file has {}: it was cut off, copy or "
        "download it again",
        size, begin, bytes_.size());
  }

  void place_tensors(uint64_t alignment, std::map<std::string, GgufTensor, std::less<>>& tensors) {
    const uint64_t start = (at_ + alignment - 1) / alignment * alignment;
    const uint64_t room = start > bytes_.size() ? 0 : bytes_.size() - start;
    std::ranges::sort(places_);
    uint64_t covered = 0;
    std::string previous;
    for (const Place& place : places_) {
      where_ = fmt::format("tensor '{}'", shown_name(place.name));
      if (place.begin % alignment != 0)
        refuse("it begins at byte {} of the data, which is no multiple of {}", place.begin,
               alignment);
      if (place.begin < covered) refuse("it overlaps '{}'", shown_name(previous));
      if (place.end > room) refuse_far(place.begin, place.end - place.begin);
      const std::string_view data = bytes_.substr(start + place.begin, place.end - place.begin);
      tensors.find(place.name)->second.data = std::as_bytes(std::span(data.data(), data.size()));
      covered = place.end;
      previous = place.name;
    }
  }

  std::string path_;
  std::string_view bytes_;
  uint64_t at_ = 0;
  std::string where_;  // what is read, for messages
  std::vector<Place> places_;
};

}  // namespace

int64_t GgufTensor::num_elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product *= size;
  return product;
}

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path) {
  Result<MappedFile> opened = MappedFile::open(path);
  if (!opened) throw UserError("{}", opened.failure().message);
  file_ = std::move(opened).value();
  if (file_.bytes().empty())
    throw UserError("{}: not a valid GGUF file: it is empty", path.string());
  HeadReader(path.string(), file_.text()).read(metadata_, tensors_);
}

const GgufValue* GgufFile::find(std::string_view key) const {
  const auto found = metadata_.find(key);
  return found == metadata_.end() ? nullptr : &found->second;
}

void GgufFile::refuse_kind(const std::string& key, std::string_view wanted) const {
  throw UserError("{}: {} is {}; it must be {}", path_.string(), key,
                  find(key) == nullptr ? "missing" : "something else", wanted);
}

template <class T>
std::optional<T> GgufFile::value_of(const std::string& key, std::string_view wanted) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const T* its = std::get_if<T>(value);
  if (its == nullptr) refuse_kind(key, wanted);
  return *its;
}

std::string_view GgufFile::text(const std::string& key) const {
  const auto value = value_of<std::string_view>(key, "a text");
  if (!value) refuse_kind(key, "a text");
  return *value;
}

int64_t GgufFile::integer(const std::string& key) const {
  if (find(key) == nullptr) refuse_kind(key, "a whole number");
  return integer(key, 0);
}

int64_t GgufFile::integer(const std::string& key, int64_t fallback) const {
  return value_of<int64_t>(key, "a whole number").value_or(fallback);
}

double GgufFile::number(const std::string& key, double fallback) const {
  const GgufValue* value = find(key);
  if (value != nullptr)
    if (const auto* whole = std::get_if<int64_t>(value)) return static_cast<double>(*whole);
  const double number = value_of<double>(key, "a number").value_or(fallback);
  constexpr double kMost = std::numeric_limits<float>::max();
  // The nearest float is not zero, also where the text of one reads a little less.
  constexpr double kLeast = std::numeric_limits<float>::denorm_min() / 2.0;
  const double size = std::abs(number);
  if (!(size == 0 || (size > kLeast && size <= kMost)))
    throw UserError("{}: {} is {}; it must be a finite number of float32", path_.string(), key,
                    number);
  return number;
}

bool GgufFile::flag(const std::string& key, bool fallback) const {
  return value_of<bool>(key, "true or false").value_or(fallback);
}

}  // namespace tailrace
