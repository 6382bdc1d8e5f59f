#include "rollout/gateway/chat_api.h"

#include <cmath>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "rollout/gateway/chat_messages.h"
#include "rollout/gateway/token_scores.h"

namespace tailrace::gateway {
namespace {

using Json = nlohmann::ordered_json;

// A field that would change the text and that nothing here reads; it may be sent with the value
// that changes nothing (JSON), or null.
struct Unsupported {
  const char* name;
  const char* neutral = nullptr;
  const char* advice = "";
};

constexpr Unsupported kUnsupported[] = {
    {"presence_penalty", "0"},
    {"frequency_penalty", "0"},
    {"repetition_penalty", "1"},
    {"length_penalty", "1"},
    {"logit_bias", "{}"},
    {"response_format", R"({"type":"text"})", "; the model writes free text: check it yourself"},
    {"audio"},
    {"modalities", R"(["text"])", "; the model writes text only"},
    {"prediction"},
    {"web_search_options"},
    {"verbosity"},
    // Fields of vLLM and SGLang.
    {"best_of", "1"},
    {"use_beam_search", "false"},
    {"min_tokens", "0"},
    {"ignore_eos", "false"},
    {"stop_token_ids", "[]", "; use stop"},
    {"bad_words", "[]"},
    {"allowed_token_ids"},
    {"prompt_logprobs"},
    {"logits_processors", "[]"},
    {"structured_outputs"},
    {"guided_json"},
    {"guided_regex"},
    {"guided_choice"},
    {"guided_grammar"},
    {"regex"},
    {"ebnf"},
    {"json_schema"},
    {"chat_template"},
    {"documents", "[]"},
    {"continue_final_message", "false"},
    {"add_generation_prompt", "true"},
};
constexpr Unsupported kUnsupportedInChat[] = {
    {"functions", "[]", "; use tools"},
    {"function_call", nullptr, "; use tool_choice"},
    {"top_logprobs", "0", "; the log-probability of the sampled token is all that there is"},
};
constexpr Unsupported kUnsupportedInCompletions[] = {
    {"suffix", R"("")"},
    {"chat_template_kwargs", "{}"},
};

constexpr Unsupported kUnsupportedUnscored[] = {{"echo", "false"}};

class Fields {
 public:
  explicit Fields(const Json& request) : request_(request) {}

  // Null is as good as not sent.
  const Json* find(const char* name) const {
    const auto found = request_.find(name);
    return found == request_.end() || found->is_null() ? nullptr : &*found;
  }

  void refuse_unsupported(std::span<const Unsupported> fields) const {
    for (const Unsupported& field : fields) {
      const Json* value = find(field.name);
      if (value == nullptr) continue;
      if (field.neutral != nullptr && *value == parse_ordered_json(field.neutral)) continue;
      const std::string but = field.neutral == nullptr
                                  ? "leave it out"
                                  : fmt::format("leave it out or send {}", field.neutral);
      refuse(field.name, fmt::format("{} is not supported{} ({})", field.name, field.advice, but),
             "unsupported_parameter");
    }
  }

  bool flag(const char* name, bool otherwise) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) wrong(name, *value, "true or false");
    return value->get<bool>();
  }

  double number(const char* name, double otherwise, double least, double most) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= least && number <= most))
      wrong(name, *value, fmt::format("a number from {} to {}", least, most));
    return number;
  }

  int64_t integer(const char* name, int64_t otherwise, int64_t least, int64_t most) const {
    const Json* value = find(name);
    if (value == nullptr) return otherwise;
    const bool fits = value->is_number_unsigned()
                          ? value->get<uint64_t>() <= static_cast<uint64_t>(most)
                          : value->is_number_integer();
    if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most)
      wrong(name, *value, fmt::format("an integer from {} to {}", least, most));
    return value->get<int64_t>();
  }

  std::string text(const char* name) const {
    const Json* value = find(name);
    if (value == nullptr) return "";
    if (!value->is_string()) wrong(name, *value, "a string");
    return value->get<std::string>();
  }

  [[noreturn]] static void wrong(const char* name, const Json& value, const std::string& accepted) {
    std::string found = json_text(value);
    // A long value would fill the answer and the log.
    if (found.size() > 60) found = fmt::format("a {} of {} bytes", value.type_name(), found.size());
    refuse(name, fmt::format("{} is {}; it must be {}", name, found, accepted), "invalid_value");
  }

 private:
  const Json& request_;
};

