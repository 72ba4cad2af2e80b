"""Write the training and held-out text of the demo model.

Everything comes from the grammar next to this file and a seed. A story is held out when the hash
of its hero's kind, its place and its object says so: the model never sees that combination.
"""

from __future__ import annotations

import argparse
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from grammar import Rules, Slots, expand, load, tidy

BOS, EOS, END = "<|bos|>", "<|eos|>", "<|end|>"
WORLD, STORIES = load("world.txt"), load("stories.txt")
CHAT, FACTS = load("chat.txt"), load("facts.txt")

RING_TOPICS = [
    *("molink", "how_works", "ring", "stage", "span", "microbatch", "decode", "head_tail"),
    *("volunteer", "latency", "layer"),
]
STORY_ASKS = [
    "Tell me a [story|short story|little story] about {about}[.|!|]",
    "[Write|Tell me] a story about {about}[.|, please.|]",
    "[Can|Could] you tell me a story about {about}?",
    "I would like a story about {about}.",
    "[A story|A short story] about {about}, please.",
    "Please tell me a story about {about}.",
]
ANY_STORY = "[Tell me a story.|Tell me a short story.|A story, please.|Can you tell me a story?]"
ANOTHER = (
    "[Another one, please.|Another one!|One more, please.|Tell me another one.|Another, please]"
)
WHY = "[Why?|Why is that?|But why?|Why so?|Can you tell me why?]"
SYSTEMS = [
    "You are a helpful assistant.",
    "You are the demo model of MoLink.",
    "You are a friendly storyteller.",
    "Answer in a few short sentences.",
]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def _person(letter: str, female: bool) -> Slots:
    """Pronoun slots of one character; ``letter`` is empty for the hero."""
    words = ("she", "her", "her", "herself") if female else ("he", "him", "his", "himself")
    return {letter + k: w for k, w in zip(("he", "him", "his", "himself"), words, strict=True)}


def is_held_out(kind: str, place: str, thing: str) -> bool:
    """One combination in twelve never appears in the training text."""
    return zlib.crc32(f"{kind}|{place}|{thing}".encode()) % 12 == 0


def world(rng: random.Random, held_out: bool) -> Slots:
    """Draw the characters, the place and the object of one story."""
    while True:
        kinds = rng.sample(WORLD["kind"], 3)
        place, at, detail, smell = rng.choice(WORLD["place"]).split(": ", 3)
        if kinds[2] in ("girl", "boy", "princess"):  # the third one is often old
            continue
        thing, look = rng.choice(WORLD["object"]).split(": ")
        if is_held_out(kinds[0], place, thing) == held_out:
            break
    slots: Slots = {"place": place, "at": at, "detail": detail, "smell": smell, "obj": thing}
    slots["a_obj"] = f"a {look} {thing}"
    names: list[str] = []
    for letter, kind in zip(("", "f", "t"), kinds, strict=True):
        female = kind == "princess" or kind == "girl" or rng.random() < 0.5
        female = female and kind != "boy"
        names.append(rng.choice([n for n in WORLD["she" if female else "he"] if n not in names]))
        slots |= _person(letter, female)
        adjective = rng.choice(WORLD["adjective"])
        slots[f"a_{letter}kind"] = f"a {adjective} {kind}" if rng.random() < 0.85 else f"a {kind}"
        slots[letter + "k"] = kind
    slots |= {"n": names[0], "f": names[1], "t": names[2], "the_t": f"the {kinds[2]}"}
    slots["kind"] = kinds[0]
    return slots


def tell(rng: random.Random, slots: Slots, rule: str = "story") -> str:
    """One story of the given world."""
    return tidy(expand(f"<{rule}>", rng, STORIES, slots))


def ask_story(rng: random.Random, slots: Slots) -> str:
    """A request that names some of what the story will hold."""
    if rng.random() < 0.15:
        return expand(ANY_STORY, rng, {}, {})
    place = "a " + slots["place"].removeprefix("the ")
    about = rng.choice(
        [
            *("a {kind} and {place}", "a {kind} and a {obj}", "a {kind} and {place}"),
            *("a {kind}", "a {kind} named {n}", "a {kind} and a {fk}", "a {obj} and {place}"),
        ]
    )
    about = about.format(**(slots | {"place": place}))
    return tidy(expand(rng.choice(STORY_ASKS), rng, {}, {"about": about}))


def _answer(rng: random.Random, topic: str) -> tuple[str, str, str]:
    """Question, answer and reason of one topic."""
    lines: Rules = {}
    for line in CHAT[topic]:
        lines.setdefault(line[0], []).append(line[3:])
    texts = [expand(rng.choice(lines[key]), rng, {}, {}) for key in "QAW"]
    return texts[0], tidy(texts[1], "\n"), texts[2]


