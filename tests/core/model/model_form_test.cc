// Models are written as they came: files, names, dtypes, and the text of their configs.
#include "core/model/model_form.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/model/config_text.h"
#include "core/model/parameter_files.h"
#include "core/model/rounding.h"
#include "core/model/safetensors.h"
#include "core/model/tensor_files.h"
#include "tests/core/model/model_harness.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

const std::string kNorm = "model.layers.1.input_layernorm.weight";
const std::string kQueries = "model.layers.0.self_attn.q_proj.weight";

float as(Dtype dtype, float value) {
  float read = value;
  const uint16_t half = to_f16_bits(value);
  if (dtype == Dtype::kBF16) read = to_float(to_bf16(value));
  if (dtype == Dtype::kF16)
    to_float({Dtype::kF16, {1}, std::as_bytes(std::span(&half, 1))}, std::span(&read, 1));
  return read;
}

// Folders of a small model, written tensor by tensor.
class FormOfAModel : public ::testing::Test {
 protected:
  explicit FormOfAModel(bool tied = false)
      : config(awkward_config(tied)), layout(config), parameters(layout) {
    init_parameters(config, 9, parameters);
    float nudge = 0;  // finer than 16 bits hold
    for (const ParameterInfo& info : layout.entries())
      for (float& value : parameters.vector(info.name)) value += nudge += 1e-6f;
  }

  // Each with its file and its dtype, in the order in which they are listed.
  struct Place {
    std::string name, file;
    Dtype dtype;
  };
  void write(const fs::path& into, const std::vector<Place>& places, bool indexed) {
    fs::create_directories(into);
    write_model_config(config, into);
    std::map<std::string, std::vector<NamedTensor>> files;
    nlohmann::json index = {{"metadata", {{"total_size", 1}, {"made_by", "hand"}}}};
    for (const auto& [name, file, dtype] : places) {
      const std::string from =
          config.tie_embeddings && name == kHeadName ? std::string(kEmbeddingName) : name;
      files[file].push_back(
          {name,
           {Dtype::kF32, layout.at(from).shape, std::as_bytes(parameters.vector(from))},
           dtype});
      index["weight_map"][name] = file;
    }
    for (const auto& [file, tensors] : files) write_safetensors(into / file, tensors);
    if (indexed) write_text(into / TensorFiles::kIndexFile, index.dump());
  }
  std::vector<Place> all(const std::string& file, Dtype matrices, Dtype norms) {
    std::vector<Place> places;
    for (const ParameterInfo& info : layout.entries())
      places.push_back({info.name, file, info.shape.size() > 1 ? matrices : norms});
    return places;
  }
  static std::vector<std::string> described(const fs::path& folder) {
    std::vector<std::string> lines;
    for (const auto& [file, tensors] : read_model_form(folder).files) {
      EXPECT_EQ(SafetensorsFile(folder / file).metadata(),
                (std::map<std::string, std::string>{{"format", "pt"}}));
      for (const auto& [name, dtype] : tensors)
        lines.push_back(fmt::format("{} {} {}", file, name, name_of(dtype)));
    }
    return lines;
  }
  static std::vector<std::string> described(std::vector<Place> places) {
    std::ranges::stable_sort(places, {}, &Place::file);
    std::vector<std::string> lines;
    for (const auto& [name, file, dtype] : places)
      lines.push_back(fmt::format("{} {} {}", file, name, name_of(dtype)));
    return lines;
  }
  void expect_rounded(const fs::path& from_folder, const std::vector<Place>& places) {
    TensorFiles files(from_folder);
    for (const auto& [name, file, dtype] : places) {
      const std::string from =
          config.tie_embeddings && name == kHeadName ? std::string(kEmbeddingName) : name;
      const auto want = parameters.vector(from);
      std::vector<float> got(want.size());
      to_float(*files.find(name).second, got);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], as(dtype, want[i])) << name;
    }
  }

  const fs::path in() const { return folder.path() / "in"; }
  const fs::path out() const { return folder.path() / "out"; }

  ModelConfig config;
  ParameterLayout layout;
  Parameters parameters;
  const ScratchFolder folder;
};

class FormOfATiedModel : public FormOfAModel {
 protected:
  FormOfATiedModel() : FormOfAModel(/*tied=*/true) {}
};

