#include "cli/config/listen.h"

#include <gtest/gtest.h>

namespace tailrace {
namespace {

TEST(Listen, AWorkerIsToldOneThatItCanReach) {
  RunOptions options;
  EXPECT_EQ(address_to_join(options), "");
  for (const auto& [listen, told] : {std::pair{"tcp://*:7117", "tcp://HOST:7117"},
                                     {"tcp://0.0.0.0:7117", "tcp://HOST:7117"},
                                     {"tcp://[::]:7117", "tcp://HOST:7117"},
                                     {"tcp://10.0.0.7:7117", "tcp://10.0.0.7:7117"}}) {
    options.run.listen = listen;
    EXPECT_EQ(address_to_join(options), told);
  }
}

}  // namespace
}  // namespace tailrace
