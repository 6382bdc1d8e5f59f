// `serve` as a client meets it: the real binary at its address, beside `model score`.
#include <chrono>
#include <csignal>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/process/child_process.h"
#include "core/base/file.h"
#include "tests/cli/commands/stories.h"
#include "tests/cli/run_binary.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/core/http/client.h"

namespace tailrace {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

class Serve : public ::testing::Test {
 protected:
  Serve() : child_(start(folder_ / "said")) {
    const std::string said = wait_for("/v1");
    const size_t at = said.find("http://127.0.0.1:");
    if (at == said.npos) throw std::runtime_error("it does not serve: " + said);
    port_ = static_cast<uint16_t>(std::stoi(said.substr(at + 17)));
  }
  ~Serve() override {
    child_.send_signal(SIGTERM);
    for (int i = 0; i < 1000 && !child_.try_reap(); ++i) std::this_thread::sleep_for(20ms);
  }

  static ChildProcess start(const std::filesystem::path& said) {
    auto child = ChildProcess::spawn(
        {TAILRACE_BINARY, "serve", "--model", kStories, "--port", "0", "--threads", "1"}, said);
    if (!child) throw std::runtime_error(child.failure().message);
    return std::move(child).value();
  }
  std::string wait_for(const std::string& words) const {
    std::string said;
    for (int i = 0; i < 1000 && said.find(words) == said.npos; ++i) {
      std::this_thread::sleep_for(20ms);
      if (const auto read = read_file(folder_ / "said")) said = read.value();
    }
    return said;
  }
  json ask(const json& body) const {
    http::Client client(port_);
    client.send(http::post("/v1/completions", body.dump()));
    const http::Answer answer = client.read_answer();
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  }

  TemporaryDirectory folder_;
  ChildProcess child_;
  uint16_t port_ = 0;
};

// As float32: the API writes the digits of a double.
std::vector<float> floats(const json& values) { return values.get<std::vector<float>>(); }

// Several prompts of ids, as lm-eval sends them, one longer than what runs in a pass.
TEST_F(Serve, EchoesWithTheScoresOfModelScore) {
  std::vector<std::vector<int>> prompts = {{1, 403, 407}, {1, 5}, {}};
  for (int i = 0; i < 500; ++i) prompts[2].push_back((i * 37 + 5) % 512);
  std::string input;
  for (const auto& ids : prompts) input += json{{"input_ids", ids}}.dump() + "\n";
  const auto scored = run_binary("model score --top-k 2 --threads 1 --model " + kStories, input);
  ASSERT_EQ(scored.exit_code, 0) << scored.err;
  const auto rows = rows_of(scored.out);
  for (const int new_tokens : {0, 1}) {
    const json choices = ask({{"prompt", prompts},
                              {"echo", true},
                              {"max_tokens", new_tokens},
                              {"logprobs", 2},
                              {"temperature", 0},
                              {"return_tokens_as_token_ids", true}})["choices"];
    ASSERT_EQ(choices.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(choices[i]["index"], i);
      json logprobs = choices[i]["logprobs"];
      ASSERT_EQ(logprobs["tokens"].size(), prompts[i].size() + static_cast<size_t>(new_tokens));
      json of_prompt = logprobs["token_logprobs"];
      EXPECT_TRUE(of_prompt[0].is_null());
      of_prompt.erase(0);
      if (new_tokens == 1) of_prompt.erase(of_prompt.size() - 1);
      EXPECT_EQ(floats(of_prompt), floats(rows[i]["logprobs"]));
      for (size_t t = 1; t < prompts[i].size(); ++t)
        for (const json& top : rows[i]["top_logprobs"][t - 1])
          EXPECT_EQ(logprobs["top_logprobs"][t]["token_id:" + top[0].dump()].get<float>(),
                    top[1].get<float>());
    }
  }
}

}  // namespace
}  // namespace tailrace
