"""ARPO's built-in loop as an agent program: arpo train --agent "python examples/agent.py".

It needs no package. With `pip install openai`, `ask` is one line, because the client finds the address:

    OpenAI().chat.completions.create(model="policy", messages=messages).choices[0].message.content
"""

import base64
import json
import os
from urllib.request import Request, urlopen

ENV, MODEL = os.environ["ARPO_ENV_URL"], os.environ["OPENAI_BASE_URL"]


def post(url, **body):
    with urlopen(Request(url, json.dumps(body).encode())) as reply:
        return json.load(reply)


def ask(messages):
    return post(f"{MODEL}/chat/completions", messages=messages)["choices"][0]["message"]["content"]


task = json.load(urlopen(f"{ENV}/task"))
messages = [{"role": "system", "content": task["system"]}, {"role": "user", "content": task["prompt"]}]
finished = False
while not finished:
    png = base64.b64encode(urlopen(f"{ENV}/screenshot").read()).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
    messages.append({"role": "user", "content": [image]})
    shown = [message for message in messages if isinstance(message["content"], list)]
    if len(shown) > task["max_images"]:
        messages.remove(shown[0])
    answer = ask(messages)
    messages.append({"role": "assistant", "content": answer})
    result = post(f"{ENV}/step", answer=answer)
    finished = result["finished"] or result["error"]  # an answer that does not parse ends the episode
