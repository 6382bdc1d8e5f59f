#include "core/gguf/import.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"
#include "core/base/progress.h"
#include "core/base/version.h"
#include "core/gguf/gguf_file.h"
#include "core/gguf/gguf_model.h"
#include "core/gguf/gguf_tokenizer.h"
#include "core/model/rounding.h"
#include "core/model/safetensors.h"

namespace tailrace {
namespace {

using Ordered = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int64_t kPieceValues = int64_t{1} << 20;

void write_text(const fs::path& path, const std::string& text) {
  if (const auto written = write_file_atomic(path, text); !written)
    throw UserError("{}", written.failure().message);
}

Dtype usual_dtype(const GgufFile& file) {
  std::optional<GgmlType> common;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.shape.size() < 2) continue;
    // A quantized file becomes bfloat16, mixed or not; a uniform file of floats keeps its type.
    if (common && *common != tensor.type) return Dtype::kBF16;
    common = tensor.type;
  }
  if (common == GgmlType::kF32) return Dtype::kF32;
  return common == GgmlType::kF16 ? Dtype::kF16 : Dtype::kBF16;
}

// Writes the values of a parameter piece by piece, and counts those that the dtype rounds.
class ValueWriter {
 public:
  ValueWriter(SafetensorsWriter& writer, Dtype dtype) : writer_(writer), dtype_(dtype) {}

  void write(const std::string& file, const std::string& name, std::span<const float> values) {
    const auto to = [this](std::span<const std::byte> bytes) { writer_.write(bytes); };
    for (const float value : values) {
      if (!std::isfinite(value))
        throw UserError("{}: a value of '{}' is {}; these weights cannot be used", file, name,
                        value);
      if (dtype_ == Dtype::kF16 && !(std::abs(value) < kF16Limit))
        throw UserError("{}: a value of '{}' is {}, which float16 does not hold; try --dtype bf16",
                        file, name, value);
      num_rounded += is_rounded(value) ? 1 : 0;
    }
    if (dtype_ == Dtype::kF32) return to(std::as_bytes(values));
    if (dtype_ == Dtype::kF16) return rounded_to_f16(values, to);
    rounded_to_bf16(values, to);
  }

  int64_t num_rounded = 0;

 private:
  bool is_rounded(float value) const {
    if (dtype_ == Dtype::kF32) return false;
    if (dtype_ == Dtype::kF16) return from_f16_bits(to_f16_bits(value)) != value;
    return (std::bit_cast<uint32_t>(value) & 0xFFFF) != 0;
  }

  SafetensorsWriter& writer_;
  const Dtype dtype_;
};

int64_t write_weights(const GgufFile& file, const GgufModel& model, const fs::path& directory,
                      Dtype dtype) {
  std::vector<SafetensorsEntry> entries;
  for (const ParameterInfo& info : model.layout().entries())
    entries.push_back({.name = info.name, .dtype = dtype, .shape = info.shape});
  SafetensorsWriter writer(directory / "model.safetensors", entries, {{"format", "pt"}});
  ValueWriter values(writer, dtype);
  Progress progress("importing " + file.path().string(), model.layout().num_parameters() * 4);
  std::vector<float> piece;
  for (const ParameterInfo& info : model.layout().entries()) {
    const GgufSource source = model.source(info);
    const int64_t row_size = source.row_size(), num_rows = info.size / row_size;
    const int64_t most = std::max<int64_t>(1, kPieceValues / row_size);
    for (int64_t first = 0; first < num_rows; first += most) {
      piece.resize(static_cast<size_t>(std::min(most, num_rows - first) * row_size));
      GgufModel::read_rows(source, first, piece);
      values.write(file.path().string(), info.name, piece);
      progress.add(std::ssize(piece) * 4);
    }
  }
  writer.commit();
  return values.num_rounded;
}

void write_generation(const ModelConfig& config, const fs::path& directory) {
  Ordered json = Ordered::object();
  if (config.bos_token >= 0) json["bos_token_id"] = config.bos_token;
  if (config.eos_tokens.size() == 1) json["eos_token_id"] = config.eos_tokens.front();
  if (config.eos_tokens.size() > 1) json["eos_token_id"] = config.eos_tokens;
  write_text(directory / "generation_config.json", json_text(json, 2) + "\n");
}

void write_origin(const GgufFile& file, const GgufImport& import, const fs::path& directory) {
  const auto digest = digest_of_file(file.path());
  if (!digest) throw UserError("{}", digest.failure().message);
  Ordered json = {{"file", printable(file.path().filename().string())},
                  {"bytes", static_cast<int64_t>(fs::file_size(file.path()))},
                  {"xxh3_128", fmt::format("{}", digest.value())}};
  for (const char* key : {"general.name", "general.organization", "general.license",
                          "general.source.url", "general.repo_url"})
    if (file.find(key) != nullptr) json[key] = printable(file.text(key));
  json["types"] = import.types;
  json["dtype"] = name_of(import.dtype);
  json["parameters"] = import.num_parameters;
  json["rounded"] = import.num_rounded;
  json["tailrace"] = version();
  write_text(directory / "import.json", json_text(json, 2) + "\n");
}

}  // namespace

GgufImport import_gguf(const fs::path& path, const fs::path& directory,
                       std::optional<Dtype> dtype) {
  const GgufFile file(path);
  const GgufModel model(file);
  const TokenizerTexts tokenizer = tokenizer_texts(file);
  GgufImport import{.num_parameters = model.layout().num_parameters(),
                    .dtype = dtype.value_or(usual_dtype(file)),
                    .types = {},
                    .notes = tokenizer.notes};
  for (const auto& [name, tensor] : file.tensors())
    ++import.types[std::string(name_of(tensor.type))];
  write_text(directory / "tokenizer.json", tokenizer.tokenizer);
  write_text(directory / "tokenizer_config.json", tokenizer.config);
  ModelConfig config = model.config();
  config.dtype = import.dtype;
  write_model_config(config, directory);
  write_generation(config, directory);
  import.num_rounded = write_weights(file, model, directory, import.dtype);
  write_origin(file, import, directory);
  return import;
}

}  // namespace tailrace
