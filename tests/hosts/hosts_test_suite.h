// Tests that need hosts: they are skipped, with the reason, where none can be made.
#pragma once

#include <gtest/gtest.h>

#include "tests/hosts/host.h"

namespace tailrace {

class HostsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_hosts()) GTEST_SKIP() << *reason;
  }
};

}  // namespace tailrace
