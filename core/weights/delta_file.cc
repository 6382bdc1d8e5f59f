#include "core/weights/delta_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest_of.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/mapped_file.h"
#include "core/base/printable.h"
#include "kernels/base/check.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kDeltaFormat = 1;
constexpr std::string_view kMagic = "TRdelta\n";
constexpr size_t kLengthBytes = 8;
constexpr size_t kHeaderAt = kMagic.size() + kDigestDigits + kLengthBytes;
constexpr int64_t kMaxHeaderBytes = int64_t{1} << 28;
// The elements of one tensor: beyond any machine, and products of it with 8 do not overflow.
constexpr int64_t kMaxElements = int64_t{1} << 48;

constexpr std::array<std::pair<Dtype, std::string_view>, 3> kDeltaDtypes = {
    {{Dtype::kF32, "F32"}, {Dtype::kF16, "F16"}, {Dtype::kBF16, "BF16"}}};

std::string_view delta_dtype_name(Dtype dtype) {
  for (const auto& [known, name] : kDeltaDtypes)
    if (known == dtype) return name;
  TR_CHECK(false, "no deltas of this dtype");
}

std::optional<Dtype> delta_dtype(std::string_view name) {
  for (const auto& [dtype, known] : kDeltaDtypes)
    if (known == name) return dtype;
  return {};
}

// None: negative, or more than kMaxElements.
std::optional<int64_t> count_elements(std::span<const int64_t> shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || size > kMaxElements) return {};
    if (size != 0 && elements > kMaxElements / size) return {};
    elements *= size;
  }
  return elements;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string header_text(const DeltaEnds& ends, std::span<const DeltaFile::Tensor> tensors) {
  json rows = json::array();
  for (const DeltaFile::Tensor& tensor : tensors)
    rows.push_back({{"name", tensor.name},
                    {"dtype", delta_dtype_name(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"payload", name_of(tensor.payload)},
                    {"offset", tensor.offset},
                    {"bytes", tensor.bytes},
                    {"digest", tensor.digest}});
  return json_text(json{{"format", kDeltaFormat},
                        {"policy", ends.policy},
                        {"from", {{"version", ends.from_version}, {"root", ends.from_root}}},
                        {"to", {{"version", ends.to_version}, {"root", ends.to_root}}},
                        {"attempt", ends.attempt},
                        {"tensors", std::move(rows)}});
}

// Magic, digest, length and header. The header is filled up with blanks, which JSON allows, to
// `header_bytes`.
std::string file_head(std::string header, size_t header_bytes) {
  header.resize(header_bytes, ' ');
  std::string proved;
  for (size_t shift = 0; shift < 8 * kLengthBytes; shift += 8)
    proved.push_back(static_cast<char>(header_bytes >> shift));
  proved += header;
  return fmt::format("{}{}{}", kMagic, digest_of(proved), proved);
}

}  // namespace

Result<DeltaSizes> write_delta(const fs::path& path, const DeltaEnds& ends,
                               std::span<const TensorBytes> from, std::span<const TensorBytes> to,
                               const DeltaCost& cost, std::stop_token stop,
                               const std::function<void(int64_t)>& on_progress) {
  TR_CHECK(from.size() == to.size());
  std::vector<DeltaFile::Tensor> tensors;
  for (size_t i = 0; i < to.size(); ++i) {
    TR_CHECK(from[i].name == to[i].name && from[i].dtype == to[i].dtype &&
                 from[i].shape == to[i].shape && from[i].bytes.size() == to[i].bytes.size(),
             "{} and {} are not two states of one tensor", from[i].name, to[i].name);
    const auto elements = count_elements(to[i].shape);
    const auto dense = static_cast<int64_t>(to[i].bytes.size());
    TR_CHECK(elements && *elements * size_of(to[i].dtype) == dense,
             "{} has {} bytes, which its shape does not say", to[i].name, dense);
    // The longest that it can become, until it is known: sections come behind the header.
    tensors.push_back({to[i].name, to[i].dtype, to[i].shape, TensorPayload::kDelta,
                       std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max(),
                       Digest(kDigestDigits, '0'), dense});
  }
  const size_t header_bytes = header_text(ends, tensors).size();

  auto created = AtomicFile::create(path);
  if (!created) return created.failure();
  AtomicFile& file = created.value();
  const size_t head_bytes = kHeaderAt + header_bytes;
  if (auto wrote = file.write(std::string(head_bytes, ' ')); !wrote) return wrote.failure();

  DeltaSizes sizes;
  DeltaEncoder encoder(cost);
  TensorDelta delta;
  int64_t offset = 0;
  for (size_t i = 0; i < to.size(); ++i) {
    beat();
    if (stop.stop_requested())
      return Failure{fmt::format("{} is not written: it was asked to stop", path.string())};
    DeltaFile::Tensor& tensor = tensors[i];
    delta = encoder.encode(tensor.dtype, from[i].bytes, to[i].bytes, std::move(delta.bytes));
    const std::span<const std::byte> section =
        delta.kind == TensorPayload::kFull ? to[i].bytes : std::span<const std::byte>(delta.bytes);
    if (auto wrote = file.write(as_text(section)); !wrote) return wrote.failure();
    tensor.payload = delta.kind;
    tensor.offset = offset;
    tensor.bytes = static_cast<int64_t>(section.size());
    tensor.digest = digest_of(section);
    offset += tensor.bytes;
    sizes.dense += tensor.dense_bytes;
    sizes.elements += tensor.dense_bytes / size_of(tensor.dtype);
    sizes.changed += delta.changed;
    if (delta.kind == TensorPayload::kDelta) sizes.compressed += tensor.bytes;
    if (delta.kind == TensorPayload::kFull) sizes.full += tensor.bytes;
    if (delta.kind == TensorPayload::kSame) sizes.same += tensor.dense_bytes;
    on_progress(sizes.dense);
  }
  const std::string head = file_head(header_text(ends, tensors), header_bytes);
  TR_CHECK(head.size() == head_bytes);
  if (auto wrote = file.rewrite(0, head); !wrote) return wrote.failure();
  if (auto done = file.commit(); !done) return done.failure();
  sizes.file = static_cast<int64_t>(head_bytes) + offset;
  return sizes;
}

