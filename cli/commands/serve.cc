#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/chat_flags.h"
#include "cli/commands/commands.h"
#include "cli/commands/leave.h"
#include "cli/commands/sampling_flags.h"
#include "cli/config/options.h"
#include "cli/eval/loaded_model.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "core/config/flags.h"
#include "core/generator_driver.h"
#include "core/model/adapter_files.h"
#include "core/model/sequence_scorer.h"
#include "rollout/engine/engine.h"
#include "rollout/engine/stop_tokens.h"
#include "rollout/gateway/gateway.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;

struct ServeArguments {
  std::string model, address = "127.0.0.1", name, api_key;
  chat::ChatOptions chat_options;
  std::vector<std::string> chat_variables;
  SamplingOptions sampling;
  int64_t port = 8000, max_new_tokens = 1024, max_context_tokens = 0, max_sequences = 32;
  int64_t kv_cache_mb = 512, max_request_mb = 64;
  ComputeFlags compute;
};

// Scores given tokens with the weights that are served. Its memory is that of the longest sequence
// so far: most servers are never asked.
//
// Thread: the engine's thread only.
class ServedScores {
 public:
  explicit ServedScores(const LoadedModel& loaded) : loaded_(loaded) {}

  gateway::TokenScores operator()(const gateway::TokensToScore& tokens) {
    const auto size = std::ssize(tokens.ids);
    if (scorer_ == nullptr || size > scorer_->max_tokens()) {
      constexpr int64_t kStep = 512;  // sequences that grow one by one make few scorers
      scorer_.reset();
      scorer_ = std::make_unique<SequenceScorer>(
          loaded_.model(), loaded_.stream(),
          std::min((size + kStep - 1) / kStep * kStep, loaded_.model().max_context()));
    }
    SequenceScores found =
        scorer_->score(loaded_.weights(), {.ids = tokens.ids,
                                           .first = tokens.first,
                                           .top_k = tokens.top,
                                           .inverse_temperature = tokens.inverse_temperature});
    gateway::TokenScores scores{.logprobs = std::move(found.logprobs), .top = {}};
    for (const auto& top : found.top) {
      auto& likely = scores.top.emplace_back();
      for (const TopToken& token : top) likely.push_back({token.id, token.logprob});
    }
    return scores;
  }

 private:
  const LoadedModel& loaded_;
  std::unique_ptr<SequenceScorer> scorer_;
};