def _fact(rng: random.Random) -> tuple[str, str]:
    """A short question with a looked-up answer."""
    table = rng.choice(["capital", "capital", "opposite", "legs", "list", "list", "sum"])
    if table == "sum":
        a, b = rng.randint(1, 10), rng.randint(1, 10)
        ask = rng.choice([f"What is {a} plus {b}?", f"How much is {a} plus {b}?"])
        return ask, f"{a} plus {b} is {a + b}."
    key, value = rng.choice(FACTS[table]).split(": ")
    if table == "capital":
        ask = "[What is the capital of {k}?|Which city is the capital of {k}?|The capital of {k}?]"
        say = "[The capital of {k} is {v}.|{v} is the capital of {k}.]"
    elif table == "opposite":
        ask = "[What is the opposite of {k}?|Tell me the opposite of {k}.]"
        say = "The opposite of {k} is {v}."
    elif table == "legs":
        ask = "[How many legs does {k} have?|Tell me how many legs {k} has.]"
        say = "{K} has {v} legs."
    else:
        count = rng.choice([3, 3, 4, 5])
        picked = rng.sample(value.split(", "), count)
        ask = f"[List|Name|Give me|Tell me] {NUMBERS[count]} {key}."
        value = "".join(f"\n{i}. {item.capitalize()}" for i, item in enumerate(picked, 1))
        say = f"[Here are {NUMBERS[count]} {key}:|{NUMBERS[count].capitalize()} {key}:]" + "{v}"
    slots = {"k": key, "v": value}
    return expand(ask, rng, {}, slots), tidy(expand(say, rng, {}, slots), "\n")


def _turns(rng: random.Random, held_out: bool) -> Iterator[tuple[str, str]]:
    """Questions and answers without end; the caller stops."""
    while True:
        draw = rng.random()
        if draw < 0.36:
            slots = world(rng, held_out)
            yield ask_story(rng, slots), tell(rng, slots, rng.choice(["story", "mini"]))
            while rng.random() < 0.5:
                yield expand(ANOTHER, rng, {}, {}), tell(rng, world(rng, held_out), "mini")
        elif draw < 0.56:
            yield _fact(rng)
        else:
            topic = rng.choice(RING_TOPICS if rng.random() < 0.4 else list(CHAT))
            ask, say, reason = _answer(rng, topic)
            yield ask, say
            if topic in ("joke", "poem") and rng.random() < 0.5:
                yield expand(ANOTHER, rng, {}, {}), _answer(rng, topic)[1]
            elif topic not in ("joke", "thanks", "bye") and rng.random() < 0.6:
                yield expand(WHY, rng, {}, {}), tidy(reason)


def _vary(rng: random.Random, ask: str) -> str:
    """Now and then, ask in a careless or in a more polite way."""
    draw = rng.random()
    if draw < 0.12:
        return ask.lower().rstrip("?.!")
    if draw < 0.18:
        return rng.choice(["Hello! ", "Hi, ", "Please tell me: ", "A question: ", "OK. "]) + ask
    if draw < 0.22:
        return ask + rng.choice([" Please.", " Thank you!", " I am curious.", " Keep it short."])
    return ask


def chat(rng: random.Random, held_out: bool) -> str:
    """One conversation of one to four turns in the chat template."""
    text = BOS
    if rng.random() < 0.2:
        text += f"<|system|>{rng.choice(SYSTEMS)}{END}"
    count = rng.choices([1, 2, 3, 4], [45, 30, 17, 8])[0]
    for (ask, say), _ in zip(_turns(rng, held_out), range(count), strict=False):
        question = _vary(rng, ask)
        text += f"<|user|>{question}{END}<|assistant|>{say}{END}"
        if len(text) > 1500:
            break
    return text


def document(rng: random.Random, held_out: bool) -> str:
    """A plain story, or now and then a conversation."""
    if rng.random() < 0.5:
        rule = "mini" if rng.random() < 0.15 else "story"
        return BOS + tell(rng, world(rng, held_out), rule) + EOS
    return chat(rng, held_out)


def main() -> None:
    """Write ``train.jsonl`` and ``heldout.jsonl``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/demo_model"))
    parser.add_argument("--documents", type=int, default=20000)
    parser.add_argument("--heldout", type=int, default=500)
    parser.add_argument("--seed", type=int, default=2024)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    sizes = {"train": args.documents, "heldout": args.heldout}
    for salt, (name, size) in enumerate(sizes.items()):
        rng = random.Random(args.seed + salt)
        texts = (document(rng, held_out=name == "heldout") for _ in range(size))
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        (args.work / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        print(f"{name}: {size} documents, {len(lines):,} bytes")


if __name__ == "__main__":
    main()