struct DeltaFile::State {
  fs::path path;
  MappedFile file;
  size_t sections_at = 0;
  DeltaEnds ends;
  std::vector<Tensor> tensors;

  std::span<const std::byte> bytes() const { return file.bytes(); }
  std::span<const std::byte> section(const Tensor& tensor) const {
    return bytes().subspan(sections_at + static_cast<size_t>(tensor.offset),
                           static_cast<size_t>(tensor.bytes));
  }
  template <class... Args>
  Failure refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return Failure{
        fmt::format("{}: {}", path.string(), fmt::format(format, std::forward<Args>(args)...))};
  }
  Result<void> read_head();
  Result<void> read_header(std::string_view text);
  // The next tensor's row. A Failure says what is wrong with it.
  Result<void> read_tensor(const json& row);
  Result<void> prove(const Tensor& tensor) const;
};

Result<void> DeltaFile::State::read_head() {
  const std::string_view text = file.text();
  const size_t size = text.size();
  if (!text.starts_with(kMagic)) return refuse("it is no delta of weights");
  if (size < kHeaderAt) return refuse("it ends within its header");
  uint64_t length = 0;
  // Byte by byte, lowest first, whatever the machine's own order is.
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= static_cast<uint64_t>(bytes()[kHeaderAt - kLengthBytes + i]) << (8 * i);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes) || length > size - kHeaderAt)
    return refuse("it ends within its header, or the length of its header is damaged");
  sections_at = kHeaderAt + static_cast<size_t>(length);
  const std::string_view digest = text.substr(kMagic.size(), kDigestDigits);
  const std::string_view proved =
      text.substr(kHeaderAt - kLengthBytes, kLengthBytes + static_cast<size_t>(length));
  if (digest_of(proved) != digest) return refuse("its header is damaged");
  return read_header(proved.substr(kLengthBytes));
}

// The digest of the header holds, so what is wrong now was written so: it is refused all the same.
Result<void> DeltaFile::State::read_header(std::string_view text) {
  const json root = parse_json(text);
  if (!root.is_object()) return refuse("its header is no JSON object");
  try {
    if (root.at("format") != kDeltaFormat)
      return refuse("it has format {}; this build reads {}", json_text(root.at("format")),
                    kDeltaFormat);
    const auto &from = root.at("from"), &to = root.at("to");
    ends = {.policy = root.at("policy").get<PolicyId>(),
            .from_version = from.at("version").get<int64_t>(),
            .to_version = to.at("version").get<int64_t>(),
            .from_root = from.at("root").get<Digest>(),
            .to_root = to.at("root").get<Digest>(),
            .attempt = root.at("attempt").get<std::string>()};
    // Whoever reads it looks for files under these names.
    for (const Digest* digest : {&ends.from_root, &ends.to_root})
      if (!is_digest(*digest))
        return refuse("it leads from or to '{}', which is no root of a version",
                      printable(*digest));
    if (ends.policy < 0 || ends.from_version < 0 || ends.to_version < 0)
      return refuse("it leads from version {} to {} of policy {}", ends.from_version,
                    ends.to_version, ends.policy);
    for (const json& row : root.at("tensors"))
      if (auto read = read_tensor(row); !read) return read;
  } catch (const json::exception& error) {
    return refuse("its header is not that of a delta: {}", error.what());
  }
  const int64_t end = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  const auto there = static_cast<int64_t>(bytes().size() - sections_at);
  if (end != there)
    return refuse("its tensors have {} bytes, and {} follow its header", end, there);
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors)
    if (!names.insert(tensor.name).second)
      return refuse("two of its tensors are called {}", tensor.name);
  return {};
}

