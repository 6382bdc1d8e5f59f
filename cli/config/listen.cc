#include "cli/config/listen.h"

#include "core/base/error.h"
#include "core/wire/tcp_address.h"

namespace tailrace {
std::string address_to_join(const RunOptions& options) {
  auto address = parse_tcp_address(options.run.listen);
  if (!address) return "";
  if (address->is_any()) address->host = "HOST";
  return address->text();
}

void validate_listen(const RunOptions& o) {
  if (o.run.listen.empty()) {
    if (o.reward.workers == 0)
      throw UserError::at("reward.workers",
                          "is 0, but run.listen is empty: nobody could score episodes.\n       Try "
                          "reward.workers=1, or give run.listen: reward workers of other hosts "
                          "join there.");
    return;
  }
  if (!parse_tcp_address(o.run.listen))
    throw UserError::at("run.listen",
                        "is '{}'; it is tcp://HOST:PORT, of an address of this machine or * for "
                        "all of them, and a port from 1 to 65535. Try tcp://*:7117.",
                        o.run.listen);
  if (o.run.keys.empty())
    throw UserError::at("run.listen",
                        "is {}, but run.keys is empty: who may join is known by keys.\n       Make "
                        "them with 'tailrace worker keys', and give their folder as run.keys=DIR.",
                        o.run.listen);
}

}  // namespace tailrace
