#include "rollout/gateway/capture.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/digest_of.h"
#include "core/base/json_row.h"
#include "core/base/json_text.h"
#include "kernels/base/check.h"

namespace tailrace::gateway {
namespace {

using nlohmann::ordered_json;

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string text_of(const ordered_json& message) {
  const auto content = message.find("content");
  return content != message.end() && content->is_string() ? content->get<std::string>() : "";
}

bool is_answer(const ordered_json& message) { return message.value("role", "") == "assistant"; }

// With its keys in order.
nlohmann::json sorted(const ordered_json& value) {
  nlohmann::json parsed = parse_json(json_text(value));
  return parsed;
}

nlohmann::json call_of(const ordered_json& call) {
  const auto function = call.find("function");
  if (function == call.end() || !function->is_object()) return sorted(call);
  nlohmann::json arguments;
  if (const auto at = function->find("arguments"); at != function->end()) {
    arguments = sorted(*at);
    // A text that holds an object is that object; its depth is bounded.
    if (at->is_string())
      if (const auto object = parse_json_row(at->get<std::string>()))
        arguments = sorted(object.value());
  }
  return {function->value("name", ""), std::move(arguments)};
}

// What makes two messages the same.
std::string shape_of(const ordered_json& message) {
  nlohmann::json shape = {{"role", message.value("role", "")}};
  if (is_answer(message)) {
    shape["content"] = without_blanks(text_of(message));
    nlohmann::json calls = nlohmann::json::array();
    if (const auto at = message.find("tool_calls"); at != message.end() && at->is_array())
      for (const ordered_json& call : *at) calls.push_back(call_of(call));
    shape["calls"] = std::move(calls);
  } else {
    shape["content"] = text_of(message);
    for (const char* key : {"name", "tool_call_id"})
      if (const auto at = message.find(key); at != message.end()) shape[key] = sorted(*at);
  }
  return json_text(shape);
}

// Of what was said behind the last answer of a conversation, without the ids of calls, which differ
// from one episode to the other.
uint64_t anchor_of_messages(const ordered_json& messages) {
  std::string said;
  for (auto at = messages.rbegin(); at != messages.rend() && !is_answer(*at); ++at)
    said = at->value("role", "") + '\n' + text_of(*at) + '\n' + said;
  return anchor_of(said);
}

// What a client may leave out of an answer; empty: it has, or there was nothing.
std::string asides_of(const ordered_json& message) {
  std::string asides;
  if (const auto at = message.find("reasoning_content"); at != message.end() && at->is_string())
    asides += without_blanks(at->get<std::string>());
  if (const auto calls = message.find("tool_calls"); calls != message.end() && calls->is_array())
    for (const ordered_json& call : *calls) asides += "\n" + call.value("id", "");
  return asides;
}

Digest longer(const Digest& path, std::string_view next) {
  return digest_of(path + ' ' + std::string(next));
}

Digest text_path(std::string_view text) { return longer(digest_of("text"), text); }

std::string_view bytes_of(std::span<const TokenId> tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()};
}

ordered_json message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

}  // namespace

size_t Capture::context_size(int32_t segment) const {
  const Segment& own = segments_[static_cast<size_t>(segment)];
  return static_cast<size_t>(own.parent_tokens) + own.tokens.size();
}

std::vector<TokenId> Capture::context_of(const Point& point) const {
  const Segment& segment = segments_[static_cast<size_t>(point.segment)];
  const auto inherited = static_cast<size_t>(segment.parent_tokens);
  if (point.num_tokens <= inherited) {
    if (segment.parent < 0) return {};
    return context_of({segment.parent, point.num_tokens});
  }
  std::vector<TokenId> tokens;
  if (segment.parent >= 0) tokens = context_of({segment.parent, inherited});
  const auto begin = segment.tokens.begin();
  tokens.insert(tokens.end(), begin,
                begin + static_cast<std::ptrdiff_t>(point.num_tokens - inherited));
  return tokens;
}

// The messages from `begin` on. `last`: the token in front of them, which ends an answer; -1: they
// are the beginning. A model without a chat template hears their texts, one behind the other.
Result<std::vector<TokenId>> Capture::encode(const ordered_json& messages, size_t begin,
                                             const std::string& tools, TokenId last) const {
  chat::Said said;
  if (format_.has_template()) {
    const ordered_json rest(ordered_json::array_t(
        messages.begin() + static_cast<std::ptrdiff_t>(begin), messages.end()));
    said.messages = json_text(rest);
    if (begin == 0) said.tools = tools;
  } else {
    if (!tools.empty())
      return Failure{"this model has no chat template, so nothing can tell it of tools"};
    for (size_t i = begin; i < messages.size(); ++i) said.text += text_of(messages[i]);
  }
  return begin == 0 ? format_.first(said) : format_.next(said, last);
}

