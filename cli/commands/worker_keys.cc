#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/config/pools.h"
#include "cli/view/progress.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/flags.h"
#include "core/wire/curve_keys.h"

namespace tailrace {
namespace {

namespace fs = std::filesystem;

struct KeysArguments {
  std::string name, dir = "keys";
};

void make_private_folder(const fs::path& folder) {
  std::error_code error;
  // A folder that is there keeps the rights that a person gave it.
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
  if (error) throw UserError("{}", describe_errno("create", folder, error.value()));
}

int new_keys(const KeysArguments& arguments) {
  const std::string& name = arguments.name;
  check_site_name("NAME", name);
  if (name == "server")
    throw UserError("'server' is the run's own name. Try the name of the machine that will join.");
  const wire::KeyFolder keys{arguments.dir};
  make_private_folder(keys.root);
  make_private_folder(keys.allowed());
  std::string told;
  // The run's own pair is made once: another one would shut out every machine that has its
  // server.pub.
  if (!fs::exists(keys.server())) {
    wire::write_key_pair(keys.server(), keys.server_public(), "tailrace server");
    told = fmt::format("made {} and {}, which the run has from now on\n", keys.server().string(),
                       keys.server_public().string());
  }
  if (fs::exists(keys.secret(name)) || fs::exists(keys.allowed(name)))
    throw UserError(
        "{} has keys in {} already.\n       Try another name, or remove {} and {} first.", name,
        keys.root.string(), keys.secret(name).string(), keys.allowed(name).string());
  wire::write_key_pair(keys.secret(name), keys.allowed(name), fmt::format("tailrace {}", name));
  told += fmt::format(
      "made {}: take it and {} to the other machine, and remove it here\n"
      "made {}: {} may join runs that have run.keys={}; without this file it may not\n",
      keys.secret(name).string(), keys.server_public().string(), keys.allowed(name).string(), name,
      keys.root.string());
  show(stdout, told);
  return kExitDone;
}

}  // namespace

void add_worker_keys(Command& worker) {
  Command& keys = worker.command("keys", "Keys by which workers of other hosts join a run");
  auto arguments = std::make_shared<KeysArguments>();
  Command& made = keys.command("new", "Make the keys of a machine; the first time also the run's");
  made.option("name", arguments->name,
              {.help = "what the machine is called", .value = "NAME", .required = true});
  made.option("--dir", arguments->dir, {.help = "the folder of keys (run.keys)", .value = "DIR"});
  made.footer(
      "DIR holds server.key (secret), server.pub, and allowed/NAME.pub for each machine that may "
      "join. NAME.key is the machine's secret.\n\n"
      "Example:\n  tailrace worker keys new box7 --dir keys");
  made.action([arguments] { return new_keys(*arguments); });
}

}  // namespace tailrace