TEST_F(FormOfAModel, EachTensorKeepsItsFileItsPlaceAndItsDtype) {
  for (const auto& [matrices, norms] : {std::pair{Dtype::kF32, Dtype::kF32},
                                        {Dtype::kBF16, Dtype::kF32},
                                        {Dtype::kBF16, Dtype::kBF16},
                                        {Dtype::kF16, Dtype::kF16},
                                        {Dtype::kF16, Dtype::kF32}}) {
    for (const size_t shards : {0, 1, 3}) {  // 0: without an index
      auto places = all("model.safetensors", matrices, norms);
      std::ranges::reverse(places);  // no order of ours
      for (size_t i = 0; shards > 0 && i < places.size(); ++i)
        places[i].file =
            fmt::format("model-{:05}-of-{:05}.safetensors", i * i / 2 % shards + 1, shards);
      fs::remove_all(folder.path() / "in");
      fs::remove_all(folder.path() / "out");
      write(in(), places, shards > 0);
      const bool exact = save_model(out(), config, parameters, read_model_form(in()));
      EXPECT_EQ(exact, matrices == Dtype::kF32 && norms == Dtype::kF32);
      EXPECT_EQ(described(out()), described(places));
      expect_rounded(out(), places);
      ASSERT_EQ(fs::exists(out() / TensorFiles::kIndexFile), shards > 0);
      if (shards == 0) continue;
      const auto index = nlohmann::json::parse(read_text(out() / TensorFiles::kIndexFile));
      int64_t bytes = 0;
      for (const auto& place : places) bytes += layout.at(place.name).size * size_of(place.dtype);
      EXPECT_EQ(index["metadata"]["total_size"], bytes);
      EXPECT_EQ(index["metadata"]["made_by"], "hand");
    }
  }
}

// Where bf16 samples, float32 files are of what samples.
TEST_F(FormOfAModel, MatricesOfFloat32AreBfloatWhereThatSamples) {
  auto places = all("model.safetensors", Dtype::kF32, Dtype::kF32);
  write(in(), places, false);
  config.dtype = Dtype::kBF16;
  EXPECT_FALSE(save_model(out(), config, parameters, read_model_form(in())));
  EXPECT_EQ(described(out()), described(all("model.safetensors", Dtype::kBF16, Dtype::kF32)));
  EXPECT_EQ(read_model_config(out()).dtype, Dtype::kBF16);
  // A float16 keeps its own.
  places = all("model.safetensors", Dtype::kF16, Dtype::kF16);
  write(in(), places, false);
  save_model(folder.path() / "half", config, parameters, read_model_form(in()));
  EXPECT_EQ(described(folder.path() / "half"), described(places));
}

TEST_F(FormOfAModel, ADtypeThatIsAskedForTakesThePlaceOfItsOwn) {
  write(in(), all("model.safetensors", Dtype::kF16, Dtype::kF16), false);
  ModelForm form = read_model_form(in());
  form.keeps_dtypes = false;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16}) {
    config.dtype = dtype;
    const fs::path to = folder.path() / std::string(name_of(dtype));
    EXPECT_EQ(save_model(to, config, parameters, form), dtype == Dtype::kF32);
    EXPECT_EQ(described(to), described(all("model.safetensors", dtype, Dtype::kF32)));
    EXPECT_EQ(read_model_config(to).dtype, dtype);
  }
}

TEST_F(FormOfATiedModel, TheHeadIsWrittenWhereItWas) {
  const auto with = [&](bool embedding, bool head) {
    auto places = all("model.safetensors", Dtype::kF32, Dtype::kF32);
    if (head) places.push_back({std::string(kHeadName), "model.safetensors", Dtype::kF32});
    if (!embedding)
      std::erase_if(places, [](const Place& place) { return place.name == kEmbeddingName; });
    return places;
  };
  for (const auto& [embedding, head] : {std::pair{true, false}, {true, true}, {false, true}}) {
    const auto places = with(embedding, head);
    fs::remove_all(in());
    fs::remove_all(out());
    write(in(), places, false);
    save_model(out(), config, parameters, read_model_form(in()));
    EXPECT_EQ(described(out()), described(places));
    Parameters back(layout);
    load_parameters(out(), read_model_config(out()), back);
    EXPECT_TRUE(std::ranges::equal(back.flat(), parameters.flat()));
  }
}

TEST_F(FormOfAModel, WhatTheFilesLackIsWrittenToo) {
  auto places = all("model.safetensors", Dtype::kF16, Dtype::kF16);
  write(in(), places, false);
  ModelForm form = read_model_form(in());
  const auto tensor = std::ranges::find(form.files[0].tensors, kQueries, &ModelForm::Tensor::name);
  form.files[0].tensors.erase(tensor);
  save_model(out(), config, parameters, form);
  EXPECT_EQ(SafetensorsFile(out() / "model.safetensors").tensors().at(kQueries).dtype, Dtype::kF32);
}

// Names that others have beside a model: those of a checkpoint.
TEST_F(FormOfAModel, FilesOfOtherNamesAreNumbered) {
  auto places = all("master.safetensors", Dtype::kF32, Dtype::kF32);
  places[0].file = "optimizer.safetensors";
  write(in(), places, true);
  save_model(out(), config, parameters, read_model_form(in()));
  EXPECT_FALSE(fs::exists(out() / "master.safetensors"));
  EXPECT_TRUE(fs::exists(out() / "model-00002-of-00002.safetensors"));
  Parameters back(layout);
  load_parameters(out(), read_model_config(out()), back);
  EXPECT_TRUE(std::ranges::equal(back.flat(), parameters.flat()));
}

