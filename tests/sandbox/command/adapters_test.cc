// The adapters of examples/environments, each with a small stand-in for what it adapts.
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/random.h"
#include "core/text/tokenizer.h"
#include "sandbox/command/command_environment.h"
#include "sandbox/process/process.h"
#include "tests/core/base/temporary_directory.h"
#include "tests/sandbox/environment_contract.h"

namespace tailrace::sandbox {
namespace {

constexpr Time kAdapterPatience = std::chrono::seconds(60);

class EnvironmentAdapters : public testing::Test {
 protected:
  // With a module of Python's beside it.
  std::shared_ptr<const EnvironmentSource> source(const std::string& adapter,
                                                  const EnvironmentSettings& settings) {
    CommandStart start{.words = {"python3", fmt::format("{}/examples/environments/{}",
                                                        TAILRACE_SOURCE_DIR, adapter)}};
    start.variables = {"PYTHONPATH=" + folder_.path().string()};
    return UsedProgram::source(
        std::make_shared<UsedProgram>(start, CommandLimits{.call = kAdapterPatience}), settings);
  }

  TemporaryDirectory folder_;
};

// A corridor to the right, or one whose room is two numbers, with what a run asks of them.
const char* kGymnasium = R"py(
import types
class Discrete:
    def __init__(self, n, start=0): self.n, self.start = n, start
    def contains(self, action): return 0 <= action - self.start < self.n
    def seed(self, seed): self.next = seed % self.n
    def sample(self): return self.start + self.next
class Text: pass
class Box: pass
class MultiDiscrete: pass
class MultiBinary: pass
class Tuple:
    def __init__(self, *spaces): self.spaces = spaces
class Dict:
    def __init__(self, **spaces): self.spaces = spaces
spaces = types.SimpleNamespace(Discrete=Discrete, Text=Text, MultiDiscrete=MultiDiscrete,
                               MultiBinary=MultiBinary, Tuple=Tuple, Dict=Dict)
class Corridor:
    """
    A corridor with a [door](http://door) at
    its right end.

    Its author is unknown.

    ## Action Space
    - 0: Go left.
    - 1: Go right.

    ## Rewards
    - 1: at the door
    """
    render_mode = None
    def __init__(self, length, pays=1, says=None, rooms=False, boxed=False):
        self.length, self.pays, self.says, self.rooms = length, pays, says, rooms
        self.action_space = Discrete(2)
        self.observation_space = Box() if boxed else Discrete(length + 2, -1)
        if rooms: self.observation_space = Dict(at=self.observation_space, flags=Tuple(Discrete(2)))
        self.spec = types.SimpleNamespace(max_episode_steps=6)
        self.unwrapped = self
    def seen(self): return {"at": self.at, "flags": (self.turns % 2,)} if self.rooms else self.at
    def reset(self, seed):
        self.at, self.turns = seed % self.length, 0
        print("what an environment prints is no answer")
        return self.seen(), {}
    def step(self, action):
        self.at, self.turns = max(-1, self.at + (1 if action else -1)), self.turns + 1
        is_there = self.at >= self.length
        return (self.seen(), float(is_there * self.pays), is_there, self.turns >= 6,
                {} if self.says is None else {self.says: self.at == 0})
def make(name, **settings):
    if name != "Corridor-v0": raise ValueError("no such environment")
    return Corridor(**settings)
)py";

double success_in(const StepResult& step) {
  for (const auto& [name, value] : step.metrics)
    if (name == "success") return value;
  ADD_FAILURE() << "no metric success";
  return -1;
}

class GymnasiumAdapter : public EnvironmentAdapters {
 protected:
  GymnasiumAdapter() { folder_.write("gymnasium.py", kGymnasium); }

