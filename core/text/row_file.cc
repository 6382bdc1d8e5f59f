#include "core/text/row_file.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_row.h"
#include "core/base/machine.h"
#include "core/base/nearest.h"
#include "core/text/decompress.h"
#include "core/text/utf8.h"
#include "kernels/base/pulse.h"

namespace tailrace::text {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";

// A format that is not read, and the command that unpacks it.
struct Unread {
  std::string_view magic, name, unpack;
};
constexpr Unread kUnread[] = {{std::string_view("\xFD"
                                                "7zXZ\0",
                                                6),
                               "xz", "xz -dc"},
                              {"BZh", "bzip2", "bzip2 -dc"},
                              {"PK\x03\x04", "zip", "unzip -p"}};

std::string said_by(const std::string& key) { return key.empty() ? "" : " (" + key + ")"; }

// The text of a file, unpacked piece by piece.
class RowText {
 public:
  // A Failure names the file.
  static Result<RowText> open(const std::filesystem::path& path, const RowLimits& limits) {
    Result<FileDescriptor> file = open_to_read(path);
    if (!file) return file.failure();
    RowText text(path, limits, std::move(file).value());
    if (auto read = text.read_more(); !read) return read.failure();
    if (auto fault = text.fault_of_form()) return *fault;
    if (const auto packing = packing_of(text.in_)) text.unpacker_.emplace(*packing);
    return text;
  }

  // Appends some text. False: there is no more. Failures do not name the file.
  Result<bool> more(std::string& text) {
    const size_t before = text.size();
    while (text.size() == before) {
      Result<bool> moved = unpacker_ ? unpack(text) : copy(text);
      if (!moved) return moved.failure();
      if (moved.value()) continue;
      if (is_whole_) return false;
      if (auto read = read_more(); !read) return read.failure();
    }
    num_bytes_ += static_cast<int64_t>(text.size() - before);
    if (num_bytes_ > most_)
      return Failure{
          most_ == limits_.max_text_bytes
              ? fmt::format("it has more than {} bytes of text{}{}", most_,
                            unpacker_ ? ", unpacked" : "", said_by(limits_.text_key))
              : fmt::format("it has more text than the {} bytes of memory that are free", most_)};
    return true;
  }

 private:
  RowText(const std::filesystem::path& path, const RowLimits& limits, FileDescriptor file)
      : path_(path), limits_(limits), file_(std::move(file)) {
    // A small compressed file may hold terabytes; without this the kernel would end the process at
    // the last free page, and the user would read no reason.
    const int64_t room = memory_facts().available_bytes;
    most_ = room > 0 ? std::min(limits.max_text_bytes, room) : limits.max_text_bytes;
  }

  // False: there is nothing to take from.
  Result<bool> copy(std::string& text) {
    if (in_.empty()) return false;
    text += in_;
    in_.clear();
    return true;
  }
  Result<bool> unpack(std::string& text) {
    std::string_view packed = std::string_view(in_).substr(taken_);
    Result<bool> moved = unpacker_->turn(packed, is_whole_, text);
    taken_ = in_.size() - packed.size();
    return moved;
  }

  Result<void> read_more() {
    beat();
    in_.erase(0, std::exchange(taken_, 0));
    const size_t before = in_.size();
    in_.resize(before + Unpacker::kPiece);
    ssize_t count;
    do {
      count = ::read(file_.get(), in_.data() + before, Unpacker::kPiece);
    } while (count < 0 && errno == EINTR);
    in_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
    if (count < 0) return Failure{describe_errno("read", path_, errno)};
    is_whole_ = count == 0;
    return {};
  }

  // The file has another form than rows.
  std::optional<Failure> fault_of_form() const {
    if (in_.starts_with(kParquetMagic))
      return Failure{
          fmt::format("{}: it is a Parquet file; rows are read from JSON Lines, plain, gzip or "
                      "zstd.\n       Try "
                      "'python3 {} {} {}'",
                      path_.string(), kParquetScript, path_.string(),
                      std::filesystem::path(path_).replace_extension(".jsonl.gz").string())};
    for (const auto& [magic, name, unpack] : kUnread)
      if (in_.starts_with(magic))
        return Failure{fmt::format(
            "{}: it is compressed by {}; rows are read from JSON Lines, plain, gzip or zstd.\n     "
            "  Try '{} {} | gzip > rows.jsonl.gz'",
            path_.string(), name, unpack, path_.string())};
    return std::nullopt;
  }

