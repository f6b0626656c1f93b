"""Writes a workbook of Excel: sheets of texts, numbers and dates. The same sheets give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

Cell = str | int | float | date

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_STYLES = f"""<styleSheet xmlns="{_MAIN}"><fonts count="1"><font><sz val="11"/><name val="Calibri"/></font></fonts>
<fills count="1"><fill><patternFill patternType="none"/></fill></fills><borders count="1"><border/></borders>
<cellStyleXfs count="1"><xf/></cellStyleXfs>
<cellXfs count="2"><xf/><xf numFmtId="14" applyNumberFormat="1"/></cellXfs>
<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles></styleSheet>"""
_DATE_STYLE = 1
_EPOCH = date(1899, 12, 30)


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[Cell]]]) -> None:
    """Writes a workbook.

    Args:
        path: The file.
        sheets: Rows of cells by the name of the sheet, at most 26 cells in a row.
    """
    names = list(sheets)
    parts = {
        "[Content_Types].xml": _content_types(len(names)),
        "_rels/.rels": _relations([("officeDocument", "xl/workbook.xml")]),
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
        + "".join(f'<sheet name={quoteattr(one)} sheetId="{at}" r:id="rId{at}"/>' for at, one in enumerate(names, 1))
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": _relations(
            [*(("worksheet", f"worksheets/sheet{at + 1}.xml") for at in range(len(names))), ("styles", "styles.xml")]
        ),
        "xl/styles.xml": _STYLES,
        **{f"xl/worksheets/sheet{at}.xml": _sheet(sheets[one]) for at, one in enumerate(names, 1)},
    }
    with ZipFile(path, "w") as file:
        for name, text in parts.items():
            file.writestr(ZipInfo(name), _HEAD + text, ZIP_DEFLATED)


def _content_types(sheets: int) -> str:
    kinds = {"/xl/workbook.xml": "sheet.main", "/xl/styles.xml": "styles"}
    kinds |= {f"/xl/worksheets/sheet{at + 1}.xml": "worksheet" for at in range(sheets)}
    return (
        f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        + "".join(f'<Override PartName="{part}" ContentType="{_TYPE}.{kind}+xml"/>' for part, kind in kinds.items())
        + "</Types>"
    )


def _relations(targets: Sequence[tuple[str, str]]) -> str:
    rows = (
        f'<Relationship Id="rId{at}" Type="{_OFFICE}/{kind}" Target="{target}"/>'
        for at, (kind, target) in enumerate(targets, 1)
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{"".join(rows)}</Relationships>'


def _sheet(rows: Sequence[Sequence[Cell]]) -> str:
    lines = (
        f'<row r="{at}">{"".join(_cell(chr(65 + column) + str(at), one) for column, one in enumerate(row))}</row>'
        for at, row in enumerate(rows, 1)
    )
    last = chr(64 + max(map(len, rows))) + str(len(rows))
    used = f'<dimension ref="A1:{last}"/>'
    return f'<worksheet xmlns="{_MAIN}">{used}<sheetData>{"".join(lines)}</sheetData></worksheet>'


def _cell(place: str, cell: Cell) -> str:
    if isinstance(cell, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(cell)}</t></is></c>'
    if isinstance(cell, date):
        return f'<c r="{place}" s="{_DATE_STYLE}"><v>{(cell - _EPOCH).days}</v></c>'
    return f'<c r="{place}"><v>{cell}</v></c>'