  std::shared_ptr<const EnvironmentSource> corridor(EnvironmentSettings settings) {
    settings.emplace_back("id", "Corridor-v0");
    settings.emplace_back("length", "2");
    return source("gymnasium_adapter.py", settings);
  }
};

TEST_F(GymnasiumAdapter, PlaysAnEnvironment) {
  const auto played = corridor({{"instruction", ""}, {"invalid_penalty", "0.5"}});
  EXPECT_EQ(played->info().name, "Corridor-v0");
  EXPECT_EQ(played->info().max_turns, 6);
  check_environment({.make = [&] { return played->open(); }, .episodes = 4});
  const auto environment = played->open();
  ASSERT_EQ(environment->reset({.seed = 1}).value().text, "1\n");
  const auto refused = environment->step("north\n");
  ASSERT_TRUE(refused) << refused.failure().message;
  EXPECT_EQ(refused.value().observation.text,
            "That is no action. An action is a number from 0 to 1.\n");
  EXPECT_EQ(refused.value().reward, -0.5);
  const auto end = environment->step("I go\n1\n");
  ASSERT_TRUE(end) << end.failure().message;
  EXPECT_TRUE(end.value().terminated);
  EXPECT_EQ(end.value().reward, 1);
}

TEST_F(GymnasiumAdapter, SaysTheTask) {
  const auto first = [&](const EnvironmentSettings& settings) {
    return corridor(settings)->open()->reset({.seed = 1}).value();
  };
  // By its documentation, whose second paragraph and rewards are left out.
  const Observation documented = first({});
  EXPECT_EQ(documented.text,
            "A corridor with a door at its right end.\nActions: 0: Go left; 1: Go right.\n"
            "An action is a number from 0 to 1.\n1\n");
  // The state of a group's episodes is the same with and without it.
  EXPECT_EQ(documented.state, "1\n");
  EXPECT_EQ(first({{"instruction", "Reach the door."}}).text, "Reach the door.\n1\n");
  EXPECT_EQ(first({{"instruction", ""}}).text, "1\n");
  EXPECT_EQ(first({{"instruction", "false"}}).text, "1\n");
}

// All that is said and done is in the words of the tokenizer that model.create makes.
TEST_F(GymnasiumAdapter, HasAVocabularyOfDiscreteSpaces) {
  for (const EnvironmentSettings& settings : {EnvironmentSettings{},
                                              {{"instruction", "Reach  the door 1 .\nNow"}},
                                              {{"rooms", "true"}}}) {
    const auto played = corridor(settings);
    text::write_word_tokenizer(folder_.path(), played->info().vocabulary);
    const auto tokenizer = text::load_tokenizer(folder_.path());
    const auto environment = played->open();
    const auto first = environment->reset({.seed = 1});
    ASSERT_TRUE(first);
    EXPECT_NO_THROW((void)tokenizer->encode(first.value().text)) << first.value().text;
    for (const char* action : {"0\n", "0\n", "none\n", "1\n"}) {
      const auto step = environment->step(action);
      ASSERT_TRUE(step) << step.failure().message;
      const std::string& heard = step.value().observation.text;
      EXPECT_NO_THROW((void)tokenizer->encode(heard)) << heard;
    }
    Rng rng(3);
    EXPECT_NO_THROW((void)tokenizer->encode(environment->sample_action(rng)));
  }
  EXPECT_EQ(corridor({{"rooms", "true"}, {"instruction", ""}})->open()->reset({}).value().text,
            "at 0 flags 0\n");
  // Other spaces need a tokenizer that knows any text.
  EXPECT_TRUE(corridor({{"boxed", "true"}})->info().vocabulary.empty());
}

TEST_F(GymnasiumAdapter, ReportsSuccess) {
  const auto end_of = [&](const EnvironmentSettings& settings) {
    const auto environment = corridor(settings)->open();
    EXPECT_TRUE(environment->reset({.seed = 0}));
    EXPECT_TRUE(environment->step("1\n"));
    return environment->step("1\n").value();
  };
  EXPECT_EQ(success_in(end_of({})), 1);
  // The door may cost more than it gives; then the environment has to say so itself.
  EXPECT_EQ(success_in(end_of({{"pays", "-1"}})), 0);
  EXPECT_EQ(success_in(end_of({{"says", "is_success"}})), 0);
  EXPECT_EQ(success_in(end_of({{"says", "success"}})), 0);
  const auto environment = corridor({{"says", "success"}})->open();
  ASSERT_TRUE(environment->reset({.seed = 1}));
  EXPECT_EQ(success_in(environment->step("0\n").value()), 1);
  EXPECT_EQ(success_in(environment->step("none\n").value()), 1);
  // One that is cut has it as well.
  const auto cut = environment->cut();
  ASSERT_TRUE(cut) << cut.failure().message;
  EXPECT_TRUE(cut.value().truncated);
  EXPECT_EQ(success_in(cut.value()), 1);
}

TEST_F(GymnasiumAdapter, RefusesSettings) {
  EXPECT_THROW((void)corridor({{"invalid_penalty", "much"}}), UserError);
  EXPECT_THROW((void)corridor({{"colour", "red"}}), UserError);
}

TEST_F(EnvironmentAdapters, Gem) {
  folder_.write("gem.py", R"(
import random
class Game:
    max_turns = 2
    def reset(self, seed=None):
        self.number, self.turn = random.randint(1, 3), 0
        return "Guess.", {"suffix": " Now.\n"}
    def step(self, action):
        self.turn += 1
        right = str(self.number) in action
        return "Again.\n", float(right), right, self.turn == 2 and not right, {}
    def sample_random_action(self): return str(random.randint(1, 3))
def make(name, **settings): return Game()
)");
  const auto game = source("gem_adapter.py", {{"id", "game:Three-v0"}});
  EXPECT_EQ(game->info().name, "game_Three-v0");
  check_environment({.make = [&] { return game->open(); }, .episodes = 4});
  EXPECT_EQ(game->open()->reset({.seed = 1}).value().text, "Guess. Now.\n");
}

// A server with a session for each WebSocket, and one environment for all who use HTTP.
const char* kOpenEnvServer = R"py(
import base64, hashlib, http.server, json, socketserver, struct, sys
class World:
    def reset(self, data): self.seed, self.turn = data["seed"], 0; return self.say(0, False)
    def step(self, action):
        self.turn += 1
        return self.say(len(action["message"]) / 10, self.turn == 2)
    def say(self, reward, done):
        return {"observation": {"echo": f"{self.seed}: {self.turn} é" + "x" * 200, "metadata": {}}, "reward": reward, "done": done}
one = World()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *more): pass
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = one.reset(body) if self.path == "/reset" else one.step(body["action"])
        said = json.dumps(said).encode()
        self.send_response(200); self.send_header("Content-Length", len(said)); self.end_headers()
        self.wfile.write(said)
    def do_GET(self):
        key = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         b"Sec-WebSocket-Accept: " + base64.b64encode(key) + b"\r\n\r\n")
        world = World()
        self.close_connection = True
        while head := self.rfile.read(2):
            length = head[1] & 127
            if length == 126: length = struct.unpack(">H", self.rfile.read(2))[0]
            elif length == 127: length = struct.unpack(">Q", self.rfile.read(8))[0]
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length)))
            if head[0] & 15 != 1: continue
            call = json.loads(data)
            if call["type"] == "step" and "crash" in call["data"]["message"]:
                said = {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": "it crashed"}}
            else:
                said = {"type": "observation", "data": getattr(world, call["type"])(call["data"])}
            said = json.dumps(said).encode()
            # A ping, and an answer in two pieces.
            self.wfile.write(b"\x89\x00" + b"\x01\x05" + said[:5] + b"\x80\x7e" + struct.pack(">H", len(said) - 5) + said[5:])
class Server(socketserver.ThreadingMixIn, http.server.HTTPServer): daemon_threads = True
server = Server(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
)py";

TEST_F(EnvironmentAdapters, OpenEnv) {
  auto server = CommandProcess::start(
      {.words = {"python3", folder_.write("server.py", kOpenEnvServer).string()}});
  ASSERT_TRUE(server) << server.failure().message;
  std::string port;
  for (int i = 0; i < 6000 && !port.ends_with('\n'); ++i) {
    char piece[32];
    const ssize_t count = ::read(server.value()->out(), piece, sizeof piece);
    if (count > 0) port.append(piece, static_cast<size_t>(count));
    if (count <= 0) ::usleep(10'000);
  }
  ASSERT_TRUE(port.ends_with('\n')) << "the server does not begin";
  port.pop_back();
  const auto play = [](const EnvironmentSource& from, uint64_t seed) {
    const auto environment = from.open();
    const auto first = environment->reset({.seed = seed});
    EXPECT_TRUE(first) << first.failure().message;
    if (!first) return;
    EXPECT_EQ(first.value().text, fmt::format("{}: 0 é{}", seed, std::string(200, 'x')));
    const auto second = environment->step("four");
    ASSERT_TRUE(second) << second.failure().message;
    EXPECT_EQ(second.value().reward, 0.4);
    EXPECT_FALSE(second.value().terminated);
    const auto third = environment->step(std::string(70'000, 'a'));
    ASSERT_TRUE(third) << third.failure().message;
    EXPECT_EQ(third.value().reward, 7000);
    EXPECT_TRUE(third.value().terminated);
  };
  const auto sessions =
      source("openenv_adapter.py", {{"url", "ws://127.0.0.1:" + port + "/ws"}, {"text", "echo"}});
  const auto shared =
      source("openenv_adapter.py", {{"url", "http://127.0.0.1:" + port}, {"text", "echo"}});
  play(*sessions, 3);
  play(*shared, 4);
  // Two sessions do not see each other, and an error fails its episode alone.
  const auto one = sessions->open(), other = sessions->open();
  ASSERT_TRUE(one->reset({.seed = 1}));
  ASSERT_TRUE(other->reset({.seed = 2}));
  const auto failed = one->step("crash");
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.failure().message.find("it crashed"), std::string::npos)
      << failed.failure().message;
  EXPECT_EQ(other->step("x").value().observation.text.substr(0, 4), "2: 1");
  EXPECT_TRUE(one->reset({.seed = 1}));
  server.value().reset();
  const auto gone = sessions->open()->reset({.seed = 1});
  ASSERT_FALSE(gone);
  EXPECT_NE(gone.failure().message.find("ws://127.0.0.1"), std::string::npos)
      << gone.failure().message;
}

}  // namespace
}  // namespace tailrace::sandbox
