"""Puts requests into the forms of the grammar. Some forms are held out: they never occur in training."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass

from art_mcp.scenarios.phrasing.english import capital, gerund, uncapital
from art_mcp.scenarios.phrasing.language import SENTENCES
from art_mcp.scenarios.phrasing.questions import Question
from art_mcp.scenarios.phrasing.wish import Wish, phrase_question

HELD_OUT_SHARE = 0.2
"""Share of the forms of each family that are held out."""

OPENER_SHARE = 0.3
"""Share of the requests with an opening sentence."""

CLOSER_SHARE = 0.15
"""Share of the requests with a closing sentence."""

LONG_WORDS = 14
"""Words of a question that says what it is about, at most: more of them are told in two parts."""

_OPEN_STOP = re.compile(r"(?<!\S)(\S*[./\\@]\S*[\w/])\.( |$)")
"""A full stop that could be read as a part of the path, the address or the number before it."""
_LEAD = re.compile(r"^\w+ \w+: (?=\w)")
"""Words that lead to a question: "Just checking: …"."""
_WHAT_IS = re.compile(r"what (is|are) (.*)\?", re.DOTALL)

FAMILIES = SENTENCES.requests
"""The forms by the name of their family."""


@dataclass(frozen=True, slots=True)
class Text:
    """A request in words.

    Args:
        text: The request.
        form: Its form: the name of the family, and the number of the form in it.
        parts: The words of each of several requests. Empty: there is one.
    """

    text: str
    form: str
    parts: tuple[str, ...] = ()


class Phraser:
    """Puts requests into words.

    Args:
        rng: Chooses the forms.
        seed: Seed of the forms that are held out.
    """

    def __init__(self, rng: random.Random, seed: int = 0) -> None:
        self._rng = rng
        self._held = {family: _choose_held_out(family, len(forms), seed) for family, forms in FAMILIES.items()}

    def form(self, family: str, held: bool) -> tuple[str, str]:
        """A form of a family, and its name. held: whether it is a held-out one."""
        forms = FAMILIES[family]
        number = self._rng.choice([at for at in range(len(forms)) if (at in self._held[family]) is held])
        return forms[number], f"{family} {number}"

    def request(self, call: Wish, question: Question | None, held: bool, dressed: bool = True) -> Text:
        """Asks for a call, or for what it gives.

        Args:
            call: The call in words.
            question: What is asked about its result. None: something is to be done, and that is all.
            held: Whether a held-out form is taken.
            dressed: Whether there may be an opening or a closing sentence.
        """
        text, name = self._core(call, question, held)
        text = _drop_stops(text)
        return Text(self._dress_text(text, held) if dressed else capital(text), name)

    def pair(self, first: Text, second: Text, held: bool) -> Text:
        """Two requests in one text."""
        form, name = self.form("both", held)
        # Nobody writes "One more thing: Quick question: …".
        last = capital(_LEAD.sub("", second.text)) if ": {two}" in form else second.text
        parts = (_add_stop(first.text), _add_stop(last))
        text = _drop_stops(form.format(one=parts[0], two=parts[1]))
        return Text(self._dress_text(text, held), name, (_drop_stops(parts[0]), _drop_stops(parts[1])))

    def again(self, what: str, held: bool) -> Text:
        """To do again what was done, with something else. what: the other value in words."""
        form, name = self.form("again", held)
        return Text(_drop_stops(form.format(x=what)), name)

    def plain(self, family: str, held: bool) -> Text:
        """A message of a family without slots."""
        form, name = self.form(family, held)
        return Text(form, name)

    def errand(self, do: str, held: bool) -> Text:
        """Asks for something that no tool does. do: in the imperative."""
        return self.request(Wish(do, gerund(do)), None, held)

    def _core(self, call: Wish, question: Question | None, held: bool) -> tuple[str, str]:
        if question is None:
            form, name = self._form_for(call, "do", held)
            return self._fill_form(form, call), name
        families = ["do and ask"]
        words = phrase_question(question, call, whole=True, rng=self._rng)
        if (call.noun_phrase or call.alone) and not call.first and len(words.wh.split()) <= LONG_WORDS:
            families = ["do and ask", "ask", "ask", *(["thing"] if words.thing else ["ask"])][call.alone :]
        if words.thing == call.noun_phrase:  # "show me the price of it-7" asks for it
            families = ["do", "do", *families[2:]] if call.noun_phrase else families
        family = self._rng.choice(families)
        if family == "do and ask":
            words = phrase_question(question, call, whole=False, rng=self._rng)
        form, name = self._form_for(call, family, held)
        noun_alone = words.wh == words.thing and "wonder {wh}" in form  # not "I wonder the price"
        wh = _WHAT_IS.sub(r"what \2 \1", words.question) if noun_alone else words.wh
        form = form.replace("{Ask}", capital(words.question)).replace("{ask}", words.question).replace("{wh}", wh)
        form = form.replace("{thing}", words.thing).replace("{Thing}", capital(words.thing))
        return self._fill_form(form, call), name

    def _form_for(self, call: Wish, family: str, held: bool) -> tuple[str, str]:
        """A form of a family that has room for all of a call: a gerund cannot say what is to be done before."""
        form, name = self.form(family, held)
        while call.first and "{doing}" in form:
            form, name = self.form(family, held)
        return form, name

    def _fill_form(self, form: str, call: Wish) -> str:
        """A form with what is to be done, and with what is to be done before."""
        do, doing = call.do, call.doing
        if do.split()[1:2] == ["me"]:  # not "give me the log for me"
            form = form.replace(" for me", "")
        if call.loose:
            form = re.sub(r"\{(do|Do|doing)\}(?= \w)", r"{\1},", form)
        if call.first:
            then, _ = self.form("then", held=False)
            do = then.replace("{First}", call.first).replace("{first}", call.first).replace("{do}", call.do)
            do = do[:1].lower() + do[1:] if form[:4] != "{Do}" else do
        return form.replace("{Do}", capital(do)).replace("{doing}", doing).replace("{do}", do)

    def _dress_text(self, text: str, held: bool) -> str:
        """The text with an opening and a closing sentence, or without."""
        if self._rng.random() < OPENER_SHARE:
            opener, _ = self.form("opener", held)
            text = f"{opener} {uncapital(text) if opener.endswith(',') else capital(text)}"
        if text[-1:] in ".?!" and self._rng.random() < CLOSER_SHARE:
            text = f"{text} {self.form('closer', held)[0]}"
        return text


def _drop_stops(text: str) -> str:
    """The text without full stops behind open values. Within the text a line ends there."""
    return _OPEN_STOP.sub(lambda match: match[1] + ("\n" if match[2] else ""), text)


def _add_stop(text: str) -> str:
    return text if text[-1:] in ".?!" else f"{text}."


def _choose_held_out(family: str, count: int, seed: int) -> set[int]:
    """The numbers of the forms of a family that are held out."""
    order = sorted(range(count), key=lambda at: hashlib.sha256(f"{seed} {family} {at}".encode()).digest())
    return set(order[: max(round(HELD_OUT_SHARE * count), 1)])