TEST_F(FormOfAModel, AValueThatFloat16DoesNotHoldIsRefused) {
  write(in(), all("model.safetensors", Dtype::kF16, Dtype::kF16), false);
  const ModelForm form = read_model_form(in());
  parameters.vector(kNorm)[7] = -65519.99f;  // rounds to the last one
  save_model(out(), config, parameters, form);
  fs::remove_all(out());
  for (const float bad : {65520.0f, -1e9f, std::numeric_limits<float>::quiet_NaN()}) {
    parameters.vector(kNorm)[7] = bad;
    try {
      save_model(out(), config, parameters, form);
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_NE(
          std::string(error.what())
              .find(fmt::format("model.safetensors: tensor '{}' is {} at element 7", kNorm, bad)),
          std::string::npos)
          << error.what();
    }
    EXPECT_FALSE(fs::exists(out() / "model.safetensors"));
  }
}

// By hand, as nobody's writer would write it.
TEST_F(FormOfAModel, TheTextOfTheConfigStays) {
  write(in(), all("model.safetensors", Dtype::kF32, Dtype::kF32), false);
  std::string text = read_text(in() / "config.json");
  text.insert(1, R"(  "unknown": {"deep": [1e-06, 1.0, 12345678901234567890123, {"dtype": "int4"}]},
	"torch_dtype_note" :"\"dtype\": 1",)");
  write_text(in() / "config.json", text);
  write_text(in() / "generation_config.json", R"({"temperature": 0.60, "max_length": 1e1})");
  save_model(out(), config, parameters, read_model_form(in()));
  EXPECT_EQ(read_text(out() / "config.json"), text);
  EXPECT_EQ(read_text(out() / "generation_config.json"),
            read_text(in() / "generation_config.json"));
  // Another dtype is one value in it.
  config.dtype = Dtype::kBF16;
  save_model(out(), config, parameters, read_model_form(in()));
  const std::string from = R"("torch_dtype": "float32")", to = R"("torch_dtype": "bfloat16")";
  ASSERT_NE(text.find(from), std::string::npos);
  text.replace(text.find(from), from.size(), to);
  EXPECT_EQ(read_text(out() / "config.json"), text);
}

TEST(WithDtype, ChangesItsValueAlone) {
  for (const auto& [text, want] : std::map<std::string, std::string>{
           {R"({"dtype":"float32","a":1})", R"({"dtype":"bfloat16","a":1})"},
           {R"({"torch_dtype" : null})", R"({"torch_dtype" : "bfloat16"})"},
           {R"({"dtype": "x", "torch_dtype": "y"})",
            R"({"dtype": "bfloat16", "torch_dtype": "bfloat16"})"},
           {R"({"a": {"dtype": "x"}, "b": ["dtype"], "c": "dtype"})",
            "{\n  \"torch_dtype\": \"bfloat16\",\"a\": {\"dtype\": \"x\"}, \"b\": [\"dtype\"], "
            "\"c\": \"dtype\"}"},
           {R"({"a": "\\\"dtype\": 1", "dtype": "f"})",
            R"({"a": "\\\"dtype\": 1", "dtype": "bfloat16"})"}})
    EXPECT_EQ(with_dtype(text, "bfloat16"), want);
}

TEST(Float16, IsRoundedToTheNearest) {
  const auto value_of = [](uint16_t bits) {
    float value = 0;
    to_float({Dtype::kF16, {1}, std::as_bytes(std::span(&bits, 1))}, std::span(&value, 1));
    return value;
  };
  for (uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = value_of(half);
    ASSERT_EQ(to_f16_bits(value), half);
    ASSERT_EQ(to_f16_bits(-value), half | 0x8000);
    // Up to the middle of the next one, and in the middle to the even one.
    if (bits == 0x7BFF) continue;
    const auto next = static_cast<uint16_t>(bits + 1);
    const float middle = value + (value_of(next) - value) / 2;
    ASSERT_EQ(to_f16_bits(middle), bits % 2 == 0 ? half : next);
    ASSERT_EQ(to_f16_bits(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(to_f16_bits(std::nextafter(middle, 1e9f)), next);
  }
  EXPECT_EQ(to_f16_bits(65519.99f), 0x7BFF);
  EXPECT_EQ(to_f16_bits(65520.0f), 0x7C00);
  EXPECT_EQ(to_f16_bits(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(to_f16_bits(std::numeric_limits<float>::quiet_NaN()) & 0x7E00, 0x7E00);
}

}  // namespace
}  // namespace tailrace
