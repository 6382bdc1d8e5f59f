// Tests that need hosts: they are skipped, with the reason, where none can be made.
#pragma once

#include <string_view>

#include <gtest/gtest.h>

#include "tests/hosts/host.h"

namespace tailrace {

class HostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_hosts()) GTEST_SKIP() << *reason;
    if (std::string_view(TAILRACE_BINARY).starts_with("/tmp/"))
      GTEST_SKIP() << TAILRACE_BINARY << " lies in /tmp, and each host has a /tmp of its own: "
                   << "build in another folder";
  }
};

}  // namespace tailrace
