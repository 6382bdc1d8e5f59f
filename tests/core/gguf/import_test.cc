#include "core/gguf/import.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_text.h"
#include "core/model/model_config.h"
#include "core/model/parameter_files.h"
#include "core/text/tokenizer.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/core/gguf/gguf_bytes.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;
const fs::path kTestData = fs::path(TAILRACE_SOURCE_DIR) / "tests/data";

// The converter cannot say these: dtype of files, ids that the made-up vocabulary lacks.
ModelConfig comparable(ModelConfig config) {
  config.dtype = Dtype::kF32;
  config.padded_ids = 0;
  config.shard_bytes = 0;
  return config;
}

struct Origin {
  std::string file, golden;
};
class GgufImportOf : public ::testing::TestWithParam<Origin> {};

// The file was made of the golden folder by the rules of llama.cpp's converter
// (bench/peers/gguf_vectors.py), and comes back as that folder.
TEST_P(GgufImportOf, GivesBackTheFolderThatItWasMadeOf) {
  const TemporaryDirectory folder;
  const fs::path golden = kTestData / "golden" / GetParam().golden;
  const GgufImport made =
      import_gguf(kTestData / "gguf" / (GetParam().file + ".gguf"), folder.path(), Dtype::kF32);
  EXPECT_EQ(made.num_rounded, 0);
  ModelConfig wanted = comparable(read_model_config(golden));
  const ModelConfig config = comparable(read_model_config(folder.path()));
  // Follows from the size of the model in a file, and is the test's own in the folder.
  if (wanted.attention_scalar > 0) wanted.attention_scalar = wanted.head_dim;
  EXPECT_EQ(config, wanted);
  const ParameterLayout layout(wanted);
  Parameters expected(layout), values(layout);
  load_parameters(golden, wanted, expected);
  load_parameters(folder.path(), config, values);
  EXPECT_EQ(made.num_parameters, layout.num_parameters());
  for (const ParameterInfo& info : layout.entries()) {
    const auto a = values.vector(info.name), b = expected.vector(info.name);
    if (wanted.offset_norms && info.kind == ParameterKind::kNorm) {
      // 1 was added in float32 and is taken away again.
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 6e-8) << info.name;
    } else {
      ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size_bytes()), 0) << info.name;
    }
  }
  const auto tokenizer = text::load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer->vocab_size(), wanted.vocab_size);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufImportOf,
                         ::testing::Values(Origin{"llama", "llama3-ropescaled-tied-bf16"},
                                           Origin{"llama-biases", "families/llama-biases-linear"},
                                           Origin{"qwen2", "qwen2-tied-f32"},
                                           Origin{"qwen3", "qwen3-headdim-untied-bf16"},
                                           Origin{"gemma3", "families/gemma3-pattern"}),
                         [](const auto& one) {
                           std::string name = one.param.file;
                           std::erase(name, '-');
                           return name;
                         });

TEST(GgufImport, MergesAndFramesTextAsTheFileSays) {
  const TemporaryDirectory pairs, pieces;
  import_gguf(kTestData / "gguf/llama.gguf", pairs.path(), {});
  const auto tokenizer = text::load_tokenizer(pairs.path());
  // 3 is 'A'; "ab" and "abc" are the last two of 211; llama-bpe begins with its first token.
  EXPECT_EQ(tokenizer->encode("Aabcab", {.framed = true}), (std::vector<TokenId>{1, 3, 210, 209}));
  EXPECT_EQ(tokenizer->encode("<|e|>", {.find_special = true}), (std::vector<TokenId>{2}));
  import_gguf(kTestData / "gguf/gemma3.gguf", pieces.path(), {});
  const auto sentences = text::load_tokenizer(pieces.path());
  // Pieces from 23 on: "▁", a, b, c, "▁a", "ab", "▁ab", "bc", "abc". "▁a" has the highest score of
  // those that begin " abc", then "▁ab", whose c stays.
  EXPECT_EQ(sentences->encode("abc", {.framed = true}), (std::vector<TokenId>{1, 29, 26}));
  EXPECT_EQ(sentences->decode(std::vector<TokenId>{1, 29, 26}, false), "abc");
  // A byte that is no piece, by its own token.
  EXPECT_EQ(sentences->encode("a\x05", {}), (std::vector<TokenId>{27, 3 + 5}));
}

