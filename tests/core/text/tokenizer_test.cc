#include "core/text/tokenizer.h"

#include <algorithm>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/random.h"

namespace tailrace::text {
namespace {

using nlohmann::json;

const std::filesystem::path kData = std::filesystem::path(TAILRACE_SOURCE_DIR) / "tests/data";

std::filesystem::path folder_with(const std::string& tokenizer_json) {
  auto dir = std::filesystem::path(::testing::TempDir()) /
             (std::string("tokenizer_test_") +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + "_" +
              std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "tokenizer.json", std::ios::binary) << tokenizer_json;
  return dir;
}

std::string error_of(const std::string& tokenizer_json) {
  try {
    load_tokenizer(folder_with(tokenizer_json));
  } catch (const UserError& e) {
    return e.what();
  }
  return "";
}

// A tokenizer of single letters and a few merges, to which a test adds parts.
json small() {
  return json::parse(R"({
    "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
    "model": {"type": "BPE", "unk_token": null,
              "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "\u0120": 6, " ": 7, "1": 8, "!": 9},
              "merges": ["b c", "a b", ["ab", "c"]]}})");
}

std::vector<TokenId> encode(const json& tokenizer, std::string_view text) {
  return load_tokenizer(folder_with(tokenizer.dump()))->encode(text);
}

using Ids = std::vector<TokenId>;

// Parts of characters too: together they are the text, of which a tokenizer may drop a first blank.
TEST(LongestToken, BoundsWhatATextCanBecome) {
  const auto stories = load_tokenizer(kData / "models/stories260K");
  const int64_t longest = stories->max_token_bytes();
  EXPECT_GT(longest, 4);
  EXPECT_LT(longest, 64);
  for (const std::string& text :
       {std::string("Once upon a time, there was a little girl."), std::string(5000, 'a'),
        std::string("\xF0\x9F\x98\x80\x01\xE4\xB8\xAD"), std::string("   \n\t "), std::string()}) {
    const int64_t least = least_num_tokens(*stories, text);
    EXPECT_LE(least, std::ssize(stories->encode(text))) << text;
    EXPECT_GE(least * longest, std::ssize(text)) << "blanks are tokens, too";
    EXPECT_LE(least_num_tokens(*stories, num_non_blank(text)), least);
  }
  EXPECT_EQ(num_non_blank(" a\tb\r\n c "), 3);
}

// Blanks are no tokens where an added token takes them with it, and there alone.
TEST(LongestToken, LeavesOutTheBlanksThatAnAddedTokenTakes) {
  const std::filesystem::path stories = kData / "models/stories260K/tokenizer.json";
  json tokenizer = json::parse(std::ifstream(stories));
  for (const bool is_normalized : {false, true}) {
    for (json& token : tokenizer["added_tokens"])
      if (token["content"] == "</s>") {
        token["rstrip"] = token["lstrip"] = true;
        token["normalized"] = is_normalized;
      }
    const auto strips = load_tokenizer(folder_with(tokenizer.dump()));
    const std::string blanks(10'000, ' ');
    for (const std::string& text : {"a" + blanks + "b", "</s>" + blanks + "a",
                                    "a" + blanks + "</s>" + blanks + "\n\xE3\x80\x80",
                                    "</s></s>" + blanks + "</s>", blanks + "</s" + blanks})
      EXPECT_LE(least_num_tokens(*strips, text), std::ssize(strips->encode(text)))
          << text.size() << is_normalized;
    if (is_normalized) continue;
    const int64_t longest = strips->max_token_bytes();
    EXPECT_GE(least_num_tokens(*strips, "</s>a" + blanks + "b") * longest, 10'000);
    EXPECT_LE(least_num_tokens(*strips, "</s>" + blanks + "b"), 2);
  }
}

TEST(Tokenizer, BytesOfTokensAddUpToTheText) {
  const std::string text =
      "Once, \xE2\x82\xAC 5 \xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x9A\x80  don't\n\n {\"a\": 1} "
      "\xE4\xB8\xAD\xE6\x96\x87";
  for (const char* folder : {"models/stories260K", "tokenizers/minimind", "tokenizers/mistral",
                             "tokenizers/mistral_tekken"}) {
    const auto tokenizer = load_tokenizer(kData / folder);
    std::string bytes;
    bool has_part = false;
    for (const TokenId id : tokenizer->encode(text)) {
      bytes += tokenizer->bytes_of(id);
      has_part = has_part || tokenizer->decode(std::span(&id, 1)).ends_with("\xEF\xBF\xBD");
    }
    EXPECT_EQ(bytes.starts_with(' ') ? bytes.substr(1) : bytes, text) << folder;
    EXPECT_TRUE(has_part) << folder;
    EXPECT_EQ(tokenizer->bytes_of(-1), "");
    EXPECT_EQ(tokenizer->bytes_of(1 << 30), "");
    for (const std::string& special : tokenizer->special_tokens())
      EXPECT_EQ(tokenizer->bytes_of(tokenizer->id_of(special)), special) << folder;
  }
}

TEST(Tokenizer, Stories260KEncodesAsTheModelWasTrained) {
  auto tokenizer = load_tokenizer(kData / "models/stories260K");
  json golden = json::parse(read_file(kData / "golden/real_weights_golden.json").value());
  for (const json& entry : golden.at("stories260K")) {
    auto text = entry.at("text").get<std::string>();
    EXPECT_EQ(tokenizer->encode(text, {.framed = true}), entry.at("ids").get<Ids>());
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    Ids all = entry.at("ids").get<Ids>();
    for (const json& id : entry.at("greedy_new_ids")) all.push_back(id.get<TokenId>());
    EXPECT_EQ(tokenizer->decode(all), text + entry.at("greedy_text").get<std::string>());
  }
  EXPECT_EQ(tokenizer->vocab_size(), 512);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->id_of("<unk>"), 0);
  EXPECT_EQ(tokenizer->id_of("no such token"), -1);
}

TEST(Tokenizer, UnknownCharactersBecomeBytesAndComeBack) {
  auto tokenizer = load_tokenizer(kData / "models/stories260K");
  std::string text = "Zo\u00EB \u4F60\u597D \U0001F600\t{}";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->encode(""), Ids{});
  EXPECT_EQ(tokenizer->decode(Ids{0x80 + 3}), "\uFFFD");
}

TEST(Tokenizer, TextThatIsNotUtf8IsRepairedFirst) {
  auto tokenizer = load_tokenizer(kData / "models/stories260K");
  EXPECT_EQ(tokenizer->encode("a\xFFz"), tokenizer->encode("a\uFFFDz"));
}

TEST(Tokenizer, IdsOutsideTheVocabularyDecodeToNothing) {
  auto tokenizer = load_tokenizer(kData / "models/stories260K");
  EXPECT_EQ(tokenizer->decode(Ids{-1, 100000, 1, 2}), "");
  EXPECT_EQ(tokenizer->decode(Ids{1, 2}, /*keep_special=*/true), "<s></s>");
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  EXPECT_EQ(encode(small(), "abc"), (Ids{0, 4}));  // "b c" has the lower rank
  EXPECT_EQ(encode(small(), "abab"), (Ids{3, 3}));
  json t = small();
  t["model"]["vocab"]["aa"] = 10;
  t["model"]["merges"].push_back("a a");
  EXPECT_EQ(encode(t, "aaa"), (Ids{10, 0}));
  EXPECT_EQ(encode(small(), "zaz"), (Ids{0}));  // no unknown token: left out
}

TEST(Tokenizer, IgnoreMergesTakesWholePieces) {
  json t = small();
  t["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode(t, "abc"), (Ids{5}));
}

TEST(Tokenizer, UnknownTokensAreFusedOnRequest) {
  json t = small();
  t["model"]["unk_token"] = "!";
  EXPECT_EQ(encode(t, "axxb"), (Ids{0, 9, 9, 1}));
  t["model"]["fuse_unk"] = true;
  EXPECT_EQ(encode(t, "axxb"), (Ids{0, 9, 1}));
}

TEST(Tokenizer, AddedTokensAreCutOutLongestFirst) {
  json t = small();
  auto added = [](int id, const char* content, bool lstrip, bool rstrip, bool single_word) {
    return json{{"id", id},         {"content", content},         {"lstrip", lstrip},
                {"rstrip", rstrip}, {"single_word", single_word}, {"normalized", false},
                {"special", true}};
  };
  t["added_tokens"] = {added(20, "<x>", false, false, false),
                       added(21, "<x><y>", false, false, false),
                       added(22, "<l>", true, true, false), added(23, "cab", false, false, true)};
  EXPECT_EQ(encode(t, "a<x><x><y>b"), (Ids{0, 20, 21, 1}));
  EXPECT_EQ(encode(t, "a  <l> \nb"), (Ids{0, 22, 1}));
  EXPECT_EQ(encode(t, "cab acab"), (Ids{23, 7, 0, 2, 3}));
  auto tokenizer = load_tokenizer(folder_with(t.dump()));
  EXPECT_EQ(tokenizer->vocab_size(), 24);
  EXPECT_EQ(tokenizer->id_of("<x>"), 20);
}

// What an environment or a tool writes cannot end a turn.
TEST(Tokenizer, SpecialTokensAreTextWhereTheyMustNotBeFound) {
  json t = small();
  t["added_tokens"] = {{{"id", 20}, {"content", "ab"}, {"special", true}, {"normalized", false}},
                       {{"id", 21}, {"content", "cab"}, {"special", true}, {"normalized", true}},
                       {{"id", 22}, {"content", "bc"}, {"special", false}, {"normalized", false}}};
  const auto tokenizer = load_tokenizer(folder_with(t.dump()));
  const auto plain = [&](std::string_view text) {
    return tokenizer->encode(text, {.find_special = false});
  };
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{20}));
  EXPECT_EQ(plain("ab"), encode(small(), "ab"));
  EXPECT_EQ(tokenizer->encode("cab"), (Ids{2, 20}));  // raw ones come first
  EXPECT_EQ(plain("cab"), encode(small(), "cab"));
  EXPECT_EQ(plain("bc"), (Ids{22})) << "an added token that is not special is a word like others";
}

