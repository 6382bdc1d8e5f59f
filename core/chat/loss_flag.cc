#include "core/chat/loss_flag.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/json_text.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kCounting[] = {"weight", "loss",     "loss_scale", "loss_weight",
                                          "train",  "training", "trainable"};
constexpr std::string_view kLeavingOut = "masked";

bool is_read(std::string_view key) {
  return key == kLeavingOut || std::ranges::find(kCounting, key) != std::end(kCounting);
}

// "loss" as a word of its own: loss_mask, lossMask; not glossary.
bool speaks_of_loss(std::string_view key) {
  constexpr std::string_view kWord = "loss";
  const auto is_small = [](char c) { return c >= 'a' && c <= 'z'; };
  for (size_t at = key.find(kWord); at != key.npos; at = key.find(kWord, at + 1)) {
    const size_t end = at + kWord.size();
    if ((at == 0 || !is_small(key[at - 1])) && (end == key.size() || !is_small(key[end])))
      return true;
  }
  return false;
}

// Names that other flags of the loss have, or may have: loss_mask, train_detail, train_on_turn.
bool seems_a_flag(std::string_view key) {
  const auto ends = [&](std::string_view end) { return key.ends_with(end); };
  return speaks_of_loss(key) || ends("mask") || ends("masks") || ends("masked") ||
         ends("weights") || ends("_weight") || key.starts_with("train_") ||
         key.starts_with("training_") || key.starts_with("trainable_");
}

bool value_of(std::string_view name, const ordered_json& flag, size_t number) {
  if (flag.is_boolean() && name != "weight") return flag.get<bool>();
  if (flag.is_number() && (flag == 0 || flag == 1)) return flag == 1;
  if (name == "weight")
    throw UserError("the weight of message {} is {}; it must be 0 (it does not count) or 1", number,
                    json_text(flag));
  throw UserError("{} of message {} is {}; it must be true or false, or 1 or 0", name, number,
                  json_text(flag));
}

}  // namespace

bool counts_in_loss(const ordered_json& message, size_t number) {
  const bool answers = message.at("role") == "assistant";
  std::optional<std::string> from;
  bool counts = answers;
  for (const auto& item : message.items()) {
    const std::string& name = item.key();
    if (item.value().is_null()) continue;
    if (!is_read(name)) {
      // An unknown flag is an error and not ignored: the row would be learned in parts that its
      // author meant to leave out.
      if (!seems_a_flag(name)) continue;
      throw UserError(
          "message {} has \"{}\", which is not read; whether it counts is said by {}, or {}. "
          "Write one of them, or leave it out",
          number, name, join_texts(kCounting, ", "), kLeavingOut);
    }
    const bool says = value_of(name, item.value(), number) != (name == kLeavingOut);
    // Words of the user and of tools are never trained on, so a flag that asks for it cannot be
    // honoured.
    if (says && !answers)
      throw UserError("{}",
                      name == "weight"
                          ? fmt::format("message {} has a weight of 1, but only answers of the "
                                        "assistant count",
                                        number)
                          : fmt::format("message {} has \"{}\": {}, but only answers of the "
                                        "assistant count",
                                        number, name, json_text(item.value())));
    if (from && says != counts)
      throw UserError(
          "{} and {} of message {} differ on whether it counts. Leave out the one "
          "that is not meant",
          *from, name, number);
    from = name;
    counts = says;
  }
  return counts;
}

}  // namespace tailrace::chat
