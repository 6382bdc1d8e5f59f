#include "core/base/json_file.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/base/digest_of.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_reader.h"
#include "core/base/json_text.h"
#include "core/base/printable.h"

namespace tailrace {
namespace {

// "3:12": line and column of a byte, both from 1.
std::string position(std::string_view text, size_t at) {
  const std::string_view before = text.substr(0, at);
  const size_t line_start = before.rfind('\n') + 1;  // 0 on the first line: npos + 1
  return fmt::format("{}:{}", 1 + std::count(before.begin(), before.end(), '\n'),
                     before.size() - line_start + 1);
}

// Without the library's name and its own idea of the place.
std::string_view reason(std::string_view what) {
  const size_t place = what.find("column ");
  const size_t end = place == std::string_view::npos ? place : what.find(": ", place);
  return end == std::string_view::npos ? what : what.substr(end + 2);
}

}  // namespace

nlohmann::json read_json_object(const std::filesystem::path& path, int64_t max_bytes) {
  const auto text = read_file(path, max_bytes);
  if (!text) throw UserError("{}", text.failure().message);
  auto [value, fault, wide_integer, num_steps] =
      read_json(text.value(), {.max_values = kMaxFileValues, .refuses_doubled_keys = true});
  if (fault && fault->kind == JsonFault::Kind::kSyntax) {
    // `num_read` counts the offending byte.
    const size_t at = fault->num_read > 0 ? fault->num_read - 1 : 0;
    throw UserError("{}:{}: not JSON: {}", path.string(), position(text.value(), at),
                    reason(fault->what));
  }
  if (fault && fault->kind == JsonFault::Kind::kDouble)
    throw UserError(
        "{}: an object has the key {} twice, and programs take one or the other. Remove one of "
        "them.",
        path.string(), json_text(nlohmann::json(shortened(fault->key, 60))));
  if (fault) throw UserError("{}: not JSON: {}", path.string(), reason(fault->what));
  if (!value.is_object()) throw UserError("{}: not a JSON object", path.string());
  return std::move(value);
}

namespace {
constexpr const char* kProof = "proof";
}  // namespace

std::string to_proved_json(nlohmann::json object) {
  object.erase(kProof);
  // Over the compact text with sorted keys, not over the bytes of the file: a program that only
  // indents the file anew breaks no proof.
  object[kProof] = digest_of(json_text(object));
  return json_text(object, 2) + "\n";
}

nlohmann::json read_proved_json(const std::filesystem::path& path) {
  nlohmann::json object = read_json_object(path);
  const nlohmann::json proof = object.value(kProof, nlohmann::json());
  object.erase(kProof);
  if (proof != digest_of(json_text(object)))
    throw UserError("{}: it was changed or damaged (its proof does not fit)", path.string());
  return object;
}

namespace {

// A suffix of fixed length, so that it is found without parsing the row.
constexpr std::string_view kRowProof = ",\"proof\":\"";
constexpr size_t kRowProofDigits = 16;

std::string row_proof(std::string_view text) { return digest_of(text).substr(0, kRowProofDigits); }

}  // namespace

std::string to_proved_row(std::string object) {
  TR_CHECK(object.size() > 2 && object.ends_with('}'));  // it has members
  object.pop_back();
  const std::string proof = row_proof(object);
  return object.append(kRowProof).append(proof).append("\"}");
}

Result<void> prove_row(std::string_view row) {
  constexpr size_t kSuffix = kRowProof.size() + kRowProofDigits + 2;
  if (row.size() < kSuffix) return {};
  const std::string_view suffix = row.substr(row.size() - kSuffix);
  if (!suffix.starts_with(kRowProof)) return {};
  const std::string_view proof = suffix.substr(kRowProof.size(), kRowProofDigits);
  if (proof == row_proof(row.substr(0, row.size() - kSuffix))) return {};
  return Failure{"the row was changed or damaged: its proof does not fit"};
}

}  // namespace tailrace
