// Calls of a generator without a model: what is left of a call is the gateway's.
#include <algorithm>
#include <array>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/socket.h>

#include "bench/gateway/fixed_generator.h"
#include "bench/gateway/parts.h"
#include "bench/gateway/served_gateway.h"
#include "bench/gateway/swarm.h"
#include "bench/report/program.h"
#include "core/chat/prompt_format.h"
#include "core/http/listening_socket.h"
#include "core/text/tokenizer.h"

namespace tailrace {
namespace {

using nlohmann::ordered_json;
using std::chrono::microseconds;

constexpr const char* kSaid =
    "You are given a file of a program and a failing test. Read both, find the line that is wrong, "
    "and answer with the corrected line and nothing else. The file begins here:\nint sum(int* a, "
    "int n) {\n  int s = 0;\n  for (int i = 1; i < n; ++i) s += a[i];\n  return s;\n}\n";
constexpr const char* kAnswer =
    "The loop has to begin at 0: for (int i = 0; i < n; ++i) s += a[i];";

struct Words {
  explicit Words(const std::string& folder)
      : tokenizer(text::load_tokenizer(folder)),
        format(chat::PromptFormat::of({}, folder, *tokenizer)),
        answer(tokenizer->encode(kAnswer, {})) {}
  std::unique_ptr<text::Tokenizer> tokenizer;
  chat::PromptFormat format;
  std::vector<TokenId> answer;
};

std::string call_of(const std::string& path, const ordered_json& messages, size_t client) {
  return http_post(
      path, ordered_json{{"model", "policy"},
                         {"messages", messages},
                         {"max_tokens", FixedGenerator::kFirst + static_cast<int64_t>(client)}}
                .dump());
}

gateway::AttemptSpec spec_of(uint64_t key, size_t clients) {
  gateway::AttemptSpec spec;
  spec.key = {key};
  spec.sampling.max_new_tokens = FixedGenerator::kFirst + static_cast<int64_t>(clients);
  spec.max_context_tokens = spec.max_response_tokens = int64_t{1} << 20;
  spec.max_calls = int64_t{1} << 30;
  return spec;
}

double percentile(std::vector<double> values, double of) {
  const auto at = static_cast<size_t>(of * static_cast<double>(values.size() - 1));
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(at));
  return values[at];
}

void add_percentiles(Report& report, const std::string& name, const std::string& what,
                     const std::vector<double>& ms) {
  report.add(name, what, "ms", ms);
  report.add(name, what + ", p99", "ms", {percentile(ms, 0.99)});
}

// So many bytes over TCP to a thread that answers with so many, in milliseconds.
std::vector<double> echo_ms(int rounds, size_t there, size_t back) {
  const FileDescriptor listening = http::listening_socket("127.0.0.1", 0);
  const FileDescriptor client = connect_to(http::port_of(listening.get()));
  pollfd arrives{.fd = listening.get(), .events = POLLIN, .revents = 0};
  require(::poll(&arrives, 1, 10'000) == 1, "no connection came");
  const FileDescriptor server(::accept(listening.get(), nullptr, nullptr));
  require(server.is_open(), "no connection was accepted");
  const int on = 1;
  (void)::setsockopt(server.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  for (const int end : {client.get(), server.get()})
    (void)::setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  const auto receive = [](int end, std::string& bytes) {
    return ::recv(end, bytes.data(), bytes.size(), MSG_WAITALL) == std::ssize(bytes);
  };
  const auto send = [](int end, const std::string& bytes) {
    return ::send(end, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
  };
  std::jthread answers([&] {
    std::string in(there, 0);
    const std::string out(back, 'a');
    while (receive(server.get(), in) && send(server.get(), out)) {
    }
  });
  std::vector<double> ms;
  const std::string out(there, 'q');
  std::string in(back, 0);
  for (int i = 0; i < rounds; ++i) {
    const Stopwatch watch;
    require(send(client.get(), out) && receive(client.get(), in), "the echo broke off");
    ms.push_back(1e3 * watch.seconds());
  }
  (void)::shutdown(client.get(), SHUT_WR);
  return ms;
}

struct Bytes {
  size_t there = 0, back = 0;
};

struct Overheads {
  std::vector<double> ms;
  double calls_per_s = 0;
  Bytes bytes;
};

// Single calls, each an attempt's that has no other call open.
Overheads overheads(const Words& words, int calls, size_t clients, bool keeps, int64_t steps,
                    microseconds step) {
  FixedGenerator generator(words.answer, steps, step, clients);
  ServedGateway served(generator, words.format, {});
  std::vector<std::string> keys, requests;
  for (size_t i = 0; i < clients; ++i) {
    keys.push_back(served.gateway().begin(spec_of(i, clients)));
    requests.push_back(call_of(served.path(keys.back()),
                               ordered_json::array({{{"role", "user"}, {"content", kSaid}}}), i));
  }
  served.serve();
  Overheads found;
  // A tenth before those that are measured warms caches.
  const int unmeasured = std::max(1, calls / 10);
  int asked = 0, heard = 0;
  Stopwatch watch;
  ask_all(served.port(), clients, keeps, [&](size_t i, const HttpAnswer* last) {
    if (last != nullptr) {
      require(last->status == 200, "a call is answered with {}: {}", last->status, last->body);
      require(last->body.find("begin at 0: for") != std::string::npos, "the answer is another: {}",
              last->body);
      found.bytes = {.there = requests[i].size(), .back = last->body.size() + 120};
      if (++heard == unmeasured) watch.lap();
      if (heard > unmeasured) found.ms.push_back(1e3 * (last->seconds - generator.seconds(i)));
    }
    return asked++ < calls + unmeasured ? std::optional(requests[i]) : std::nullopt;
  });
  found.calls_per_s = static_cast<double>(found.ms.size()) / watch.seconds();
  served.stop();
  int64_t answers = 0;
  for (const std::string& key : keys) answers += served.gateway().end(key).num_answers;
  require(answers == calls + unmeasured, "{} answers were captured of {}", answers,
          calls + unmeasured);
  require(generator.num_sessions() == 0, "{} sessions are left", generator.num_sessions());
  return found;
}

}  // namespace

void measure_overhead(const GatewayBenchOptions& options, Report& report) {
  const Words words(options.tokenizer);
  // About as long as an answer of this length takes, in steps of a small model.
  constexpr int64_t kSteps = 100;
  constexpr microseconds kStep{200};
  const int few = std::max(20, options.calls / 10);
  const Overheads one = overheads(words, few, 1, /*keeps=*/true, kSteps, kStep);
  const std::vector<double> echo = echo_ms(options.calls, one.bytes.there, one.bytes.back);
  add_percentiles(report, "loopback", "bytes of a call to a thread and back", echo);
  const auto add = [&](const std::string& name, const std::vector<double>& ms) {
    add_percentiles(report, name, "call without its generation", ms);
  };
  add("one client", one.ms);
  add("one client, fresh connections", overheads(words, few, 1, /*keeps=*/false, kSteps, kStep).ms);
  add("64 clients", overheads(words, options.calls, 64, /*keeps=*/true, kSteps, kStep).ms);
  add("64 clients, fresh connections",
      overheads(words, options.calls, 64, /*keeps=*/false, kSteps, kStep).ms);
  const Overheads most = overheads(words, options.calls, 64, /*keeps=*/true, 1, microseconds{0});
  report.add("64 clients, answers at once", "calls", "calls/s", {most.calls_per_s});
}

void measure_sessions(const GatewayBenchOptions& options, Report& report) {
  const Words words(options.tokenizer);
  const auto sessions = static_cast<size_t>(options.sessions);
  FixedGenerator generator(words.answer, 100, microseconds{200}, sessions);
  ServedGateway served(generator, words.format, {});
  std::vector<std::string> keys;
  for (size_t i = 0; i < sessions; ++i)
    keys.push_back(served.gateway().begin(spec_of(i, sessions)));
  served.serve();
  std::vector<ordered_json> said(sessions, ordered_json::array());
  std::vector<int> turns(sessions, 0);
  std::vector<double> ms, overhead;
  int refused = 0;
  const Stopwatch watch;
  ask_all(
      served.port(), sessions, /*keeps=*/true,
      [&](size_t i, const HttpAnswer* last) -> std::optional<std::string> {
        if (last != nullptr) {
          ms.push_back(1e3 * last->seconds);
          overhead.push_back(1e3 * (last->seconds - generator.seconds(i)));
          if (last->status != 200) {
            ++refused;
            return std::nullopt;
          }
          said[i].push_back(ordered_json::parse(last->body)["choices"][0]["message"]);
          if (++turns[i] == options.turns) return std::nullopt;
        }
        said[i].push_back({{"role", "user"}, {"content", fmt::format("{}: {}", turns[i], kSaid)}});
        return call_of(served.path(keys[i]), said[i], i);
      });
  const double seconds = watch.seconds();
  served.stop();
  for (size_t i = 0; i < sessions; ++i) {
    const gateway::CapturedAttempt attempt = served.gateway().end(keys[i]);
    require(attempt.num_answers == options.turns && attempt.segments.size() == 1,
            "session {} has {} answers in {} segments; {} in one were given", i,
            attempt.num_answers, attempt.segments.size(), options.turns);
  }
  require(generator.num_sessions() == 0, "{} sessions are left", generator.num_sessions());
  const std::string name = fmt::format("{} sessions of {} turns", sessions, options.turns);
  report.add(name, "refused", "calls", {static_cast<double>(refused)});
  report.add(name, "calls", "calls/s", {static_cast<double>(ms.size()) / seconds});
  report.add(name, "call", "ms", ms);
  add_percentiles(report, name, "call without its generation", overhead);
  require(refused == 0, "{} calls were refused", refused);
}

}  // namespace tailrace
