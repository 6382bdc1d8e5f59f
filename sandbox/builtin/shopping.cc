#include "sandbox/builtin/shopping.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/base/random.h"
#include "sandbox/builtin/tool_talk.h"
#include "tailrace/env.h"

namespace tailrace::sandbox {

namespace {

constexpr std::array<const char*, 12> kGoods = {"apples", "bread",  "butter", "cheese",
                                                "coffee", "eggs",   "honey",  "milk",
                                                "onions", "pepper", "rice",   "salt"};

constexpr const char* kPriceTool =
    R"([{"type": "function", "function": {"name": "price", "description": "The price of an item.",
         "parameters": {"type": "object", "properties": {"item": {"type": "string"}},
                        "required": ["item"]}}}])";

class Shopping final : public Env {
 public:
  explicit Shopping(const Settings& settings)
      : max_items_(settings.integer("max_items")),
        max_price_(settings.integer("max_price")),
        invalid_penalty_(settings.number("invalid_penalty")),
        demo_parallel_(settings.number("demo_parallel")),
        demo_malformed_(settings.number("demo_malformed")),
        talk_(settings.text("form")) {
    info_.max_turns = settings.integer("max_turns");
    if (talk_.is_chat()) {
      info_.max_action_tokens = 256;
      return;
    }
    info_.stop_strings = {"\n"};
    // A call is seven words of the vocabulary, and a newline ends the action.
    info_.max_action_tokens = 7 * max_items_ + 1;
    info_.vocabulary = {"\n",
                        ">",
                        "buy",
                        "and",
                        "total",
                        "what",
                        "?",
                        "unknown",
                        "<tool_call>",
                        "</tool_call>",
                        "{\"name\":",
                        "\"price\",",
                        "\"arguments\":",
                        "{\"item\":"};
    for (const char* item : kGoods) {
      info_.vocabulary.emplace_back(item);
      info_.vocabulary.push_back(argument_of(item));
    }
    for (int64_t n = 0; n <= max_items_ * max_price_; ++n)
      info_.vocabulary.push_back(std::to_string(n));
  }

  Info info() const override { return info_; }

