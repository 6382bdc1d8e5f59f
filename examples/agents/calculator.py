"""An agent over OpenAI's client: it lends the policy a calculator, and says what the answer is worth.

A task comes in each line of stdin, and its reward goes into a line of stdout.
"""
import json, random, re, sys
from openai import OpenAI

policy = OpenAI()  # where it is, OPENAI_BASE_URL and OPENAI_API_KEY say


def value(text):  # a whole number from 0 to 99, which the policy has words for
    try:
        number = eval(text) if re.fullmatch(r"(?!.*(\*|/)\s?\1)[\d\s+*/()-]+", text) else -1
    except (SyntaxError, ZeroDivisionError):
        return None
    return int(number) if 0 <= number <= 99 and number == int(number) else None


def question(rng):
    text = "?"
    while value(text) is None:
        text = str(rng.randint(1, 20))
        for _ in range(rng.randint(1, 2)):
            text += f" {rng.choice('+-*')} {rng.randint(1, 20)}"
    return text


def play(seed):
    task, reward, calls = question(random.Random(seed)), 0, 0
    messages = [{"role": "user", "content": f"solve {task} >"}]
    for _ in range(4):
        answer = policy.chat.completions.create(model="policy", messages=messages, stop=["\n"])
        said = answer.choices[0].message.content
        verb, _, rest = said.strip().partition(" ") if answer.choices[0].finish_reason == "stop" else ("", "", "")
        if verb == "answer" and rest.isdigit():
            right = int(rest) == value(task)
            return {"reward": reward + right, "metrics": {"success": right, "tool_calls": calls}}
        if verb == "calc":
            calls, heard = calls + 1, value(rest)
            heard = "error" if heard is None else heard
        else:
            reward, heard = reward - 0.05, "what ?"
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": f"{heard} >"}]
    return {"reward": reward, "metrics": {"success": 0, "tool_calls": calls}}


for line in sys.stdin:
    print(json.dumps(play(json.loads(line)["seed"])), flush=True)
