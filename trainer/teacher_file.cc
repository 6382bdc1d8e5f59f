#include "trainer/teacher_file.h"

#include <bit>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "kernels/base/check.h"

namespace tailrace {
namespace {

static_assert(std::endian::native == std::endian::little);

std::string first_line(const TeacherFileHead& head) {
  return fmt::format("{{\"rows\": \"{}\", \"targets\": {}, \"top_k\": {}}}\n", head.rows,
                     head.targets, head.top_k);
}

AtomicFile created(const std::filesystem::path& path) {
  Result<AtomicFile> file = AtomicFile::create(path);
  if (!file) throw UserError("{}", file.failure().message);
  return std::move(file).value();
}

void require_written(const Result<void>& written) {
  if (!written) throw UserError("{}", written.failure().message);
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
void append(std::vector<std::byte>& out, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void take(std::vector<T>& out, const std::byte*& from, size_t count) {
  if (count == 0) return;
  const size_t before = out.size();
  out.resize(before + count);
  std::memcpy(out.data() + before, from, count * sizeof(T));
  from += count * sizeof(T);
}

}  // namespace

std::vector<std::byte> bytes_of(const TeacherScores& scores, int64_t top_k) {
  const auto k = static_cast<size_t>(top_k);
  TR_CHECK(scores.ids.size() == k * scores.logprobs.size(), "{} ids of {} targets",
           scores.ids.size(), scores.logprobs.size());
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < scores.logprobs.size(); ++i) {
    append(bytes, std::span(scores.logprobs).subspan(i, 1));
    append(bytes, std::span(scores.ids).subspan(i * k, k));
    append(bytes, std::span(scores.id_logprobs).subspan(i * k, k));
  }
  return bytes;
}

TeacherFileWriter::TeacherFileWriter(const std::filesystem::path& path, const TeacherFileHead& head)
    : file_(created(path)), missing_(head.targets * head.bytes_per_target()) {
  const std::string line = first_line(head);
  require_written(file_.write(line));
  digest_.add(std::as_bytes(std::span(line)));
}

void TeacherFileWriter::add(std::span<const std::byte> bytes) {
  missing_ -= std::ssize(bytes);
  TR_CHECK(missing_ >= 0, "{} bytes too many", -missing_);
  require_written(file_.write(as_text(bytes)));
  digest_.add(bytes);
}

void TeacherFileWriter::commit() {
  TR_CHECK(missing_ == 0, "{} bytes are missing", missing_);
  require_written(file_.write(digest_.value()));
  require_written(file_.commit());
}

Result<TeacherFile> TeacherFile::open(const std::filesystem::path& path,
                                      const TeacherFileHead& head) {
  Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.failure();
  const std::string line = first_line(head);
  const std::string_view text = file.value().text();
  const auto size = line.size() + static_cast<size_t>(head.targets * head.bytes_per_target());
  if (!text.starts_with(line)) return Failure{path.string() + ": it is of other rows"};
  if (text.size() != size + kDigestDigits || digest_of(text.substr(0, size)) != text.substr(size))
    return Failure{path.string() + ": it is damaged"};
  return TeacherFile(std::move(file).value(), head, line.size());
}

TeacherScores TeacherFile::scores(int64_t first, int64_t count) const {
  TR_CHECK(first >= 0 && count >= 0 && first + count <= head_.targets, "{} from {} on of {}", count,
           first, head_.targets);
  const std::byte* at =
      file_.bytes().data() + begin_ + static_cast<size_t>(first * head_.bytes_per_target());
  TeacherScores scores;
  const auto k = static_cast<size_t>(head_.top_k);
  for (int64_t i = 0; i < count; ++i) {
    take(scores.logprobs, at, 1);
    take(scores.ids, at, k);
    take(scores.id_logprobs, at, k);
  }
  for (int64_t i = 0; k > 0 && i <= count; ++i) scores.offsets.push_back(i * head_.top_k);
  return scores;
}

}  // namespace tailrace
