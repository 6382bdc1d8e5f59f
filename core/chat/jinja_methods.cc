#include "core/chat/jinja_methods.h"

#include <algorithm>

#include "core/chat/jinja_arguments.h"
#include "core/chat/jinja_string.h"
#include "core/text/utf8.h"

namespace tailrace::chat::jinja {
namespace {

using TextMethod = Value (*)(const std::string& self, const Arguments& arguments, Budget& budget);

Value strip_method(const std::string& self, const Arguments& arguments, Side side) {
  const BoundArguments bound("strip", arguments, {"chars"});
  if (!bound.given(0)) return std::string(strip(self, std::nullopt, side));
  const std::string chars = bound.text(0, "");
  return std::string(strip(self, chars, side));
}

Value texts(std::vector<std::string> parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (std::string& part : parts) items.emplace_back(std::move(part));
  return Value::list(std::move(items));
}

Value split_method(const std::string& self, const Arguments& arguments, Side from, Budget& budget) {
  const BoundArguments bound("split", arguments, {"sep", "maxsplit"});
  const int64_t max_splits = bound.integer(1, -1);
  if (!bound.given(0)) return texts(split(self, std::nullopt, max_splits, from, budget));
  const std::string separator = bound.text(0, "");
  if (separator.empty()) throw Error("empty separator");
  return texts(split(self, separator, max_splits, from, budget));
}

// startswith() and endswith() take one text or a tuple of them.
Value affix_method(std::string_view name, const std::string& self, const Arguments& arguments,
                   bool (*has)(std::string_view, std::string_view), Budget& budget) {
  const BoundArguments bound(name, arguments, {"affix"}, 1);
  const Items* choices = bound.find(0)->items(Items::Kind::kTuple);
  if (!choices) return has(self, bound.text(0, ""));
  return std::any_of(choices->sequence->items.begin(), choices->sequence->items.end(),
                     [&](const Value& choice) {
                       if (!choice.text()) throw Error("{}() wants strings", name);
                       budget.spend_bytes(choice.text()->size());
                       return has(self, *choice.text());
                     });
}

int64_t find_method(const std::string& self, const Arguments& arguments, bool last) {
  const BoundArguments bound("find", arguments, {"sub"}, 1);
  const std::string what = bound.text(0, "");
  const size_t at = last ? self.rfind(what) : self.find(what);
  // Python counts characters, and texts here are UTF-8.
  return at == std::string::npos ? -1 : num_code_points(std::string_view(self).substr(0, at));
}

int64_t index_method(const std::string& self, const Arguments& arguments, bool last) {
  const int64_t at = find_method(self, arguments, last);
  if (at < 0) throw Error("substring not found");
  return at;
}

Value replace_method(const std::string& self, const Arguments& arguments, Budget& budget) {
  const BoundArguments bound("replace", arguments, {"old", "new", "count"}, 2);
  const std::string from = bound.text(0, ""), to = bound.text(1, "");
  // The text may grow by `to` at each place.
  budget.spend(static_cast<int64_t>(self.size() / std::max<size_t>(from.size(), 1) + 1) *
               static_cast<int64_t>(to.size() / 16 + 1));
  return replace(self, from, to, bound.integer(2, -1));
}

Value count_method(const std::string& self, const Arguments& arguments, Budget&) {
  const BoundArguments bound("count", arguments, {"sub"}, 1);
  const std::string what = bound.text(0, "");
  // Python finds the empty text between all characters and at both ends. The loop below would not
  // end.
  if (what.empty()) return num_code_points(self) + 1;
  int64_t count = 0;
  for (size_t at = self.find(what); at != std::string::npos; at = self.find(what, at + what.size()))
    ++count;
  return count;
}

Value join_method(const std::string& self, const Arguments& arguments, Budget& budget) {
  const BoundArguments bound("join", arguments, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(*bound.find(0), budget)) {
    if (!item.text()) throw Error("join() wants strings, not '{}'", type_name(item));
    budget.spend_bytes(self.size() + item.text()->size());
    if (!std::exchange(first, false)) out += self;
    out += *item.text();
  }
  return out;
}

Value partition_method(const std::string& self, const Arguments& arguments, bool last) {
  const BoundArguments bound("partition", arguments, {"sep"}, 1);
  const std::string separator = bound.text(0, "");
  if (separator.empty()) throw Error("empty separator");
  const size_t at = last ? self.rfind(separator) : self.find(separator);
  if (at == std::string::npos)
    return last ? Value::tuple({std::string(), std::string(), self})
                : Value::tuple({self, std::string(), std::string()});
  return Value::tuple({self.substr(0, at), separator, self.substr(at + separator.size())});
}

Value remove_affix(const std::string& self, const Arguments& arguments, bool prefix) {
  const BoundArguments bound("removeprefix", arguments, {"affix"}, 1);
  const std::string affix = bound.text(0, "");
  if (prefix && self.starts_with(affix)) return self.substr(affix.size());
  if (!prefix && self.ends_with(affix)) return self.substr(0, self.size() - affix.size());
  return self;
}

// All characters, and at least one, are what `is` says. Known for ASCII.
Value all_are(const std::string& self, bool (*is)(char)) {
  for (char c : self) {
    if (static_cast<unsigned char>(c) >= 0x80)
      throw Error("the kind of a character is known for ASCII only");
  }
  return !self.empty() && std::all_of(self.begin(), self.end(), is);
}

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char c) { return is_lower(c) || is_upper(c); }

// As str.islower(): one letter at least, and all letters.
Value all_letters_are(const std::string& self, std::string changed, bool (*is)(char)) {
  return changed == self && std::any_of(self.begin(), self.end(), is);
}

struct NamedTextMethod {
  std::string_view name;
  TextMethod call;
};

using S = const std::string&;
using A = const Arguments&;

const NamedTextMethod kTextMethods[] = {
    {"capitalize",
     [](S s, A a, Budget&) -> Value {
       return BoundArguments("capitalize", a, {}), capitalized(s);
     }},
    {"count", count_method},
    {"endswith",
     [](S s, A a, Budget& b) {
       return affix_method(
           "endswith", s, a, [](auto x, auto y) { return x.ends_with(y); }, b);
     }},
    {"find", [](S s, A a, Budget&) -> Value { return find_method(s, a, false); }},
    {"index", [](S s, A a, Budget&) -> Value { return index_method(s, a, false); }},
    {"isalnum",
     [](S s, A, Budget&) {
       return all_are(s, [](char c) { return is_letter(c) || is_digit(c); });
     }},
    {"isalpha", [](S s, A, Budget&) { return all_are(s, is_letter); }},
    {"isdecimal", [](S s, A, Budget&) { return all_are(s, is_digit); }},
    {"isdigit", [](S s, A, Budget&) { return all_are(s, is_digit); }},
    {"islower", [](S s, A, Budget&) { return all_letters_are(s, to_lower(s), is_lower); }},
    {"isnumeric", [](S s, A, Budget&) { return all_are(s, is_digit); }},
    {"isspace",
     [](S s, A, Budget&) -> Value {
       return !s.empty() && strip(s, std::nullopt, Side::kLeft).empty();
     }},
    {"isupper", [](S s, A, Budget&) { return all_letters_are(s, to_upper(s), is_upper); }},
    {"join", join_method},
    {"lower",
     [](S s, A a, Budget&) -> Value { return BoundArguments("lower", a, {}), to_lower(s); }},
    {"lstrip", [](S s, A a, Budget&) { return strip_method(s, a, Side::kLeft); }},
    {"partition", [](S s, A a, Budget&) { return partition_method(s, a, false); }},
    {"removeprefix", [](S s, A a, Budget&) { return remove_affix(s, a, true); }},
    {"removesuffix", [](S s, A a, Budget&) { return remove_affix(s, a, false); }},
    {"replace", replace_method},
    {"rfind", [](S s, A a, Budget&) -> Value { return find_method(s, a, true); }},
    {"rindex", [](S s, A a, Budget&) -> Value { return index_method(s, a, true); }},
    {"rpartition", [](S s, A a, Budget&) { return partition_method(s, a, true); }},
    {"rsplit", [](S s, A a, Budget& b) { return split_method(s, a, Side::kRight, b); }},
    {"rstrip", [](S s, A a, Budget&) { return strip_method(s, a, Side::kRight); }},
    {"split", [](S s, A a, Budget& b) { return split_method(s, a, Side::kLeft, b); }},
    {"splitlines",
     [](S s, A a, Budget& b) {
       const BoundArguments bound("splitlines", a, {"keepends"});
       return texts(split_lines(s, bound.flag(0, false), b));
     }},
    {"startswith",
     [](S s, A a, Budget& b) {
       return affix_method(
           "startswith", s, a, [](auto x, auto y) { return x.starts_with(y); }, b);
     }},
    {"strip", [](S s, A a, Budget&) { return strip_method(s, a, Side::kBoth); }},
    {"title",
     [](S s, A a, Budget&) -> Value { return BoundArguments("title", a, {}), title_case(s); }},
    {"upper",
     [](S s, A a, Budget&) -> Value { return BoundArguments("upper", a, {}), to_upper(s); }},
};

// Python has these too: they hide keys and are refused when called.
constexpr std::string_view kOtherTextMethods[] = {
    "casefold", "center",       "encode",      "expandtabs", "format", "format_map",
    "isascii",  "isidentifier", "isprintable", "istitle",    "ljust",  "maketrans",
    "rjust",    "swapcase",     "translate",   "zfill"};
constexpr std::string_view kDictMethods[] = {"clear",      "copy",   "fromkeys", "get",
                                             "items",      "keys",   "pop",      "popitem",
                                             "setdefault", "update", "values"};
constexpr std::string_view kListMethods[] = {"append", "clear",   "copy",   "count",
                                             "extend", "index",   "insert", "pop",
                                             "remove", "reverse", "sort"};

bool holds(const auto& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

const NamedTextMethod* find_text_method(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTextMethods), std::end(kTextMethods),
                                [&](const auto& method) { return method.name == name; });
  return it == std::end(kTextMethods) ? nullptr : it;
}