TEST(GgufImport, WritesTheDtypeThatIsAskedFor) {
  const TemporaryDirectory floats, halves, usual;
  const fs::path file = kTestData / "gguf/qwen2.gguf";
  EXPECT_EQ(import_gguf(file, usual.path(), {}).dtype, Dtype::kF32);
  EXPECT_EQ(import_gguf(kTestData / "gguf/qwen3.gguf", halves.path(), {}).dtype, Dtype::kBF16);
  const GgufImport rounded = import_gguf(file, floats.path(), Dtype::kBF16);
  EXPECT_GT(rounded.num_rounded, rounded.num_parameters / 2);
  EXPECT_EQ(read_model_config(floats.path()).dtype, Dtype::kBF16);
  const auto origin = read_file(floats.path() / "import.json");
  ASSERT_TRUE(origin);
  const auto json = parse_json(origin.value());
  EXPECT_EQ(json["file"], "qwen2.gguf");
  EXPECT_EQ(json["rounded"], rounded.num_rounded);
}

std::string import_refusal(const std::string& bytes) {
  const TemporaryDirectory folder;
  // Without an fsync: hundreds of them wait for the disk.
  const auto path = folder.write("x.gguf", bytes);
  try {
    import_gguf(path, folder.path(), {});
    return "accepted";
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find(path.string()), 0u) << error.what();
    return error.what();
  }
}

// A file with one text of another that is as long.
std::string changed(const std::string& file, std::string_view from, std::string_view to) {
  const auto read = read_file(kTestData / "gguf" / file);
  std::string bytes = read.value();
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  bytes.replace(at, to.size(), to);
  return bytes;
}

// A file with `value` in the place of what stands `skipped` bytes behind a key.
template <class T>
std::string with_value(const std::string& file, std::string_view key, size_t skipped, T value) {
  std::string bytes = read_file(kTestData / "gguf" / file).value();
  const size_t at = bytes.find(GgufBytes().add_text(key).text);
  EXPECT_NE(at, std::string::npos) << key;
  std::memcpy(bytes.data() + at + 8 + key.size() + skipped, &value, sizeof value);
  return bytes;
}

// A file with one text of another in the place of one that stands in it, of any length: the data
// stays a multiple of 32 bytes behind where it was.
std::string with_text(const std::string& file, std::string_view from, std::string_view to) {
  std::string bytes = read_file(kTestData / "gguf" / file).value();
  const std::string before = GgufBytes().add_text(from).text;
  const size_t at = bytes.find(before);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ((to.size() - from.size()) % 32, 0u);
  return bytes.replace(at, before.size(), GgufBytes().add_text(to).text);
}

// A file with keys in front of its own.
std::string with_keys(const std::string& file, GgufBytes keys, uint64_t num_keys) {
  std::string bytes = read_file(kTestData / "gguf" / file).value();
  constexpr size_t kNumKeysAt = 16, kKeysAt = 24;
  const size_t filler =
      32 - (keys.text.size() + GgufBytes().text_key("filler", "").text.size()) % 32;
  keys.text_key("filler", std::string(filler, '.'));
  uint64_t num = 0;
  std::memcpy(&num, bytes.data() + kNumKeysAt, sizeof num);
  num += num_keys + 1;
  std::memcpy(bytes.data() + kNumKeysAt, &num, sizeof num);
  return bytes.insert(kKeysAt, keys.text);
}
template <class T>
std::string with_key(const std::string& file, std::string_view key, uint32_t type, T value) {
  return with_keys(file, GgufBytes().key(key, type).add(value), 1);
}
constexpr uint32_t kU16 = 2, kU32 = 4, kI32 = 5, kF32 = 6, kTruth = 7, kF64 = 12;

TEST(GgufImport, BeginsWithATokenOnlyWhereLlamaCppDoes) {
  const TemporaryDirectory folder, model;
  const fs::path file = folder.path() / "x.gguf";
  ASSERT_TRUE(write_file_atomic(file, changed("llama.gguf", "llama-bpe", "smaug-bpe")));
  import_gguf(file, model.path(), {});
  const auto tokenizer = text::load_tokenizer(model.path());
  EXPECT_EQ(tokenizer->encode("Aabcab", {.framed = true}), (std::vector<TokenId>{3, 210, 209}));
}