Capture::Place Capture::behind(int32_t answer) {
  Answer& at = answers_[static_cast<size_t>(answer)];
  Place place;
  place.context = context_of(at.end);
  place.num_known = place.context.size();
  place.behind = answer;
  place.num_prompt = at.num_prompt;
  place.session = std::exchange(at.session, 0);
  return place;
}

void Capture::ask(Place& place, Digest path, const ordered_json& said) {
  if (place.behind < 0) {
    place.num_prompt = place.context.size();
    if (!answers_.empty()) ++num_begun_anew_;
  }
  place.ordinal = asked_[path]++;
  place.path = std::move(path);
  place.said = std::make_shared<const ordered_json>(said);
  if (first_said_.is_null()) first_said_ = said;
}

// Of answers that are the same but for what clients leave out.
int32_t Capture::meant(const std::vector<int32_t>& same, const ordered_json& message) const {
  const std::string asides = asides_of(message);
  for (auto at = same.rbegin(); !asides.empty() && at != same.rend(); ++at)
    if (answers_[static_cast<size_t>(*at)].asides == asides) return *at;
  return same.back();
}

Result<Capture::Place> Capture::open(const ordered_json& messages, const std::string& tools) {
  if (!messages.is_array() || messages.empty()) return Failure{"there are no messages"};
  if (is_answer(messages.back()))
    return Failure{"the last message is the assistant's, so there is nothing to answer"};
  Digest path = digest_of("chat " + tools);
  std::optional<int32_t> newest;
  size_t num_captured = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    path = longer(path, shape_of(messages[i]));
    const auto found = answers_of_.find(path);
    if (found == answers_of_.end()) continue;
    newest = meant(found->second, messages[i]);
    num_captured = i + 1;
  }
  Place place;
  if (newest) {
    const TokenId last = answers_[static_cast<size_t>(*newest)].last;
    // Where the template cannot write what follows behind an answer, the conversation is written
    // whole.
    if (auto said = encode(messages, num_captured, tools, last)) {
      place = behind(*newest);
      place.context.insert(place.context.end(), said.value().begin(), said.value().end());
    }
  }
  if (place.behind < 0) {
    auto said = encode(messages, 0, tools, -1);
    if (!said) return said.failure();
    place.context = std::move(said).value();
  }
  if (place.context.empty()) return Failure{"the messages have no text"};
  place.anchor = anchor_of_messages(messages);
  ask(place, std::move(path), messages);
  return place;
}

Result<Capture::Place> Capture::open_text(const std::string& prompt) {
  std::optional<int32_t> longest;
  size_t num_captured = 0;
  for (size_t i = 0; i < answers_.size(); ++i) {
    for (const std::string* text : {&answers_[i].shown, &answers_[i].text}) {
      if (text->empty() || text->size() < num_captured || !prompt.starts_with(*text)) continue;
      longest = static_cast<int32_t>(i);
      num_captured = text->size();
    }
  }
  Place place;
  const chat::PromptFormat plain(format_.tokenizer());
  const chat::Said said{.text = prompt.substr(num_captured)};
  auto tokens = longest ? plain.next(said, -1) : plain.first(said);
  if (!tokens) return tokens.failure();
  if (longest) place = behind(*longest);
  place.context.insert(place.context.end(), tokens.value().begin(), tokens.value().end());
  if (place.context.empty()) return Failure{"the prompt is empty"};
  place.anchor = anchor_of(said.text);
  ask(place, text_path(prompt), ordered_json::array({message("user", prompt)}));
  return place;
}

Result<Capture::Place> Capture::open_tokens(std::vector<TokenId> prompt) {
  if (prompt.empty()) return Failure{"the prompt is empty"};
  std::optional<int32_t> longest;
  size_t num_captured = 0;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const size_t size = answers_[i].end.num_tokens;
    if (size < num_captured || size > prompt.size()) continue;
    if (!std::ranges::equal(context_of(answers_[i].end), std::span(prompt).first(size))) continue;
    longest = static_cast<int32_t>(i);
    num_captured = size;
  }
  Place place;
  if (longest) place = behind(*longest);
  const std::string text = format_.tokenizer().decode(prompt, /*keep_special=*/true);
  Digest path = longer(digest_of("tokens"), bytes_of(prompt));
  place.anchor = anchor_of(bytes_of(std::span(prompt).subspan(num_captured)));
  place.context = std::move(prompt);
  ask(place, std::move(path), ordered_json::array({message("user", text)}));
  return place;
}

