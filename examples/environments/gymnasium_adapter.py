"""A Gymnasium environment as an environment of Tailrace: pip install gymnasium, and then

    env: {command: [python3, gymnasium_adapter.py], settings: {id: FrozenLake-v1, is_slippery: false}}

`id` is the name of the environment, `max_turns` a limit where it has none, `import` a module that
registers it; all other settings go to gymnasium.make(). An action is a number, or several that are
separated by blanks, on the last line of what the policy writes.
"""
import importlib
import json
import sys

import gymnasium


def shown(observation):
    text = env.render() if env.render_mode == "ansi" else None
    if text is None and hasattr(observation, "tolist"):
        observation = observation.tolist()
    return (text if text is not None else str(observation)).rstrip("\n") + "\n"


def action_of(text):
    space, words = env.action_space, (text.strip().splitlines() or [""])[-1].split()
    if isinstance(space, gymnasium.spaces.Text):
        action = text.strip()
    elif isinstance(space, gymnasium.spaces.Discrete):
        action = int(words[0])
    else:  # Box, MultiDiscrete, MultiBinary
        action = space.sample()
        action = type(action)(action.shape, action.dtype) if action.shape else action
        action[...] = [[float, int][action.dtype.kind in "iu"](word) for word in words]
    if not space.contains(action):
        raise ValueError(text)
    return action


def info(call):
    global env, name, turns
    settings = dict(call["settings"])
    name, turns = str(settings.pop("id", "FrozenLake-v1")), settings.pop("max_turns", None)
    if "import" in settings:
        importlib.import_module(settings.pop("import"))
    try:
        env = gymnasium.make(name, **settings)
    except Exception as error:
        return {"error": f"gymnasium.make({name}): {error}"}
    turns = turns or getattr(env.spec, "max_episode_steps", None) or 100
    known = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
    return {"name": known, "max_turns": turns, "max_action_tokens": 16, "stop_strings": ["\n"]}


def reset(call):
    global left
    left = turns
    observation, _ = env.reset(seed=call["seed"] % 2**31)
    return {"text": shown(observation)}


def step(call):
    global left
    left -= 1  # an action that is none is a turn too
    try:
        action = action_of(call["action"])
    except (ValueError, IndexError, OverflowError):
        return {"text": f"That is no action. An action is of {env.action_space}.\n", "reward": 0,
                "truncated": left == 0}
    observation, reward, terminated, truncated, _ = env.step(action)
    return {"text": shown(observation), "reward": float(reward), "terminated": bool(terminated),
            "truncated": (bool(truncated) or left == 0) and not terminated}


def sample_action(call):
    env.action_space.seed(call["random"] % 2**31)
    action = env.action_space.sample()
    return {"action": (" ".join(map(str, action.flatten().tolist())) if hasattr(action, "flatten")
                       else str(action)) + "\n"}


def close(call):
    return {}


answers, sys.stdout = sys.stdout, sys.stderr  # what an environment prints is no answer
calls = {f.__name__: f for f in (info, reset, step, sample_action, close)}
for line in sys.stdin:
    call = json.loads(line)
    answer = calls.get(call["call"], lambda call: {"unsupported": True})(call)
    print(json.dumps(answer), file=answers, flush=True)
