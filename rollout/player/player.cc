#include "rollout/player/player.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/base/check.h"

namespace tailrace {
namespace {

constexpr std::chrono::milliseconds kAgent{1};  // while all agents do something else

gateway::GatewayOptions gateway_options(const PlayerOptions& options) {
  gateway::GatewayOptions how;
  how.http.max_body_bytes = options.max_request_bytes;
  how.http.body_limit = "env.agent.max_request_mb";
  return how;
}

}  // namespace

Player::Agents::Agents(GeneratorDriver& driver, const chat::PromptFormat& format,
                       const PlayerOptions& options, const Clock& clock)
    : gateway(driver, format, gateway_options(options), clock),
      runner(gateway, options.agents_folder, clock) {}

Player::Player(Generator& generator, const chat::PromptFormat& format, const PlayerOptions& options,
               const Clock& clock)
    : driver_(generator), runner_(driver_, format, options.runner, clock) {
  if (options.max_request_bytes > 0)
    agents_ = std::make_unique<Agents>(driver_, format, options, clock);
}

void Player::start(EpisodeSpec spec, std::shared_ptr<const sandbox::EnvironmentSource> source) {
  const auto program = source->agent();
  if (program == nullptr) return runner_.start(std::move(spec), std::move(source));
  TR_CHECK(agents_ != nullptr, "a player without agents was given one");
  agents_->runner.start(std::move(spec), source->info().name, program);
}

bool Player::abort(const BodyId& id) {
  return runner_.abort(id.lease, id.lane) || (agents_ && agents_->runner.abort(id.lease, id.lane));
}

bool Player::is_running(const BodyId& id) const {
  return runner_.is_running(id.lease, id.lane) ||
         (agents_ && agents_->runner.is_running(id.lease, id.lane));
}

std::vector<BodyId> Player::running() const {
  std::vector<BodyId> all = runner_.running();
  if (agents_) std::ranges::copy(agents_->runner.running(), std::back_inserter(all));
  return all;
}

int64_t Player::num_running() const {
  return runner_.num_running() + (agents_ ? agents_->runner.num_running() : 0);
}

std::vector<FinishedEpisode> Player::poll(std::chrono::microseconds max_wait) {
  std::vector<FinishedEpisode> ended;
  if (agents_) {
    const bool plays = agents_->runner.num_running() > 0;
    // Nobody else waits here for programs that think.
    if (driver_.idle() && plays) agents_->gateway.wait(kAgent);
    // Before the step below, so that calls that have come are part of it.
    agents_->gateway.poll();
    ended = agents_->runner.poll();
    if (plays) max_wait = {};  // an agent may ask meanwhile
  }
  runner_.prepare(max_wait);
  driver_.step();
  std::ranges::move(runner_.take(), std::back_inserter(ended));
  return ended;
}

std::vector<std::string> Player::take_notes(bool is_end) {
  return agents_ ? agents_->runner.take_notes(is_end) : std::vector<std::string>();
}

std::optional<gateway::HeldCall> Player::held() const {
  return agents_ ? agents_->gateway.held() : std::nullopt;
}

}  // namespace tailrace