Capture::Place Capture::again(const Place& place) {
  Place other = place;
  other.session = 0;
  other.ordinal = asked_[place.path]++;
  return other;
}

// Where the answer to it goes; what was said is written there if it is not yet.
int32_t Capture::segment_for(const Place& place) {
  const auto index = static_cast<int32_t>(segments_.size());
  // The same messages may stand behind two answers that read the same and are other tokens.
  const Digest here = longer(place.path, std::to_string(place.behind));
  if (const auto asked = prompts_.find(here); asked != prompts_.end()) {
    // Somebody has been given an answer to the same.
    Segment& branch = segments_.emplace_back();
    branch.parent = asked->second.segment;
    branch.parent_tokens = static_cast<int32_t>(asked->second.num_tokens);
    return index;
  }
  const std::span said = std::span(place.context).subspan(place.num_known);
  int32_t segment = index;
  if (place.behind < 0) {
    segments_.emplace_back();
    append_said(segments_.back(), said, TokenRole::kPrompt);
  } else {
    const Point& end = answers_[static_cast<size_t>(place.behind)].end;
    if (context_size(end.segment) == end.num_tokens) {
      segment = end.segment;
    } else {
      Segment& branch = segments_.emplace_back();
      branch.parent = end.segment;
      branch.parent_tokens = static_cast<int32_t>(end.num_tokens);
    }
    append_said(segments_[static_cast<size_t>(segment)], said, TokenRole::kObservation);
  }
  prompts_[here] = {segment, place.context.size()};
  return segment;
}

void Capture::commit(const Place& place, const std::vector<GeneratedToken>& tokens,
                     const ordered_json& answer, SessionId session) {
  if (tokens.empty()) return discard(place);
  const int32_t index = segment_for(place);
  TR_CHECK(context_size(index) == place.context.size(), "segment {} is no place for an answer",
           index);
  Segment& segment = segments_[static_cast<size_t>(index)];
  segment.turn_begins.push_back(static_cast<int32_t>(segment.tokens.size()));
  segment.turn_numbers.push_back(static_cast<int32_t>(answers_.size()));
  for (const GeneratedToken& token : tokens) append_sampled(segment, token, /*numerics_class=*/0);
  Answer& captured = answers_.emplace_back();
  captured.end = {index, context_size(index)};
  captured.last = tokens.back().id;
  captured.session = session;
  captured.num_prompt = place.num_prompt;
  captured.anchor = place.anchor;
  captured.asides = asides_of(answer);
  if (const std::string prompt = text_of(place.said->front()); place.path == text_path(prompt)) {
    std::vector<TokenId> ids;
    for (const GeneratedToken& token : tokens) ids.push_back(token.id);
    captured.text = prompt + format_.tokenizer().decode(ids);
    captured.shown = prompt + text_of(answer);
  }
  answers_of_[longer(place.path, shape_of(answer))].push_back(
      static_cast<int32_t>(answers_.size()) - 1);
  last_conversation_ = *place.said;
  last_conversation_.push_back(answer);
}

void Capture::discard(const Place& place) {
  const auto at = asked_.find(place.path);
  TR_CHECK(at != asked_.end() && at->second > 0, "a call that was not opened");
  // The next one that asks the same draws as this one would have, unless another draws already
  // behind it.
  if (place.ordinal + 1 == at->second) --at->second;
}

std::vector<SessionId> Capture::sessions() const {
  std::vector<SessionId> sessions;
  for (const Answer& answer : answers_)
    if (answer.session != 0) sessions.push_back(answer.session);
  return sessions;
}

std::vector<uint64_t> Capture::anchors() const {
  std::vector<uint64_t> anchors;
  for (const Answer& answer : answers_) anchors.push_back(answer.anchor);
  return anchors;
}

std::vector<Segment> Capture::take() {
  for (Segment& segment : segments_) drop_empty_sets(segment);
  return std::move(segments_);
}

}  // namespace tailrace::gateway