void serve(const ServeArguments& arguments) {
  // Before any other thread, so that all leave the signals to this.
  const Signals signals{SIGINT, SIGTERM};
  const ModelConfig config = read_policy_folder(arguments.model).config;
  const auto folder = tokenizer_folder(arguments.model);
  const auto tokenizer = load_tokenizer_of(folder, config);
  const auto format = chat::PromptFormat::of(arguments.chat_options, folder, *tokenizer);
  EngineOptions options;
  // A model may know a hundred thousand positions, and the KV cache has to hold one whole
  // conversation.
  options.max_context_tokens = arguments.max_context_tokens > 0
                                   ? std::min(arguments.max_context_tokens, config.max_positions)
                                   : std::min<int64_t>(config.max_positions, 8192);
  options.max_sequences = arguments.max_sequences;
  options.kv_cache_mb = arguments.kv_cache_mb;

  LoadedModel loaded(arguments.model, arguments.compute, options.max_context_tokens);
  const SteadyClock clock;
  Engine engine(loaded.model(), tokenizer.get(), options, loaded.stream(), clock);
  engine.install(loaded.shared_weights(), 0);

  gateway::GatewayOptions how{.model = arguments.name, .serves_anonymous = true};
  if (how.model.empty())
    how.model = std::filesystem::path(arguments.model).lexically_normal().filename().string();
  how.http.address = arguments.address;
  how.http.port = static_cast<uint16_t>(arguments.port);
  how.http.max_body_bytes = arguments.max_request_mb << 20;
  how.http.body_limit = "--max-request-mb";
  // Without keys each call is a session of its own, which may then be as large as a body.
  how.reading.session_bytes = how.http.max_body_bytes;
  how.api_key = arguments.api_key;
  how.sampling = arguments.sampling.params();
  how.sampling.max_new_tokens = arguments.max_new_tokens;
  how.sampling.stop_tokens = stop_tokens(config, format);
  ServedScores scores(loaded);
  how.scores = [&scores](const gateway::TokensToScore& tokens) { return scores(tokens); };
  GeneratorDriver driver(engine);
  gateway::Gateway gateway(driver, format, how, clock);
  fmt::print("{} serves {} at {}{}\n", how.model,
             format.has_template() ? "chat and text"
                                   : "text (it has no chat template: messages "
                                     "are their texts, one behind the other)",
             gateway.base_url(), arguments.api_key.empty() ? "" : ", to who has the key");
  std::fflush(stdout);

  std::atomic<bool> leaves = false;
  const std::jthread waits([&](const std::stop_token& end) {
    while (!leaves && !end.stop_requested()) leaves = signals.wait();
  });
  const auto tell_refusals = [&gateway](bool is_end) {
    for (const std::string& line : gateway.take_refusals(is_end))
      fmt::print(stderr, "note: {}\n", printable(line));
  };
  gateway::HeldTeller held;
  while (!leaves) {
    gateway.poll();
    if (const auto line = held.look(gateway.held(), clock.now())) fmt::print(stderr, "{}\n", *line);
    tell_refusals(/*is_end=*/false);
    // Only while nothing is sampled: a call that comes meanwhile is taken by the next poll(), a
    // step later.
    if (driver.idle()) gateway.wait(100ms);
    driver.step();
  }
  tell_refusals(/*is_end=*/true);
}

}  // namespace

void add_serve(Command& program) {
  auto arguments = std::make_shared<ServeArguments>();
  Command& command = program.command("serve", "Answer OpenAI's API with a model");
  command.option(
      "--model", arguments->model,
      {.help = "Hugging Face folder with its tokenizer", .value = "DIR", .required = true});
  command.option("--address", arguments->address,
                 {.help = "where to listen; 0.0.0.0: to other machines too, in plain text"});
  command.option("--port", arguments->port,
                 {.help = "0: any that is free", .min = 0, .max = 65535});
  command.option("--name", arguments->name,
                 {.help = "what clients see it called; without it the name of the folder"});
  command.option("--api-key", arguments->api_key,
                 {.help = "what clients must give; without it nothing"});
  add_chat_flags(command, arguments->chat_options, arguments->chat_variables);
  add_sampling_flags(command, arguments->sampling);
  command.option("--max-new-tokens", arguments->max_new_tokens,
                 {.help = "of an answer, where the client does not say", .min = 1, .max = 1 << 30});
  command.option("--max-context-tokens", arguments->max_context_tokens,
                 {.help = "of a conversation; 0: what the model has, at most 8192",
                  .min = 0,
                  .max = kMaxSequenceTokens});
  command.option("--max-sequences", arguments->max_sequences,
                 {.help = "answers that are sampled together", .min = 1, .max = 1024});
  command.option("--kv-cache-mb", arguments->kv_cache_mb,
                 {.help = "memory of the KV cache (MiB)", .min = 1, .max = 1 << 24});
  command.option("--max-request-mb", arguments->max_request_mb,
                 {.help = "of a request's body (MiB); a longer one is refused (413)",
                  .min = 1,
                  .max = kMaxRequestMb});
  add_compute_flags(command, arguments->compute);
  command.footer(
      "The official client works against it, as any that takes a base URL:\n"
      "  OpenAI(base_url=\"http://127.0.0.1:8000/v1\", api_key=\"none\")\n\n"
      "Example:\n"
      "  tailrace serve --model tests/data/models/stories260K --port 8000");
  command.action([arguments] {
    set_variables(arguments->chat_options, arguments->chat_variables);
    serve(*arguments);
    return kExitDone;
  });
}

}  // namespace tailrace