// Behind a key of an array: its type, that of its elements, their number, and the values.
TEST(GgufImport, RefusesScoresWithoutOrder) {
  for (const float score : {NAN, INFINITY, -INFINITY})
    expect_said(
        import_refusal(with_value("gemma3.gguf", "tokenizer.ggml.scores", 16 + 4 * 7, score)),
        fmt::format("tokenizer.ggml.scores has {} for the token 7; it must be finite", score));
}

// Behind a key: its type and its value.
TEST(GgufImport, RefusesWindowsOfNothing) {
  // Its pattern is an array.
  expect_said(import_refusal(with_value("gemma3.gguf", "gemma3.attention.sliding_window", 4, 0)),
              "gemma3.attention.sliding_window is 0; it must be at least 1");
}

// A config.json says one scaling of positions.
TEST(GgufImport, RefusesTwoScalingsOfPositions) {
  for (const char* type : {"linear", "yarn"}) {
    GgufBytes keys;
    keys.text_key("llama.rope.scaling.type", type).key("llama.rope.scaling.factor", kF32).add(4.0f);
    const std::string said = import_refusal(with_keys("llama.gguf", keys, 2));
    expect_said(said, fmt::format("scaled twice, by 'rope_freqs.weight' and by the {} scaling of "
                                  "llama.rope.scaling",
                                  type));
  }
  expect_said(import_refusal(with_key("llama.gguf", "llama.rope.scale_linear", kF32, 4.0f)),
              "scaled twice");
}

TEST(GgufImport, RefusesNumbersThatNoConfigHolds) {
  for (const float theta : {0.0f, -1.0f, 0.5f})
    expect_said(import_refusal(with_value("gemma3.gguf", "gemma3.rope.freq_base_swa", 4, theta)),
                fmt::format("gemma3.rope.freq_base_swa is {}; it must be at least 1", theta));
  for (const float number : {NAN, INFINITY, -INFINITY})
    for (const auto& [file, key] : {std::pair("gemma3.gguf", "gemma3.rope.freq_base_swa"),
                                    std::pair("gemma3.gguf", "gemma3.rope.freq_base"),
                                    std::pair("llama.gguf", "llama.rope.freq_base"),
                                    std::pair("llama-biases.gguf", "llama.rope.scaling.factor")})
      expect_said(import_refusal(with_value(file, key, 4, number)),
                  fmt::format("{} is {}; it must be a finite number of float32", key, number));
  // A float below all others is one.
  expect_said(import_refusal(with_value("llama.gguf", "llama.rope.freq_base", 4, 1e-45f)),
              "rope_theta is 1e-45; it must be a finite number of at least 1");
  for (const double number : {1e300, -1e300, 1e-300})
    expect_said(import_refusal(with_key("llama.gguf", "llama.rope.scale_linear", kF64, number)),
                "it must be a finite number of float32");
}

TEST(GgufImport, RefusesTokensOutOfRange) {
  // Type and value of the key at once.
  const auto typed = [](int id) { return uint64_t{static_cast<uint32_t>(id)} << 32 | kI32; };
  for (const char* name : {"bos", "eos"})
    for (const int id : {-5, 211})
      expect_said(import_refusal(with_value(
                      "llama.gguf", fmt::format("tokenizer.ggml.{}_token_id", name), 0, typed(id))),
                  fmt::format("{}_token_id is {}", name, id));
  for (const char* name : {"eot", "unknown", "padding"})
    for (const int id : {-5, 211})
      expect_said(import_refusal(with_key(
                      "llama.gguf", fmt::format("tokenizer.ggml.{}_token_id", name), kI32, id)),
                  fmt::format("token_id is {}", id));
  EXPECT_EQ(import_refusal(with_key("llama.gguf", "tokenizer.ggml.eot_token_id", kI32, -1)),
            "accepted");
  // Behind a key of an array: its type, that of its elements, their number, and the values.
  for (const int type : {99, -2, 7})
    expect_said(
        import_refusal(with_value("llama.gguf", "tokenizer.ggml.token_type", 16 + 4 * 9, type)),
        fmt::format("the token 9 is of the type {}", type));
}

