#include "rollout/worker/remote_teacher.h"

#include <atomic>
#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/json_text.h"
#include "core/http/server.h"

namespace tailrace {
namespace {

using Json = nlohmann::ordered_json;
using namespace std::chrono_literals;

// A prompt and two answers, the second in a history that was rewritten.
Trajectory sample() {
  using enum TokenRole;
  Trajectory t;
  t.lease.member.prompt = 7;
  t.segments = {{.tokens = {1, 5, 6, 2}, .roles = {kPrompt, kSampled, kSampled, kObservation}},
                {.parent = 0, .parent_tokens = 2, .tokens = {8, 9}, .roles = {kPrompt, kSampled}}};
  return t;
}

// Gives each token -id / 10, and its neighbours as likely ones.
Json answer_to(const Json& request) {
  Json tokens = Json::array(), scores = Json::array(), tops = Json::array();
  for (const Json& id : request["prompt"]) {
    const int token = id.get<int>();
    const bool is_first = tokens.empty();
    tokens.push_back(fmt::format("token_id:{}", token));
    scores.push_back(is_first ? Json() : Json(-0.1 * token));
    tops.push_back(is_first ? Json()
                            : Json{{fmt::format("token_id:{}", token), -0.1 * token},
                                   {fmt::format("token_id:{}", token + 1), -0.05},
                                   {fmt::format("token_id:{}", token + 2), -3}});
  }
  return {
      {"choices",
       {{{"logprobs", {{"tokens", tokens}, {"token_logprobs", scores}, {"top_logprobs", tops}}}}}}};
}

class Teacher {
 public:
  explicit Teacher(std::function<void(Json&)> damage = {}, int busy = 0)
      : server_({}, [this, damage, busy](http::Request request, http::Reply reply) {
          if (++asked <= busy) return reply.send(503, "busy");
          heard = parse_ordered_json(request.body);
          Json answer = answer_to(heard);
          if (damage) damage(answer["choices"][0]["logprobs"]);
          reply.send(200, json_text(answer));
        }) {}
  RemoteTeacherConfig config() const {
    return {.name = "teacher",
            .url = {.host = "127.0.0.1", .port = std::to_string(server_.port()), .path = "/v1"},
            .served_as = "t",
            .top_k = 2,
            .num_ids = 20,
            .pause = 1ms};
  }
  std::atomic<int> asked = 0;
  Json heard;

 private:
  http::Server server_;
};

TEST(RemoteTeacher, ScoresWhatWasSampledInEverySegment) {
  Teacher teacher({}, /*busy=*/2);
  Trajectory t = sample();
  const auto scored = score_remotely(teacher.config(), t);
  ASSERT_TRUE(scored) << scored.failure().message;
  EXPECT_EQ(t.segments[0].teacher_logprobs, (std::vector<float>{0, -.5f, -.6f, 0}));
  EXPECT_EQ(t.segments[0].teacher_top_ids, (std::vector<TokenId>{6, 5, 7, 6}));
  EXPECT_EQ(t.segments[0].teacher_top_logprobs, (std::vector<float>{-.05f, -.5f, -.05f, -.6f}));
  // Behind the tokens that it continues.
  EXPECT_EQ(t.segments[1].teacher_logprobs, (std::vector<float>{0, -.9f}));
  EXPECT_EQ(teacher.heard["prompt"], (Json{1, 5, 8, 9}));
  EXPECT_EQ(teacher.heard["model"], "t");
  EXPECT_EQ(teacher.heard["max_tokens"], 0);
  EXPECT_EQ(teacher.asked, 4) << "two times it was busy";
}

TEST(RemoteTeacher, NoNumberIsMadeUp) {
  const std::pair<const char*, std::function<void(Json&)>> cases[] = {
      {"token 1 is \"token_id:4\", and token_id:5 was sent",
       [](Json& l) { l["tokens"][1] = "token_id:4"; }},
      {"token 2 has the log-probability null", [](Json& l) { l["token_logprobs"][2] = nullptr; }},
      {"token 2 has the log-probability 0.5", [](Json& l) { l["token_logprobs"][2] = 0.5; }},
      {"no token_logprobs of 3 tokens", [](Json& l) { l["token_logprobs"].erase(2); }},
      {"no top_logprobs of 3 tokens", [](Json& l) { l.erase("top_logprobs"); }},
      {"1 likeliest tokens where 2 are asked for",
       [](Json& l) {
         l["top_logprobs"][1] = {{"token_id:4", -1}};
       }},
      {"'token_id:99' with -1", [](Json& l) { l["top_logprobs"][1]["token_id:99"] = -1; }},
      {"'x' with -1", [](Json& l) { l["top_logprobs"][1]["x"] = -1; }},
  };
  for (const auto& [why, damage] : cases) {
    Teacher teacher(damage);
    Trajectory t = sample();
    const auto scored = score_remotely(teacher.config(), t);
    ASSERT_FALSE(scored) << why;
    EXPECT_NE(scored.failure().message.find(why), std::string::npos) << scored.failure().message;
    EXPECT_TRUE(t.segments[0].teacher_logprobs.empty());
    EXPECT_EQ(teacher.asked, 1) << "such a teacher is not asked again";
  }
  Teacher busy({}, /*busy=*/100);
  Trajectory t = sample();
  const auto scored = score_remotely(busy.config(), t);
  ASSERT_FALSE(scored);
  EXPECT_NE(scored.failure().message.find("status 503: busy"), std::string::npos);
  EXPECT_EQ(busy.asked, 3);
}

TEST(RemoteTeacher, GivesEachSampleBackOnceAndDropsWhatNobodyWants) {
  Teacher teacher;
  RemoteTeacher remote(teacher.config());
  EXPECT_TRUE(remote.idle());
  std::vector<BodyId> ids;
  for (int32_t member = 0; member < 12; ++member) {
    Trajectory t = sample();
    t.lease.member.member = member;
    ids.push_back({t.lane, t.lease});
    remote.submit(std::move(t));
  }
  EXPECT_TRUE(remote.drop(ids[11]));
  EXPECT_FALSE(remote.drop(ids[11]));
  std::set<int32_t> back;
  for (int i = 0; i < 2000 && !remote.idle(); ++i) {
    for (const auto& [trajectory, failure] : remote.take()) {
      EXPECT_EQ(failure, "");
      EXPECT_EQ(trajectory.segments[1].teacher_logprobs.size(), 2u);
      EXPECT_TRUE(back.insert(trajectory.lease.member.member).second);
    }
    std::this_thread::sleep_for(5ms);
  }
  EXPECT_EQ(back.size(), 11u);
  EXPECT_FALSE(remote.holds(ids[0]));
}

}  // namespace
}  // namespace tailrace
