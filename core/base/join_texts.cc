#include "core/base/join_texts.h"

namespace tailrace {

namespace {

template <class Texts>
std::string joined_texts(const Texts& texts, std::string_view separator) {
  std::string out;
  bool is_first = true;
  for (const auto& text : texts) {
    if (!is_first) out += separator;
    is_first = false;
    out += text;
  }
  return out;
}

}  // namespace

std::string join_texts(std::span<const std::string> texts, std::string_view separator) {
  return joined_texts(texts, separator);
}
std::string join_texts(std::span<const std::string_view> texts, std::string_view separator) {
  return joined_texts(texts, separator);
}
std::string join_texts(const std::set<std::string>& texts, std::string_view separator) {
  return joined_texts(texts, separator);
}

}  // namespace tailrace
