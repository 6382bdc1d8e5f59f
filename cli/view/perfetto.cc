#include "cli/view/perfetto.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/base/json_text.h"
#include "core/trajectory/sample_name.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;

// Threads of a worker. Installs and what is a sum go beside the slots: they overlap them.
constexpr int kInstallThread = 0, kFirstSlot = 1, kSumThread = 1'000'000, kPartThread = 2'000'000;

double microseconds(Time time) { return std::chrono::duration<double, std::micro>(time).count(); }

std::string name_of_span(const TimelineRow& row) {
  const std::string what(name_of(row.what));
  if (is_lease(row.what)) {
    const std::string lane = row.lane == Lane::kEval ? " (eval)" : "";
    if (!row.sample) return fmt::format("{}{}, {} together", what, lane, row.leases);
    const MemberId& m = row.sample->lease.member;
    return fmt::format("{}{} prompt={} member={}", what, lane, m.prompt, m.member);
  }
  return row.number < 0 ? what : fmt::format("{} {}", what, row.number);
}

Json arguments_of(const TimelineRow& row) {
  Json args = Json::object();
  if (row.sample) args["sample"] = sample_name(*row.sample);
  if (!row.end.empty()) args["end"] = row.end;
  if (row.tokens >= 0) {
    args["tokens"] = row.tokens;
    args["versions"] = fmt::format("{}..{}", row.min_version, row.max_version);
  }
  if (row.reward) args["reward"] = *row.reward;
  if (row.prefix_turns > 0) args["prefix_turns"] = row.prefix_turns;
  if (row.what == TimelineWhat::kVerify && row.sample) args["verify"] = row.verify_attempt;
  if (is_lease(row.what) && !row.sample) args["leases"] = row.leases;
  return args;
}

Json metadata(const char* what, int pid, int tid, const Json& args) {
  return {{"name", what}, {"ph", "M"}, {"pid", pid}, {"tid", tid}, {"args", args}};
}

// A bar between two times.
Json bar(std::string name, std::string_view category, Time from, Time until, int pid, int tid,
         Json args) {
  return {{"name", std::move(name)},
          {"cat", category},
          {"ph", "X"},
          {"ts", microseconds(from)},
          {"dur", microseconds(until - from)},
          {"pid", pid},
          {"tid", tid},
          {"args", std::move(args)}};
}

// The slots of one worker.
class Slots {
 public:
  // Takes a free slot for spans that come in the order of their begins.
  int take(Time begin, Time end) {
    for (size_t i = 0; i < busy_until_.size(); ++i) {
      // A viewer draws spans of one thread inside each other, so that those which overlap need
      // threads of their own: as many as the worker held leases at once.
      if (busy_until_[i] > begin) continue;
      busy_until_[i] = end;
      return kFirstSlot + static_cast<int>(i);
    }
    busy_until_.push_back(end);
    return kFirstSlot + static_cast<int>(busy_until_.size()) - 1;
  }
  int count() const { return static_cast<int>(busy_until_.size()); }

 private:
  std::vector<Time> busy_until_;
};

}  // namespace

std::string make_perfetto_trace(std::string_view run, std::span<const TimelineRow> rows) {
  std::map<std::tuple<Role, size_t, WorkerId>, int> order;  // "rollout-10" after "rollout-9"
  std::map<WorkerId, Role> roles;
  for (const TimelineRow& row : rows) {
    if (row.what == TimelineWhat::kUp) roles[row.worker] = row.role;
  }
  for (const TimelineRow& row : rows) {
    if (row.worker.empty()) continue;
    const auto role = roles.find(row.worker);
    order[{role == roles.end() ? Role::kRollout : role->second, row.worker.size(), row.worker}] = 0;
  }
  // 0 is the run itself.
  constexpr int kRun = 0;
  std::map<WorkerId, int> pids;
  // Processes of the format have numbers, which give the order in which a viewer shows them.
  for (auto& [key, pid] : order) pids[std::get<2>(key)] = pid = static_cast<int>(pids.size()) + 1;

  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  const char* separator = "";
  const auto add = [&](const Json& event) {
    out += separator + json_text(event);
    separator = ",\n";
  };
  add(metadata("process_name", kRun, 0, {{"name", fmt::format("run {}", run)}}));
  add(metadata("thread_name", kRun, 0, {{"name", "steps"}}));

  std::set<int> has_parts;
  std::vector<const TimelineRow*> spans;
  Time last_step{};
  for (const TimelineRow& row : rows) {
    if (is_span(row.what)) spans.push_back(&row);
    // Below the bar of their install.
    if (is_install_part(row.what)) {
      has_parts.insert(pids.at(row.worker));
      add(bar(fmt::format("{} v{}", name_of(row.what), row.number), name_of(row.what), row.from,
              row.until, pids.at(row.worker), kPartThread, Json::object()));
    }
    if (row.what == TimelineWhat::kStep) {
      add(bar(fmt::format("step {}", row.number), "step", last_step, row.at, kRun, 0,
              {{"samples", row.trained.samples}}));
      last_step = row.at;
    } else if (row.what == TimelineWhat::kDown || row.what == TimelineWhat::kQuarantine) {
      add({{"name", row.what == TimelineWhat::kDown ? row.end : "quarantine"},
           {"cat", "worker"},
           {"ph", "i"},
           {"s", "p"},
           {"ts", microseconds(row.at)},
           {"pid", pids.at(row.worker)},
           {"tid", 0}});
    }
  }
  // Rows stand in the order of their ends, and slots are taken in that of their begins.
  std::ranges::stable_sort(spans, {}, [](const TimelineRow* row) { return row->from; });
  std::map<WorkerId, Slots> slots;
  std::map<std::pair<WorkerId, Lane>, int> sums;  // their threads
  for (const TimelineRow* span : spans) {
    const TimelineRow& row = *span;
    const bool is_sum = is_lease(row.what) && !row.sample;
    int tid = kInstallThread;
    if (is_sum) tid = kSumThread + static_cast<int>(row.lane);
    if (is_sum) sums[{row.worker, row.lane}] = tid;
    if (!is_sum && row.what != TimelineWhat::kInstall)
      tid = slots[row.worker].take(row.from, row.at);
    add(bar(name_of_span(row), name_of(row.what), row.from, row.at, pids.at(row.worker), tid,
            arguments_of(row)));
  }
  for (const auto& [worker, pid] : pids) {
    add(metadata("process_name", pid, 0, {{"name", worker}}));
    add(metadata("process_sort_index", pid, 0, {{"sort_index", pid}}));
    add(metadata("thread_name", pid, kInstallThread, {{"name", "install"}}));
    for (int i = 0; i < slots[worker].count(); ++i)
      add(metadata("thread_name", pid, kFirstSlot + i, {{"name", fmt::format("slot {}", i)}}));
  }
  for (const int pid : has_parts)
    add(metadata("thread_name", pid, kPartThread, {{"name", "parts of installs"}}));
  for (const auto& [of, tid] : sums)
    add(metadata("thread_name", pids.at(of.first), tid,
                 {{"name", fmt::format("more {} leases", name_of(of.second))}}));
  return out + "\n]}\n";
}

}  // namespace tailrace
