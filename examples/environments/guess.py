"""An environment in Python without any package: guess a number, with hints, one JSON line a call."""
import json
import random
import sys

settings = {"top": 20, "guesses": 6}


def reset(call):
    rng = random.Random(call["seed"])  # the same seed gives the same episode
    game.update(number=rng.randint(1, settings["top"]), left=settings["guesses"])
    return {"text": f"Guess a number from 1 to {settings['top']}.\n"}


def step(call):
    guess = call["action"].strip()
    game["left"] -= 1
    if guess == str(game["number"]):
        return {"reward": 1, "terminated": True, "metrics": {"success": 1}}
    if game["left"] == 0:
        return {"reward": 0, "truncated": True, "reason": "no guess is left", "metrics": {"success": 0}}
    hint = "That is no number." if not guess.isdecimal() or len(guess) > 9 else (
        "Higher." if int(guess) < game["number"] else "Lower.")
    return {"text": hint + "\n", "reward": 0}


def info(call):
    settings.update(call["settings"])
    return {"name": "guess", "max_turns": settings["guesses"], "max_action_tokens": 8, "stop_strings": ["\n"]}


def sample_action(call):
    return {"action": f"{random.Random(call['random']).randint(1, settings['top'])}\n"}


game = {}
calls = {"info": info, "reset": reset, "step": step, "sample_action": sample_action}
for line in sys.stdin:
    call = json.loads(line)
    answer = calls.get(call["call"], lambda call: {"unsupported": True})(call)
    print(json.dumps(answer), flush=True)