// The most JSON values in a body: token ids of the longest context; messages have far fewer.
constexpr int64_t kMaxRequestValues = 2'000'000;
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
// As rollout.sampling.temperature and top_p accept them.
constexpr double kMaxApiTemperature = 100, kMinApiTemperature = 1e-3, kLeastTopP = 1e-6;

std::vector<std::string> read_stops(const Fields& fields, std::vector<std::string> otherwise) {
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return otherwise;
  std::vector<std::string> stops;
  const auto accepted =
      fmt::format("a string or a list of at most {} strings, none empty", kMaxStops);
  const auto add = [&](const Json& one) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty())
      Fields::wrong("stop", *stop, accepted);
    stops.push_back(one.get<std::string>());
  };
  if (stop->is_array()) {
    if (static_cast<int64_t>(stop->size()) > kMaxStops) Fields::wrong("stop", *stop, accepted);
    for (const Json& one : *stop) add(one);
  } else {
    add(*stop);
  }
  return stops;
}

SamplingParams read_sampling(const Fields& fields, const SamplingParams& defaults,
                             int64_t least_new_tokens) {
  SamplingParams sampling = defaults;
  sampling.temperature = fields.number("temperature", defaults.temperature, 0, kMaxApiTemperature);
  // Greedy, or what float32 can divide logits by.
  if (sampling.temperature < kMinApiTemperature) sampling.temperature = 0;
  sampling.top_p = fields.number("top_p", defaults.top_p, kLeastTopP, 1);
  sampling.min_p = fields.number("min_p", defaults.min_p, 0, 1);
  sampling.top_k = fields.integer("top_k", defaults.top_k, -1, kMaxInt);
  // The API has renamed it; where both are sent the new name counts.
  const int64_t old_name =
      fields.integer("max_tokens", defaults.max_new_tokens, least_new_tokens, kMaxInt);
  sampling.max_new_tokens =
      fields.integer("max_completion_tokens", old_name, least_new_tokens, kMaxInt);
  sampling.stop_strings = read_stops(fields, defaults.stop_strings);
  return sampling;
}

// The fields that chats and completions have in common.
ChatRequest read_common(const Fields& fields, const SamplingParams& defaults,
                        int64_t least_new_tokens) {
  ChatRequest request;
  fields.refuse_unsupported(kUnsupported);
  request.model = fields.text("model");
  request.sampling = read_sampling(fields, defaults, least_new_tokens);
  request.n = fields.integer("n", 1, 1, kMaxChoices);
  if (const Json* seed = fields.find("seed")) {
    if (!seed->is_number_integer()) Fields::wrong("seed", *seed, "an integer of 64 bits");
    // Any 64 bits are a seed, negative numbers too: it is mixed into the key of the draws.
    request.seed = seed->is_number_unsigned() ? seed->get<uint64_t>()
                                              : static_cast<uint64_t>(seed->get<int64_t>());
  }
  request.stream = fields.flag("stream", false);
  if (const Json* options = fields.find("stream_options")) {
    if (!options->is_object()) Fields::wrong("stream_options", *options, "an object");
    // As the API does it: ignored, the option would leave a client waiting for a chunk that never
    // comes.
    if (!request.stream)
      refuse("stream_options", "stream_options is for streams: send it with \"stream\": true");
    request.include_usage = Fields(*options).flag("include_usage", false);
  }
  return request;
}

void read_chat(const Fields& fields, const Json& body, ChatRequest& request) {
  fields.refuse_unsupported(kUnsupportedInChat);
  const Json* messages = fields.find("messages");
  request.messages = read_messages(messages == nullptr ? Json() : *messages);
  request.tools = read_tools(body);
  if (const Json* variables = fields.find("chat_template_kwargs")) {
    if (!variables->is_object()) Fields::wrong("chat_template_kwargs", *variables, "an object");
    request.template_variables = *variables;
  }
  request.wants_logprobs = fields.flag("logprobs", false);
}

TextPrompt read_prompt(const Json& prompt) {
  const char* accepted = "a string or a list of token ids, not empty";
  if (prompt.is_string() && !prompt.get_ref<const std::string&>().empty())
    return {.text = prompt.get<std::string>()};
  if (!prompt.is_array() || prompt.empty()) Fields::wrong("prompt", prompt, accepted);
  TextPrompt read;
  for (const Json& id : prompt) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxInt)
      Fields::wrong("prompt", id, "a list of token ids; this one is none");
    read.ids.push_back(id.get<TokenId>());
  }
  return read;
}