TEST(GgufImport, RefusesTemplatesThatCannotBeRead) {
  const auto with_template = [](std::string_view text) {
    constexpr std::string_view kOld = "{% for m in messages %}{{ m['content'] }}{% endfor %}";
    return changed("llama.gguf", kOld,
                   std::string(text) + std::string(kOld.size() - text.size(), ' '));
  };
  expect_said(import_refusal(with_template("{% for m in")), "tokenizer.chat_template");
  expect_said(import_refusal(with_template("{{ '\xff' }}")), "tokenizer.chat_template is no UTF-8");
  EXPECT_EQ(import_refusal(with_template("{{ messages[0].content }}")), "accepted");
}

// Nothing that a file says of how its model computes is passed over.
TEST(GgufImport, RefusesKeysThatNobodyReads) {
  const auto said = [](const std::string& file, const char* key, uint32_t type, auto value) {
    return import_refusal(with_key(file, key, type, value));
  };
  expect_said(said("llama.gguf", "llama.rope.freq_base_swa", kF32, 5.0f),
              "llama.rope.freq_base_swa is not understood");
  expect_said(said("gemma3.gguf", "gemma3.attention.shared_kv_layers", kU32, 2),
              "gemma3.attention.shared_kv_layers is not understood");
  expect_said(said("llama.gguf", "llama.use_parallel_residual", kTruth, uint8_t{1}),
              "llama.use_parallel_residual is not understood");
  expect_said(said("llama.gguf", "llama.attention.key_length_swa", kU32, 7),
              "llama.attention.key_length_swa is 7, which is not read");
  GgufBytes clamps;
  clamps.key("llama.swiglu_clamp_exp", 9).add(kF32).add<uint64_t>(3).add(1.0f).add(1.0f).add(0.0f);
  expect_said(import_refusal(with_keys("llama.gguf", clamps, 1)),
              "llama.swiglu_clamp_exp is not understood");
  // Values that change nothing pass: zeros, defaults, and keys of other architectures.
  EXPECT_EQ(said("gemma3.gguf", "gemma3.attention.shared_kv_layers", kU32, 0), "accepted");
  EXPECT_EQ(said("llama.gguf", "llama.use_parallel_residual", kTruth, uint8_t{0}), "accepted");
  EXPECT_EQ(said("llama.gguf", "llama.vocab_size", kU32, 211), "accepted");
  EXPECT_EQ(said("llama.gguf", "llama.rope.scaling.attn_factor", kF32, 1.0f), "accepted");
  EXPECT_EQ(said("llama.gguf", "bert.pooling", kU32, 1), "accepted");
}

TEST(GgufImport, ReadsTheScalingOfPositionsAsLlamaCppDoes) {
  const auto yarn = [](std::string_view key, float value) {
    GgufBytes keys;
    keys.text_key("qwen2.rope.scaling.type", "yarn");
    keys.key("qwen2.rope.scaling.factor", kF32).add(4.0f).key(key, kF32).add(value);
    return import_refusal(with_keys("qwen2.gguf", keys, 3));
  };
  expect_said(yarn("qwen2.rope.scaling.yarn_ext_factor", 0), "yarn_ext_factor is 0");
  expect_said(yarn("qwen2.rope.scaling.yarn_attn_factor", 2), "yarn_attn_factor is 2");
  EXPECT_EQ(yarn("qwen2.rope.scaling.yarn_ext_factor", 1), "accepted");
  EXPECT_EQ(yarn("qwen2.rope.scaling.yarn_ext_factor", -1), "accepted");
  EXPECT_EQ(yarn("qwen2.rope.scaling.yarn_attn_factor", 1), "accepted");
  EXPECT_EQ(yarn("qwen2.rope.scaling.yarn_beta_fast", 24), "accepted");
  // Without a type, a factor is linear.
  const TemporaryDirectory folder;
  const auto file =
      folder.write("x.gguf", with_key("qwen2.gguf", "qwen2.rope.scaling.factor", kF32, 4.0f));
  import_gguf(file, folder.path(), {});
  const RopeScaling scaling = read_model_config(folder.path()).rope_scaling;
  EXPECT_EQ(scaling.type, RopeScaling::Type::kLinear);
  EXPECT_EQ(scaling.factor, 4);
}

