"""A Gymnasium environment as an environment of Tailrace: pip install gymnasium, and then

    env: {command: [python3, gymnasium_adapter.py], settings: {id: FrozenLake-v1, is_slippery: false}}

`id` is the name of the environment, `import` a module that registers it, `max_turns` a limit where
it has none, `max_action_tokens` one of an action. `instruction` is what stands before the first
observation; without it that is what the environment is about, from its documentation, and nothing
with `instruction: ""`. `invalid_penalty` is what an action costs that is none. All other settings go
to gymnasium.make(). An action is a number, or several that are separated by blanks, on the last line
of what the policy writes. Of discrete spaces an observation is its numbers, and there is a
vocabulary, so that a policy of model.create can play.

The metric `success` is what the environment says in its info (`is_success`, or `success`), and else
1 for an episode that has terminated with a positive last reward.
"""
import importlib
import inspect
import json
import re
import sys

import gymnasium
from gymnasium import spaces

MOST_WORDS = 10_000  # of a vocabulary


def words_of(space):
    """All that an observation or action of a discrete space is written with; None: it is not."""
    if isinstance(space, spaces.Discrete):
        ranges = [(int(getattr(space, "start", 0)), int(space.n))]
    elif isinstance(space, spaces.MultiDiscrete):
        begin = getattr(space, "start", space.nvec * 0)
        ranges = list(zip(begin.flatten().tolist(), space.nvec.flatten().tolist()))
    elif isinstance(space, spaces.MultiBinary):
        ranges = [(0, 2)]
    elif isinstance(space, (spaces.Tuple, spaces.Dict)):
        named = isinstance(space, spaces.Dict)
        parts = list(space.spaces.values()) if named else list(space.spaces)
        parts = [words_of(part) for part in parts]
        names = [word for key in space.spaces for word in str(key).split()] if named else []
        return None if None in parts else names + [word for part in parts for word in part]
    else:
        return None
    if sum(number for _, number in ranges) > MOST_WORDS:
        return None
    return [str(first + i) for first, number in ranges for i in range(number)]


def written(value):
    """An observation of a discrete space, in its words."""
    if isinstance(value, dict):
        return " ".join(f"{key} {written(part)}" for key, part in value.items())
    if isinstance(value, (tuple, list)):
        return " ".join(map(written, value))
    return written(value.tolist()) if hasattr(value, "tolist") else str(int(value))


def shown(observation):
    text = env.render() if env.render_mode == "ansi" else None
    if text is None and is_discrete:
        text = written(observation)
    elif text is None and hasattr(observation, "tolist"):
        observation = observation.tolist()
    return (text if text is not None else str(observation)).rstrip("\n") + "\n"


def kind_of_action():
    space = env.action_space
    if isinstance(space, spaces.Text):
        return "a text"
    if isinstance(space, spaces.Discrete):
        first = int(getattr(space, "start", 0))
        return f"a number from {first} to {first + int(space.n) - 1}"
    return f"the numbers of {space}, with blanks between them"


def documented_task():
    """The first paragraph of its documentation, and what its actions mean."""
    lines = inspect.cleandoc(type(env.unwrapped).__doc__ or "").splitlines()
    paragraph, actions, section = [], [], ""
    for line in map(str.strip, lines):
        if line.startswith("#"):
            section = line.strip("# ").lower()
        elif section.startswith("action") and (named := re.match(r"[-*] (-?\d+): *(.+)", line)):
            actions.append(f"{named[1]}: {named[2].rstrip('.')}")
        if not line.startswith("#") and not (paragraph and paragraph[-1] == ""):
            paragraph += [line] if line or paragraph else []
    task = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(paragraph).strip())  # links: their text
    actions = "; ".join(actions)
    return (f"{task[:1000] or f'This is {name}.'}\n" + (f"Actions: {actions[:1000]}.\n" if actions else "")
            + f"An action is {kind_of_action()}.\n")


