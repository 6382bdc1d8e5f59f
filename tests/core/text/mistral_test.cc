// Mistral's two kinds of tokenizer against what mistral-common gives; see
// tests/data/tokenizers/make_mistral.py. The committed vocabularies are cut down to what the texts
// need. Where $TAILRACE_DATA/tokenizers has the whole ones, they are held against the same.
#include <cstdlib>
#include <ctime>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/file.h"
#include "core/text/tokenizer.h"

namespace tailrace::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Ids = std::vector<TokenId>;

// Special tokens are text to mistral-common's tokenizers.
constexpr EncodeOptions kPlain{.framed = false, .find_special = false};

class Mistral : public ::testing::Test {
 protected:
  // Where not `marks_all`, texts that begin with a blank or a mark get no mark of their own, and so
  // have other ids than mistral-common's: that is how Metaspace differs from SentencePiece.
  void check(const Tokenizer& tokenizer, const json& vectors, bool marks_all) {
    int num_checked = 0;
    for (const json& entry : vectors.at("cases")) {
      const auto text = entry.at("text").get<std::string>();
      if (!marks_all && (text.starts_with(" ") || text.starts_with("\u2581"))) continue;
      Ids ids = entry.at("ids").get<Ids>();
      EXPECT_EQ(tokenizer.encode(text, kPlain), ids) << text;
      EXPECT_EQ(tokenizer.decode(ids), entry.value("decoded", text));
      ids.insert(ids.begin(), tokenizer.bos());
      EXPECT_EQ(tokenizer.encode(text, {.framed = true, .find_special = false}), ids) << text;
      ++num_checked;
    }
    EXPECT_GE(num_checked, 84);
  }

  void check_sentencepiece(const fs::path& folder) {
    const json vectors = json::parse(read_file(folder / "vectors.json").value());
    check(*load_tokenizer(folder), vectors, /*marks_all=*/false);
    json file = json::parse(read_file(folder / "tokenizer.json").value());
    file["normalizer"] = {
        {"type", "Sequence"},
        {"normalizers",
         {{{"type", "Prepend"}, {"prepend", "\u2581"}},
          {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}};
    file["pre_tokenizer"] = nullptr;
    const fs::path other =
        fs::path(::testing::TempDir()) / fmt::format("mistral_test_{}", ::getpid());
    fs::create_directories(other);
    std::ofstream(other / "tokenizer.json") << file.dump();
    fs::copy_file(folder / "tokenizer_config.json", other / "tokenizer_config.json",
                  fs::copy_options::overwrite_existing);
    check(*load_tokenizer(other), vectors, /*marks_all=*/true);
    fs::remove_all(other);
  }

  void check_tekken(const fs::path& folder) {
    check(*load_tokenizer(folder), json::parse(read_file(folder / "vectors.json").value()),
          /*marks_all=*/true);
  }

  // FNV-1a over the ids as little-endian int32; of mistral-common's for the file as one text.
  void check_bulk(const fs::path& folder, size_t want_count, uint64_t want_digest) {
    const auto tokenizer = load_tokenizer(folder);
    const std::string text = read_file(folder / "../../text/tinyshakespeare.txt").value();
    const std::clock_t start = std::clock();
    const Ids ids = tokenizer->encode(text, kPlain);
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    fmt::print("{}: {:.1f} MB/s of CPU time\n", folder.filename().string(),
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

  // Empty: not there.
  static fs::path whole(const char* name) {
    const char* data = std::getenv("TAILRACE_DATA");
    const fs::path folder = data == nullptr ? "" : fs::path(data) / "tokenizers" / name;
    return fs::exists(folder / "vectors.json") ? folder : "";
  }

  const fs::path committed_ = fs::path(TAILRACE_SOURCE_DIR) / "tests/data/tokenizers";
  const std::string none_ =
      "no whole vocabulary of Mistral: make_mistral.py $TAILRACE_DATA/tokenizers makes it";
};

TEST_F(Mistral, SentencePieceIsThatOfMistralCommon) { check_sentencepiece(committed_ / "mistral"); }

TEST_F(Mistral, TekkenIsThatOfMistralCommon) { check_tekken(committed_ / "mistral_tekken"); }

TEST_F(Mistral, WholeSentencePieceIsThatOfMistralCommon) {
  const fs::path folder = whole("mistral");
  if (folder.empty()) GTEST_SKIP() << none_;
  check_sentencepiece(folder);
  check_bulk(folder, 361972, 18426100999143394553u);
}

TEST_F(Mistral, WholeTekkenIsThatOfMistralCommon) {
  const fs::path folder = whole("mistral_tekken");
  if (folder.empty()) GTEST_SKIP() << none_;
  check_tekken(folder);
  check_bulk(folder, 309516, 1945409873917613390u);
}

}  // namespace
}  // namespace tailrace::text
