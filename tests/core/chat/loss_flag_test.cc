#include "core/chat/loss_flag.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

ordered_json message(const std::string& role, const std::string& flags) {
  ordered_json made = {{"role", role}, {"content", "a"}};
  made.update(ordered_json::parse("{" + flags + "}"));
  return made;
}

bool counts(const std::string& flags) { return counts_in_loss(message("assistant", flags), 2); }

std::string fault(const std::string& flags, const std::string& role = "assistant") {
  try {
    (void)counts_in_loss(message(role, flags), 2);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(LossFlag, EachNameOfAFlagIsHonoured) {
  EXPECT_TRUE(counts(""));
  EXPECT_FALSE(counts_in_loss(message("user", ""), 1));
  for (const char* name : {"loss", "loss_scale", "loss_weight", "train", "training", "trainable"}) {
    const std::string key = std::string("\"") + name + "\": ";
    EXPECT_FALSE(counts(key + "false")) << name;
    EXPECT_FALSE(counts(key + "0")) << name;
    EXPECT_TRUE(counts(key + "true")) << name;
    EXPECT_TRUE(counts(key + "1.0")) << name;
    EXPECT_TRUE(counts(key + "null")) << name;
  }
  EXPECT_FALSE(counts(R"("weight": 0)"));
  EXPECT_TRUE(counts(R"("weight": 1)"));
  EXPECT_FALSE(counts(R"("masked": true)"));
  EXPECT_TRUE(counts(R"("masked": false)"));
  EXPECT_FALSE(counts(R"("weight": 0, "loss": false, "masked": true, "train": null)"));
  EXPECT_FALSE(counts_in_loss(message("user", R"("train": false, "masked": true)"), 1));
  // Names of something else.
  EXPECT_TRUE(counts(R"("name": "x", "trained_by": "y", "mask_token": "z", "weighted": 2)"));
  EXPECT_TRUE(counts(R"("glossary": [], "gloss": "x", "lossless": 1, "floss_loss2": null)"));
}

TEST(LossFlag, OneThatCannotBeHonouredIsAnError) {
  EXPECT_EQ(fault(R"("loss": 0.5)"),
            "loss of message 2 is 0.5; it must be true or false, or 1 or 0");
  EXPECT_EQ(fault(R"("loss_scale": [0, 1])"),
            "loss_scale of message 2 is [0,1]; it must be true or false, or 1 or 0");
  EXPECT_EQ(fault(R"("training": "false")"),
            "training of message 2 is \"false\"; it must be true or false, or 1 or 0");
  EXPECT_EQ(fault(R"("weight": true)"),
            "the weight of message 2 is true; it must be 0 (it does not count) or 1");
  EXPECT_EQ(fault(R"("train": true)", "user"),
            "message 2 has \"train\": true, but only answers of the assistant count");
  EXPECT_EQ(fault(R"("masked": false)", "tool"),
            "message 2 has \"masked\": false, but only answers of the assistant count");
  EXPECT_EQ(fault(R"("weight": 1, "loss": false)"),
            "weight and loss of message 2 differ on whether it counts. Leave out the one that is "
            "not meant");
  for (const char* name :
       {"train_detail", "training_detail", "loss_mask", "assistant_masks", "mask", "token_weights",
        "output_with_loss", "glossary_loss", "lossMask"})
    EXPECT_EQ(fault(std::string("\"") + name + "\": [0]"),
              std::string("message 2 has \"") + name +
                  "\", which is not read; whether it counts is said by weight, loss, loss_scale, "
                  "loss_weight, train, training, trainable, or masked. Write one of them, or leave "
                  "it out");
}

}  // namespace
}  // namespace tailrace::chat