Result<void> DeltaFile::State::read_tensor(const json& row) {
  Tensor tensor;
  row.at("name").get_to(tensor.name);
  const auto dtype = delta_dtype(row.at("dtype").get_ref<const std::string&>());
  const auto payload = value_of<TensorPayload>(row.at("payload").get_ref<const std::string&>());
  row.at("shape").get_to(tensor.shape);
  row.at("offset").get_to(tensor.offset);
  row.at("bytes").get_to(tensor.bytes);
  row.at("digest").get_to(tensor.digest);
  const auto elements = count_elements(tensor.shape);
  if (!dtype || !payload || !elements)
    return refuse("{} has a dtype, a payload or a shape that no tensor of a delta has",
                  tensor.name);
  tensor.dtype = *dtype;
  tensor.payload = *payload;
  tensor.dense_bytes = *elements * size_of(*dtype);
  const int64_t begin = tensors.empty() ? 0 : tensors.back().offset + tensors.back().bytes;
  const auto there = static_cast<int64_t>(bytes().size() - sections_at);
  // Compared with the rest and not added up, which could overflow.
  if (tensor.offset != begin || tensor.bytes < 0 || tensor.bytes > there - begin)
    return refuse("the section of {} is not behind the one before it, or ends behind the file",
                  tensor.name);
  const bool fits = tensor.payload == TensorPayload::kSame   ? tensor.bytes == 0
                    : tensor.payload == TensorPayload::kFull ? tensor.bytes == tensor.dense_bytes
                                                             : tensor.bytes < tensor.dense_bytes;
  if (!fits)
    return refuse("{} is {} and has {} bytes, of {}", tensor.name, name_of(tensor.payload),
                  tensor.bytes, tensor.dense_bytes);
  tensors.push_back(std::move(tensor));
  return {};
}

Result<void> DeltaFile::State::prove(const Tensor& tensor) const {
  RunningDigest digest;
  constexpr size_t kPiece = size_t{1} << 20;
  auto rest = section(tensor);
  while (!rest.empty()) {
    beat();
    const auto piece = rest.first(std::min(kPiece, rest.size()));
    digest.add(piece);
    rest = rest.subspan(piece.size());
  }
  if (digest.value() != tensor.digest) return refuse("tensor {} is damaged", tensor.name);
  return {};
}

DeltaFile::DeltaFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeltaFile::~DeltaFile() = default;
DeltaFile::DeltaFile(DeltaFile&&) noexcept = default;
DeltaFile& DeltaFile::operator=(DeltaFile&&) noexcept = default;

Result<DeltaFile> DeltaFile::open(const fs::path& path) {
  auto opened = MappedFile::open(path);
  if (!opened) return opened.failure();
  auto state = std::make_unique<State>();
  state->path = path;
  state->file = std::move(opened).value();
  if (state->bytes().empty()) return state->refuse("it is empty");
  if (auto read = state->read_head(); !read) return read.failure();
  return DeltaFile(std::move(state));
}

const fs::path& DeltaFile::path() const { return state_->path; }
const DeltaEnds& DeltaFile::ends() const { return state_->ends; }
std::span<const DeltaFile::Tensor> DeltaFile::tensors() const { return state_->tensors; }

Result<void> DeltaFile::prove() const {
  for (const Tensor& tensor : state_->tensors)
    if (auto proved = state_->prove(tensor); !proved) return proved;
  return {};
}

Result<void> DeltaFile::apply(size_t index, std::span<const std::byte> base,
                              std::span<std::byte> out) const {
  DeltaDecoder decoder;
  return apply(decoder, index, base, out);
}

Result<void> DeltaFile::apply(DeltaDecoder& decoder, size_t index, std::span<const std::byte> base,
                              std::span<std::byte> out) const {
  TR_CHECK(index < state_->tensors.size());
  const Tensor& tensor = state_->tensors[index];
  TR_CHECK(static_cast<int64_t>(out.size()) == tensor.dense_bytes);
  if (auto proved = state_->prove(tensor); !proved) return proved;
  const auto applied =
      decoder.apply(tensor.dtype, tensor.payload, state_->section(tensor), base, out);
  if (!applied) return state_->refuse("tensor {}: {}", tensor.name, applied.failure().message);
  return {};
}

}  // namespace tailrace