Value call_dict_method(const Value& self, std::string_view name, const Arguments& arguments,
                       Budget& budget) {
  const Dict& dict = *self.dict();
  budget.spend(1 + dict.cost);
  if (name == "get") {
    const BoundArguments bound("get", arguments, {"key", "default"}, 1);
    const Value* found = bound.find(0)->text() ? dict.find(*bound.find(0)->text()) : nullptr;
    return found ? *found : bound.value(1);
  }
  const BoundArguments none(name, arguments, {});
  // Values are immutable, so a copy is the value itself.
  if (name == "copy") return self;
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) {
    if (name == "items") {
      out.push_back(Value::tuple({key, value}));
    } else if (name == "keys" || name == "values") {
      out.push_back(name == "keys" ? Value(key) : value);
    } else {
      throw Error("a dict cannot be changed: no {}()", name);
    }
  }
  return Value::view(std::move(out));
}

Value call_list_method(const Value& self, std::string_view name, const Arguments& arguments,
                       Budget& budget) {
  if (name != "count" && name != "index")
    throw Error("a list cannot be changed: no {}(); a namespace and '+' can", name);
  const BoundArguments bound(name, arguments, {"value"}, 1);
  const std::vector<Value>& items = self.as<Items>()->sequence->items;
  int64_t count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!equal(items[i], *bound.find(0), budget)) continue;
    if (name == "index") return static_cast<int64_t>(i);
    ++count;
  }
  // Python raises ValueError here, where find() of a text gives -1.
  if (name == "index") throw Error("the value is not in the list");
  return count;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  if (value.text()) return find_text_method(name) || holds(kOtherTextMethods, name);
  if (value.dict()) return holds(kDictMethods, name);
  if (value.items(Items::Kind::kList)) return holds(kListMethods, name);
  if (value.items(Items::Kind::kTuple)) return name == "count" || name == "index";
  return value.as<std::shared_ptr<Loop>>() && (name == "cycle" || name == "changed");
}

