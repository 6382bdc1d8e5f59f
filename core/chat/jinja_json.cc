#include "core/chat/jinja_json.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/text/utf8.h"

namespace tailrace::chat::jinja {
namespace {

using nlohmann::ordered_json;

// The depth is checked on the way down: the recursion must end before Value::list() could refuse.
Value from_json(const ordered_json& json, int depth) {
  if (depth > kMaxNesting) throw Error("lists and dicts are nested deeper than {}", kMaxNesting);
  switch (json.type()) {
    case ordered_json::value_t::boolean:
      return json.get<bool>();
    case ordered_json::value_t::number_integer:
      return json.get<int64_t>();
    case ordered_json::value_t::number_unsigned:
      // Schemas have bounds such as 2^64 - 1, which must be written with all their digits.
      if (json.get<uint64_t>() > INT64_MAX) return LargeInteger{json.get<uint64_t>()};
      return json.get<int64_t>();
    case ordered_json::value_t::number_float:
      return json.get<double>();
    case ordered_json::value_t::string:
      return text::repair_utf8(json.get_ref<const std::string&>());
    case ordered_json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const ordered_json& item : json) items.push_back(from_json(item, depth + 1));
      return Value::list(std::move(items));
    }
    case ordered_json::value_t::object: {
      std::vector<std::pair<std::string, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, item] : json.items())
        entries.emplace_back(text::repair_utf8(key), from_json(item, depth + 1));
      return Value::dict(std::move(entries));
    }
    default:
      return Value();
  }
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int depth) {
    budget_.spend(1);
    if (value.is_none()) {
      out_ += "null";
    } else if (const bool* flag = value.as<bool>()) {
      out_ += *flag ? "true" : "false";
    } else if (const int64_t* integer = value.as<int64_t>()) {
      out_ += fmt::format("{}", *integer);
    } else if (const LargeInteger* large = value.as<LargeInteger>()) {
      out_ += fmt::format("{}", large->value);
    } else if (const double* real = value.as<double>()) {
      write_real(*real);
    } else if (const std::string* text = value.text()) {
      write_text(*text);
    } else if (value.indexed()) {
      write_list(value.indexed()->sequence->items, depth);
    } else if (value.dict()) {
      write_dict(*value.dict(), depth);
    } else {
      throw Error("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  std::string take() { return std::move(out_); }

 private:
  void write_real(double real) {
    // The spellings of Python's json module; JSON itself has none.
    if (std::isnan(real)) {
      out_ += "NaN";
    } else if (std::isinf(real)) {
      out_ += real < 0 ? "-Infinity" : "Infinity";
    } else {
      out_ += to_text(real);
    }
  }

  void write_text(std::string_view text) {
    static constexpr std::string_view kPlain = "\"\\\n\r\t\f\b", kEscaped = "\"\\nrtfb";
    budget_.spend_bytes(text.size());
    out_ += '"';
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const char32_t c = text::next_code_point(text, at);
      const size_t escape = c < 0x80 ? kPlain.find(static_cast<char>(c)) : std::string_view::npos;
      if (escape != std::string_view::npos) {
        (out_ += '\\') += kEscaped[escape];
      } else if (c < 0x20 || (style_.ascii_only && c >= 0x7F)) {
        write_escape(c);
      } else {
        out_.append(text.substr(begin, at - begin));
      }
    }
    out_ += '"';
  }

  void write_escape(char32_t c) {
    if (c >= 0x10000) {  // a pair of surrogates
      out_ += fmt::format("\\u{:04x}", 0xD800 + ((static_cast<uint32_t>(c) - 0x10000) >> 10));
      c = 0xDC00 + ((c - 0x10000) & 0x3FF);
    }
    out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  }

  void write_line(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    // The indent is paid before it is written: deep nesting makes it grow with the square of the
    // depth.
    budget_.spend_bytes(style_.indent->size() * static_cast<size_t>(depth));
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  void write_list(const std::vector<Value>& items, int depth) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      budget_.spend_bytes(style_.item_separator.size());
      write_line(depth + 1);
      write(items[i], depth + 1);
    }
    write_line(depth);
    out_ += ']';
  }

  void write_dict(const Dict& dict, int depth) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](auto* a, auto* b) { return a->first < b->first; });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      budget_.spend_bytes(style_.item_separator.size() + style_.key_separator.size());
      write_line(depth + 1);
      write_text(entries[i]->first);
      out_ += style_.key_separator;
      write(entries[i]->second, depth + 1);
    }
    write_line(depth);
    out_ += '}';
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

Value from_json(const ordered_json& json) { return from_json(json, 1); }

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace tailrace::chat::jinja
