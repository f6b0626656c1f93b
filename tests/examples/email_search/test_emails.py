"""The mailbox: the same for a seed, searched by words, and with an answer to each question."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from art_examples.email_search.emails import HELD_OUT_ANIMALS, MAX_HITS, make, questions, read, search, write


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
    for question in list(questions(make()[1], held_out=True))[:40]:
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


def test_held_out_questions_have_projects_and_wordings_of_their_own() -> None:
    held_out, training = (list(questions(make()[1], held_out=which)) for which in (True, False))
    assert (len(held_out), len(training)) == (500, 2000)
    assert {one.project.split()[1] for one in held_out} == set(HELD_OUT_ANIMALS)
    assert not {one.project for one in held_out} & {one.project for one in training}
    wordings = [{one.text.replace(one.project, "") for one in asked} for asked in (held_out, training)]
    assert not wordings[0] & wordings[1]