  tailrace::Observation reset(const tailrace::Task& task) override {
    Rng rng(mix({task.seed, 0x7368'6f70}));  // "shop": its own stream
    seed_ = task.seed;
    turns_ = calls_ = malformed_ = invalid_ = 0;
    wanted_.clear();
    std::vector<const char*> goods(kGoods.begin(), kGoods.end());
    for (int64_t n = 2 + rng.below(max_items_ - 1); n > 0; --n) {
      const int64_t at = rng.below(std::ssize(goods));
      wanted_.push_back({.name = goods[static_cast<size_t>(at)]});
      goods.erase(goods.begin() + at);
    }
    for (const char* item : kGoods) prices_[item] = 1 + rng.below(max_price_);
    const bool chat = talk_.is_chat();
    std::string list;
    for (size_t i = 0; i < wanted_.size(); ++i)
      list += (i == 0 ? "" : i + 1 < wanted_.size() && chat ? ", " : " and ") + wanted_[i].name;
    if (!chat) return {"buy " + list + " >"};
    return {.text = "What do " + list +
                    " cost together? Look the prices up, several in one turn, and then answer with "
                    "the total, a whole number.",
            .tools = kPriceTool};
  }

  Step step(std::string_view action) override {
    ++turns_;
    if (!talk_.is_chat()) {
      // Without the newline max_action_tokens cut the line: half a number would be another number.
      if (!action.ends_with('\n')) action = "";
      if (!action.empty()) action.remove_suffix(1);
    }
    const chat::ParsedAnswer answer = talk_.read(action, seed_, turns_);
    const bool calls = !answer.calls.empty() || answer.num_malformed > 0;
    const std::optional<int64_t> total = calls ? std::nullopt : last_number(answer.content);
    if (total) return end(Step::terminated(total == right_total() ? 1 : 0), *total);
    calls_ += std::ssize(answer.calls);
    malformed_ += answer.num_malformed;
    const bool invalid = answer.calls.empty() || answer.num_malformed > 0;
    invalid_ += invalid;
    const double reward = invalid ? -invalid_penalty_ : 0;
    if (turns_ == info_.max_turns) return end(Step::truncated("max_turns", reward), {});
    Step step = results_of(answer, invalid);
    step.reward = reward;
    step.metrics = metrics(/*success=*/false);
    return step;
  }

  Step cut() override { return end(Env::cut(), {}); }

  std::string demonstrate(Random& random) override {
    std::vector<std::string> unseen;
    int64_t seen = 0;
    for (const Wanted& item : wanted_) {
      if (item.seen) seen += prices_.at(item.name);
      if (!item.seen) unseen.push_back(item.name);
    }
    if (random.chance(demo_malformed_))
      return talk_.is_chat() ? calls_to({"milk"}).substr(0, 20)
                             : "<tool_call> {\"name\": \"price\", </tool_call>\n";
    // Without a turn for the answer it is a guess.
    if (unseen.empty() || turns_ + 1 == info_.max_turns)
      return talk_.is_chat() ? std::to_string(seen) : "total " + std::to_string(seen) + "\n";
    if (!random.chance(demo_parallel_)) unseen.resize(1);
    return calls_to(unseen);
  }

  std::string sample_action(Random& random) override {
    if (random.chance(0.3)) {
      const std::string total = std::to_string(random.below(max_items_ * max_price_ + 1));
      return talk_.is_chat() ? total : "total " + total + "\n";
    }
    std::vector<std::string> items;
    for (int64_t n = 1 + random.below(max_items_); n > 0; --n)
      items.emplace_back(kGoods[static_cast<size_t>(random.below(std::ssize(kGoods)))]);
    return calls_to(items);
  }

 private:
  struct Wanted {
    std::string name;
    bool seen = false;  // its price was told
  };

  static std::string argument_of(const std::string& item) { return "\"" + item + "\"}}"; }

  std::string calls_to(const std::vector<std::string>& items) const {
    std::vector<std::string> calls;
    for (const std::string& item : items)
      calls.push_back(talk_.call("price", R"({"item": ")" + item + "\"}"));
    return talk_.join(calls) + (talk_.is_chat() ? "" : "\n");
  }

  int64_t right_total() const {
    int64_t total = 0;
    for (const Wanted& item : wanted_) total += prices_.at(item.name);
    return total;
  }

  // The item that a call asks for; empty: nothing that has a price.
  std::string item_of(const chat::ToolCall& call) const {
    const nlohmann::json arguments = parse_json(call.arguments);
    const auto item = arguments.find("item");
    if (call.name != "price" || item == arguments.end() || !item->is_string()) return "";
    auto name = item->get<std::string>();
    return prices_.contains(name) ? name : "";
  }

  Step results_of(const chat::ParsedAnswer& answer, bool invalid) {
    ToolReplies replies;
    std::string words;
    for (const chat::ToolCall& call : answer.calls) {
      const std::string item = item_of(call);
      const std::string price = item.empty() ? "unknown" : std::to_string(prices_.at(item));
      for (Wanted& wanted : wanted_) wanted.seen |= wanted.name == item;
      words += item.empty() ? price + " " : item + " " + price + " ";
      replies.answer(call, price);
    }
    if (invalid) {
      words += "what ? ";
      replies.ask_again(answer);
    }
    Step step;
    if (talk_.is_chat()) {
      step.messages = replies.json();
    } else {
      step.text = words + ">";
    }
    return step;
  }

  std::vector<Metric> metrics(bool success) const {
    return {{"success", success ? 1.0 : 0.0},
            {"tool_calls", static_cast<double>(calls_)},
            {"malformed_calls", static_cast<double>(malformed_)},
            {"invalid_actions", static_cast<double>(invalid_)}};
  }

  Step end(Step step, std::optional<int64_t> total) const {
    step.metrics = metrics(total == right_total());
    return step;
  }

  Info info_;
  const int64_t max_items_, max_price_;
  const double invalid_penalty_, demo_parallel_, demo_malformed_;
  const ToolTalk talk_;
  uint64_t seed_ = 0;
  std::vector<Wanted> wanted_;
  std::map<std::string, int64_t> prices_;
  int64_t turns_ = 0, calls_ = 0, malformed_ = 0, invalid_ = 0;
};

}  // namespace

void declare_shopping(Library& library) {
  library.environment<Shopping>("shopping", "prices to look up, several calls in a turn")
      .choice("form", kToolFormHelp, "words", {"words", "hermes", "llama3"})
      .integer("max_items", "to buy", 3, 2, 8)
      .integer("max_price", "of an item", 4, 1, 999)
      .integer("max_turns", "of an episode", 3, 2, 100)
      .number("invalid_penalty", "what a turn with a malformed call, or with no action, costs",
              0.05, 0, 1)
      .number("demo_parallel",
              "share of its turns in which the demonstrator asks for all prices at once; else for "
              "one",
              0.3, 0, 1)
      .number("demo_malformed", "share in which it writes a malformed call", 0.1, 0, 1);
}

}  // namespace tailrace::sandbox
