"""A GEM environment as an environment of Tailrace: install gem, and then

    env: {command: [python3, gem_adapter.py], settings: {id: "game:GuessTheNumber-v0"}}

`id` is its name, `max_turns` a limit where it has none, `import` a module that registers it; all
other settings go to gem.make(). Actions and observations of GEM are texts, and are handed through.
"""
import importlib
import json
import random
import sys

import gem


def heard(observation, more):
    return observation + str(more.get("suffix") or "")


def info(call):
    global env
    settings = dict(call["settings"])
    name, turns = str(settings.pop("id", "game:GuessTheNumber-v0")), settings.pop("max_turns", None)
    if "import" in settings:
        importlib.import_module(settings.pop("import"))
    try:
        env = gem.make(name, **settings)
    except Exception as error:
        return {"error": f"gem.make({name}): {error}"}
    known = "".join(c if c.isalnum() or c in "_-" else "_" for c in name)
    return {"name": known, "max_turns": turns or getattr(env, "max_turns", None) or 1,
            "max_action_tokens": 1024}


def reset(call):
    random.seed(call["seed"])  # of environments that draw from Python's own numbers
    return {"text": heard(*env.reset(seed=call["seed"] % 2**31))}


def step(call):
    observation, reward, terminated, truncated, more = env.step(call["action"])
    return {"text": heard(observation, more), "reward": float(reward), "terminated": bool(terminated),
            "truncated": bool(truncated) and not terminated}


def sample_action(call):
    state = random.getstate()
    random.seed(call["random"])
    action = env.sample_random_action()
    random.setstate(state)
    return {"action": action}


answers, sys.stdout = sys.stdout, sys.stderr  # what an environment prints is no answer
calls = {f.__name__: f for f in (info, reset, step, sample_action)}
for line in sys.stdin:
    call = json.loads(line)
    answer = calls.get(call["call"], lambda call: {"unsupported": True})(call)
    print(json.dumps(answer), file=answers, flush=True)
