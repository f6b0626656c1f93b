"""Words for tasks that cannot be done and for messages that need no tool, and the answers to them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from art_mcp.client.effects import words
from art_mcp.scenarios.phrasing.english import article, join_items


@dataclass(frozen=True, slots=True)
class Errand:
    """Something that people ask for and that a server may have no tool for.

    Args:
        do: What is asked, in the imperative.
        about: Names of it, of which a refusal mentions one.
        needs: Words of tools that could do it.
    """

    do: str
    about: tuple[str, ...]
    needs: str


ERRANDS = (
    Errand("send an e-mail to Dana about this", ("e-mail", "email", "mail"), "mail email send message notify"),
    Errand("play some jazz", ("music", "jazz", "play"), "music play song audio sound media"),
    Errand("book a table for two at the harbour", ("book", "table", "reservation"), "book reserve restaurant order"),
    Errand("order a pizza", ("pizza", "order"), "order food pizza buy shop cart"),
    Errand("call a taxi", ("taxi", "call"), "taxi ride call phone travel"),
    Errand("translate this sentence into Finnish", ("translate", "translation", "Finnish"), "translate language text"),
    Errand("print this on the printer upstairs", ("print", "printer"), "print printer"),
    Errand("draw me a picture of a lighthouse", ("draw", "picture", "image"), "draw image picture paint media"),
    Errand("turn on the lights in the kitchen", ("light", "lights"), "light lamp home device switch toggle"),
    Errand("tell me the weather in Bergen", ("weather",), "weather forecast temperature climate"),
    Errand("buy two train tickets to Lyon", ("ticket", "tickets", "buy"), "ticket train travel buy order booking"),
    Errand("pay the electricity bill", ("pay", "bill"), "pay bill invoice bank payment money"),
    Errand("call my dentist", ("call", "dentist"), "call phone dial contact"),
    Errand("post this on social media", ("post", "social media"), "post social tweet publish share"),
    Errand("record a video of the screen", ("record", "video"), "video record screen capture media"),
    Errand("reserve the meeting room", ("reserve", "room"), "room reserve book calendar meeting schedule"),
    Errand("look up the share price of a brewery", ("share price", "price"), "price share stock finance market"),
    Errand("measure how warm it is in the office", ("warm", "temperature", "measure"), "temperature sensor device"),
)

CANNOT = "Sorry, I have no tool to {do}."

MISSING = "There is no {noun} {value}."

THANKS = (
    "Thanks, that's all for now.",
    "Thank you!",
    "Great, thanks a lot.",
    "Perfect, that was it.",
    "Thanks, you can stop here.",
    "Good, nothing else for today.",
    "That was all I needed, thanks.",
    "Okay, thanks for the help.",
    "Thanks! Have a nice day.",
    "All good now, thank you.",
    "ok thx",
    "Nice work. I need nothing else.",
)
WELCOME = ("You are welcome.", "You're welcome!", "Glad to help.", "My pleasure.", "Any time.", "Happy to help. Bye!")

GREETINGS = (
    "Hello there!",
    "Hi, how are you?",
    "Good morning!",
    "Hey, are you there?",
    "Hi!",
    "Good evening, nice to meet you.",
    "Hello! Just saying hi.",
    "Are you awake?",
    "Hey! How is your day?",
    "Hi, I'm back.",
)
HELLO = (
    "Hello! What can I do for you?",
    "Hi! How can I help?",
    "Hello, I'm here. What do you need?",
    "Good to hear from you. How can I help?",
)

ABILITIES = (
    "What can you do with this?",
    "What can you help me with?",
    "What are you able to do here?",
    "Which things can you do for me?",
    "How can you help me?",
    "What are your tools for?",
    "I'm new here. What can you do?",
    "Tell me what you can do.",
    "What kind of questions can I ask you?",
    "What is it that you do?",
)
ABLE = (
    "I can help you with {things}.",
    "My tools are for {things}.",
    "I can work with {things}.",
    "You can ask me about {things}.",
)

_REFUSING = re.compile(
    r"\b(?:no|not|none|nothing|never|cannot|unable|impossible|fail(?:s|ed)?|errors?|missing|without|sorry|invalid|unknown)\b|n[’']t\b",
    re.IGNORECASE,
)


def refuses(text: str) -> bool:
    """Whether a text says that something cannot be done or is not there."""
    return bool(_REFUSING.search(text))


def errands(server_text: str) -> list[Errand]:
    """The errands for which a server has no tool.

    Args:
        server_text: All that the server says of its tools.
    """
    known = set(words(server_text))
    return [errand for errand in ERRANDS if not known & set(errand.needs.split())]


def cannot(errand: Errand) -> str:
    """The right answer to an errand."""
    return CANNOT.format(do=errand.do.replace(" my ", " your ").replace(" me ", " you "))


def missing(noun: str, value: str) -> str:
    """The right answer where a value does not exist.

    Args:
        noun: What it would be the name of.
        value: The value.
    """
    return MISSING.format(noun=noun, value=value)


def able(nouns: Sequence[str], rng: random.Random) -> str:
    """The right answer to what can be done. nouns: what the tools are for, some of which are named."""
    chosen = rng.sample(list(nouns), min(3, len(nouns)))
    return rng.choice(ABLE).format(
        things=join_items([noun if noun.endswith("s") else article(noun) for noun in chosen])
    )