Value call_method(const Value& self, std::string_view name, const Arguments& arguments,
                  Budget& budget) {
  if (const std::string* text = self.text()) {
    budget.spend_bytes(text->size());
    // Jinja's Markup escapes the arguments of its methods, which this subset does not imitate.
    if (self.as<Text>()->safe) throw Error("'safe' text can be printed, and has no methods here");
    const NamedTextMethod* method = find_text_method(name);
    if (!method) throw Error("no method {}() of a string", name);
    for (const Value& argument : arguments.positional) {
      if (argument.text()) budget.spend_search(text->size(), argument.text()->size());
    }
    for (const auto& [_, argument] : arguments.named) {
      if (argument.text()) budget.spend_search(text->size(), argument.text()->size());
    }
    return method->call(*text, arguments, budget);
  }
  if (self.dict()) return call_dict_method(self, name, arguments, budget);
  if (self.as<Items>()) return call_list_method(self, name, arguments, budget);
  const Loop& loop = **self.as<std::shared_ptr<Loop>>();
  if (name != "cycle" || arguments.positional.empty() || !arguments.named.empty())
    throw Error("of the methods of 'loop' there is cycle(value, ...)");
  return arguments.positional[loop.index0 % static_cast<int64_t>(arguments.positional.size())];
}

}  // namespace tailrace::chat::jinja
