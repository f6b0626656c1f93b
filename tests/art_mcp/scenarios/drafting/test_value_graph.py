"""The value graph: what worlds show, what goes together, and how evidence overrules names."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from art_mcp.scenarios.catalog import Catalog, CatalogTool
from art_mcp.scenarios.drafting.explore import learn_failure
from art_mcp.scenarios.drafting.pools import Origin, parameter_name
from art_mcp.scenarios.drafting.values import Values
from art_mcp.scenarios.drafting.world_values import all_findings
from art_mcp.scenarios.plan import Step
from art_mcp.worlds.place import places_of
from tests.support.mcp.tools import STRING, tool

LIST = {"type": "array", "items": STRING}
SHELVES = ("get_stock", ("shelf",), frozenset({"get", "stock"}))


def values_of(*tools: CatalogTool) -> Values:
    return Values(Catalog(tools=list(tools)), {}, random.Random(0))


def drawn(values: Values, tool: CatalogTool, count: int = 30, **options: Any) -> list[dict[str, Any]]:
    return [values.arguments(tool, optional=0.0, **options) for _ in range(count)]


def test_a_world_shows_its_files_tables_columns_and_cells(tmp_path: Path) -> None:
    (tmp_path / "papers" / "old").mkdir(parents=True)
    (tmp_path / "papers" / "old" / "plan.txt").write_text("x")
    (tmp_path / "papers" / ".hidden").write_text("x")
    (tmp_path / "papers" / "prices.csv").write_text("item,price\nlamp,12\n")
    (tmp_path / "papers" / "broken.json").write_text("{")
    (tmp_path / "papers" / "teams.json").write_text(json.dumps({"teams": [{"team_name": "red"}]}))
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (customer TEXT, amount INTEGER)")
        database.execute("INSERT INTO orders VALUES ('Ada', 3)")
    database.close()
    found, records = all_findings(places_of([tmp_path / "papers", tmp_path / "shop.db"]))
    shown = {finding.value for finding in found}
    assert {"/world/papers", "/world/papers/old", "/world/papers/old/plan.txt", "old/plan.txt", "plan.txt"} <= shown
    assert {"item", "price", "lamp", "12", "red", "/world/shop.db", "orders", "customer", "Ada", 3} <= shown
    assert not any("hidden" in str(value) for value in shown)
    rows = [{"item": "lamp", "price": "12"}, {"team_name": "red"}, {"customer": "Ada", "amount": 3}]
    assert sorted(map(str, records)) == sorted(map(str, rows))


def test_calls_that_worked_overrule_names() -> None:
    lends, lists, others = tool("lend", holder=STRING), tool("list_people"), tool("list_cards")
    values = values_of(lends, lists, others)
    values.learn("list_people", {}, [{"holder": "Ada"}, {"holder": "Bob"}])
    values.learn("list_cards", {}, [{"code": "c-1"}, {"code": "c-2"}])
    assert {call["holder"] for call in drawn(values, lends)} == {"Ada", "Bob"}
    for holder in ("Ada", "Bob"):
        learn_failure(values, Step(tool="lend", arguments={"holder": holder}), f"unknown holder {holder}")
    values.graph.note("lend", {"holder": "c-1"}, 1.0)
    assert {call["holder"] for call in drawn(values, lends)} == {"c-1", "c-2"}
    assert values.refers(lends, "holder", STRING)


def test_a_parameter_of_the_same_name_profits() -> None:
    opens, closes = tool("open_box", ref=STRING), tool("close_box", ref=STRING)
    values = values_of(opens, closes, tool("get_stock"))
    values.learn("get_stock", {}, [{"shelf": "s-1"}, {"shelf": "s-2"}])
    values.graph.note("open_box", {"ref": "s-1"}, 1.0)
    assert {call["ref"] for call in drawn(values, closes, explore=True)} <= {"s-1", "s-2"}


def test_lists_of_other_names_share_no_evidence() -> None:
    labels, mixes = tool("label_box", tags=LIST), tool("mix_paint", colours=LIST)
    values = values_of(labels, mixes)
    values.learn("get_stock", {}, [{"shelf": "s-1"}])
    values.graph.note("label_box", {"tags": ["s-1"]}, 1.0)
    assert values.graph.by_name(("mix_paint", "tag"), SHELVES).hits == 1
    assert values.graph.by_name(("mix_paint", "colours.*"), SHELVES).hits == 0
    assert values.graph.is_accepted(("mix_paint", "tags.*"), "s-1")
    assert not values.graph.is_accepted(("mix_paint", "colours.*"), "s-1")


def test_lists_of_other_names_share_no_offers() -> None:
    labels, mixes = tool("label_box", tags=LIST), tool("mix_paint", colours=LIST)
    values = values_of(labels, mixes)
    step = Step(tool="label_box", arguments={"tags": ["zz"]})
    learn_failure(values, step, "unknown tags 'zz': try 'fragile', 'heavy'")
    assert {tag for call in drawn(values, labels, explore=True) for tag in call["tags"]} == {"fragile", "heavy"}
    assert not values.graph.has_offers(("mix_paint", "colours.*"))
    assert not {"fragile", "heavy"} & {name for call in drawn(values, mixes, explore=True) for name in call["colours"]}


def test_the_items_of_a_list_profit_from_a_parameter_of_the_singular_name() -> None:
    reads, joins = tool("read_sheet", sheet=STRING), tool("join", sheets=LIST)
    values = values_of(reads, joins)
    values.learn("get_stock", {}, [{"shelf": "s-1"}, {"shelf": "s-2"}])
    values.graph.note("read_sheet", {"sheet": "s-1"}, 1.0)
    assert {item for call in drawn(values, joins, explore=True) for item in call["sheets"]} <= {"s-1", "s-2"}
    learn_failure(values, Step(tool="read_sheet", arguments={"sheet": "zz"}), "no sheet 'zz'. There are: 'Costs'")
    assert values.graph.has_offers(("join", "sheets.*"))


def test_what_a_server_logs_is_learnt_from_and_its_numbers_are_tried() -> None:
    closes = tool("close_till", till={"type": "integer"})
    values = values_of(closes)
    step = Step(tool="close_till", arguments={"till": 4711})
    learn_failure(values, step, "Error executing tool close_till", log_text="KeyError: no till 4711, only 7 and 12")
    assert {call["till"] for call in drawn(values, closes, explore=True)} == {7, 12}
    assert values.graph.refusals["close_till"][-1][1] == "Error executing tool close_till"  # an agent sees that alone


@pytest.mark.parametrize(
    ("path", "name"),
    [("sheet", "sheet"), ("tags.*", "tag"), ("rows.*.*", "row"), ("entities.*.name", "name"), ("box.names", "names")],
)
def test_a_slot_has_the_name_of_its_last_key(path: str, name: str) -> None:
    assert parameter_name(path) == name


def test_an_error_teaches_what_goes_with_the_other_arguments() -> None:
    reads = tool("read_sheet", path=STRING, sheet=STRING)
    values = values_of(reads)
    for path, sheets in (("/world/a.xlsx", "'Orders', 'Stock'"), ("/world/b.xlsx", "'Budget', 'Spending'")):
        step = Step(tool="read_sheet", arguments={"path": path, "sheet": "zz"})
        learn_failure(values, step, f"Sheet 'zz' not found. Available sheets: {sheets}.")
    calls = [
        values.arguments(reads, base_arguments={"path": path}, explore=True)
        for path in ("/world/b.xlsx",)
        for _ in range(40)
    ]
    budget = [call["sheet"] in ("Budget", "Spending") for call in calls]
    assert sum(budget) > 24, "most of the sheets are those of the workbook"


def test_what_is_in_one_entry_of_a_result_is_not_mixed_with_another_entry() -> None:
    zoo = {
        "project": "zoo",
        "groups": [{"group": "Birds", "items": ["owl", "kiwi"]}, {"group": "Cats", "items": ["lynx"]}],
    }
    garden = {
        "project": "garden",
        "groups": [{"group": "Trees", "items": ["oak"]}, {"group": "Herbs", "items": ["sage"]}],
    }
    reads = tool("read_item", project=STRING, group=STRING, item=STRING)
    values = values_of(reads, tool("list_projects"))
    values.learn("list_projects", {}, [zoo, garden])
    graph = values.graph
    groups, items = ["Birds", "Cats", "Trees", "Herbs"], ["owl", "kiwi", "lynx", "oak", "sage"]
    assert graph.neighbours(groups, ["garden"]) == ["Trees", "Herbs"]
    assert graph.neighbours(items, ["zoo", "Birds"]) == ["owl", "kiwi"]
    sheets = {"Orders": {"columns": ["lamp", "price"]}, "Stock": {"columns": ["shelf", "room"]}}
    values.learn("describe_book", {"path": "/world/a.xlsx"}, {"sheets": sheets})
    assert graph.neighbours(["lamp", "price", "shelf", "room"], ["/world/a.xlsx", "Stock"]) == ["shelf", "room"]


def test_words_of_a_long_text_are_near_what_it_belongs_to() -> None:
    values = values_of(tool("replace_text", name=STRING, old_text=STRING))
    text = "It opens in May, and the first guests stay until the leaves fall."
    values.learn("read_note", {"name": "garden"}, {"content": text})
    assert [part for part in values.graph.near(["garden"]) if part in text] == ["and the"]


def test_a_parameter_profits_from_one_whose_name_has_a_word_less() -> None:
    opens, moves = tool("open_box", shelf=STRING), tool("move_box", target_shelf=STRING, colour_code=STRING)
    values = values_of(opens, moves)
    values.graph.note_source(("open_box", "shelf"), "s-1", SHELVES)
    values.graph.note("open_box", {"shelf": "s-1"}, 1.0)
    assert values.graph.by_related_name(("move_box", "target_shelf"), SHELVES).hits == 1
    assert values.graph.by_related_name(("move_box", "colour_code"), SHELVES).hits == 0
    assert values.graph.by_name(("move_box", "target_shelf"), SHELVES).hits == 0


def test_new_texts_are_made_of_the_words_of_those_that_are_there() -> None:
    adds, tags = tool("add_task", title=STRING), tool("add_tag", tag=STRING)
    values = values_of(adds, tags, tool("list_tasks"))
    titles = ["Sand the oak table", "Order new hinges", "Varnish the doors", "Sharpen all chisels"]
    values.learn("list_tasks", {}, [{"title": title, "tag": title.split()[-1]} for title in titles])
    for title in titles:
        for own, step in (
            ("title", Step(tool="add_task", arguments={"title": title})),
            ("tag", Step(tool="add_tag", arguments={"tag": title.split()[-1]})),
        ):
            learn_failure(values, step, f"there is a {own} {step.arguments[own]!r} already")
    new = {call["title"] for call in drawn(values, adds)} - set(titles)
    assert new
    assert {text.partition(" ")[0] for text in new} <= {title.split()[0] for title in titles}
    assert {text.partition(" ")[2] for text in new} <= {title.partition(" ")[2] for title in titles}
    assert not any(" " in call["tag"] for call in drawn(values, tags))


def test_a_call_that_got_a_stock_answer_is_forgotten() -> None:
    reads = tool("get_entry", file=STRING, key=STRING)
    values = values_of(reads)
    for key in ("a-1", "a-2", "a-3"):
        values.learn(
            "get_entry", {"file": "a.bib", "key": key}, f"Titel: Das {key}. Buch von Band {key[-1]}, Seiten {key[-1]}7"
        )
    wrong = [{"file": "a.bib", "key": key} for key in ("b-1", "b-2")]
    for call in wrong:
        values.learn("get_entry", call, f"{call['key']} fehlt")
        values.graph.note("get_entry", call, 1.0)
    assert all(values.graph.is_stock("get_entry", call, f"{call['key']} fehlt") for call in wrong)
    for call in wrong:
        values.graph.retract("get_entry", call, f"{call['key']} fehlt")
    assert values.graph.neighbours(["a-1", "b-1", "b-2"], ["a.bib"]) == ["a-1"]
    assert not values.graph.is_accepted(("get_entry", "key"), "b-1")
    assert len(values.graph.results["get_entry"]) == 3


def test_values_that_failed_are_not_drawn_where_others_are_left() -> None:
    lends = tool("lend", title=STRING)
    values = values_of(lends, tool("list_books"))
    values.learn("list_books", {}, [{"title": "Dune"}, {"title": "Emma"}, {"title": "Ulysses"}])
    values.graph.note("lend", {"title": "Emma"}, 1.0)
    learn_failure(values, Step(tool="lend", arguments={"title": "Dune"}), "'Dune' is on loan already")
    assert {call["title"] for call in drawn(values, lends)} == {"Emma", "Ulysses"}
    assert values.graph.refusals["lend"] == [({"title": "Dune"}, "'Dune' is on loan already")]


def test_words_to_look_for_are_of_names_and_of_short_texts() -> None:
    finds, lists = tool("find_tasks", query=STRING), tool("list_tasks")
    values = values_of(finds, lists)
    values.learn(
        "list_tasks", {}, [{"name": "plan", "state": "open", "text": "paint the fence for Ada", "log": "word " * 40}]
    )
    assert {"plan", "paint", "fence"} <= set(values.graph.terms())
    assert not {"open", "for"} & set(values.graph.terms())


def test_what_an_earlier_call_made_proves_nothing_of_its_source() -> None:
    renames = tool("rename_sheet", sheet=STRING)
    values = values_of(renames, tool("list_people"))
    values.learn("list_people", {}, [{"person": "Ada"}])
    values.graph.note("rename_sheet", {"sheet": "Ada"}, 1.0, new={'"Ada"'})
    assert not values.graph.is_accepted(("rename_sheet", "sheet"), "Ada")
    values.graph.note("rename_sheet", {"sheet": "Ada"}, 1.0)
    assert values.graph.is_accepted(("rename_sheet", "sheet"), "Ada")


def test_a_call_that_gives_nothing_proves_nothing() -> None:
    finds = tool("find_books", topic=STRING)
    values = values_of(finds, tool("list_topics"))
    values.learn("list_topics", {}, [{"subject": "sea"}])
    for _ in range(5):
        values.graph.note_source(("find_books", "topic"), "harbour", "new name")
        values.graph.note("find_books", {"topic": "harbour"}, 0.3)
    assert not values.graph.is_accepted(("find_books", "topic"), "harbour")
    values.graph.note("find_books", {"topic": "sea"}, 1.0)
    assert {call["topic"] for call in drawn(values, finds)} == {"sea"}


def test_one_of_the_parameters_that_an_error_names_is_drawn() -> None:
    diff = tool("diff", path=STRING)
    diff.input_schema["properties"] |= {"since_sha": STRING, "since_day": {"type": "string", "format": "date"}}
    values = values_of(diff)
    step = Step(tool="diff", arguments={"path": "a"})
    learn_failure(values, step, "Exactly one of 'since_sha' or 'since_day' must be provided")
    for call in drawn(values, diff):
        assert len(call.keys() & {"since_sha", "since_day"}) == 1


def test_files_outside_of_a_world_are_not_used_in_it(tmp_path: Path) -> None:
    crops = tool("crop_image", path=STRING)
    values = values_of(crops, tool("list_images"))
    (tmp_path / "pictures").mkdir()
    values.learn_places(places_of([tmp_path / "pictures"]))
    outside = str(tmp_path / "cache" / "lamp.png")
    values.learn("list_images", {}, [{"path": "/world/pictures/lamp.png"}, {"path": outside}])
    paths = {call["path"] for call in drawn(values, crops, explore=True)}
    assert "/world/pictures/lamp.png" in paths
    assert outside not in paths


def test_examples_of_paths_of_other_machines_are_never_used_in_a_world(tmp_path: Path) -> None:
    path = {"type": "string", "description": "An absolute path, such as '/home/me/q1.xlsx'", "examples": ["/etc/q2"]}
    makes = tool("create_workbook", path=path)
    values = values_of(makes)
    (tmp_path / "office").mkdir()
    values.learn_places(places_of([tmp_path / "office"]))
    for call in drawn(values, makes, explore=True):
        assert not call["path"].startswith(("/home", "/etc"))


def test_values_of_one_record_go_together_before_those_of_several() -> None:
    graph = values_of(tool("get_relations")).graph
    graph.learn_records([{"from": "Ada", "to": "Faust", "kind": "plays"}])
    graph.learn_records(
        [{"from": "Ada", "to": "Medea", "kind": "knows"}, {"from": "Bo", "to": "Faust", "kind": "knows"}]
    )
    assert graph.neighbours(["knows", "plays"], ["Ada", "Faust"]) == ["plays"]


def test_an_object_of_free_keys_is_like_a_row_of_the_table_that_is_named() -> None:
    row = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
    create = tool("create_record", table=STRING, row=row)
    values = values_of(create, tool("get_columns", table=STRING))
    values.graph.learn_records([{"plant": "Leek", "days": 90}, {"gardener": "Ada", "size": 7}])
    values.learn("get_columns", {"table": "beds"}, [{"column": "gardener"}, {"column": "size"}])
    rows = [values.arguments(create, base_arguments={"table": "beds"})["row"] for _ in range(20)]
    assert {"gardener": "Ada", "size": 7} in rows
    assert all(own.items() <= {"gardener": "Ada", "size": 7}.items() for own in rows)


def test_what_a_server_wrote_to_its_log_is_learnt_and_not_repeated() -> None:
    log = tool("log_set", 0, reps={"type": "integer"}, note=STRING)
    values = values_of(log)
    step = Step(tool="log_set", arguments={"note": "hard"})
    learn_failure(values, step, "Error executing tool log_set", log_text="ValueError: reps is required")
    assert values.graph.necessary["log_set"] == (["reps"], False)
    assert values.graph.refusals["log_set"] == [({"note": "hard"}, "Error executing tool log_set")]


def board_of(*tools: CatalogTool) -> Values:
    """A board with three columns, of which a schema names the first one."""
    values = values_of(tool("add_card", name=STRING, column=STRING | {"default": "todo"}), *tools, tool("show_board"))
    cards = {"todo": ["Buy plywood"], "doing": ["Sand the table"], "done": ["Mend the saw"]}
    values.learn("show_board", {}, {column: [{"name": name} for name in names] for column, names in cards.items()})
    return values


def test_what_a_schema_names_stands_for_its_kind() -> None:
    moves = tool("move_card", name=STRING, column_to=STRING)
    values = board_of(moves)
    assert values.arguments(moves, explore=True)["column_to"] == "todo"
    values.graph.note("move_card", {"name": "Sand the table", "column_to": "todo"}, 1.0)
    assert "doing" in {call["column_to"] for call in drawn(values, moves)}


def test_a_call_has_no_text_twice_where_there_are_others() -> None:
    moves = tool("move_card", name=STRING, column=STRING, column_to=STRING)
    values = board_of(moves)
    values.graph.note("move_card", {"name": "Buy plywood", "column": "todo", "column_to": "done"}, 1.0)
    assert all(call["column"] != call["column_to"] for call in drawn(values, moves))


def test_an_error_offers_each_argument_what_is_like_it() -> None:
    moves = tool("move_card", name=STRING, column=STRING)
    values = board_of(moves)
    step = Step(tool="move_card", arguments={"name": "Sand the table", "column": "done"})
    learn_failure(values, step, "no card 'Sand the table' in column done: 'Buy plywood', 'Mend the saw'")
    assert (Origin.ERROR, "column") not in values.graph.pools


def test_what_the_server_offered_is_not_given_up_for_what_it_went_with() -> None:
    moves = tool("move_card", name=STRING, column=STRING)
    values = board_of(moves)
    learn_failure(values, Step(tool="move_card", arguments={"name": "Sand the table", "column": "zz"}),
                  "no column 'zz', only 'todo', 'doing', 'done'")  # fmt: skip
    learn_failure(values, Step(tool="move_card", arguments={"name": "Mend the saw", "column": "doing"}),
                  "no card 'Mend the saw' in column doing")  # fmt: skip
    assert not values.graph.is_refused(("move_card", "column"), "doing")
    assert values.graph.neighbours(["todo", "doing", "done"], ["Sand the table"]) == ["doing"]
    for _ in range(4):
        learn_failure(values, Step(tool="move_card", arguments={"name": "Sand the table", "column": "doing"}),
                      "the column doing is closed")  # fmt: skip
    assert values.graph.is_refused(("move_card", "column"), "doing")


@pytest.mark.parametrize("error", ["Invalid hex value: 'red'", "Ungültiger Hex-Wert: 'red'", "use #RRGGBB, not 'red'"])
def test_an_error_names_a_format(error: str) -> None:
    checks = tool("check_contrast", foreground=STRING)
    values = values_of(checks)
    learn_failure(values, Step(tool="check_contrast", arguments={"foreground": "red"}), error)
    colours = {call["foreground"] for call in drawn(values, checks, explore=True)}
    assert any(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_a_list_is_as_long_as_an_error_wants_it() -> None:
    forecasts = tool("forecast", sales={"type": "array", "items": {"type": "number"}}, tags=LIST)
    values = values_of(forecasts)
    step = Step(tool="forecast", arguments={"sales": [3], "tags": ["a"]})
    learn_failure(values, step, "Need at least 4 sales")
    assert all(len(call["sales"]) >= 4 for call in drawn(values, forecasts))
    assert any(len(call["tags"]) < 4 for call in drawn(values, forecasts))
