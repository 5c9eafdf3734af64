"""What people say to a chat model before and after they want something, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from qwen3_ref.tiny_training import words
from qwen3_ref.tiny_training.exchange import Exchange
from qwen3_ref.tiny_training.grammar import pick

# (what the user says, what the model says back)
_HELLOS = (
    ("Hello", "Hello!"),
    ("Hi", "Hello!"),
    ("Good morning", "Good morning!"),
    ("Hey", "Hello!"),
    ("Hello there", "Hello!"),
    ("Hi there", "Hello!"),
    ("Good afternoon", "Good afternoon!"),
    ("Good evening", "Good evening!"),
    ("Good day", "Good day!"),
    ("Hey there", "Hello!"),
    ("Greetings", "Hello!"),
    ("Hello, storyteller", "Hello!"),
    ("Hello again", "Hello again!"),
    ("Hello, how do you do", "Hello!"),
)
_OFFERS = ("Do you want to hear a story?", "What story shall I tell you?")


@dataclass(frozen=True)
class Topic:
    """Ways to say one thing, right answers to it, and the thought before the answer."""

    said: tuple[str, ...]
    answers: tuple[str, ...]
    thought: str


# Those that may follow a hello.
_ASKED = (
    Topic(
        (
            "Who are you?", "What is your name?", "What are you?", "Tell me about yourself.", "Are you a robot?",
            "Who am I talking to?", "Who is this?", "Can you tell me who you are?", "Do you have a name?",
            "Are you a person?", "Please introduce yourself.", "May I ask who you are?", "What should I call you?",
        ),
        ("I am a small storyteller model. I tell little stories.", "I am a tiny model that tells little stories."),
        "The user wants to know who I am.",
    ),
    Topic(
        (
            "What can you do?", "How can you help me?", "What do you know?", "Can you help me?", "Help", "I need help.",
            "What are you good at?", "What can I ask you?", "What can you do for me?", "What do you do?",
            "What can you tell me?", "What can I do with you?", "Can you do sums?", "Do you know stories?",
        ),
        ("I can tell little stories, answer questions about them, and do small sums.",),
        "The user wants to know what I can do.",
    ),
    Topic(
        (
            "How are you?", "How are you today?", "Are you well?", "How are you doing?", "How do you feel?",
            "How is it going?", "How do you feel today?", "Are you okay?", "How have you been?", "What is up?",
        ),
        ("I am fine, thank you. Do you want to hear a story?",),
        "The user wants to know how I am.",
    ),
    Topic(
        (
            "Who made you?", "Are you Qwen?", "Are you ChatGPT?", "How big are you?", "Are you a big model?",
            "What model are you?", "Are you a computer?", "How old are you?", "Where do you come from?",
            "Are you an AI?", "What kind of model are you?", "Who built you?", "Are you real?",
        ),
        ("I am a very small model, made to tell little stories.",),
        "The user asks what kind of model I am.",
    ),
    Topic(
        (
            "Nice to meet you.", "Nice to meet you!", "It is nice to meet you.", "I am happy to meet you.",
            "Good to see you.", "I am glad that you are here.",
        ),
        ("It is nice to meet you, too! Do you want to hear a story?",),
        "The user is friendly. I am friendly, too.",
    ),
    Topic(
        ("I am sad.", "I am bored.", "I can not sleep.", "I had a bad day.", "I am tired.", "I am lonely."),
        ("I am sorry to hear that. A story may help. Do you want one?",),
        "The user does not feel well. I offer a story.",
    ),
)  # fmt: skip
_THANKS = Topic(
    (
        "Thank you!", "Thanks!", "Thank you very much.", "That was nice!", "I like that story.", "Thank you", "Thanks",
        "Thank you so much!", "Thanks a lot!", "Great, thank you!", "That was a good story!", "Well done!",
        "I love it!", "Good job!", "Cool, thanks!", "That was great.", "You are nice.", "Many thanks!", "Nice story!",
    ),
    ("You are welcome!", "You are welcome! Do you want another story?"),
    "The user says thank you.",
)  # fmt: skip
_GOODBYES = (
    "Goodbye!", "Bye!", "Good night!", "See you tomorrow.", "Bye", "Bye bye!", "Goodbye", "Good night", "See you!",
    "I have to go now.", "See you later!", "See you soon.", "I must go to bed.", "Have a nice day!",
)  # fmt: skip
_FAREWELLS = ("Goodbye! Come back soon for another story.", "Goodbye! See you soon!")
_NIGHT_FAREWELL = "Good night! Sleep well!"
_LEAVING = "The user is leaving. I say goodbye."
_NO = ("No, thank you.", "No.", "Not now.", "No, thanks.", "Maybe later.")
_NO_PROBLEM = "That is fine. Just ask me when you want one."
YES = (
    "Yes, please!",
    "Yes.",
    "Yes!",
    "Yes, please.",
    "Sure!",
    "Okay.",
    "Of course!",
    "I would love one.",
    "Please do.",
)
"""What to say to an `offer` of a story to get it."""


def greeting(rng: Random) -> Exchange:
    """Hello, thank you, goodbye, a question about the model, or two of them at once."""
    chance = rng.random()
    if chance < 0.19:
        return hello(rng)
    if chance < 0.43:
        topic = pick(rng, _ASKED, 0.3)
        return _exchange(pick(rng, topic.said, 0.4), pick(rng, topic.answers, 1.0), topic.thought)
    if chance < 0.76:
        return _hello_and_question(rng)
    if chance < 0.88:
        said, bye = pick(rng, _THANKS.said, 0.4), pick(rng, _GOODBYES, 0.4)
        if rng.random() < 0.75:
            return _exchange(said, pick(rng, _THANKS.answers, 1.0), _THANKS.thought)
        return _exchange(f"{said.rstrip('.!')}{pick(rng, ('! ', '. '))}{bye}", "You are welcome! Goodbye!", _LEAVING)
    bye = pick(rng, _GOODBYES, 0.4)
    at_night = "night" in bye or "bed" in bye
    return _exchange(bye, _NIGHT_FAREWELL if at_night else pick(rng, _FAREWELLS, 1.0), _LEAVING)


def hello(rng: Random) -> Exchange:
    """A hello that is answered with the offer of a story."""
    said, back = pick(rng, _HELLOS, 0.6)
    offer = pick(rng, _OFFERS, 1.0)
    if rng.random() < 0.15:
        name = rng.choice(words.GIRLS + words.BOYS)
        said = f"{said}! {pick(rng, ('I am', 'My name is', 'This is'))} {name}"
        return _exchange(f"{said}.", f"{back[:-1]}, {name}! {offer}", f"The user is {name}. I say hello.")
    return _exchange(said + pick(rng, ("!", "", "."), 0.8), f"{back} {offer}", "The user says hello. I say hello, too.")


def offer(rng: Random) -> tuple[str, str]:
    """A hello and an offer to which yes or no can be said."""
    said, back = pick(rng, _HELLOS, 0.6)
    return said + pick(rng, ("!", "", "."), 0.8), f"{back} {_OFFERS[0]}"


def declined(rng: Random) -> Exchange:
    """A no to an offer."""
    return _exchange(pick(rng, _NO, 0.5), _NO_PROBLEM, "The user does not want a story now.")


def _hello_and_question(rng: Random) -> Exchange:
    said, back = pick(rng, _HELLOS, 0.6)
    topic = rng.choice(_ASKED)
    question = rng.choice(topic.said)
    if rng.random() < 0.35:  # after a comma
        joined = question if question.startswith("I ") else question[0].lower() + question[1:]
        asked = f"{said}, {joined}"
    else:
        asked = f"{said}{pick(rng, ('! ', '. ', ' '), 1.0)}{question}"
    return _exchange(asked, f"{back} {pick(rng, topic.answers, 1.0)}", topic.thought)


def _exchange(question: str, answer: str, thought: str) -> Exchange:
    return Exchange(question, answer, thought, plain=False, sure=False)
