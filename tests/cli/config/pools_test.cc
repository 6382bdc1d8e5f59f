// Pools whose workers a launch starts, and pools whose workers come from elsewhere.
#include "cli/config/pools.h"

#include <gtest/gtest.h>

#include "cli/inputs/load.h"
#include "cli/inputs/resolved_run.h"
#include "cli/inputs/rules.h"
#include "cli/roles/roles.h"
#include "core/base/error.h"
#include "core/config/config_printer.h"
#include "core/config/yaml_config.h"

namespace tailrace {
namespace {

// Eight lines: the pools begin in line 9.
constexpr const char* kPoolsExample =
    "run: {steps: 4, listen: \"tcp://*:7117\", keys: /keys}\n"
    "model: {create: {hidden_size: 64, layers: 2, heads: 4}}\n"
    "env: {name: frozen_grid}\n"
    "clusters:\n"
    "  - {name: west, link_mbit: 100}\n"
    "  - {name: east}\n"
    "rollout:\n"
    "  pools:\n";
constexpr const char* kPools =
    "    - {name: far, workers: 4, cluster: west}\n"
    "    - {name: near, workers: 2, max_sequences: 3}\n"
    "    - {name: farther, cluster: east}\n"
    "    - {name: beside}\n";

RunOptions read_pools(std::vector<std::string> overrides = {}, const std::string& pools = kPools) {
  RunOptions options;
  auto keys = bind_config(parse_config(kPoolsExample + pools, "a.yaml", overrides), options);
  validate(options, keys, built_in_registries());
  return options;
}
std::string pools_error(std::vector<std::string> overrides, const std::string& pools = kPools) {
  try {
    read_pools(overrides, pools);
  } catch (const UserError& error) {
    return error.what();
  }
  return "(no error)";
}

TEST(Pools, ALaunchStartsTheWorkersOfThoseWithoutACluster) {
  const ResolvedRun run = resolve(read_pools());
  EXPECT_EQ(run.pools.size(), 4u);
  EXPECT_EQ(run.rollout_workers, 3);
  EXPECT_EQ(pool_of_worker(run.launched_pools, 0).name, "near");
  EXPECT_EQ(pool_of_worker(run.launched_pools, 1).name, "near");
  EXPECT_EQ(pool_of_worker(run.launched_pools, 2).name, "beside");
  EXPECT_THROW((void)pool_of_worker(run.launched_pools, 3), UserError);
  EXPECT_EQ(pool_to_join(run.pools, "far").cluster, "west");
  int64_t rollouts = 0;
  for (const RoleName& role : roles_of(run)) rollouts += role.kind == RoleKind::kRollout;
  EXPECT_EQ(rollouts, 3);
}

TEST(Pools, ALaunchMayStartNoWorkersAtAll) {
  const RunOptions options =
      read_pools({"reward.workers=0"}, "    - {name: far, workers: 4, cluster: west}\n");
  const ResolvedRun run = resolve(options);
  EXPECT_EQ(run.rollout_workers, 0);
  const auto roles = roles_of(run);
  ASSERT_EQ(roles.size(), 3u) << "the scheduler, the gate and the trainer";
  check_open_files(run, /*in_process=*/false, 100);
  check_threads(run);
  EXPECT_EQ(pool_to_join(run.pools, "").name, "far");
  // What is saved is the same run.
  RunOptions again;
  auto keys = bind_config(parse_config(print_config(options), "config.yaml", {}), again);
  validate(again, keys, built_in_registries());
  EXPECT_EQ(print_config(again), print_config(options));
}

TEST(Clusters, MistakesAreNamedWithTheirLine) {
  EXPECT_EQ(pools_error({}, "    - {name: far, cluster: wset}\n"),
            "a.yaml:9: rollout.pools.far.cluster is wset, and clusters has west, east.\n"
            "       Try west, or remove it: launch starts the workers of the pool then.");
  EXPECT_EQ(pools_error({"clusters=[]"}),
            "a.yaml:9: rollout.pools.far.cluster is west, but clusters lists none.\n"
            "       Remove it: launch starts the workers of the pool then; or list the cluster: "
            "clusters: [{name: west}].");
  EXPECT_EQ(pools_error({"run.listen=\"\""}),
            "a.yaml:9: rollout.pools.far.cluster is west, but run.listen is empty: no worker could "
            "join from there.\n       Give run.listen, or remove it: launch starts the workers of "
            "the pool then.");
  EXPECT_EQ(pools_error({"run.listen=\"\""}, "    - {name: near}\n"),
            "a.yaml:4: clusters has west, east, but run.listen is empty: no worker could join from "
            "there. Give run.listen, or remove the list.");
  EXPECT_EQ(pools_error({"clusters=[{name: west}, {name: west}]"}),
            "override clusters=[{name: west}, {name: west}]: clusters[1].name is west, as that of "
            "clusters[0] is. Give each a name of its own.");
  EXPECT_EQ(pools_error({"clusters=[{name: a.b}]"}),
            "override clusters=[{name: a.b}]: clusters[0].name is 'a.b'; the name of a cluster is "
            "of letters, digits, _ and -, at most 64 of them. Try a.");
  EXPECT_NE(pools_error({"clusters.west.link_mbit=-1"}).find("clusters.west.link_mbit is -1"),
            std::string::npos);
  // Those that are awaited count as well.
  EXPECT_NE(pools_error({"rollout.pools.far.workers=1024"})
                .find("rollout.pools has 1028 workers together; a run has at most 1024."),
            std::string::npos)
      << pools_error({"rollout.pools.far.workers=1024"});
}

TEST(Listen, MistakesAreNamed) {
  const std::string near = "    - {name: near}\n";
  EXPECT_EQ(pools_error({"run.listen=7117"}),
            "override run.listen=7117: run.listen is '7117'; it is tcp://HOST:PORT, of an address "
            "of this machine or * for all of them, and a port from 1 to 65535. Try tcp://*:7117.");
  EXPECT_EQ(pools_error({"run.keys=\"\""}),
            "a.yaml:1: run.listen is tcp://*:7117, but run.keys is empty: who may join is known by "
            "keys.\n       Make them with 'tailrace worker keys', and give their folder as "
            "run.keys=DIR.");
  EXPECT_EQ(pools_error({"run.listen=\"\"", "clusters=[]", "reward.workers=0"}, near),
            "override reward.workers=0: reward.workers is 0, but run.listen is empty: nobody could "
            "score episodes.\n       Try reward.workers=1, or give run.listen: reward workers of "
            "other hosts join there.");
  EXPECT_EQ(pools_error({"run.listen=\"\"", "clusters=[]", "run.keys=/k"}, near),
            "override run.keys=/k: run.keys has no effect: run.listen is empty. Remove it.");
  // An override that closes the run takes the keys of the file along.
  EXPECT_EQ(pools_error({"run.listen=\"\"", "clusters=[]"}, near), "(no error)");
  EXPECT_EQ(read_pools({"run.listen=\"\"", "clusters=[]"}, near).run.keys, "");
}

}  // namespace
}  // namespace tailrace