  std::filesystem::path path_;
  RowLimits limits_;
  FileDescriptor file_;
  std::optional<Unpacker> unpacker_ = {};  // none: it is plain
  std::string in_;                         // of the file, from taken_ on not taken yet
  size_t taken_ = 0;
  bool is_whole_ = false;  // nothing of the file comes behind in_
  int64_t most_ = 0, num_bytes_ = 0;
};

// The lines of a file, of which one is held at a time.
class RowLines {
 public:
  RowLines(const std::filesystem::path& file, std::string_view form, const RowLimits& limits)
      : file_(file), form_(form), limits_(limits), text_(opened(file, limits)) {}

  // False: there are no more. `place` is good until the next call.
  bool next(std::optional<RowPlace>& place) {
    skip_blank_lines();
    size_t end = held_.find('\n', begin_);
    while (end == std::string::npos) {
      // Only now, or each line would move all that stands behind it.
      held_.erase(0, std::exchange(begin_, 0));
      const size_t looked_at = held_.size();
      refuse_long(looked_at);
      Result<bool> more = text_.more(held_);
      if (!more) throw UserError("{}:{}: {}", file_.string(), line_ + 1, more.failure().message);
      if (!more.value() && held_.empty()) return false;
      // A line of which a part was held may still prove blank; for_each_json_row() passes that one
      // over.
      if (looked_at == 0) skip_blank_lines();
      // From what is new on: a long line that comes in many pieces would else be searched once a
      // piece. The last line of a file may lack its newline.
      end = more.value() ? held_.find('\n', std::max(looked_at, begin_)) : held_.size();
    }
    refuse_long(end - begin_);
    std::string_view line = std::string_view(held_).substr(begin_, end - begin_);
    begin_ = std::min(end + 1, held_.size());
    if (line.ends_with('\r')) line.remove_suffix(1);
    place.emplace(RowPlace{.file = file_, .line = ++line_, .text = line, .form = form_});
    return true;
  }

 private:
  static RowText opened(const std::filesystem::path& file, const RowLimits& limits) {
    Result<RowText> text = RowText::open(file, limits);
    if (!text) throw UserError("{}{}", text.failure().message, missing_file_hint(file));
    return std::move(text).value();
  }

  // A few bytes of a compressed file may be millions of them: they are passed over in one loop,
  // which does nothing else. What it leaves is a row, or a line that is not whole.
  void skip_blank_lines() {
    for (size_t at = begin_;;) {
      while (at < held_.size() && (held_[at] == ' ' || held_[at] == '\t')) ++at;
      const size_t end = at + (at < held_.size() && held_[at] == '\r' ? 1 : 0);
      if (end >= held_.size() || held_[end] != '\n') return;
      refuse_long(end - begin_);
      begin_ = at = end + 1;
      ++line_;
    }
  }

  void refuse_long(size_t size) const {
    if (std::cmp_less_equal(size, limits_.max_row_bytes)) return;
    throw UserError("{}:{}: the line is longer than {} bytes{}", file_.string(), line_ + 1,
                    limits_.max_row_bytes, said_by(limits_.row_key));
  }

  const std::filesystem::path& file_;
  const std::string_view form_;
  const RowLimits& limits_;
  RowText text_;
  std::string held_;  // what was read; from begin_ on it was not given
  size_t begin_ = 0;
  int64_t line_ = 0;
};

}  // namespace

Result<std::string> read_row_file(const std::filesystem::path& path, const RowLimits& limits) {
  Result<RowText> file = RowText::open(path, limits);
  if (!file) return file.failure();
  std::string text;
  while (true) {
    const Result<bool> more = file.value().more(text);
    if (!more) return Failure{fmt::format("{}: {}", path.string(), more.failure().message)};
    if (!more.value()) return text;
  }
}

std::string RowPlace::where() const { return fmt::format("{}:{}", file.string(), line); }

void RowPlace::fail(std::string_view what) const {
  throw UserError("{}: {}{}{}", where(), what, form.empty() ? "" : "; ", form);
}

void for_each_json_row(const std::filesystem::path& file, std::string_view form,
                       const std::function<void(const RowPlace&, nlohmann::ordered_json)>& take,
                       const RowLimits& limits) {
  RowLines lines(file, form, limits);
  std::optional<RowPlace> place;
  while (lines.next(place)) {
    beat();
    if (place->text.find_first_not_of(" \t") == std::string_view::npos) continue;
    // Before parsing, which would only say that it is not JSON.
    if (!is_utf8(place->text)) place->fail("the line is not UTF-8");
    Result<nlohmann::ordered_json> row = parse_json_row(place->text);
    if (!row) place->fail("the line is " + row.failure().message);
    take(*place, std::move(row).value());
  }
}

}  // namespace tailrace::text
