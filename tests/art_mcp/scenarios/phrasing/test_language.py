"""The files of the language: people extend them, and a fault says where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_mcp.scenarios.phrasing import language
from art_mcp.scenarios.phrasing.language import SENTENCES, VERBS, CommonValues, Lexicon, Sentences, read_language
from trainer_server.wire import ConfigError

FOLDER = Path(language.__file__).parent
FILES = {"lexicon.toml": Lexicon, "sentences.toml": Sentences, "values.toml": CommonValues}


def read_changed(tmp_path: Path, name: str, text: str, replacement: str) -> object:
    content = (FOLDER / name).read_text()
    assert text in content
    (tmp_path / name).write_text(content.replace(text, replacement, 1))
    return read_language(tmp_path / name, FILES[name])


@pytest.mark.parametrize(
    ("name", "text", "replacement", "key", "reason"),
    [
        ("lexicon.toml", "[verbs.read]", "[verbs.reed]", "verbs.reed", "'read', 'name', 'change'"),
        ("lexicon.toml", '["limited to the first {} lines"', '["the first lines"', "numbers.head.0", "slots"),
        ("lexicon.toml", "limit = [\"with", "limits = [\"with", "numbers", "`limit` is missing"),
        ("lexicon.toml", "\nfillers", "\nfilers", "words.fillers", "Field required"),
        ("sentences.toml", '"Tell me {wh}."', '"Tell me {why}."', "requests", "its slots must be among"),
        ("sentences.toml", '"Tell me {wh}."', '"Tell me {wh."', "requests", "'Tell me {wh.'"),
        ("sentences.toml", "\nopener =", "\nopeners =", "requests", "the families must be do, do and ask"),
        ("sentences.toml", 'no = "No, {item}', 'no = "No, {entry}', "answers.no", "{item}"),
        ("sentences.toml", 'about = ["music", "jazz", "play"]', "about = []", "errands.1.about", "at least 1"),
        ("values.toml", 'town = "city"', 'town = "village"', "the file", "village"),
        ("values.toml", 'town = "city"', "town = city", "", "line"),
    ],
)  # fmt: skip
def test_a_fault_names_file_key_and_remedy(
    tmp_path: Path, name: str, text: str, replacement: str, key: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as fault:
        read_changed(tmp_path, name, text, replacement)
    message = str(fault.value)
    assert message.startswith(f"{tmp_path / name}: {key}")
    assert reason in message
    assert "Correct" in message


def test_a_verb_and_a_form_can_be_added(tmp_path: Path) -> None:
    lexicon = read_changed(tmp_path, "lexicon.toml", "[verbs.read]", '[verbs.read]\n"weigh balance" = ["weigh"]')
    assert isinstance(lexicon, Lexicon)
    assert lexicon.verbs["read"]["weigh balance"] == ("weigh",)
    sentences = read_changed(tmp_path, "sentences.toml", '"I wonder {wh}."', '"I wonder {wh}.", "Who knows {wh}?"')
    assert isinstance(sentences, Sentences)
    assert len(sentences.requests["ask"]) == len(SENTENCES.requests["ask"]) + 1


def test_each_word_for_a_verb_finds_it() -> None:
    assert VERBS["fetch"] is VERBS["get"]
    assert VERBS["get"].names
    assert (VERBS["purge"].reads, VERBS["purge"].removes) == (False, True)
    assert (VERBS["write"].makes, VERBS["move"].makes) == (True, False)
