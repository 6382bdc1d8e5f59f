#include "rollout/gateway/capture.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <ranges>
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

// Limit of kept conversations whose answers nobody knows to be read or not.
constexpr size_t kMostConversations = 256;

std::string_view without_blanks(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string content_of(const ordered_json& message) {
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
  // Clients may parse the arguments of a call and write them anew, with other blanks and in another
  // order of keys.
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

// The text by which two messages are the same.
std::string shape_of(const ordered_json& message) {
  nlohmann::json shape = {{"role", message.value("role", "")}};
  if (is_answer(message)) {
    shape["content"] = without_blanks(content_of(message));
    nlohmann::json calls = nlohmann::json::array();
    if (const auto at = message.find("tool_calls"); at != message.end() && at->is_array())
      for (const ordered_json& call : *at) calls.push_back(call_of(call));
    shape["calls"] = std::move(calls);
  } else {
    shape["content"] = content_of(message);
    for (const char* key : {"name", "tool_call_id"})
      if (const auto at = message.find(key); at != message.end()) shape[key] = sorted(*at);
  }
  return json_text(shape);
}

// Anchor of the messages behind the last answer of a conversation, without the ids of calls, which
// differ from one episode to the other.
uint64_t anchor_of_messages(const ordered_json& messages) {
  size_t begin = messages.size();
  while (begin > 0 && !is_answer(messages[begin - 1])) --begin;
  std::string said;
  for (size_t i = begin; i < messages.size(); ++i)
    said += messages[i].value("role", "") + '\n' + content_of(messages[i]) + '\n';
  return anchor_of(said);
}

// The parts of an answer that a client may leave out; empty: it has, or there was nothing.
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

// The messages from `begin` on. A model without a chat template hears their texts, one behind the
// other.
Result<chat::PromptFormat::Written> text_of(const Capture::Opening& opening,
                                            const chat::PromptFormat& format, size_t begin) {
  const ordered_json& messages = opening.said;
  chat::Said said;
  if (format.has_template()) {
    const ordered_json rest(ordered_json::array_t(
        messages.begin() + static_cast<std::ptrdiff_t>(begin), messages.end()));
    said.messages = json_text(rest);
    if (begin == 0) said.tools = opening.tools;
  } else {
    if (!opening.tools.empty())
      return Failure{"this model has no chat template, so nothing can tell it of tools"};
    for (size_t i = begin; i < messages.size(); ++i) said.text += content_of(messages[i]);
  }
  return begin == 0 ? format.write_first(said) : format.write_next(said);
}

// Leaves the first `size` tokens of a segment.
void cut_behind(Segment& segment, size_t size) {
  if (segment.tokens.size() <= size) return;
  const auto cut = [size](auto& values) {
    if (values.size() > size) values.resize(size);
  };
  cut(segment.tokens);
  cut(segment.roles);
  cut(segment.logprobs);
  cut(segment.versions);
  cut(segment.classes);
  cut(segment.log_masses);
  cut(segment.kept_counts);
  size_t num_kept = 0;
  for (const int32_t count : segment.kept_counts) num_kept += static_cast<size_t>(count);
  segment.kept_ids.resize(std::min(segment.kept_ids.size(), num_kept));
  while (!segment.turn_begins.empty() && std::cmp_greater_equal(segment.turn_begins.back(), size)) {
    segment.turn_begins.pop_back();
    segment.turn_numbers.pop_back();
  }
}

// Writes a segment behind the one that it continues to its end.
void append(Segment& segment, Segment&& next) {
  const auto size = static_cast<int32_t>(segment.tokens.size());
  for (int32_t& begin : next.turn_begins) begin += size;
  const auto move_to_end = [](auto& values, auto& more) {
    values.insert(values.end(), more.begin(), more.end());
  };
  move_to_end(segment.tokens, next.tokens);
  move_to_end(segment.roles, next.roles);
  move_to_end(segment.logprobs, next.logprobs);
  move_to_end(segment.versions, next.versions);
  move_to_end(segment.classes, next.classes);
  move_to_end(segment.turn_begins, next.turn_begins);
  move_to_end(segment.turn_numbers, next.turn_numbers);
  move_to_end(segment.log_masses, next.log_masses);
  move_to_end(segment.kept_counts, next.kept_counts);
  move_to_end(segment.kept_ids, next.kept_ids);
}

}  // namespace

size_t Capture::context_size(int32_t segment) const {
  const Segment& own = segments_[static_cast<size_t>(segment)];
  return static_cast<size_t>(own.parent_tokens) + own.tokens.size();
}

std::vector<TokenId> Capture::context_of(const Point& point) const {
  const Segment& segment = segments_[static_cast<size_t>(point.segment)];
  const auto inherited = static_cast<size_t>(segment.parent_tokens);
  // The place may lie in what the segment has inherited, as when a branch adds nothing of its own.
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

Capture::Place Capture::behind(int32_t answer) {
  Answer& at = answers_[static_cast<size_t>(answer)];
  at.is_heard = at.is_used = at.is_known_heard = true;  // else it could not be sent again
  Place place;
  place.context = context_of(at.end);
  place.num_known = place.context.size();
  place.behind = answer;
  place.num_prompt = at.num_prompt;
  // The first call that goes on here takes the session with its KV. Another one, a branch, gives a
  // session of its own the whole context.
  place.session = std::exchange(at.session, 0);
  return place;
}

void Capture::ask(Place& place, Digest path, ordered_json said) {
  if (place.behind < 0) {
    // A conversation that begins here has all of this for its prompt: the limit of a response
    // counts from behind it.
    place.num_prompt = place.context.size();
    if (!answers_.empty()) ++num_begun_anew_;
  }
  place.ordinal = asked_[path]++;
  place.path = std::move(path);
  if (first_said_.is_null()) first_said_ = said;
  place.said = std::make_shared<const ordered_json>(std::move(said));
}

// Tells answers apart that are the same but for what clients leave out.
int32_t Capture::meant(const std::vector<int32_t>& same, const ordered_json& message) const {
  const std::string asides = asides_of(message);
  for (auto at = same.rbegin(); !asides.empty() && at != same.rend(); ++at)
    if (answers_[static_cast<size_t>(*at)].asides == asides) return *at;
  return same.back();
}

Result<Capture::Opening> Capture::begin(ordered_json messages, std::string tools) {
  if (!messages.is_array() || messages.empty()) return Failure{"there are no messages"};
  if (is_answer(messages.back()))
    return Failure{"the last message is the assistant's, so there is nothing to answer"};
  Opening opening{.said = std::move(messages), .tools = std::move(tools), .prompt = {}};
  Digest path = digest_of("chat " + opening.tools);
  for (const ordered_json& said : opening.said)
    opening.paths.push_back(path = longer(path, shape_of(said)));
  opening.anchor = anchor_of_messages(opening.said);
  return opening;
}

Result<Capture::Opening> Capture::begin_text(std::string prompt) {
  if (prompt.empty()) return Failure{"the prompt is empty"};
  Opening opening{.said = ordered_json::array({message("user", prompt)}),
                  .tools = {},
                  .prompt = std::move(prompt)};
  opening.paths = {text_path(*opening.prompt)};
  return opening;
}

Result<Capture::Opening> Capture::begin_tokens(std::vector<TokenId> prompt) {
  if (prompt.empty()) return Failure{"the prompt is empty"};
  Opening opening{.said = {}, .tools = {}, .prompt = {}, .ids = std::move(prompt)};
  opening.paths = {longer(digest_of("tokens"), bytes_of(*opening.ids))};
  return opening;
}

void Capture::find(Opening& opening) const {
  const auto goes_on = [&](size_t answer, size_t num_captured) {
    opening.behind = static_cast<int32_t>(answer);
    opening.num_captured = num_captured;
    opening.last = answers_[answer].last;
  };
  if (opening.prompt) {
    for (size_t i = 0; i < answers_.size(); ++i)
      // As the client was shown it, or as it was sampled: what is shown lacks the stop string and
      // the token that ended the answer.
      for (const std::string* text : {&answers_[i].shown, &answers_[i].text})
        if (!text->empty() && text->size() >= opening.num_captured &&
            opening.prompt->starts_with(*text))
          goes_on(i, text->size());
  } else if (opening.ids) {
    for (size_t i = 0; i < answers_.size(); ++i) {
      const size_t size = answers_[i].end.num_tokens;
      if (size < opening.num_captured || size > opening.ids->size()) continue;
      if ((*opening.ids)[size - 1] != answers_[i].last) continue;  // before all are compared
      if (std::ranges::equal(context_of(answers_[i].end), std::span(*opening.ids).first(size)))
        goes_on(i, size);
    }
  } else {
    // The last match is behind the most messages: all that can be kept of the history is.
    for (size_t i = 0; i < opening.paths.size(); ++i)
      if (const auto found = answers_of_.find(opening.paths[i]); found != answers_of_.end())
        goes_on(static_cast<size_t>(meant(found->second, opening.said[i])), i + 1);
  }
}

Result<void> Capture::write(Opening& opening, const chat::PromptFormat& format,
                            int64_t max_tokens) {
  const text::Tokenizer& tokenizer = format.tokenizer();
  const auto encode = [&](const chat::PromptFormat& by,
                          const chat::PromptFormat::Written& written) -> Result<void> {
    // Encoding takes long for a long text, and one that cannot fit is refused by its least number
    // of tokens instead.
    const int64_t least = text::least_num_tokens(tokenizer, written.text);
    if (least > max_tokens) {
      opening.least_tokens = least;
      opening.text_bytes = std::ssize(written.text);
      return {};
    }
    auto tokens = by.encode(written, opening.last);
    if (!tokens) return tokens.failure();
    opening.tokens = std::move(tokens).value();
    if (opening.behind < 0 && opening.tokens.empty())
      return Failure{opening.prompt ? "the prompt is empty" : "the messages have no text"};
    return {};
  };
  if (opening.ids) {
    const std::span ids(*opening.ids);
    opening.anchor = anchor_of(bytes_of(ids.subspan(opening.num_captured)));
    opening.tokens.assign(ids.begin() + static_cast<std::ptrdiff_t>(opening.num_captured),
                          ids.end());
    if (std::ssize(ids) > max_tokens) {
      opening.least_tokens = std::ssize(ids);
      return {};
    }
    opening.said = ordered_json::array(
        {message("user", tokenizer.decode(*opening.ids, /*keep_special=*/true))});
    return {};
  }
  if (opening.prompt) {
    const chat::PromptFormat plain(tokenizer);
    const std::string rest = opening.prompt->substr(opening.num_captured);
    opening.anchor = anchor_of(rest);
    return encode(plain, {.text = rest, .behind_answer = opening.behind >= 0});
  }
  if (opening.behind >= 0) {
    if (const auto written = text_of(opening, format, opening.num_captured))
      if (encode(format, written.value())) return {};
    // Where the template cannot write what follows behind an answer, the conversation is written
    // whole.
    opening.behind = -1;
    opening.last = -1;
  }
  const auto written = text_of(opening, format, 0);
  if (!written) return written.failure();
  return encode(format, written.value());
}

Capture::Place Capture::settle(Opening opening) {
  Place place;
  if (opening.behind >= 0) place = behind(opening.behind);
  place.context.insert(place.context.end(), opening.tokens.begin(), opening.tokens.end());
  place.anchor = opening.anchor;
  ask(place, std::move(opening.paths.back()), std::move(opening.said));
  return place;
}

Result<Capture::Place> Capture::open(Result<Opening> begun) {
  if (!begun) return begun.failure();
  Opening opening = std::move(begun).value();
  find(opening);
  if (auto written = write(opening, format_, std::numeric_limits<int64_t>::max()); !written)
    return written.failure();
  return settle(std::move(opening));
}

Result<Capture::Place> Capture::open(const ordered_json& messages, const std::string& tools) {
  return open(begin(messages, tools));
}
Result<Capture::Place> Capture::open_text(const std::string& prompt) {
  return open(begin_text(prompt));
}
Result<Capture::Place> Capture::open_tokens(std::vector<TokenId> prompt) {
  return open(begin_tokens(std::move(prompt)));
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
    // The segment grows where the answer is its end. Where something was written behind the answer
    // already, another segment branches off there.
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

int32_t Capture::commit(const Place& place, const std::vector<GeneratedToken>& tokens,
                        const ordered_json& answer, SessionId session) {
  TR_CHECK(!tokens.empty(), "an answer without a token is none");
  const int32_t index = segment_for(place);
  TR_CHECK(context_size(index) == place.context.size(), "segment {} is no place for an answer",
           index);
  Segment& segment = segments_[static_cast<size_t>(index)];
  segment.turn_begins.push_back(static_cast<int32_t>(segment.tokens.size()));
  segment.turn_numbers.push_back(static_cast<int32_t>(answers_.size()));
  for (const GeneratedToken& token : tokens) append_sampled(segment, token, /*numerics_class=*/0);
  Answer& captured = answers_.emplace_back();
  captured.end = {index, context_size(index)};
  // Where drop_unheard() cuts, if nobody has read the answer.
  captured.begin = segment.tokens.size() - tokens.size();
  captured.last = tokens.back().id;
  captured.session = session;
  captured.num_prompt = place.num_prompt;
  captured.anchor = place.anchor;
  captured.asides = asides_of(answer);
  // Only a call of text has this path. A continuation of a text is found by its bytes, so what the
  // client will send again is kept: the prompt with its answer.
  if (const std::string prompt = content_of(place.said->front()); place.path == text_path(prompt)) {
    std::vector<TokenId> ids;
    for (const GeneratedToken& token : tokens) ids.push_back(token.id);
    captured.text = prompt + format_.tokenizer().decode(ids);
    captured.shown = prompt + content_of(answer);
  }
  answers_of_[longer(place.path, shape_of(answer))].push_back(
      static_cast<int32_t>(answers_.size()) - 1);
  const auto number = static_cast<int32_t>(answers_.size()) - 1;
  keep_conversation({.answer = number, .said = place.said, .message = answer});
  return number;
}

// Whether an answer was read is known behind it: those before the last one that was read for
// certain are not asked for any more.
void Capture::keep_conversation(Conversation conversation) {
  const auto is_known = [&](const Conversation& one) {
    return answers_[static_cast<size_t>(one.answer)].is_known_heard;
  };
  const auto known = std::find_if(conversations_.rbegin(), conversations_.rend(), is_known);
  if (known != conversations_.rend())
    conversations_.erase(conversations_.begin(), std::prev(known.base()));
  // Where nobody tells what was read the list would grow with every answer.
  if (conversations_.size() >= kMostConversations) conversations_.pop_front();
  conversations_.push_back(std::move(conversation));
}

ordered_json Capture::last_conversation() const {
  for (const Conversation& one : conversations_ | std::views::reverse) {
    if (!answers_[static_cast<size_t>(one.answer)].is_heard) continue;
    ordered_json messages = *one.said;
    messages.push_back(one.message);
    return messages;
  }
  return {};
}

bool Capture::set_heard(int32_t answer, const Place& place, bool is_heard) {
  Answer& at = answers_[static_cast<size_t>(answer)];
  // A call that went on behind the answer has shown that somebody read it.
  if (at.is_used) return false;
  at.is_known_heard = is_heard;
  if (at.is_heard == is_heard) return false;
  at.is_heard = is_heard;
  // A client that asks the same now draws an answer that nobody has read.
  if (is_heard)
    asked_[place.path] = std::max(asked_[place.path], place.ordinal + 1);
  else
    discard(place);
  return true;
}

bool Capture::has_unknown() const {
  return std::ranges::any_of(answers_,
                             [](const Answer& a) { return a.is_heard && !a.is_known_heard; });
}

void Capture::end_unknown() {
  for (Answer& answer : answers_) answer.is_heard = answer.is_known_heard;
}

bool Capture::is_unused(int32_t answer) const {
  const Answer& at = answers_[static_cast<size_t>(answer)];
  return at.is_heard && !at.is_used;
}

// No token stands behind one of these in its segment, or a call would have gone on behind it.
void Capture::drop_unheard() {
  std::vector<int32_t> numbers;  // of the answers, when the others are gone
  int32_t num_heard = 0;
  for (const Answer& answer : answers_) {
    numbers.push_back(answer.is_heard ? num_heard++ : -1);
    if (!answer.is_heard)
      cut_behind(segments_[static_cast<size_t>(answer.end.segment)], answer.begin);
  }
  if (std::cmp_equal(num_heard, answers_.size())) return;
  std::erase_if(answers_, [](const Answer& answer) { return !answer.is_heard; });
  for (Conversation& one : conversations_) one.answer = numbers[static_cast<size_t>(one.answer)];
  std::erase_if(conversations_, [](const Conversation& one) { return one.answer < 0; });
  for (Segment& segment : segments_)
    for (int32_t& number : segment.turn_numbers) number = numbers[static_cast<size_t>(number)];
  cut_unanswered();
  join_unanswered();
}

// Messages that led to a dropped answer alone go with it: no other answer stands behind them.
void Capture::cut_unanswered() {
  std::vector<size_t> needed(segments_.size(), 0);  // of a context, by those that continue it
  for (size_t i = segments_.size(); i-- > 0;) {     // children come behind their parents
    Segment& segment = segments_[i];
    const auto inherited = static_cast<size_t>(segment.parent_tokens);
    const auto sampled =
        std::find(segment.roles.rbegin(), segment.roles.rend(), TokenRole::kSampled);
    const auto answered = static_cast<size_t>(segment.roles.rend() - sampled);
    size_t& own = needed[i];
    if (answered > 0) own = std::max(own, inherited + answered);
    cut_behind(segment, own > inherited ? own - inherited : 0);
    if (segment.parent < 0) continue;
    size_t& of_parent = needed[static_cast<size_t>(segment.parent)];
    of_parent = std::max(of_parent, std::min(own, inherited));
  }
}

// As if nobody had asked in vain: the first segment that continues another one to its end is
// written behind it, and one without a token of its own is gone.
void Capture::join_unanswered() {
  std::vector<int32_t> places(segments_.size(), -1);
  std::vector<Segment> kept;
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& segment = segments_[i];
    if (segment.parent >= 0) segment.parent = places[static_cast<size_t>(segment.parent)];
    // A segment that is joined, or has nothing of its own, is found where its parent is.
    places[i] = segment.parent;
    // Its children continue what it has inherited.
    if (segment.tokens.empty()) continue;
    if (segment.parent >= 0) {
      Segment& parent = kept[static_cast<size_t>(segment.parent)];
      const size_t size = static_cast<size_t>(parent.parent_tokens) + parent.tokens.size();
      if (std::cmp_equal(segment.parent_tokens, size)) {
        append(parent, std::move(segment));
        continue;
      }
    }
    places[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(segment));
  }
  segments_ = std::move(kept);
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
  drop_unheard();
  // Where nothing was truncated the vectors of sets are all zero, and a body is shorter without
  // them.
  for (Segment& segment : segments_) drop_empty_sets(segment);
  return std::move(segments_);
}

}  // namespace tailrace::gateway
