"""The mailbox: the same for a seed, searched by words, and with an answer to each question."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from art_examples.email_search.emails import MAX_HITS, Part, make, questions, read, search, write


@pytest.fixture(scope="module")
def mailbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mail") / "mailbox.sqlite"
    write(path, make()[0])
    return path


def test_a_seed_gives_the_same_ten_thousand_emails() -> None:
    emails, facts = make()
    assert make() == (emails, facts)
    assert make(1) != (emails, facts)
    assert len(emails) == 10_000
    assert [one.number for one in emails] == list(range(1, 10_001))
    assert set(Counter(one.thread for one in emails).values()) == {4}
    assert len({one.sender for one in emails}) > 200


def test_each_source_has_the_answer_and_is_newer_than_what_it_corrects() -> None:
    emails, facts = make()
    for project, kind, answer, outdated, source in facts:
        email = emails[source - 1]
        assert project in email.subject
        assert kind in email.body
        assert answer in email.body
        earlier = [one for one in emails[source - 4 : source - 1] if outdated and outdated in one.body]
        assert bool(earlier) == bool(outdated)
        assert all(one.sent < email.sent for one in earlier)


def test_a_search_finds_the_source_among_few_hits(mailbox: Path) -> None:
    for question in list(questions(make()[1], "held_out"))[:40]:
        hits = search(mailbox, f"{question.project} {question.kind}").splitlines()
        assert 2 <= len(hits) <= MAX_HITS
        assert any(hit.startswith(f"{question.source} | ") for hit in hits)
        assert question.answer in read(mailbox, question.source)
        dates = [hit.split(" | ")[1] for hit in hits]
        assert dates == sorted(dates, reverse=True)


@pytest.mark.parametrize("keywords", ["", '"', "zzz", "Amber OR", 'Amber" NEAR'])
def test_words_that_no_email_has_find_nothing(keywords: str, mailbox: Path) -> None:
    assert search(mailbox, keywords) == "No email has all of these words."


def test_an_email_that_is_not_there_is_an_error(mailbox: Path) -> None:
    with pytest.raises(LookupError, match="there is no email 10001"):
        read(mailbox, 10_001)


def test_each_part_has_projects_and_wordings_of_its_own() -> None:
    parts = [list(questions(make()[1], part)) for part in get_args(Part)]
    assert [len(part) for part in parts] == [1800, 200, 500]
    for one, other in itertools.combinations(parts, 2):
        assert not {question.project.split()[1] for question in one} & {q.project.split()[1] for q in other}
        wordings = [{question.text.replace(question.project, "") for question in part} for part in (one, other)]
        assert not wordings[0] & wordings[1]
