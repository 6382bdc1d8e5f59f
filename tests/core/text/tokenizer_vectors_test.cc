// Third-party vectors for real tokenizers. They are too large to commit: the tests look for them
// under $TAILRACE_DATA/tokenizers and are skipped without it.
#include <cstdlib>
#include <ctime>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/file.h"
#include "core/text/tokenizer.h"

namespace tailrace::text {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

std::string show(const Tokenizer& tokenizer, const Ids& ids) {
  std::string out;
  for (TokenId id : ids)
    out += fmt::format("{}'{}' ", id, tokenizer.decode(Ids{id}, /*keep_special=*/true));
  return out;
}

class TokenizerVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* data = std::getenv("TAILRACE_DATA");
    if (data == nullptr)
      GTEST_SKIP() << "TAILRACE_DATA is not set: no folder of third-party tokenizers";
    root_ = std::filesystem::path(data) / "tokenizers";
  }

  void check_json(const std::string& name, int min_cases) {
    json vectors = json::parse(read_file(root_ / "vectors" / name).value());
    auto tokenizer =
        load_tokenizer(root_.parent_path() / vectors.at("tokenizer").get<std::string>());
    int cases = 0;
    for (const json& entry : vectors.at("cases")) {
      auto text = entry.at("text").get<std::string>();
      Ids want = entry.at("ids").get<Ids>();
      Ids got = tokenizer->encode(text);
      EXPECT_LE(least_num_tokens(*tokenizer, text), std::ssize(got)) << text;
      EXPECT_EQ(got, want) << name << ": " << text << "\n  got  " << show(*tokenizer, got)
                           << "\n  want " << show(*tokenizer, want);
      // `decoded` of these files may hold clean-up of transformers, so only the bytes are asked
      // for.
      if (entry.value("decoded", "") == text) {
        EXPECT_EQ(tokenizer->decode(want), text);
      }
      ++cases;
    }
    EXPECT_GE(cases, min_cases);
  }

  void check_llamacpp(const std::string& name, const std::string& folder) {
    auto tokenizer = load_tokenizer(root_ / folder);
    std::string inputs = read_file(root_ / "vectors/llamacpp" / (name + ".inp")).value();
    std::istringstream outputs(read_file(root_ / "vectors/llamacpp" / (name + ".out")).value());
    const std::string mark = "\n__ggml_vocab_test__\n";
    int cases = 0;
    for (size_t begin = 0; begin <= inputs.size(); ++cases) {
      size_t end = std::min(inputs.find(mark, begin), inputs.size());
      std::string text = inputs.substr(begin, end - begin);
      begin = end + mark.size();
      std::string line;
      if (!std::getline(outputs, line)) break;
      std::istringstream words(line);
      Ids want{std::istream_iterator<TokenId>(words), {}};
      Ids got = tokenizer->encode(text);
      EXPECT_LE(least_num_tokens(*tokenizer, text), std::ssize(got)) << text;
      EXPECT_EQ(got, want) << name << ": '" << text << "'\n  got  " << show(*tokenizer, got)
                           << "\n  want " << show(*tokenizer, want);
    }
    EXPECT_GE(cases, 46);
  }

  // FNV-1a over the ids as little-endian int32. The numbers were taken when the ids had the SHA-256
  // that vectors/bulk_tinyshakespeare.json gives.
  void check_bulk(const std::string& folder, size_t want_count, uint64_t want_digest) {
    auto tokenizer = load_tokenizer(root_ / folder);
    std::string text = read_file(root_.parent_path() / "text/tinyshakespeare.txt").value();
    const std::clock_t start = std::clock();
    Ids ids = tokenizer->encode(text);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    fmt::print("{}: {:.1f} MB/s of CPU time\n", folder,
               static_cast<double>(text.size()) / 1e6 / seconds);
    uint64_t digest = 0xcbf29ce484222325;
    for (TokenId id : ids) {
      for (int shift = 0; shift < 32; shift += 8)
        digest = (digest ^ (id >> shift & 0xFF)) * 0x100000001b3;
    }
    EXPECT_EQ(ids.size(), want_count);
    EXPECT_EQ(digest, want_digest);
    EXPECT_EQ(tokenizer->decode(ids), text);
  }

  std::filesystem::path root_;
};

TEST_F(TokenizerVectors, Gpt2) {
  check_json("hfjs_gpt2.json", 13);
  check_json("swift_gpt2.json", 18);
  check_json("plans_r50k_gpt2.json", 64);
}

TEST_F(TokenizerVectors, Qwen) { check_json("hfjs_qwen2.json", 13); }

TEST_F(TokenizerVectors, Falcon) {
  check_json("hfjs_falcon.json", 24);
  check_json("swift_falcon.json", 19);
  check_llamacpp("falcon", "falcon");
}

TEST_F(TokenizerVectors, Mpt) { check_llamacpp("mpt", "gpt_neox_olmo"); }

TEST_F(TokenizerVectors, Roberta) { check_llamacpp("roberta-bpe", "roberta"); }

TEST_F(TokenizerVectors, BulkGpt2) { check_bulk("gpt2", 338025, 16298471554246312295u); }

TEST_F(TokenizerVectors, BulkQwen) { check_bulk("qwen", 301829, 11587272754144838480u); }

TEST_F(TokenizerVectors, OthersLoadAndComeBack) {
  for (const char* folder :
       {"minimind", "phi2", "torchtune_llama3_style", "torchtune_qwen_style"}) {
    SCOPED_TRACE(folder);
    auto tokenizer = load_tokenizer(root_ / folder);
    // The torchtune ones have no tokens for most bytes above 127.
    std::string text = "Hello  world, it's 2026!\n\n  def f(x): return x";
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

}  // namespace
}  // namespace tailrace::text
