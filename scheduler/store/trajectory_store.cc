#include "scheduler/store/trajectory_store.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include <xxhash.h>

#include "core/base/file.h"
#include "kernels/base/pulse.h"
#include "scheduler/state/archive.h"

namespace tailrace::scheduler {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kStoreKind = 2;

// A record is its kind, the id, then the body or the note. Ids have one size.
const size_t kHeadBytes = 1 + to_bytes(BodyId{}).size();

template <class Kind>
std::string head_of(Kind kind, const BodyId& id) {
  return to_bytes(std::pair(static_cast<uint8_t>(kind), id));
}

using RecordHead = std::pair<uint8_t, BodyId>;

// Nothing: it is too short for a record.
std::optional<RecordHead> parse_head(std::string_view record) {
  if (record.size() < kHeadBytes) return std::nullopt;
  return from_bytes<RecordHead>(record.substr(0, kHeadBytes));
}

Result<std::set<int64_t>> segments_in(const fs::path& directory) {
  std::set<int64_t> numbers;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (const auto number = file_number(entry.path(), "bodies-", ".seg")) numbers.insert(*number);
  }
  if (error) return Failure{describe_errno("read", directory, error.value())};
  return numbers;
}

fs::path segment_path(const fs::path& directory, int64_t number) {
  return directory / fmt::format("bodies-{:06}.seg", number);
}

TrajectoryStore::Entry entry_of(std::string_view record) {
  const std::string_view body = record.substr(kHeadBytes);
  return {std::ssize(body), XXH3_64bits(body.data(), body.size())};
}

}  // namespace

fs::path TrajectoryStore::path_of(int64_t segment) const {
  return segment_path(directory_, segment);
}

Result<TrajectoryStore> TrajectoryStore::open(const fs::path& directory, int64_t segment_bytes) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Failure{describe_errno("create", directory, error.value())};
  TrajectoryStore store(directory, segment_bytes);
  const auto numbers = segments_in(directory);
  if (!numbers) return numbers.failure();
  for (const int64_t number : numbers.value()) {
    if (auto read = store.read_segment(number); !read) return read.failure();
  }
  // Old segments stay closed: a new one begins with the first put, so that a cut tail is never
  // written to.
  store.active_number_ = 0;
  for (const int64_t number : numbers.value()) store.drop_if_empty(number);
  return store;
}

Result<std::vector<std::string>> TrajectoryStore::read_bodies(
    const fs::path& directory,
    const std::function<void(const BodyId&, std::string_view body)>& use) {
  const auto numbers = segments_in(directory);
  if (!numbers) return numbers.failure();
  std::vector<std::string> notes;
  for (const int64_t number : numbers.value()) {
    auto report = scan_records(segment_path(directory, number), kStoreKind, /*skip_damaged=*/true,
                               [&](int64_t, std::string_view record) {
                                 const auto head = parse_head(record);
                                 if (head && head->first == static_cast<uint8_t>(Kind::kBody))
                                   use(head->second, record.substr(kHeadBytes));
                               });
    if (!report) return report.failure();
    if (!report.value().note.empty()) notes.push_back(report.value().note);
  }
  return notes;
}

Result<void> TrajectoryStore::read_segment(int64_t number) {
  Segment& segment = segments_[number];
  const fs::path path = path_of(number);
  auto report = scan_records(
      path, kStoreKind, /*skip_damaged=*/true,
      [&](int64_t offset, std::string_view payload) { index_record(number, offset, payload); });
  if (!report) return report.failure();
  // A process that was killed leaves in the page cache what it did not sync, and sync() looks at
  // the active segment alone.
  if (auto synced = sync_records(path); !synced) return synced.failure();
  if (!report.value().note.empty()) notes_.push_back(report.value().note);
  std::error_code error;
  segment.bytes = static_cast<int64_t>(fs::file_size(path, error));
  return {};
}

// The newest record wins: an older one is of a body that was released, or that a crash made
// unknown.
void TrajectoryStore::index_record(int64_t number, int64_t offset, std::string_view payload) {
  const auto head = parse_head(payload);
  if (!head) return;
  const Place place{number, offset, entry_of(payload)};
  const auto known = index_.find(head->second);
  if (head->first == static_cast<uint8_t>(Kind::kBody)) {
    // Files are not deleted here, while they are read.
    if (known != index_.end()) forget(known->second);
    index_[head->second] = {place, std::nullopt};
  } else if (known == index_.end()) {
    return;  // the body is gone, or is damaged
  } else {
    if (known->second.note) --segments_[known->second.note->segment].live;
    known->second.note = place;
  }
  ++segments_[number].live;
}

void TrajectoryStore::forget(const Kept& kept) {
  --segments_[kept.body.segment].live;
  if (kept.note) --segments_[kept.note->segment].live;
}

Result<void> TrajectoryStore::begin_segment() {
  const int64_t number = segments_.empty() ? 1 : segments_.rbegin()->first + 1;
  const int64_t old = active_number_;
  if (dirty_) {
    // sync() knows the active file alone, so the old one is synced before it is left.
    if (auto synced = sync(); !synced) return synced.failure();
  }
  // With its folder, which may have been taken away.
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return Failure{describe_errno("create", directory_, error.value())};
  auto file = RecordFile::create(path_of(number), kStoreKind);
  if (!file) {
    // A header that did not fit leaves an empty file behind.
    std::error_code ignored;
    fs::remove(path_of(number), ignored);
    return file.failure();
  }
  active_ = std::move(file).value();
  active_number_ = number;
  segments_[number] = {};
  // It may have become empty while it was active, and active ones stay.
  if (old != 0) drop_if_empty(old);
  // The name of the new file must survive, too.
  return sync_directory(directory_);
}

