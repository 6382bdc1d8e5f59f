#include "cli/config/pools.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/join_texts.h"
#include "core/base/nearest.h"
#include "core/messages/check.h"
#include "core/wire/admission.h"

namespace tailrace {
namespace {

template <class Item>
std::vector<std::string> names_of(const std::vector<Item>& items) {
  std::vector<std::string> names;
  for (const Item& item : items) names.push_back(item.name);
  return names;
}
std::vector<std::string> names_of(const RunOptions& options) {
  return names_of(options.rollout_processes.pools);
}

// `what`: "a pool"; `advice`: for two that have one name.
void check_names(std::string_view list, std::string_view what,
                 const std::vector<std::string>& names, std::string_view advice) {
  std::map<std::string, size_t> known;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string key = join_key(item_key(list, names, i), "name");
    if (!wire::is_site_name(names[i]))
      throw UserError::at(key,
                          "is '{}'; the name of {} is of letters, digits, _ and -, at most 64 "
                          "of them. Try {}.",
                          names[i], what, i == 0 ? "a" : "b");
    if (const auto [first, is_new] = known.emplace(names[i], i); !is_new)
      throw UserError::at(key, "is {}, as that of {}[{}] is. {}.", names[i], list, first->second,
                          advice);
  }
}

void validate_clusters(const RunOptions& o) {
  const std::vector<std::string> clusters = names_of(o.clusters), pools = names_of(o);
  check_names("clusters", "a cluster", clusters, "Give each a name of its own");
  for (size_t i = 0; i < pools.size(); ++i) {
    const PoolSection& pool = o.rollout_processes.pools[i];
    if (pool.cluster.empty()) continue;
    const std::string key = join_key(item_key("rollout.pools", pools, i), "cluster");
    if (clusters.empty())
      throw UserError::at(
          key,
          "is {}, but clusters lists none.\n       Remove it: launch starts the "
          "workers of the pool then; or list the cluster: clusters: [{{name: {}}}].",
          pool.cluster, pool.cluster);
    if (std::ranges::find(clusters, pool.cluster) == clusters.end()) {
      const std::string nearest = nearest_name(pool.cluster, clusters);
      throw UserError::at(key,
                          "is {}, and clusters has {}.\n       Try {}, or remove it: launch starts "
                          "the workers of the pool then.",
                          pool.cluster, join_texts(clusters, ", "),
                          nearest.empty() ? clusters.front() : nearest);
    }
    if (o.run.listen.empty())
      throw UserError::at(key,
                          "is {}, but run.listen is empty: no worker could join from there.\n"
                          "       Give run.listen, or remove it: launch starts the workers of the "
                          "pool then.",
                          pool.cluster);
  }
  if (!clusters.empty() && o.run.listen.empty())
    throw UserError::at("clusters",
                        "has {}, but run.listen is empty: no worker could join from there. Give "
                        "run.listen, or remove the list.",
                        join_texts(clusters, ", "));
}

}  // namespace

std::vector<PoolSection> pools_of(const RunOptions& options) {
  std::vector<PoolSection> pools = options.rollout_processes.pools;
  // Without a list all workers are in one pool that has no name (law 1.5).
  if (pools.empty()) pools.push_back({.name = "", .workers = options.rollout_processes.workers});
  for (PoolSection& pool : pools) {
    if (pool.max_sequences == 0) pool.max_sequences = options.rollout.engine.max_sequences;
  }
  return pools;
}

PoolSection pool_of_worker(std::span<const PoolSection> launched, int64_t index) {
  // Workers are numbered through the pools in their order, so that a process that is started again
  // is in the pool of the one before.
  int64_t workers = 0;
  for (const PoolSection& pool : launched) {
    workers += pool.workers;
    if (index < workers) return pool;
  }
  throw UserError("the run has {} rollout workers, and none of this index.", workers);
}

PoolSection pool_to_join(std::span<const PoolSection> pools, std::string_view name) {
  // One pool needs no name, whether it has one or not.
  if (name.empty() && pools.size() == 1) return pools.front();
  if (const auto found = std::ranges::find(pools, name, &PoolSection::name);
      found != pools.end() && !name.empty())
    return *found;
  // The pool that nobody has listed has no name.
  std::vector<std::string> names;
  for (const PoolSection& pool : pools)
    if (!pool.name.empty()) names.push_back(pool.name);
  if (names.empty())
    throw UserError(
        "--pool is {}, but this run has no pools (rollout.pools).\n       Leave it out.", name);
  if (name.empty())
    throw UserError(
        "--pool is missing: the workers of this run are in pools ({}).\n       Try "
        "--pool {}.",
        join_texts(names, ", "), names.front());
  const std::string nearest = nearest_name(name, names);
  throw UserError("--pool is {}, and this run has {}.\n       Try --pool {}.", name,
                  join_texts(names, ", "), nearest.empty() ? names.front() : nearest);
}

void check_site_name(std::string_view flag, std::string_view name) {
  if (!wire::is_site_name(name))
    throw UserError("{} is '{}'; it is a name of letters, digits, _ and -, at most 64 of them.",
                    flag, name);
}

void validate_pools(const RunOptions& options, std::span<const RunDataset> datasets) {
  const std::vector<std::string> names = names_of(options);
  check_names("rollout.pools", "a pool", names,
              "Give each a name of its own, or one of them the workers of both");
  validate_clusters(options);
  int64_t workers = 0;
  for (const PoolSection& pool : pools_of(options)) workers += pool.workers;
  // The scheduler admits so many (core/wire/admission.h): those behind them would be refused when
  // the run is under way.
  if (workers > wire::kMaxWorkers)
    throw UserError::at("rollout.pools", "has {} workers together; a run has at most {}.", workers,
                        wire::kMaxWorkers);
  const auto check = [&](const std::string& key, const std::string& pool, std::string_view what) {
    if (pool.empty() || std::ranges::find(names, pool) != names.end()) return;
    if (names.empty())
      throw UserError::at(key,
                          "is {}, but rollout.pools lists no pools: nobody would sample {}.\n     "
                          "  Remove it, or list the pool: rollout.pools: [{{name: {}, workers: "
                          "1}}].",
                          pool, what, pool);
    const std::string nearest = nearest_name(pool, names);
    throw UserError::at(key,
                        "is {}, and rollout.pools has {}: nobody would sample {}.\n       Try {}, "
                        "or remove it: any pool may sample {} then.",
                        pool, join_texts(names, ", "), what,
                        nearest.empty() ? names.front() : nearest, what);
  };
  for (const RunDataset& dataset : datasets)
    check(dataset.key("pool"), dataset.pool, "this dataset");
  if (options.eval.prompts > 0) check("eval.pool", options.eval.pool, "the held-out prompts");
}

std::vector<std::string> datasets_in(std::span<const RunDataset> datasets, std::string_view pool) {
  std::vector<std::string> names;
  for (const RunDataset& dataset : datasets)
    if (dataset.pool.empty() || dataset.pool == pool) names.push_back(dataset.name);
  return names;
}

bool evaluates_all(const RunOptions& options, std::string_view pool) {
  return options.eval.prompts > 0 && !pool.empty() && options.eval.pool == pool;
}

}  // namespace tailrace
