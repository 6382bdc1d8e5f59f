// Added tokens of tokenizer_config.json and added_tokens.json; the ids are those of transformers
// 5.24 for the same files.
#include "core/text/config_tokens.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/text/tokenizer.h"
#include "tests/core/base/temporary_directory.h"

namespace tailrace::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<TokenId>;

Json added(const std::string& content, bool special = true, bool lstrip = false) {
  return {{"content", content}, {"lstrip", lstrip},     {"normalized", false},
          {"rstrip", false},    {"single_word", false}, {"special", special}};
}

// Letters a to c, a blank, '<', '>', and the added tokens <s> (6) and </s> (7).
class ConfigTokens : public ::testing::Test {
 protected:
  ConfigTokens() {
    for (const char* letter : {"a", "b", "c", " ", "<", ">"})
      file_["model"]["vocab"][letter] = file_["model"]["vocab"].size();
    file_["model"]["type"] = "BPE";
    file_["model"]["merges"] = Json::array();
    file_["added_tokens"] = Json::array();
    for (const char* content : {"<s>", "</s>"}) {
      Json token = added(content);
      token["id"] = 6 + file_["added_tokens"].size();
      file_["added_tokens"].push_back(std::move(token));
    }
    config_["eos_token"] = "</s>";
  }

  void write(const char* name, const Json& content) {
    std::ofstream(folder_.path() / name) << content.dump();
  }
  std::unique_ptr<Tokenizer> load() {
    write("tokenizer.json", file_);
    write("tokenizer_config.json", config_);
    return load_tokenizer(folder_.path());
  }
  std::string fault() {
    try {
      load();
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory folder_;
  Json file_, config_;
};

TEST_F(ConfigTokens, ATokenThatTheConfigAloneKnowsIsFound) {
  config_["added_tokens_decoder"] = {
      {"6", added("<s>")}, {"8", added("<a>")}, {"9", added("<b>", /*special=*/false)}};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("a<a><b></s>"), (Ids{0, 8, 9, 7}));
  EXPECT_TRUE(tokenizer->is_special(8));
  EXPECT_FALSE(tokenizer->is_special(9));
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  // The words of others do not become one.
  EXPECT_EQ(tokenizer->encode("<a>", {.find_special = false}), (Ids{4, 0, 5}));
}

TEST_F(ConfigTokens, AnIdThatIsThereTwiceIsRefused) {
  config_["added_tokens_decoder"] = {{"8", added("<a>")}, {"08", added("<b>")}};
  EXPECT_NE(fault().find("tokenizer_config.json: added_tokens_decoder.8: the id 8 is there twice"),
            std::string::npos)
      << fault();
  config_.erase("added_tokens_decoder");
  write("added_tokens.json", {{"<a>", 8}, {"<b>", 8}});
  EXPECT_NE(fault().find("added_tokens.json: <b>: the id 8 is there twice"), std::string::npos)
      << fault();
  // A hostile key is not repeated whole.
  config_["added_tokens_decoder"] = {{std::string(5000, 'x'), added("<a>")}};
  EXPECT_LT(fault().size(), 400u);
}

TEST_F(ConfigTokens, TheConfigSaysHowATokenIsLookedFor) {
  config_["added_tokens_decoder"] = {{"6", added("<s>", true, /*lstrip=*/true)}};
  EXPECT_EQ(load()->encode("a  <s>"), (Ids{0, 6}));
}

TEST_F(ConfigTokens, OlderFoldersHaveAFileOfThem) {
  write("added_tokens.json", {{"<a>", 8}, {"<b>", 9}, {"<s>", 6}});
  config_["additional_special_tokens"] = {"<a>"};
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("a<a><b><s>"), (Ids{0, 8, 9, 6}));
  EXPECT_TRUE(tokenizer->is_special(8));
  EXPECT_FALSE(tokenizer->is_special(9));
  EXPECT_TRUE(tokenizer->is_special(6));
  // A config that lists them is asked alone.
  config_["added_tokens_decoder"] = {{"8", added("<b>")}};
  EXPECT_EQ(load()->encode("<a><b>"), (Ids{4, 0, 5, 8}));
}

TEST_F(ConfigTokens, ASpecialTokenOfTheVocabularyIsFoundWhereAFileNamesIt) {
  file_["model"]["vocab"]["<a>"] = 8;
  EXPECT_EQ(load()->encode("<a>"), (Ids{4, 0, 5}));
  config_["extra_special_tokens"] = {"<a>"};
  EXPECT_EQ(load()->encode("<a>"), (Ids{8}));
  config_.erase("extra_special_tokens");
  write("special_tokens_map.json", {{"additional_special_tokens", {added("<a>")}}});
  EXPECT_EQ(load()->encode("<a>"), (Ids{8}));
  // A letter that pads stays a letter.
  config_["pad_token"] = "a";
  EXPECT_EQ(load()->encode("aa", {.find_special = false}), (Ids{0, 0}));
}

TEST_F(ConfigTokens, ATokenOnWhoseIdTheFilesDisagreeIsNamed) {
  const auto fault_of = [&](const char* id, const char* content) {
    config_["added_tokens_decoder"] = {{id, added(content)}};
    return fault();
  };
  EXPECT_EQ(fault_of("7", "<s>"),
            (folder_.path() / "tokenizer_config.json").string() +
                ": added_tokens_decoder.7: the token \"<s>\" has the id 7 here, and 6 by "
                "tokenizer.json. Save the tokenizer anew (AutoTokenizer, save_pretrained) from the "
                "files that the model was trained with");
  EXPECT_NE(fault_of("7", "<a>").find("7 here, and 8 by tokenizer.json, where it would be added"),
            std::string::npos);
  EXPECT_NE(fault_of("300", "<a>").find("and 8 by tokenizer.json"), std::string::npos);
  EXPECT_NE(fault_of("1", "a").find("and 0 by tokenizer.json"), std::string::npos);
  EXPECT_NE(fault_of("-1", "<a>").find("from 0 to"), std::string::npos);
  EXPECT_NE(fault_of("9999999999999999999999", "<a>").find("from 0 to"), std::string::npos);
  config_.erase("added_tokens_decoder");
  write("added_tokens.json", {{"<a>", 7}});
  EXPECT_NE(fault().find("added_tokens.json: <a>: the token \"<a>\" has the id 7"),
            std::string::npos);
}

}  // namespace
}  // namespace tailrace::text
