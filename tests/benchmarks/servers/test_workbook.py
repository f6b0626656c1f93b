"""Workbooks are written so that the office programs' format is kept."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from xml.etree import ElementTree
from zipfile import ZipFile

from benchmarks.servers.workbook import write_workbook

MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def test_a_workbook_has_texts_numbers_and_dates(tmp_path: Path) -> None:
    write_workbook(tmp_path / "a.xlsx", {"One & two": [["Name", "Day"], ["<Ada>", date(2026, 1, 5)]], "B": [[2.5]]})
    with ZipFile(tmp_path / "a.xlsx") as file:
        names = [one.get("name") for one in ElementTree.fromstring(file.read("xl/workbook.xml")).iter(f"{MAIN}sheet")]
        cells = list(ElementTree.fromstring(file.read("xl/worksheets/sheet1.xml")).iter(f"{MAIN}c"))
        number = ElementTree.fromstring(file.read("xl/worksheets/sheet2.xml")).find(f".//{MAIN}v")
    assert names == ["One & two", "B"]
    assert ["".join(cell.itertext()) for cell in cells] == ["Name", "Day", "<Ada>", "46027"]
    assert number is not None
    assert number.text == "2.5"


def test_the_same_sheets_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_workbook(tmp_path / name, {"S": [["x", 1]]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