void read_prompts(const Fields& fields, bool can_score, ChatRequest& request) {
  const Json* prompt = fields.find("prompt");
  const Json none;
  if (prompt == nullptr) prompt = &none;
  // A list of prompts, or of the ids of one.
  const bool is_list = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (!is_list) {
    request.prompts.push_back(read_prompt(*prompt));
    return;
  }
  const auto size = static_cast<int64_t>(prompt->size());
  if (size > 1 && !can_score)
    refuse("prompt", "prompt has several prompts; send each in a request of its own",
           "unsupported_value");
  if (size > kMaxChoices / request.n)
    refuse("prompt",
           fmt::format("prompt has {} prompts, with n = {} for {} answers; {} are the most", size,
                       request.n, size * request.n, kMaxChoices),
           "invalid_value");
  for (const Json& one : *prompt) request.prompts.push_back(read_prompt(one));
}

// The fields that need scores of tokens.
void read_scores(const Fields& fields, bool can_score, ChatRequest& request) {
  request.wants_logprobs = fields.find("logprobs") != nullptr;
  request.names_ids = fields.flag("return_tokens_as_token_ids", false);
  if (!can_score) {
    fields.refuse_unsupported(kUnsupportedUnscored);
    if (fields.integer("logprobs", 0, 0, kMaxInt) > 1)
      refuse("logprobs",
             "logprobs above 1 is not supported; the log-probability of the sampled token is all "
             "that there is (leave it out, or send 0 or 1)",
             "unsupported_parameter");
    return;
  }
  request.echoes = fields.flag("echo", false);
  request.top_logprobs = fields.integer("logprobs", 0, 0, kMaxTopLogprobs);
  if (!request.stream) return;
  if (request.echoes)
    refuse("echo", "echo is not supported in a stream; leave out echo or stream",
           "unsupported_parameter");
  if (request.wants_answer_scores())
    refuse("logprobs", "logprobs above 1 is not supported in a stream; send 0 or 1, or no stream",
           "unsupported_parameter");
}

// Each scored position becomes many bytes of the answer, which is written at once.
void check_size_of_scores(const ChatRequest& request) {
  if (!request.wants_prompt_scores() && !request.wants_answer_scores()) return;
  int64_t tokens = 0;
  for (const TextPrompt& prompt : request.prompts) {
    // A text has no more tokens than bytes.
    if (request.echoes) tokens += std::ssize(prompt.text) + std::ssize(prompt.ids);
    tokens += request.sampling.max_new_tokens;
  }
  const int64_t each = request.n * (request.top_logprobs + 1);
  if (tokens > kMaxScores / each)
    refuse("logprobs",
           fmt::format("the answers would have log-probabilities of up to {} tokens, {} each; {} "
                       "together are the most. Send fewer prompts or answers a request, or lower "
                       "logprobs or max_tokens",
                       tokens * request.n, request.top_logprobs + 1, kMaxScores),
           "invalid_value");
}

template <class Read>
std::variant<ChatRequest, ApiError> read_request(std::string_view body, Read read) {
  // The number of values bounds memory: a value takes many times the bytes of its text.
  const Result<Json> row = parse_json_row(body, kMaxRequestValues);
  if (!row.ok())
    return ApiError{.message = fmt::format("the body of the request is {}", row.failure().message)};
  try {
    return read(Fields(row.value()), row.value());
  } catch (const Refused& refused) {
    return refused.error;
  }
}

}  // namespace

std::variant<ChatRequest, ApiError> read_chat_request(std::string_view body,
                                                      const SamplingParams& defaults) {
  return read_request(body, [&](const Fields& fields, const Json& json) {
    ChatRequest request = read_common(fields, defaults, /*least_new_tokens=*/1);
    read_chat(fields, json, request);
    return request;
  });
}

std::variant<ChatRequest, ApiError> read_completion_request(std::string_view body,
                                                            const SamplingParams& defaults,
                                                            bool can_score) {
  return read_request(body, [&](const Fields& fields, const Json&) {
    // An answer that repeats its prompt need not go on behind it.
    const bool may_be_empty = can_score && fields.flag("echo", false);
    ChatRequest request = read_common(fields, defaults, may_be_empty ? 0 : 1);
    request.is_chat = false;
    fields.refuse_unsupported(kUnsupportedInCompletions);
    read_scores(fields, can_score, request);
    read_prompts(fields, can_score, request);
    check_size_of_scores(request);
    return request;
  });
}

}  // namespace tailrace::gateway
