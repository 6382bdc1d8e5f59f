#include "scheduler/options.h"

namespace tailrace::scheduler {
namespace {

Time seconds(double value) {
  return std::chrono::duration_cast<Time>(std::chrono::duration<double>(value));
}

}  // namespace

Config make_config(const SchedulerOptions& options, const EvalOptions& eval,
                   const std::vector<int64_t>& domain_prompts) {
  Config config;
  config.domains.clear();
  const auto num_domains = std::ssize(domain_prompts);
  for (int64_t i = 0; i < num_domains; ++i) {
    const int64_t share =
        options.prompts_per_step / num_domains + (i < options.prompts_per_step % num_domains);
    config.domains.push_back({.prompts_per_step = share,
                              .prompts_per_epoch = domain_prompts[static_cast<size_t>(i)],
                              .epochs = options.epochs});
  }
  config.group_size = options.group_size;
  config.steps = options.steps;
  config.replace_zero_signal = options.replace_zero_signal;
  config.retries = {.env_failed = options.retries_env_failed,
                    .verifier_failed = options.retries_verifier_failed,
                    .lost = options.retries_lost};
  config.lease = seconds(options.lease_seconds);
  config.verify = seconds(options.verify_seconds);
  config.install = seconds(options.install_seconds);
  config.eval = {.prompts = eval.prompts,
                 .group_size = eval.group_size,
                 .interval_steps = eval.interval_steps};
  config.breaker = {.window = options.breaker_window, .share = options.breaker_share_ratio};
  config.validate();
  return config;
}

}  // namespace tailrace::scheduler
