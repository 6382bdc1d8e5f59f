// The parts with a real engine: a call whose client hangs up, and streams.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include "bench/gateway/parts.h"
#include "bench/gateway/served_gateway.h"
#include "bench/gateway/swarm.h"
#include "bench/report/program.h"
#include "cli/eval/loaded_model.h"
#include "core/chat/prompt_format.h"
#include "rollout/engine/engine.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using nlohmann::ordered_json;

constexpr int64_t kContext = 512, kNew = 256;
constexpr const char* kPrompt = "Once upon a time, there was a little girl who had a big dog";

struct SmallEngine {
  SmallEngine(const std::string& folder, int threads, int64_t sequences)
      : loaded(folder, {.device = DeviceChoice::kCpu, .threads = threads}, kContext),
        tokenizer(load_tokenizer_of(folder, loaded.config())),
        format(*tokenizer) {
    EngineOptions options;
    options.max_context_tokens = kContext;
    options.max_sequences = sequences;
    engine =
        std::make_unique<Engine>(loaded.model(), tokenizer.get(), options, loaded.stream(), clock);
    engine->install(loaded.shared_weights(), 0);
  }
  bool holds_nothing() const {
    return engine->num_free_blocks() + engine->num_cached_blocks() == engine->num_blocks();
  }

  LoadedModel loaded;
  std::unique_ptr<text::Tokenizer> tokenizer;
  chat::PromptFormat format;
  SteadyClock clock;
  std::unique_ptr<Engine> engine;
};

gateway::GatewayOptions for_anonymous() {
  gateway::GatewayOptions how;
  how.serves_anonymous = true;
  how.sampling.max_new_tokens = kNew;
  return how;
}

std::string stream_request(const std::string& path, int64_t tokens, size_t seed) {
  return http_post(path, ordered_json{{"messages", {{{"role", "user"}, {"content", kPrompt}}}},
                                      {"stream", true},
                                      {"stream_options", {{"include_usage", true}}},
                                      {"max_tokens", tokens},
                                      {"seed", seed}}
                             .dump());
}

int64_t streamed_tokens(const std::string& body) {
  require(body.ends_with("data: [DONE]\n\n"), "a stream did not end");
  const size_t end = body.rfind("data: {", body.size());
  const std::string last = body.substr(end + 6, body.find('\n', end) - end - 6);
  return ordered_json::parse(last)["usage"]["completion_tokens"].get<int64_t>();
}

}  // namespace

void measure_cancel(const GatewayBenchOptions& options, Report& report) {
  SmallEngine small(options.model, options.threads, 8);
  const gateway::GatewayOptions how = for_anonymous();
  ServedGateway served(*small.engine, small.format, how);
  std::atomic<bool> is_free = true;
  served.serve([&] { is_free = small.holds_nothing(); });
  std::vector<double> ms;
  for (int run = 0; run < options.runs; ++run) {
    FileDescriptor client = connect_to(served.port());
    const std::string request = stream_request(served.path(), 450, static_cast<size_t>(run));
    require(
        ::send(client.get(), request.data(), request.size(), MSG_NOSIGNAL) == std::ssize(request),
        "no request");
    // The first pieces of the answer.
    const timeval patience{.tv_sec = 10, .tv_usec = 0};
    (void)::setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    std::string in;
    char buffer[4096];
    while (in.find("\"content\"") == in.npos) {
      const ssize_t size = ::recv(client.get(), buffer, sizeof buffer, 0);
      require(size > 0, "a stream did not begin");
      in.append(buffer, static_cast<size_t>(size));
    }
    require(in.find("[DONE]") == in.npos, "the stream was over before its client could hang up");
    const Stopwatch watch;
    client.reset();
    while (!is_free) {
      require(watch.seconds() < 10, "a call whose client hung up holds its KV for 10 s");
      std::this_thread::sleep_for(50us);
    }
    ms.push_back(1e3 * watch.seconds());
  }
  served.stop();
  const int64_t sampled = small.engine->stats().sampled_tokens;
  require(sampled < 450L * options.runs, "calls were sampled to their ends");
  report.add("hung up", "until its KV is free", "ms", ms);
  report.add("hung up", "sampled of 450 tokens", "tokens",
             {static_cast<double>(sampled) / options.runs});
}

void measure_streams(const GatewayBenchOptions& options, Report& report) {
  SmallEngine small(options.model, options.threads, 16);
  SessionId next = 1;
  // Tokens a second of so many answers at once, of the engine alone.
  const auto alone = [&](size_t clients) {
    const int64_t before = small.engine->stats().sampled_tokens;
    const Stopwatch watch;
    const SessionId first = next;
    for (size_t i = 0; i < clients; ++i) {
      GenerateRequest request;
      request.session = next++;
      request.new_tokens = small.tokenizer->encode(kPrompt, {.framed = true});
      request.sampling.max_new_tokens = kNew;
      request.key = {static_cast<uint64_t>(i)};
      small.engine->submit(std::move(request));
    }
    while (!small.engine->idle()) (void)small.engine->step();
    const double seconds = watch.seconds();
    for (SessionId session = first; session < next; ++session) small.engine->release(session);
    return static_cast<double>(small.engine->stats().sampled_tokens - before) / seconds;
  };
  const auto streamed = [&](size_t clients, bool streams) {
    ServedGateway served(*small.engine, small.format, for_anonymous());
    served.serve();
    int64_t tokens = 0;
    std::vector<bool> has_asked(clients, false);
    const Stopwatch watch;
    ask_all(
        served.port(), clients, /*keeps=*/true,
        [&](size_t i, const HttpAnswer* last) -> std::optional<std::string> {
          if (last == nullptr) {
            if (streams) return stream_request(served.path(), kNew, i);
            return http_post(served.path(),
                             ordered_json{{"messages", {{{"role", "user"}, {"content", kPrompt}}}},
                                          {"max_tokens", kNew},
                                          {"seed", i}}
                                 .dump());
          }
          require(last->status == 200, "{}: {}", last->status, last->body);
          tokens +=
              streams
                  ? streamed_tokens(last->body)
                  : ordered_json::parse(last->body)["usage"]["completion_tokens"].get<int64_t>();
          return std::nullopt;
        });
    const double seconds = watch.seconds();
    served.stop();
    require(tokens == static_cast<int64_t>(clients) * kNew, "{} tokens came", tokens);
    return static_cast<double>(tokens) / seconds;
  };
  (void)alone(1);
  for (const size_t clients : {size_t{1}, size_t{16}}) {
    std::vector<double> engine, whole, stream, ratio, whole_ratio;
    // Side by side, so that what else the machine does meets both.
    for (int run = 0; run < std::max(1, options.runs / 2); ++run) {
      engine.push_back(alone(clients));
      whole.push_back(streamed(clients, false));
      stream.push_back(streamed(clients, true));
      whole_ratio.push_back(whole.back() / engine.back());
      ratio.push_back(stream.back() / engine.back());
    }
    const std::string name =
        fmt::format("{} {} of {} tokens", clients, clients == 1 ? "answer" : "answers", kNew);
    report.add(name, "the engine alone", "tokens/s", engine);
    report.add(name, "whole through the gateway", "tokens/s", whole, spread(engine).median);
    report.add(name, "streamed through the gateway", "tokens/s", stream, spread(engine).median);
    report.add(name, "whole / alone", "ratio", whole_ratio);
    report.add(name, "streamed / alone", "ratio", ratio);
  }
}

}  // namespace tailrace
