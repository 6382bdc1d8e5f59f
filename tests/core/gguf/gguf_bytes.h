// GGUF files made byte by byte, so that tests can lie in them, and what is said of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace tailrace {

inline void expect_said(const std::string& said, std::string_view part) {
  EXPECT_NE(said.find(part), std::string::npos) << said;
}

class GgufBytes {
 public:
  template <class T>
  GgufBytes& add(T value) {
    const size_t at = text.size();
    text.resize(at + sizeof value);
    std::memcpy(text.data() + at, &value, sizeof value);
    return *this;
  }
  GgufBytes& add_text(std::string_view value) {
    add<uint64_t>(value.size());
    text += value;
    return *this;
  }
  // A head that says so many tensors and keys.
  static GgufBytes head(uint64_t num_tensors, uint64_t num_keys, uint32_t version = 3) {
    GgufBytes bytes;
    bytes.text = "GGUF";
    bytes.add(version).add(num_tensors).add(num_keys);
    return bytes;
  }
  GgufBytes& key(std::string_view name, uint32_t type) { return add_text(name).add(type); }
  GgufBytes& text_key(std::string_view name, std::string_view value) {
    return key(name, 8).add_text(value);
  }
  // A row of so many values.
  GgufBytes& tensor(std::string_view name, uint64_t size, uint32_t type, uint64_t offset) {
    return add_text(name).add<uint32_t>(1).add(size).add(type).add(offset);
  }
  GgufBytes& data(size_t size) {
    text.resize((text.size() + 31) / 32 * 32 + size);
    return *this;
  }

  std::string text;
};

}  // namespace tailrace
