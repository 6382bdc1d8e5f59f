#include "core/weights/version_folder.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/model/safetensors.h"
#include "kernels/base/check.h"
#include "kernels/base/mutex.h"
#include "kernels/base/pulse.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

// The number of roots kept of manifests that were read: those of a large model take a while.
constexpr size_t kMaxKnownRoots = 4096;

std::string stem_of(PolicyId policy, int64_t version) {
  return fmt::format("p{}-v{}", policy, version);
}

// Takes "12" from the front of "12.json".
std::optional<int64_t> take_number(std::string_view& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

Result<void> write_payload(const fs::path& file, const WeightManifest& manifest,
                           const Parameters& parameters) {
  std::vector<NamedTensor> tensors;
  const auto& entries = parameters.layout().entries();
  TR_CHECK(entries.size() == manifest.tensors.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    NamedTensor& tensor = tensors.emplace_back(NamedTensor{
        entries[i].name,
        {Dtype::kF32, entries[i].shape, std::as_bytes(parameters.vector(entries[i].name))}});
    if (manifest.tensors[i].dtype == name_of(Dtype::kBF16)) tensor.written_as = Dtype::kBF16;
  }
  try {
    // With its format named, transformers and others open a payload like any checkpoint.
    write_safetensors(file, tensors, {{"format", "pt"}, {"root", manifest.root}});
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
  return {};
}

// The tensors of a payload in the order of its manifest. A Failure where it lacks one.
Result<std::vector<TensorBytes>> tensors_of(const SafetensorsFile& payload,
                                            const WeightManifest& manifest) {
  std::vector<TensorBytes> tensors;
  for (const TensorManifest& tensor : manifest.tensors) {
    const auto found = payload.tensors().find(tensor.name);
    if (found == payload.tensors().end())
      return Failure{fmt::format("{}: tensor {} is missing", payload.path().string(), tensor.name)};
    const TensorView& view = found->second;
    if (view.shape != tensor.shape || name_of(view.dtype) != tensor.dtype)
      return Failure{fmt::format("{}: tensor {} has another shape or dtype than its manifest says",
                                 payload.path().string(), tensor.name)};
    tensors.push_back({tensor.name, view.dtype, view.shape, view.data});
  }
  return tensors;
}

// A payload as a version of the folder has it.
struct OpenVersion {
  WeightManifest manifest;
  std::unique_ptr<const SafetensorsFile> payload;
  std::vector<TensorBytes> tensors;
};

// The payload lies beside the manifest.
Result<OpenVersion> open_version(const fs::path& manifest_file) {
  auto manifest = read_manifest(manifest_file);
  if (!manifest) return manifest.failure();
  try {
    OpenVersion open{std::move(manifest).value(), nullptr, {}};
    open.payload = std::make_unique<const SafetensorsFile>(manifest_file.parent_path() /
                                                           open.manifest.payload);
    auto tensors = tensors_of(*open.payload, open.manifest);
    if (!tensors) return tensors.failure();
    open.tensors = std::move(tensors).value();
    return open;
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

// Tensors of sets whose roots are equal are those of the base: they are not read, nor compared.
void take_equal_sets(const OpenVersion& base, OpenVersion& target) {
  std::set<std::string, std::less<>> equal;
  for (const TensorSet& before : tensor_sets(base.manifest.tensors))
    for (const TensorSet& after : tensor_sets(target.manifest.tensors))
      if (before.name == after.name && before.root == after.root) equal.insert(after.name);
  std::map<std::string_view, std::span<const std::byte>> bytes;
  for (const TensorBytes& tensor : base.tensors) bytes[tensor.name] = tensor.bytes;
  for (TensorBytes& tensor : target.tensors)
    if (equal.contains(set_of(tensor.name))) tensor.bytes = bytes.at(tensor.name);
}

Result<void> prove_tensor(const TensorManifest& expected, Dtype dtype,
                          std::span<const std::byte> bytes) {
  const TensorManifest found =
      digest_tensor(expected.name, expected.dtype, expected.shape, size_of(dtype), bytes);
  if (found.blocks == expected.blocks) return {};
  const auto [wrong, due] = std::ranges::mismatch(found.blocks, expected.blocks);
  return Failure{
      fmt::format("tensor {} block {}: the delta leads to other bytes than the manifest "
                  "has",
                  expected.name, wrong - found.blocks.begin())};
}

// Calls `give` with the bytes of each tensor of `target`, in order, proved.
template <class Give>
Result<Reconstruction> apply_all(const SafetensorsFile& base, const DeltaFile& delta,
                                 const WeightManifest& target, const Give& give) {
  const auto tensors = delta.tensors();
  if (delta.ends().to_root != target.root || tensors.size() != target.tensors.size())
    return Failure{"the delta leads to another version"};
  Reconstruction done;
  std::vector<std::byte> out;
  for (size_t i = 0; i < tensors.size(); ++i) {
    beat();
    const TensorManifest& expected = target.tensors[i];
    const auto& tensor = tensors[i];
    if (tensor.name != expected.name || tensor.shape != expected.shape ||
        name_of(tensor.dtype) != expected.dtype)
      return Failure{fmt::format("tensor {}: the delta has another in its place", expected.name)};
    std::span<const std::byte> before;
    if (const auto found = base.tensors().find(expected.name); found != base.tensors().end())
      before = found->second.data;
    const int64_t size = tensor.dense_bytes;
    // A full tensor needs no base, and may be one that the base lacks.
    if (tensor.payload != TensorPayload::kFull && std::ssize(before) != size)
      return Failure{fmt::format("tensor {}: the base has another one", expected.name)};
    std::span<const std::byte> bytes = before;
    if (tensor.payload != TensorPayload::kSame) {
      out.resize(static_cast<size_t>(size));
      if (auto applied = delta.apply(i, before, out); !applied) return applied.failure();
      bytes = out;
    }
    if (auto proof = prove_tensor(expected, tensor.dtype, bytes); !proof) return proof.failure();
    done.compressed += tensor.payload == TensorPayload::kDelta ? tensor.bytes : 0;
    (tensor.payload == TensorPayload::kSame   ? done.skipped
     : tensor.payload == TensorPayload::kFull ? done.full
                                              : done.reconstructed) += size;
    if (auto given = give(i, bytes); !given) return given.failure();
  }
  return done;
}

Failure about(const fs::path& file, const Failure& why) {
  // Messages that name it already stay as they are.
  if (why.message.find(file.string()) != std::string::npos) return why;
  return Failure{fmt::format("{}: {}", file.string(), why.message)};
}

}  // namespace

std::optional<VersionFile> parse_version_file(std::string_view text) {
  if (!take(text, "p")) return std::nullopt;
  const auto policy = take_number(text);
  if (!policy || !take(text, "-v")) return std::nullopt;
  const auto version = take_number(text);
  if (!version) return std::nullopt;
  VersionFile name{static_cast<PolicyId>(*policy), *version, {}, -1};
  if (take(text, ".from-v")) {
    const auto from = take_number(text);
    if (!from || text != ".delta") return std::nullopt;
    name.from = *from;
  }
  name.rest = text;
  const bool is_ours = name.from >= 0 || text == ".json" || text == ".safetensors";
  return is_ours ? std::optional(std::move(name)) : std::nullopt;
}

std::string manifest_name(PolicyId policy, int64_t version) {
  return stem_of(policy, version) + ".json";
}

std::string payload_name(const std::string& manifest_name) {
  return fs::path(manifest_name).replace_extension(".safetensors").string();
}

std::string delta_name(PolicyId policy, int64_t from, int64_t to) {
  return fmt::format("{}.from-v{}.delta", stem_of(policy, to), from);
}

Result<std::string> publish_weights(const fs::path& folder, const WeightManifest& manifest,
                                    const Parameters& parameters) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Failure{describe_errno("create", folder, error.value())};
  // The payload first: a manifest without one would be a promise that cannot be kept.
  if (auto written = write_payload(folder / manifest.payload, manifest, parameters); !written)
    return written.failure();
  const std::string name = manifest_name(manifest.policy, manifest.version);
  if (auto written = write_file_atomic(folder / name, to_json(manifest)); !written)
    return written.failure();
  return name;
}

std::optional<Digest> root_of(const fs::path& manifest_file) {
  struct Known {
    fs::file_time_type written;
    Digest root;
  };
  static Mutex mu;
  static std::map<fs::path, Known> known;
  std::error_code error;
  // A manifest is replaced and never changed in place, so its time tells whether it is the one that
  // was read.
  const auto written = fs::last_write_time(manifest_file, error);
  if (error) return std::nullopt;
  {
    MutexLock lock(mu);
    const auto found = known.find(manifest_file);
    if (found != known.end() && found->second.written == written) return found->second.root;
  }
  auto manifest = read_manifest(manifest_file);
  if (!manifest) return std::nullopt;
  MutexLock lock(mu);
  // Manifests are read again at worst: a bound and no order of use is enough.
  if (known.size() >= kMaxKnownRoots) known.clear();
  known[manifest_file] = {written, manifest.value().root};
  return std::move(manifest).value().root;
}

std::vector<StoredVersion> list_versions(const fs::path& folder) {
  std::map<std::pair<PolicyId, int64_t>, StoredVersion> found;
  std::set<std::pair<PolicyId, int64_t>> named;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const auto name = parse_version_file(entry.path().filename().string());
    if (!name) continue;
    const std::pair key{name->policy, name->version};
    StoredVersion& version = found[key];
    version.policy = name->policy;
    version.version = name->version;
    if (name->from >= 0) {
      version.deltas.push_back(name->from);
    } else if (name->rest == ".json") {
      named.insert(key);
    } else {
      version.is_whole = true;
    }
  }
  std::vector<StoredVersion> versions;
  for (auto& [key, version] : found) {
    // A payload without its manifest is no version: publishing writes the manifest last.
    if (!named.contains(key)) continue;
    std::ranges::sort(version.deltas);
    versions.push_back(std::move(version));
  }
  return versions;
}

bool is_delta_between(const fs::path& path, const Digest& from, const Digest& to) {
  const auto delta = DeltaFile::open(path);
  return delta && delta.value().ends().from_root == from && delta.value().ends().to_root == to;
}

Result<fs::path> make_delta(const fs::path& folder, PolicyId policy, int64_t from, int64_t to,
                            const DeltaCost& cost, const std::stop_token& stop) {
  const fs::path path = folder / delta_name(policy, from, to);
  auto made = make_delta_between(folder / manifest_name(policy, from),
                                 folder / manifest_name(policy, to), path, cost, stop);
  if (!made) return made.failure();
  return path;
}

Result<void> make_delta_between(const fs::path& from_manifest, const fs::path& to_manifest,
                                const fs::path& path, const DeltaCost& cost,
                                const std::stop_token& stop,
                                const std::function<void(int64_t)>& on_progress) {
  const auto base = open_version(from_manifest);
  if (!base) return base.failure();
  auto target = open_version(to_manifest);
  if (!target) return target.failure();
  const WeightManifest &a = base.value().manifest, &b = target.value().manifest;
  // Two that make it at once both write the whole of it, and the later takes the place of the
  // other: nobody waits, and nobody reads half of one.
  if (is_delta_between(path, a.root, b.root)) {
    // A disk may have damaged it; then it is made anew.
    if (const auto there = DeltaFile::open(path); there && there.value().prove()) return {};
  }
  const DeltaEnds ends{.policy = b.policy,
                       .from_version = a.version,
                       .to_version = b.version,
                       .from_root = a.root,
                       .to_root = b.root,
                       .attempt = b.attempt};
  take_equal_sets(base.value(), target.value());
  const auto written = write_delta(path, ends, base.value().tensors, target.value().tensors, cost,
                                   stop, on_progress);
  if (!written) return about(path, written.failure());
  return {};
}

Result<Reconstruction> reconstruct(const fs::path& base_payload, const fs::path& delta_path,
                                   const WeightManifest& target, const fs::path& out,
                                   const std::function<void(int64_t)>& on_progress) {
  const auto delta = DeltaFile::open(delta_path);
  if (!delta) return about(delta_path, delta.failure());
  try {
    const SafetensorsFile base(base_payload);
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& tensor : delta.value().tensors())
      entries.push_back({tensor.name, tensor.dtype, tensor.shape});
    SafetensorsWriter writer(out, entries, {{"format", "pt"}, {"root", target.root}},
                             /*durable=*/false);
    int64_t written = 0;
    auto done = apply_all(base, delta.value(), target,
                          [&](size_t, std::span<const std::byte> bytes) -> Result<void> {
                            writer.write(bytes);
                            written += std::ssize(bytes);
                            on_progress(written);
                            return {};
                          });
    if (!done) return about(delta_path, done.failure());
    writer.commit();
    return done;
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

Result<void> prove_payload(const fs::path& payload, const WeightManifest& manifest) {
  try {
    const SafetensorsFile file(payload);
    const auto tensors = tensors_of(file, manifest);
    if (!tensors) return tensors.failure();
    for (size_t i = 0; i < manifest.tensors.size(); ++i) {
      const TensorBytes& tensor = tensors.value()[i];
      if (auto proof = prove_tensor(manifest.tensors[i], tensor.dtype, tensor.bytes); !proof)
        return about(payload, proof.failure());
    }
    return {};
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

std::optional<std::vector<int64_t>> way_to(const std::vector<StoredVersion>& stored,
                                           PolicyId policy, int64_t version) {
  std::map<int64_t, const StoredVersion*> versions;
  for (const StoredVersion& one : stored)
    if (one.policy == policy) versions[one.version] = &one;
  // Breadth first, backwards: deltas lead to a version.
  std::map<int64_t, int64_t> next;  // on the way to `version`
  std::vector<int64_t> reached = {version};
  for (size_t i = 0; i < reached.size(); ++i) {
    const auto at = versions.find(reached[i]);
    if (at == versions.end()) continue;
    if (at->second->is_whole) {
      std::vector<int64_t> way = {reached[i]};
      while (way.back() != version) way.push_back(next.at(way.back()));
      return way;
    }
    for (auto from = at->second->deltas.rbegin(); from != at->second->deltas.rend(); ++from)
      if (*from != version && next.try_emplace(*from, reached[i]).second) reached.push_back(*from);
  }
  return std::nullopt;
}

Result<fs::path> payload_of(const fs::path& folder, PolicyId policy, int64_t version,
                            const fs::path& scratch) {
  const auto way = way_to(list_versions(folder), policy, version);
  if (!way)
    return Failure{fmt::format("{}: neither its payload nor a way of deltas to it is there",
                               (folder / manifest_name(policy, version)).string())};
  fs::path payload = folder / payload_name(manifest_name(policy, way->front()));
  if (way->size() > 1) {
    // A fault of the payload would else be said of the deltas from it.
    const auto first = read_manifest(folder / manifest_name(policy, way->front()));
    if (!first) return first.failure();
    if (auto proof = prove_payload(payload, first.value()); !proof) return proof.failure();
  }
  for (size_t i = 1; i < way->size(); ++i) {
    const int64_t from = (*way)[i - 1], to = (*way)[i];
    const auto manifest = read_manifest(folder / manifest_name(policy, to));
    if (!manifest) return manifest.failure();
    const fs::path out = scratch / manifest.value().payload;
    if (auto done =
            reconstruct(payload, folder / delta_name(policy, from, to), manifest.value(), out);
        !done)
      return done.failure();
    std::error_code ignored;
    if (i > 1) fs::remove(payload, ignored);  // a step on the way
    payload = out;
  }
  return payload;
}

Result<void> prove_delta(const fs::path& folder, PolicyId policy, int64_t from, int64_t to) {
  const auto base = open_version(folder / manifest_name(policy, from));
  if (!base) return base.failure();
  // From a damaged base a delta would lead to the right bytes from wrong ones.
  if (auto proof = prove_payload(base.value().payload->path(), base.value().manifest); !proof)
    return proof;
  const auto target = read_manifest(folder / manifest_name(policy, to));
  if (!target) return target.failure();
  const fs::path payload = folder / target.value().payload;
  std::error_code ignored;
  if (fs::exists(payload, ignored))
    if (auto proof = prove_payload(payload, target.value()); !proof) return proof;
  const fs::path path = folder / delta_name(policy, from, to);
  const auto delta = DeltaFile::open(path);
  if (!delta) return about(path, delta.failure());
  const auto done =
      apply_all(*base.value().payload, delta.value(), target.value(),
                [](size_t, std::span<const std::byte>) -> Result<void> { return {}; });
  if (!done) return about(path, done.failure());
  return {};
}

}  // namespace tailrace