def action_of(text):
    space, words = env.action_space, (text.strip().splitlines() or [""])[-1].split()
    if isinstance(space, spaces.Text):
        action = text.strip()
    elif isinstance(space, spaces.Discrete):
        action = int(words[0])
    else:  # Box, MultiDiscrete, MultiBinary
        action = space.sample()
        action = type(action)(action.shape, action.dtype) if action.shape else action
        action[...] = [[float, int][action.dtype.kind in "iu"](word) for word in words]
    if not space.contains(action):
        raise ValueError(text)
    return action


def vocabulary():
    actions, observations = words_of(env.action_space), words_of(env.observation_space)
    if actions is None or not is_discrete or env.render_mode == "ansi":
        return []  # it needs a tokenizer
    words = dict.fromkeys(["\n", *actions, *observations, *instruction.split(), *refusal.split()])
    return list(words) if len(words) <= MOST_WORDS else []


def info(call):
    global env, name, turns, instruction, refusal, penalty, is_discrete
    settings = dict(call["settings"])
    name, turns = str(settings.pop("id", "FrozenLake-v1")), settings.pop("max_turns", None)
    tokens, penalty = settings.pop("max_action_tokens", 16), settings.pop("invalid_penalty", 0)
    instruction = settings.pop("instruction", None)
    if isinstance(penalty, str):
        return {"error": f"invalid_penalty is '{penalty}'; it must be a number"}
    if "import" in settings:
        importlib.import_module(settings.pop("import"))
    try:
        env = gymnasium.make(name, **settings)
    except Exception as error:
        return {"error": f"gymnasium.make({name}): {error}"}
    turns = turns or getattr(env.spec, "max_episode_steps", None) or 100
    is_discrete = words_of(env.observation_space) is not None
    refusal = f"That is no action. An action is {kind_of_action()}.\n"
    if instruction is None:
        instruction = documented_task()
    elif instruction is False or not str(instruction).strip():
        instruction = ""
    else:
        instruction = str(instruction).rstrip("\n") + "\n"
    known = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
    return {"name": known, "max_turns": turns, "max_action_tokens": tokens, "stop_strings": ["\n"],
            "vocabulary": vocabulary()}


def reset(call):
    global left, success
    left, success = turns, 0.0
    observation, _ = env.reset(seed=call["seed"] % 2**31)
    text = shown(observation)
    # The same state later in the episode has no instruction before it.
    return {"text": instruction + text, "state": text} if instruction else {"text": text}


def succeeded(reward, terminated, more):
    for key in ("is_success", "success"):
        if more.get(key) is not None:
            return float(bool(more[key]))
    return float(terminated and reward > 0)


def step(call):
    global left, success
    left -= 1  # an action that is none is a turn too
    try:
        action = action_of(call["action"])
    except (ValueError, IndexError, OverflowError):
        return {"text": refusal, "reward": -penalty, "truncated": left == 0, "metrics": {"success": success}}
    observation, reward, terminated, truncated, more = env.step(action)
    success = succeeded(reward, terminated, more)
    return {"text": shown(observation), "reward": float(reward), "terminated": bool(terminated),
            "truncated": (bool(truncated) or left == 0) and not terminated, "metrics": {"success": success}}


def cut(call):
    return {"truncated": True, "reason": "a limit of the player's", "metrics": {"success": success}}


def sample_action(call):
    env.action_space.seed(call["random"] % 2**31)
    action = env.action_space.sample()
    return {"action": (" ".join(map(str, action.flatten().tolist())) if hasattr(action, "flatten")
                       else str(action)) + "\n"}


def close(call):
    return {}


answers, sys.stdout = sys.stdout, sys.stderr  # what an environment prints is no answer
calls = {f.__name__: f for f in (info, reset, step, cut, sample_action, close)}
for line in sys.stdin:
    call = json.loads(line)
    answer = calls.get(call["call"], lambda call: {"unsupported": True})(call)
    print(json.dumps(answer), file=answers, flush=True)
