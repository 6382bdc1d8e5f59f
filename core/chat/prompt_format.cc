#include "core/chat/prompt_format.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/json_text.h"
#include "core/base/number.h"
#include "core/chat/call_arguments.h"
#include "core/chat/loss_flag.h"
#include "core/chat/markers.h"
#include "core/text/messages.h"
#include "core/text/utf8.h"

namespace tailrace::chat {
namespace {

using nlohmann::ordered_json;

// A conversation that the template is asked about. The answer is found again in what it writes.
constexpr const char* kQuestion = "What is it?";
constexpr const char* kAnswer = "It is what tailrace asked for.";
constexpr const char* kTool = "tailrace_asks";
constexpr const char* kThought = "It may be.";
constexpr const char* kThinking = "<think>\nIt may be.\n</think>\n\n";

ordered_json message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// With a call of a tool.
ordered_json conversation_with_call(ordered_json arguments) {
  ordered_json call = {{"id", "call00001"},  // nine characters, which some templates want
                       {"type", "function"},
                       {"function", {{"name", kTool}, {"arguments", std::move(arguments)}}}};
  ordered_json answer = message("assistant", "");
  answer["tool_calls"] = ordered_json::array({std::move(call)});
  return ordered_json::array({message("user", kQuestion), std::move(answer)});
}

ordered_json sample_tool() {
  return {{"type", "function"},
          {"function",
           {{"name", kTool},
            {"description", kQuestion},
            {"parameters",
             {{"type", "object"},
              {"properties", {{"at", {{"type", "integer"}, {"description", kQuestion}}}}},
              {"required", {"at"}}}}}}};
}

// Empty: it has none.
std::string name_of_tool(const ordered_json& tool) {
  const auto inner = tool.find("function");
  const ordered_json& function = inner != tool.end() && inner->is_object() ? *inner : tool;
  const auto name = function.find("name");
  return name != function.end() && name->is_string() ? name->get<std::string>() : "";
}

ordered_json conversation(int answers, const std::string& answer = kAnswer) {
  ordered_json messages = ordered_json::array({message("user", kQuestion)});
  for (int i = 0; i < answers; ++i) {
    if (i > 0) messages.push_back(message("user", kQuestion));
    messages.push_back(message("assistant", answer));
  }
  return messages;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kWhite = " \t\r\n";
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == text.npos) return "";
  return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

// Behind the last answer.
std::optional<std::string> behind_answer_in(const std::string& text, int answers) {
  size_t at = 0;
  for (int i = 0; i < answers; ++i) {
    const size_t found = text.find(kAnswer, at);
    if (found == text.npos) return std::nullopt;
    at = found + std::string_view(kAnswer).size();
  }
  return text.substr(at);
}

ordered_json as_json(const std::string& value) {
  ordered_json parsed = parse_ordered_json(value);
  return parsed.is_discarded() ? ordered_json(value) : parsed;
}

void append(Lesson& lesson, std::span<const TokenId> tokens, bool counts) {
  lesson.tokens.insert(lesson.tokens.end(), tokens.begin(), tokens.end());
  lesson.counts.insert(lesson.counts.end(), tokens.size(), counts ? 1 : 0);
}

// The tokens of `whole` behind those of its beginning. Nothing: one lies over the border.
std::optional<std::vector<TokenId>> behind(std::span<const TokenId> beginning,
                                           std::span<const TokenId> whole) {
  if (!std::ranges::equal(beginning, whole.first(std::min(beginning.size(), whole.size()))))
    return std::nullopt;
  return std::vector<TokenId>(whole.begin() + std::ssize(beginning), whole.end());
}

Forbidden forbidden_by(const text::Tokenizer& tokenizer) {
  Forbidden forbidden{.always = tokenizer.special_tokens()};
  forbidden.to_tools = forbidden.always;
  // A tokenizer without such tokens writes them as words.
  for (const char* tag : {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
                          "<think>", "</think>"})
    if (const TokenId id = tokenizer.id_of(tag); id >= 0 && !tokenizer.is_special(id))
      forbidden.to_tools.emplace_back(tag);
  return forbidden;
}

}  // namespace

PromptFormat::PromptFormat(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

PromptFormat::PromptFormat(const text::Tokenizer& tokenizer, ChatTemplate chat_template,
                           const ChatOptions& options)
    : tokenizer_(tokenizer),
      template_(std::move(chat_template)),
      system_(options.system),
      variables_(ordered_json::object()),
      now_(options.now()),
      forbidden_(forbidden_by(tokenizer)) {
  for (const auto& [name, value] : options.variables) {
    for (const char* taken : {"messages", "tools", "documents", "add_generation_prompt"})
      if (name == taken)
        throw UserError::at("chat.variables",
                            "names {}, which is not for a config to give. "
                            "Remove it.",
                            name);
    // Python's own spelling is no JSON, and as a text it would be true.
    const auto truth = parse_boolean(value);
    variables_[name] = truth ? ordered_json(*truth) : as_json(value);
  }
  refuse_without_date();
  // A template may walk over tools without asking whether there are any.
  if (try_to_render(asking(conversation(0))).empty()) {
    tools_asked_with_ = ordered_json::array({sample_tool()});
    if (try_to_render(asking(conversation(0))).empty()) tools_asked_with_ = nullptr;
  }
  look_at_tools();
  look_at_turns();
  look_at_calls();
  look_at_thinking();
}

PromptFormat PromptFormat::of(const ChatOptions& options, const std::filesystem::path& directory,
                              const text::Tokenizer& tokenizer) {
  if (options.style == Style::kPlain) return PromptFormat(tokenizer);
  if (!options.template_file.empty())
    return PromptFormat(tokenizer, ChatTemplate::of_file(options.template_file, directory),
                        options);
  if (auto own = ChatTemplate::of_folder(directory))
    return PromptFormat(tokenizer, std::move(*own), options);
  const auto refuse = [&](const char* key) {
    throw UserError::at(key,
                        "has no effect: {} has no chat template. Remove it, or give one with "
                        "chat.template=FILE.",
                        directory.string());
  };
  if (!options.system.empty()) refuse("chat.system");
  if (!options.variables.empty()) refuse("chat.variables");
  if (!options.date.empty()) refuse("chat.date");
  return PromptFormat(tokenizer);
}

// A text that depends on the day could not be written again.
void PromptFormat::refuse_without_date() {
  if (now_) return;
  ChatInput input = input_of(conversation(0));
  for (const bool with_tools : {false, true}) {
    if (with_tools) input.tools = ordered_json::array({sample_tool()});
    ChatInput dated = input;
    dated.now = ChatOptions{.date = "2026-01-31"}.now();
    if (try_to_render(input).empty() && !try_to_render(dated).empty())
      throw UserError::at("chat.date",
                          "is not given, and the chat template asks for today's date. Give one day "
                          "for all, so that the run can be repeated: chat.date=2026-01-31 "
                          "(--chat-date of commands without a config).");
  }
}

void PromptFormat::look_at_tools() {
  ChatInput input = input_of(conversation(0));
  input.tools = ordered_json::array({sample_tool()});
  names_tools_ = try_to_render(input).find(kTool) != std::string::npos;
}

void PromptFormat::look_at_turns() {
  try {
    ordered_json one = conversation(1), three = conversation(3);
    one.push_back(message("user", kQuestion));
    three.push_back(message("user", kQuestion));
    const std::string grown = template_->render(asking(one));
    // Two histories of other lengths: if the text behind an answer differs between them, a turn
    // cannot be appended to tokens that were sampled before, and the prompt would have to be
    // encoded anew.
    const auto behind = behind_answer_in(grown, 1),
               later = behind_answer_in(template_->render(asking(three)), 3);
    if (!behind || !later) {
      turns_fault_ = "it does not write an answer as it was given";
      return;
    }
    if (*behind != *later) {
      turns_fault_ = "what it writes behind an answer depends on the turns before";
      return;
    }
    const std::vector<TokenId> ids = encode_inside(*behind, {});
    if (const size_t end = size_of_end(ids); end > 0) end_of_turn_ = ids[end - 1];

    const auto rewritten = [&](const std::string& answer) {
      ordered_json after = conversation(1, answer);
      after.push_back(message("user", kQuestion));
      return first_difference(*template_, asking(conversation(0)), answer, asking(after))
          .has_value();
    };
    // Two probes: with and without thinking, since most reasoning templates drop only that of past
    // answers.
    if (rewritten(kAnswer)) {
      rewrites_ = "it writes the beginning of an answer otherwise once the next one begins";
    } else if (rewritten(std::string(kThinking) + kAnswer)) {
      rewrites_ = "it leaves the thinking of an answer out once the next one begins";
    }
  } catch (const UserError& error) {
    turns_fault_ = error.what();
  }
}

// Empty: the template refuses it.
std::string PromptFormat::try_to_render(const ChatInput& input) const {
  try {
    return template_->render(input);
  } catch (const UserError&) {
    return "";
  }
}

// How the template takes a call: what it writes around the name of the tool says the form of calls.
void PromptFormat::look_at_calls() {
  const auto written = [&](ordered_json arguments) {
    return try_to_render(asking(conversation_with_call(std::move(arguments))));
  };
  // The odd blank is a mark: it survives where the text is written as it is, and goes where a
  // template parses the arguments or writes them with tojson.
  constexpr const char* kText = R"({"at" :1})";
  const std::string with_object = written({{"at", 1}}), with_text = written(kText);
  const bool takes_text = with_text.find(kText) != with_text.npos;
  if (with_object.empty() && takes_text) {
    arguments_form_ = ArgumentsForm::kTexts;
  } else if (!takes_text && (with_text.empty() || with_text != with_object)) {
    arguments_form_ = ArgumentsForm::kObjects;
  }
  const std::string& text = with_object.empty() ? with_text : with_object;
  const size_t name = text.find(kTool);
  leaves_calls_out_ = !text.empty() && name == text.npos && with_object == with_text;
  if (name == text.npos) return;
  const std::string_view before = std::string_view(text).substr(0, name),
                         behind = std::string_view(text).substr(name);
  const size_t tag = before.rfind("<tool_call>"), brace = before.rfind('{');
  if (brace == before.npos || before.find("\"name\"", brace) == before.npos) return;
  // The tag must touch the object: some templates name <tool_call> in their instructions too.
  if (tag != before.npos && before.find_first_not_of(" \n", before.find('>', tag) + 1) == brace) {
    answer_form_.tools = ToolForm::kHermes;
  } else if (behind.find("\"parameters\"") != behind.npos) {
    answer_form_.tools = ToolForm::kLlama3;
  }
}

// The template opens the thinking of each answer; or it writes the thinking of a message that has
// one; or it takes it out of an answer that is not the last.
void PromptFormat::look_at_thinking() {
  const std::string beginning = try_to_render(asking(conversation(0)));
  const size_t open = beginning.rfind("<think>"), close = beginning.rfind("</think>");
  answer_form_.begins_thinking =
      open != beginning.npos && (close == beginning.npos || close < open) &&
      beginning.find_first_not_of(" \n", open + std::string_view("<think>").size()) ==
          beginning.npos;
  ordered_json thought = conversation(1), past = conversation(1, std::string(kThinking) + kAnswer);
  thought.back()["reasoning_content"] = kThought;
  past.push_back(message("user", kQuestion));
  const std::string newest = try_to_render(asking(thought)), later = try_to_render(asking(past));
  const size_t at = newest.find(kThought);
  const bool writes = at != newest.npos && newest.rfind("<think>", at) != newest.npos;
  const bool drops = later.find(kAnswer) != later.npos && later.find(kThought) == later.npos;
  answer_form_.thinks = answer_form_.begins_thinking || writes || drops;
}

size_t PromptFormat::size_of_end(std::span<const TokenId> behind) const {
  for (size_t i = 0; i < behind.size(); ++i) {
    if (tokenizer_.is_special(behind[i])) return i + 1;
    if (tokenizer_.decode(behind.subspan(i, 1)).find_first_not_of(" \t\r\n") != std::string::npos)
      return 0;
  }
  return 0;
}

ordered_json PromptFormat::messages_of(const Said& said) const {
  if (said.messages.empty()) return ordered_json::array({message("user", said.text)});
  ordered_json messages = parse_ordered_json(said.messages);
  if (!text::are_messages(messages))
    throw UserError("the messages are not a list of {{\"role\", \"content\"}}");
  if (const Result<bool> texts = text::make_texts(messages); !texts)
    throw UserError("{}", texts.failure().message);
  bring_arguments_into(arguments_form_, messages);
  return messages;
}

ordered_json PromptFormat::with_system(ordered_json messages) const {
  if (!system_.empty() && messages.front().at("role") != "system")
    messages.insert(messages.begin(), message("system", system_));
  return messages;
}

ChatInput PromptFormat::input_of(ordered_json messages) const {
  ChatInput input;
  input.messages = with_system(std::move(messages));
  input.add_generation_prompt = true;
  input.variables = variables_;
  input.now = now_;
  return input;
}

// The input with which the template is asked about a conversation.
ChatInput PromptFormat::asking(ordered_json messages) const {
  ChatInput input = input_of(std::move(messages));
  input.tools = tools_asked_with_;
  return input;
}

ordered_json PromptFormat::tools_of(const Said& said) const {
  if (said.tools.empty()) return nullptr;
  ordered_json tools = parse_ordered_json(said.tools);
  if (!tools.is_array() ||
      !std::ranges::all_of(tools, [](const auto& tool) { return tool.is_object(); }))
    throw UserError("the tools are not a list of JSON schemas");
  return tools.empty() ? ordered_json() : tools;
}

// The tokens of a text that stands inside another: some tokenizers put a blank in front of a text,
// which is not there. So it is encoded behind words that it does not join.
std::vector<TokenId> PromptFormat::encode_inside(const std::string& text,
                                                 const text::EncodeOptions& options) const {
  // The end of the words and the beginning of the text may be one token: of a sampled answer that
  // end is one already. Then others are tried.
  for (const char* end : {"", "\n", "x"}) {
    const std::string words = std::string(kAnswer) + end;
    std::vector<size_t> shifted(options.literal.begin(), options.literal.end());
    for (size_t& offset : shifted) offset += words.size();
    if (const auto tokens =
            behind(tokenizer_.encode(words, {.find_special = options.find_special}),
                   tokenizer_.encode(words + text,
                                     {.find_special = options.find_special, .literal = shifted})))
      return *tokens;
  }
  return tokenizer_.encode(text, options);
}

// Some templates write the content of a message that only calls tools as Python writes null.
void PromptFormat::refuse_null_as_word(const ChatInput& input, const std::string& text) const {
  const auto is_null = [](const ordered_json& message) {
    const auto content = message.find("content");
    return content != message.end() && content->is_null();
  };
  if (std::ranges::none_of(input.messages, is_null)) return;
  ChatInput worded = input;
  for (ordered_json& message : worded.messages)
    if (is_null(message)) message["content"] = "None";
  // A second render with the word in place of the null tells a null that is written from one that
  // the template handles: the texts are equal only in the first case.
  if (template_->render(worded) == text)
    throw UserError(
        "the chat template writes a content that is null as \"None\". Write \"\" in its place");
}

void PromptFormat::refuse_calls_left_out(const ordered_json& messages) const {
  if (!leaves_calls_out_) return;
  for (size_t i = 0; i < messages.size(); ++i)
    if (const auto calls = messages[i].find("tool_calls");
        calls != messages[i].end() && calls->is_array() && !calls->empty())
      throw UserError(
          "message {} calls tools, which this chat template leaves out (chat.template=FILE)",
          i + 1);
}

// A message that the template has no branch for is gone without a word: its words could be others,
// and the text would be the same. `text`: what it writes for `input`, whose messages from `first`
// on are asked about.
void PromptFormat::refuse_left_out(ChatInput input, size_t first, const std::string& text) const {
  refuse_calls_left_out(input.messages);
  const auto is_usual = [](const ordered_json& role) {
    return role == "user" || role == "assistant" || role == "system" || role == "tool";
  };
  std::vector<size_t> missed;  // those whose words do not stand in the text as they are
  size_t at = 0;
  for (size_t i = first; i < input.messages.size(); ++i) {
    const ordered_json& said = input.messages[i];
    const auto content = said.find("content");
    if (content == said.end() || !content->is_string()) continue;
    const std::string_view words = trimmed(content->get_ref<const std::string&>());
    // A template may write an answer's calls in the place of its words.
    if (words.empty() || said.contains("tool_calls")) continue;
    const size_t found = text.find(words, at);
    if (found == text.npos || !is_usual(said.at("role"))) {
      missed.push_back(i);
    } else {
      at = found + words.size();
    }
  }
  if (missed.empty()) return;
  const auto change = [&](ChatInput& changed, size_t i) {
    std::string& content = changed.messages[i].at("content").get_ref<std::string&>();
    // The word goes to both ends, since a template may cut an answer at a tag and keep one part.
    const std::string word = fmt::format("tailrace{}asks", i);
    content = word + content + word;
    return word;
  };
  // Nearly always they stand there in another form, which one look at all of them tells.
  ChatInput all = input;
  std::vector<std::string> words;
  for (const size_t i : missed) words.push_back(change(all, i));
  const std::string changed = try_to_render(all);
  for (size_t k = 0; k < missed.size(); ++k) {
    if (changed.find(words[k]) != changed.npos) continue;
    ChatInput one = input;
    change(one, missed[k]);
    if (try_to_render(one) == text)
      throw UserError(
          "message {} has the role {}, whose words this chat template leaves out. Give it another "
          "role, or another template (chat.template=FILE)",
          missed[k] - first + 1, json_text(input.messages[missed[k]].at("role")));
  }
}

// Refuses tools that are left out, be it only for these messages: some templates write tools with a
// message of one role. A second render tells, where the name of a tool does not.
std::string PromptFormat::render_with_tools(ChatInput& input, ordered_json tools) const {
  const std::string name = name_of_tool(tools.front());
  input.tools = std::move(tools);
  std::string text = template_->render(input);
  if (names_tools_ && !name.empty() && text.find(name) != text.npos) return text;
  ordered_json kept = std::exchange(input.tools, nullptr);
  if (text == try_to_render(input))
    throw UserError("it has tools, which this chat template leaves out (chat.template=FILE)");
  input.tools = std::move(kept);
  return text;
}

// The text up to the beginning of the policy's answer: all, or the part behind an earlier
// answer.
PromptFormat::Written PromptFormat::write(const Said& said, bool behind_answer) const {
  ordered_json messages = messages_of(said), tools = tools_of(said);
  const size_t num_said = messages.size();
  // Behind an answer a system message in front is cut off.
  if (!behind_answer) messages = with_system(std::move(messages));
  const std::string marker = mark(messages, tools, forbidden_);
  ordered_json all = behind_answer ? conversation(1) : ordered_json::array();
  all.insert(all.end(), messages.begin(), messages.end());
  const size_t first = all.size() - num_said;
  ChatInput input = behind_answer ? asking(std::move(all)) : input_of(std::move(all));
  std::string text =
      tools.is_null() ? template_->render(input) : render_with_tools(input, std::move(tools));
  refuse_null_as_word(input, text);
  refuse_left_out(std::move(input), first, text);
  if (behind_answer) {
    auto behind = behind_answer_in(text, 1);
    if (!behind) throw UserError("the chat template does not write an answer as it was given");
    text = std::move(*behind);
  }
  std::vector<size_t> literal = take_out(text, marker);
  return {.text = std::move(text), .literal = std::move(literal), .behind_answer = behind_answer};
}

Result<PromptFormat::Written> PromptFormat::write_first(const Said& said) const {
  try {
    if (template_) return write(said, /*behind_answer=*/false);
    if (!said.messages.empty() || !said.tools.empty())
      return Failure{
          fmt::format("it {}, which only a chat template can write. Give one with "
                      "chat.template=FILE",
                      said.messages.empty() ? "has tools" : "is a list of messages")};
    return Written{.text = said.text};
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

Result<PromptFormat::Written> PromptFormat::write_next(const Said& said) const {
  try {
    if (!said.tools.empty())
      return Failure{"it has tools, which a conversation has at its beginning"};
    if (template_) return write(said, /*behind_answer=*/true);
    if (!said.messages.empty()) return write_first(said);  // which says why not
    return Written{.text = said.text, .behind_answer = true};
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

Result<std::vector<TokenId>> PromptFormat::encode(const Written& written, TokenId last) const {
  const auto& [text, literal, behind_answer] = written;
  try {
    if (!template_)
      return tokenizer_.encode(text, {.framed = !behind_answer, .find_special = false});
    // The template writes what a tokenizer would put in front.
    if (!behind_answer) return tokenizer_.encode(text, {.literal = literal});
    std::vector<TokenId> ids = encode_inside(text, {.literal = literal});
    // Written already, by the policy.
    const size_t end = size_of_end(ids);
    // The policy sampled the token that ends its turn, and the template writes it once more.
    if (end > 0 && last == end_of_turn_ && ids[end - 1] == last)
      ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(end));
    return ids;
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

Result<std::vector<TokenId>> PromptFormat::first(const Said& said) const {
  const auto written = write_first(said);
  return written ? encode(written.value()) : written.failure();
}

Result<std::vector<TokenId>> PromptFormat::next(const Said& said, TokenId last) const {
  const auto written = write_next(said);
  return written ? encode(written.value(), last) : written.failure();
}

// The tokens that the template writes for the last of the messages, behind the beginning that it
// gives to every answer, up to the end of its turn.
std::vector<TokenId> PromptFormat::encode_answer(const ordered_json& messages,
                                                 const std::string& tools) const {
  ordered_json marked = messages, schemas = tools_of({.tools = tools});
  bring_arguments_into(arguments_form_, marked);
  marked = with_system(std::move(marked));
  const std::string marker = mark(marked, schemas, forbidden_);
  ChatInput input = input_of(marked);
  input.add_generation_prompt = false;
  input.tools = schemas;
  std::string whole = template_->render(input);
  refuse_null_as_word(input, whole);
  refuse_calls_left_out(input.messages);
  input.messages.erase(input.messages.size() - 1);
  input.add_generation_prompt = true;
  std::string beginning = template_->render(input);
  if (!whole.starts_with(beginning))
    throw UserError(
        "the chat template writes this answer otherwise than behind the beginning of one "
        "(chat.template=FILE gives another template)");
  if (end_of_turn_ < 0) {
    // What stands behind every answer is the environment's to say.
    ChatInput one = asking(conversation(1));
    one.add_generation_prompt = false;
    const auto end = behind_answer_in(template_->render(one), 1);
    if (end && whole.ends_with(*end)) whole.resize(whole.size() - end->size());
  }
  const std::vector<size_t> literal = take_out(whole, marker);
  std::vector<size_t> literal_before = take_out(beginning, marker);
  const std::vector<TokenId> before = tokenizer_.encode(beginning, {.literal = literal_before});
  auto answer = behind(before, tokenizer_.encode(whole, {.literal = literal}));
  if (!answer) {
    std::vector<size_t> own;
    for (const size_t offset : literal)
      if (offset >= beginning.size()) own.push_back(offset - beginning.size());
    answer = encode_inside(whole.substr(beginning.size()), {.literal = own});
  }
  if (end_of_turn_ < 0) return *answer;
  const auto last = std::find(answer->rbegin(), answer->rend(), end_of_turn_);
  if (last == answer->rend())
    throw UserError("the chat template does not end this answer as it ends others");
  answer->erase(last.base(), answer->end());
  return *answer;
}

// As encode_answer() of all messages up to `answer`, but with what stands between it and the answer
// before alone, behind a short conversation: its cost does not grow with the history. Nothing: the
// template refuses the short conversation.
std::optional<std::vector<TokenId>> PromptFormat::encode_answer_alone(
    const ordered_json& messages, size_t begin, size_t answer, const std::string& tools) const {
  // The results of tools need their calls.
  const bool continues = messages[begin].at("role") != "user";
  ordered_json few = conversation(continues ? 0 : 1);
  few.insert(few.end(),
             messages.begin() + static_cast<std::ptrdiff_t>(continues ? begin - 1 : begin),
             messages.begin() + static_cast<std::ptrdiff_t>(answer + 1));
  try {
    return encode_answer(few, tools);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

// `whole`: each answer is written behind the whole history, at a cost that grows with it. Else
// behind a short one (encode_answer_alone), and the first answers, the last, and as many between
// as the history doubles are compared with the whole. Nothing: they differ.
std::optional<Lesson> PromptFormat::lesson_of(const ordered_json& messages,
                                              const std::string& tools, size_t learn_from,
                                              bool whole) const {
  const auto is_answer = [](const ordered_json& message) {
    return message.at("role") == "assistant";
  };
  const auto answers = static_cast<size_t>(std::ranges::count_if(messages, is_answer));
  if (answers == 0) throw UserError("there is no answer of the assistant");
  Lesson lesson;
  size_t begin = 0;     // of the messages that the lesson does not have yet
  size_t number = 0;    // of the answer, from 1
  bool counts = false;  // the newest answer
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool has = counts_in_loss(messages[i], i + 1);
    if (!is_answer(messages[i])) continue;
    counts = has && i >= learn_from;
    // Each answer needs a text in front: two in a row would have no prompt of their own at run
    // time.
    if (i == begin)
      throw UserError("{}", i == 0 ? "it begins with an answer of the assistant"
                                   : "two answers of the assistant follow each other");
    if (begin > 0 && turns_fault_) throw UserError("{}", *turns_fault_);
    const ordered_json between(
        ordered_json::array_t(messages.begin() + static_cast<std::ptrdiff_t>(begin),
                              messages.begin() + static_cast<std::ptrdiff_t>(i)));
    const Said said{.messages = json_text(between), .tools = begin == 0 ? tools : ""};
    const Result<std::vector<TokenId>> written =
        begin == 0 ? first(said) : next(said, lesson.tokens.back());
    if (!written) throw UserError("{}", written.failure().message);
    append(lesson, written.value(), /*counts=*/false);
    const bool alone = begin > 0 && !whole;
    std::optional<std::vector<TokenId>> answer;
    if (alone) answer = encode_answer_alone(messages, begin, i, tools);
    ++number;
    // Answers 1, 2, 4, 8 ... and the last are rendered in whole, so the check costs the logarithm
    // of the number of turns.
    if (!answer || std::has_single_bit(number) || number == answers) {
      const ordered_json so_far(ordered_json::array_t(
          messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i + 1)));
      std::vector<TokenId> compared = encode_answer(so_far, tools);
      if (alone && answer != compared) return std::nullopt;
      answer = std::move(compared);
    }
    append(lesson, *answer, counts);
    begin = i + 1;
  }
  // A template without an end of its own: sampling ends with that of the model.
  if (end_of_turn_ < 0 && tokenizer_.eos() >= 0 && lesson.tokens.back() != tokenizer_.eos())
    append(lesson, std::vector<TokenId>{tokenizer_.eos()}, counts);
  return lesson;
}

Result<Lesson> PromptFormat::lesson(const ordered_json& messages, const std::string& tools,
                                    size_t learn_from) const {
  if (!template_)
    return Failure{
        "it is a list of messages, which only a chat template can write. Give one with "
        "chat.template=FILE"};
  try {
    if (auto lesson = lesson_of(messages, tools, learn_from, /*whole=*/false)) return *lesson;
    return lesson_of(messages, tools, learn_from, /*whole=*/true).value();
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

Result<std::vector<TokenId>> PromptFormat::whole(const ordered_json& messages,
                                                 const std::string& tools) const {
  try {
    ordered_json marked = messages, schemas = tools_of({.tools = tools});
    bring_arguments_into(arguments_form_, marked);
    const std::string marker = mark(marked, schemas, forbidden_);
    ChatInput input = input_of(std::move(marked));
    input.add_generation_prompt = false;
    input.tools = std::move(schemas);
    std::string text = template_->render(input);
    const std::vector<size_t> literal = take_out(text, marker);
    return tokenizer_.encode(text, {.literal = literal});
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

// The tokens of an answer that stands behind a text, without a template.
std::vector<TokenId> PromptFormat::encode_behind(const std::string& said,
                                                 const std::string& answer) const {
  const text::EncodeOptions words{.find_special = false};
  try {
    // Without what some tokenizers put behind a text, it begins as the whole does.
    const auto continued =
        behind(tokenizer_.encode(said, words), tokenizer_.encode(said + answer, words));
    return continued ? *continued : encode_inside(answer, words);
  } catch (const UserError&) {
    // A vocabulary of words: the last word of the text and the first of the answer are one word
    // where no blank is between them. The answer has its words by itself, as they were sampled.
    return tokenizer_.encode(answer, words);
  }
}

Result<Lesson> PromptFormat::lesson_of_texts(const std::string& said,
                                             const std::string& answer) const {
  if (template_)
    return lesson(ordered_json::array({message("user", said), message("assistant", answer)}), "");
  try {
    Lesson lesson;
    append(lesson, tokenizer_.encode(said, {.framed = true, .find_special = false}), false);
    append(lesson, encode_behind(said, answer), true);
    if (tokenizer_.eos() >= 0) append(lesson, std::vector<TokenId>{tokenizer_.eos()}, true);
    return lesson;
  } catch (const UserError& error) {
    return Failure{error.what()};
  }
}

}  // namespace tailrace::chat