// Pieces seen through a WordLevel model without merges: each distinct piece is an id.
Ids pieces(const json& pre_tokenizer, const std::string& text,
           const std::vector<std::string>& words) {
  json t = small();
  json vocab = json::object();
  for (const std::string& word : words) vocab[word] = vocab.size();
  t["model"] = {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", words[0]}};
  t["pre_tokenizer"] = pre_tokenizer;
  return encode(t, text);
}

TEST(Tokenizer, SplitKnowsFiveBehaviors) {
  auto split = [](const char* behavior, bool invert = false) {
    return json{{"type", "Split"},
                {"pattern", {{"String", "-"}}},
                {"behavior", behavior},
                {"invert", invert}};
  };
  // The example of Hugging Face's documentation: "the-final--countdown".
  std::vector<std::string> words = {"?",         "the",  "-",      "final",  "--",
                                    "countdown", "the-", "final-", "-final", "-countdown"};
  std::string text = "the-final--countdown";
  EXPECT_EQ(pieces(split("Removed"), text, words), (Ids{1, 3, 5}));
  EXPECT_EQ(pieces(split("Isolated"), text, words), (Ids{1, 2, 3, 2, 2, 5}));
  EXPECT_EQ(pieces(split("MergedWithPrevious"), text, words), (Ids{6, 7, 2, 5}));
  EXPECT_EQ(pieces(split("MergedWithNext"), text, words), (Ids{1, 8, 2, 9}));
  EXPECT_EQ(pieces(split("Contiguous"), text, words), (Ids{1, 2, 3, 4, 5}));
  EXPECT_EQ(pieces(split("Removed", true), text, words), (Ids{2, 2, 2}));
}

TEST(Tokenizer, OtherPreTokenizersCutAsNamed) {
  std::vector<std::string> words = {"?", "a1", "a", "12", "1", "2", "!", "\u00E9t\u00E9", "b_c"};
  EXPECT_EQ(pieces({{"type", "Digits"}}, "a12", words), (Ids{2, 3}));
  EXPECT_EQ(pieces({{"type", "Digits"}, {"individual_digits", true}}, "a12", words),
            (Ids{2, 4, 5}));
  EXPECT_EQ(pieces({{"type", "Punctuation"}}, "a!!", words), (Ids{2, 6, 6}));
  EXPECT_EQ(pieces({{"type", "Whitespace"}}, " b_c\u00A0\u00E9t\u00E9! a1", words),
            (Ids{8, 7, 6, 1}));
  EXPECT_EQ(pieces({{"type", "WhitespaceSplit"}}, "a1\u3000a !", words), (Ids{1, 2, 6}));
}

TEST(Tokenizer, WhiteSpaceIsUnicodesAndNotPcres) {
  // U+180E has not been white space since Unicode 6.3; U+0085 is.
  EXPECT_EQ(pieces({{"type", "Split"}, {"pattern", {{"Regex", "\\s"}}}, {"behavior", "Removed"}},
                   "a\u0085a\u180Ea", {"?", "a", "a\u180Ea"}),
            (Ids{1, 2}));
}

TEST(Tokenizer, AFrameIsAddedOnRequest) {
  json t = small();
  t["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"a", 0}}, {"sep", {"b", 1}}};
  auto tokenizer = load_tokenizer(folder_with(t.dump()));
  EXPECT_EQ(tokenizer->encode("c"), (Ids{2}));
  EXPECT_EQ(tokenizer->encode("c", {.framed = true}), (Ids{0, 2, 1}));
}

TEST(Tokenizer, ErrorsNameTheFileAndThePart) {
  auto with = [](const char* pointer, const json& value) {
    json t = small();
    t[json::json_pointer(pointer)] = value;
    return error_of(t.dump());
  };
  EXPECT_NE(with("/model/type", "Unigram")
                .find("tokenizer.json: model.type is \"Unigram\"; accepted: BPE, WordLevel"),
            std::string::npos);
  EXPECT_NE(with("/model/merges/0", "b z").find("model.merges[0]: 'z' is not in the vocabulary"),
            std::string::npos);
  EXPECT_NE(with("/model/merges/0", 3).find("model.merges[0] is 3"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", -4).find("model.vocab[\"a\"] is -4"), std::string::npos);
  EXPECT_NE(with("/model/vocab/a", 1).find("an id that no other token has"), std::string::npos);
  EXPECT_NE(with("/model/dropout", 0.1).find("model.dropout is 0.1"), std::string::npos);
  EXPECT_NE(with("/normalizer", {{"type", "BertNormalizer"}}).find("normalizer.type"),
            std::string::npos);
  EXPECT_NE(with("/decoder", {{"type", "CTC"}}).find("decoder.type"), std::string::npos);
  EXPECT_NE(
      with("/post_processor", {{"type", "BertProcessing"}, {"cls", {"x", 77}}, {"sep", {"b", 1}}})
          .find("the id 77 is in no vocabulary"),
      std::string::npos);
  EXPECT_NE(with("/pre_tokenizer",
                 {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}})
                .find("the pattern '(a' is not a regular expression"),
            std::string::npos);
  EXPECT_NE(error_of("{\"model\"").find("not JSON"), std::string::npos);
  EXPECT_NE(error_of("{}").find("has no \"model\""), std::string::npos);
  EXPECT_THROW(load_tokenizer("/nonexistent"), UserError);
}

// The tokenizer of stories260K with Metaspace in the place of its normalizer, as newer files of
// SentencePiece models have it; ids and text of Hugging Face's tokenizers 0.22.
TEST(Tokenizer, MetaspaceIsThatOfHuggingFace) {
  const json vectors = json::parse(read_file(kData / "golden/metaspace.json").value());
  ASSERT_EQ(vectors.size(), 6u);
  for (const json& setting : vectors) {
    json t = json::parse(read_file(kData / "models/stories260K/tokenizer.json").value());
    json metaspace = {{"type", "Metaspace"},
                      {"replacement", "\xE2\x96\x81"},
                      {"prepend_scheme", setting["prepend_scheme"]},
                      {"split", setting["split"]}};
    t["normalizer"] = nullptr;
    t["pre_tokenizer"] = metaspace;
    t["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, metaspace}}};
    const auto tokenizer = load_tokenizer(folder_with(t.dump()));
    for (const json& c : setting["cases"]) {
      const auto text = c["text"].get<std::string>();
      const auto ids = c["ids"].get<Ids>();
      EXPECT_EQ(tokenizer->encode(text, {.framed = false, .find_special = true}), ids)
          << setting["prepend_scheme"] << setting["split"] << " '" << text << "'";
      EXPECT_EQ(tokenizer->decode(ids, /*keep_special=*/true), c["decoded"].get<std::string>())
          << text;
    }
  }
  json t = small();
  t["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "last"}};
  EXPECT_NE(error_of(t.dump()).find("always, first, never"), std::string::npos);
  // Of older files.
  t["pre_tokenizer"] = {{"type", "Metaspace"}, {"add_prefix_space", false}};
  EXPECT_EQ(error_of(t.dump()), "");
}

// Joins the pair of lowest rank, the left-most of equals, by looking at all of them anew each time.
Ids merge_by_hand(const json& model, const std::vector<std::string>& characters) {
  std::vector<std::string> symbols;
  bool after_unk = false;
  for (const std::string& c : characters) {
    if (model["vocab"].contains(c)) {
      symbols.push_back(c);
    } else if (model["byte_fallback"].get<bool>()) {
      for (const char byte : c)
        symbols.push_back(fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte)));
    } else if (!model["unk_token"].is_null()) {
      if (!(after_unk && model["fuse_unk"].get<bool>())) symbols.push_back(model["unk_token"]);
      after_unk = true;
      continue;
    } else {
      continue;  // left out, as if it were not there
    }
    after_unk = false;
  }
  const json& merges = model["merges"];
  for (size_t best = 0; best < merges.size();) {
    for (best = 0; best < merges.size(); ++best) {
      size_t at = 0;
      while (at + 1 < symbols.size() &&
             !(merges[best][0] == symbols[at] && merges[best][1] == symbols[at + 1]))
        ++at;
      if (at + 1 >= symbols.size()) continue;
      symbols[at] += symbols[at + 1];
      symbols.erase(symbols.begin() + at + 1);
      break;
    }
  }
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(model["vocab"][symbol]);
  return ids;
}

TEST(Tokenizer, MergesAreThoseOfTheRuleWhateverTheTokens) {
  constexpr uint64_t kSeed = 20261123;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  const std::vector<std::string> alphabet = {"a", "b", "c", "\u2581", "\u00E9", "\U0001F600"};
  for (int round = 0; round < 200; ++round) {
    // The last two or three characters are unknown.
    const int64_t known = 3 + rng.below(2);
    std::vector<std::string> tokens(alphabet.begin(), alphabet.begin() + known);
    json merges = json::array();
    for (int64_t left = rng.below(25); left > 0; --left) {
      const std::string a = tokens[rng.below(static_cast<int64_t>(tokens.size()))];
      const std::string b = tokens[rng.below(static_cast<int64_t>(tokens.size()))];
      const bool there = std::count(merges.begin(), merges.end(), json::array({a, b})) > 0;
      if (there || a.size() + b.size() > 12) continue;
      merges.insert(merges.begin() + rng.below(static_cast<int64_t>(merges.size()) + 1),
                    json::array({a, b}));
      if (std::count(tokens.begin(), tokens.end(), a + b) == 0) tokens.push_back(a + b);
    }
    tokens.push_back("<unk>");
    const bool bytes = rng.chance(0.3);
    for (int byte = 0; byte < 256 && bytes; ++byte)
      tokens.push_back(fmt::format("<0x{:02X}>", byte));
    json t = small();
    json& model = t["model"];
    model["vocab"] = json::object();
    for (const std::string& token : tokens) model["vocab"][token] = model["vocab"].size();
    model["merges"] = merges;
    model["byte_fallback"] = bytes;
    model["fuse_unk"] = rng.chance(0.5);
    if (rng.chance(0.5)) model["unk_token"] = "<unk>";
    const auto tokenizer = load_tokenizer(folder_with(t.dump()));
    for (int i = 0; i < 20; ++i) {
      std::vector<std::string> characters;
      std::string text;
      for (int64_t left = rng.below(24); left > 0; --left) {
        characters.push_back(alphabet[rng.below(static_cast<int64_t>(alphabet.size()))]);
        text += characters.back();
      }
      ASSERT_EQ(tokenizer->encode(text), merge_by_hand(model, characters)) << text << model.dump();
    }
  }
}

TEST(Tokenizer, ALongTextWithoutPiecesIsNotQuadratic) {
  // 1 MiB in one piece: seconds with a heap, hours with a scan per merge; the time-out is ctest's.
  auto tokenizer = load_tokenizer(kData / "models/stories260K");
  std::string text;
  while (text.size() < (1 << 20)) text += "Once upon a time there was a cat. ";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

// Bytes of a good file changed at random: either a UserError or a tokenizer that works.
TEST(TokenizerStress, DamagedFilesAreRefusedOrHarmless) {
  const std::string good = read_file(kData / "models/stories260K/tokenizer.json").value();
  constexpr uint64_t kSeed = 20260726;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  int loaded = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bad = good;
    for (int64_t edits = 1 + rng.below(3); edits > 0; --edits) {
      auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(bad.size()) - 8));
      switch (rng.below(4)) {
        case 0:
          bad[at] = static_cast<char>(rng.below(256));
          break;
        case 1:
          bad.erase(at, 1 + rng.below(6));
          break;
        case 2:
          bad.insert(at, bad.substr(rng.below(static_cast<int64_t>(bad.size()) - 8), 8));
          break;
        default:
          bad[at] = "0123456789[]{},:\"-"[rng.below(18)];
      }
    }
    if (rng.chance(0.1)) bad.resize(rng.below(static_cast<int64_t>(bad.size())));
    try {
      auto tokenizer = load_tokenizer(folder_with(bad));
      Ids ids = tokenizer->encode("Once upon a time \u00E9 <s> 12\n");
      for (TokenId id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
      tokenizer->decode(ids);
      ++loaded;
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find("tokenizer.json"), std::string::npos) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(loaded, 10);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tailrace::text