Result<TrajectoryStore::Place> TrajectoryStore::append(Kind kind, const BodyId& id,
                                                       std::string_view bytes) {
  // A file that somebody has removed takes no more bodies: they would be gone with its descriptor.
  if (active_number_ == 0 || active_.bytes() >= segment_bytes_ || !active_.is_in_place()) {
    if (auto begun = begin_segment(); !begun) return begun.failure();
  }
  std::string payload = head_of(kind, id);
  payload.append(bytes);
  auto offset = active_.append(payload);
  if (!offset) return offset.failure();
  Segment& segment = segments_[active_number_];
  ++segment.live;
  segment.bytes = active_.bytes();
  dirty_ = true;
  return Place{active_number_, offset.value(), entry_of(payload)};
}

Result<void> TrajectoryStore::put(const BodyId& id, std::span<const std::byte> body) {
  // A result that is sent again: what counts is the copy that is stored.
  if (index_.contains(id)) return {};
  auto place = append(Kind::kBody, id, {reinterpret_cast<const char*>(body.data()), body.size()});
  if (!place) return place.failure();
  index_[id] = {place.value(), std::nullopt};
  return {};
}

Result<void> TrajectoryStore::put_note(const BodyId& id, std::string_view note) {
  const auto kept = index_.find(id);
  if (kept == index_.end()) return {};
  // A verdict that is given again has a record of its own, and the newest wins (index_record()):
  // files are only ever appended to.
  auto place = append(Kind::kNote, id, note);
  if (!place) return place.failure();
  const auto before = std::exchange(kept->second.note, place.value());
  if (before) {
    --segments_[before->segment].live;
    drop_if_empty(before->segment);
  }
  return {};
}

std::optional<TrajectoryStore::Entry> TrajectoryStore::find(const BodyId& id) const {
  const auto it = index_.find(id);
  return it == index_.end() ? std::nullopt : std::optional(it->second.body.entry);
}

Result<std::vector<std::byte>> TrajectoryStore::get(const BodyId& id) const {
  const auto it = index_.find(id);
  if (it == index_.end())
    return Failure{fmt::format("the body of {} is not in the store", to_string(id.lease))};
  auto body = read(Kind::kBody, id, it->second.body);
  if (!body) return body.failure();
  const auto* bytes = reinterpret_cast<const std::byte*>(body.value().data());
  return std::vector<std::byte>(bytes, bytes + body.value().size());
}

bool TrajectoryStore::has_note(const BodyId& id) const {
  const auto it = index_.find(id);
  return it != index_.end() && it->second.note.has_value();
}

Result<std::string> TrajectoryStore::note_of(const BodyId& id) const {
  const auto it = index_.find(id);
  if (it == index_.end() || !it->second.note) return std::string();
  return read(Kind::kNote, id, *it->second.note);
}

Result<std::string> TrajectoryStore::read(Kind kind, const BodyId& id, const Place& place) const {
  beat();
  auto payload = read_record(path_of(place.segment), place.offset);
  if (!payload) return payload.failure();
  // The record says what it is: damage that fits its checksum, or an index that is wrong, is
  // noticed here.
  if (!payload.value().starts_with(head_of(kind, id)))
    return Failure{fmt::format("{} holds another body than {}", path_of(place.segment).string(),
                               to_string(id.lease))};
  return payload.value().substr(kHeadBytes);
}

// Records stay in their files until a whole segment is free: nothing is ever rewritten.
void TrajectoryStore::release(std::span<const BodyId> bodies) {
  for (const BodyId& id : bodies) {
    beat();
    const auto it = index_.find(id);
    if (it == index_.end()) continue;
    const Kept kept = it->second;
    index_.erase(it);
    forget(kept);
    drop_if_empty(kept.body.segment);
    if (kept.note) drop_if_empty(kept.note->segment);
  }
}

void TrajectoryStore::retain_only(const std::vector<BodyId>& bodies) {
  const std::set<BodyId> kept(bodies.begin(), bodies.end());
  std::vector<BodyId> rest;
  for (const auto& [id, record] : index_) {
    if (!kept.contains(id)) rest.push_back(id);
  }
  release(rest);
}

Result<void> TrajectoryStore::sync() {
  if (!dirty_) return {};
  if (auto synced = active_.sync(); !synced) return synced.failure();
  dirty_ = false;
  return {};
}

void TrajectoryStore::drop_if_empty(int64_t segment) {
  const auto it = segments_.find(segment);
  if (it == segments_.end() || it->second.live > 0 || segment == active_number_) return;
  std::error_code ignored;  // a file that cannot be deleted costs disk, nothing else
  fs::remove(path_of(segment), ignored);
  segments_.erase(it);
}

int64_t TrajectoryStore::disk_bytes() const {
  int64_t sum = 0;
  for (const auto& [number, segment] : segments_) sum += segment.bytes;
  return sum;
}

}  // namespace tailrace::scheduler