TEST(GgufImport, RefusesPartsOfAModel) {
  expect_said(import_refusal(with_key("llama.gguf", "split.count", kU16, uint16_t{2})),
              "one of 2 parts of a model");
  EXPECT_EQ(import_refusal(with_key("llama.gguf", "split.count", kU16, uint16_t{1})), "accepted");
  for (const char* type : {"adapter", "mmproj"})
    expect_said(
        import_refusal(with_keys("llama.gguf", GgufBytes().text_key("general.type", type), 1)),
        fmt::format("general.type is {}; only a model is read", type));
  EXPECT_EQ(
      import_refusal(with_keys("llama.gguf", GgufBytes().text_key("general.type", "model"), 1)),
      "accepted");
}

// Merges follow from all cuts of a token.
TEST(GgufImport, BoundsTheLengthOfATokenBeforeItWorksOnIt) {
  const std::string token = "\xe4\xb8\x80";  // the first of them
  const auto longer = [&](size_t more) {
    return import_refusal(with_text("gemma3.gguf", token, token + std::string(more, 'a')));
  };
  EXPECT_EQ(longer(992), "accepted");
  expect_said(longer(1024), "the token 32 has 1027 bytes; at most 1024 are accepted");
  expect_said(import_refusal(with_text("llama.gguf", "abc", std::string(3 + 1024, 'a'))),
              "has 1027 bytes; at most 1024");
}

TEST(GgufImport, QuotesOnlyTheBeginningOfALongText) {
  constexpr size_t kLong = 5 << 20, kShort = 1000;
  const std::string filler(kLong, 'x');
  for (const std::string& said :
       {import_refusal(GgufBytes::head(0, 1).text_key("general.architecture", filler).text),
        import_refusal(with_keys("llama.gguf", GgufBytes().text_key("general.type", filler), 1)),
        import_refusal(with_text("llama.gguf", "llama-bpe", std::string(9 + kLong, '\xff'))),
        import_refusal(with_text("llama.gguf", "gpt2", std::string(4 + kLong, '\n'))),
        import_refusal(with_text("llama.gguf", "ab c", "ab c" + filler)),
        import_refusal(with_text("llama-biases.gguf", "linear", "linear" + filler)),
        import_refusal(with_key("llama.gguf", "llama." + std::string(1000, 'y'), kU32, 1))}) {
    expect_said(said, "...");
    EXPECT_LT(said.size(), kShort) << said.substr(0, kShort);
  }
}

TEST(GgufImport, NamesWhatItDoesNotRead) {
  expect_said(import_refusal(GgufBytes::head(0, 0).text), "general.architecture is missing");
  expect_said(import_refusal(GgufBytes::head(0, 1).text_key("general.architecture", "mamba").text),
              "the architecture mamba is not read; accepted: llama, qwen2, qwen3, gemma3");
  expect_said(import_refusal(changed("llama.gguf", "llama-bpe", "chameleon")),
              "tokenizer.ggml.pre is chameleon, which is not read; accepted: gpt-2");
  expect_said(import_refusal(changed("qwen2.gguf", "gpt2", "bert")), "accepted: gpt2 (byte pairs)");
  expect_said(import_refusal(changed("llama.gguf", "blk.1.attn_q.weight", "blk.1.attn_z.weight")),
              "tensor 'blk.1.attn_z.weight' is unknown");
  expect_said(import_refusal(changed("qwen2.gguf", "qwen2.block_count", "qwen2.block_cnt__")),
              "qwen2.block_count is missing");
  expect_said(import_refusal(changed("qwen2.gguf", "qwen2.context_length", "qwen2.expert_count__")),
              "qwen2.context_length is missing");
  expect_said(import_refusal(changed("llama.gguf", "ab c", "ab?c")), "two tokens and a blank");
  expect_said(import_refusal(changed("llama.gguf", "rope_freqs.weight", "rope_freqq.weight")),
              "'rope_freqq.weight' is unknown");
  std::string infinite = read_file(kTestData / "gguf/qwen2.gguf").value();
  const float infinity = INFINITY;
  std::memcpy(infinite.data() + infinite.size() - 4, &infinity, 4);
  expect_said(import_refusal(infinite), "is inf; these weights cannot be used");
}

}  // namespace
}  // namespace tailrace
