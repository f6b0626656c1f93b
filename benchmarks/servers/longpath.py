"""longpath on schedules in the XML of MS Project: the repair of a school, as planned and a month later."""

from __future__ import annotations

import random
from datetime import date, datetime, time, timedelta
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.servers.server import BenchmarkServer, pypi

_PHASES = {
    "Design": ("Survey the rooms", "Draw the plans", "Get the permit"),
    "Roof": ("Put up the scaffold", "Remove the tiles", "Lay new tiles", "Fit the gutters"),
    "Inside": ("Replace the wiring", "Plaster the walls", "Paint the classrooms", "Lay the floors"),
    "Hand-over": ("Clean the building", "Inspect with the owner"),
}
_CREWS = ("Architect", "Roofers", "Electricians", "Painters", "Cleaners")
_BEGIN = date(2026, 9, 7)


def make_schedules(where: Path, seed: int) -> Path:
    """Makes the directory.

    Args:
        where: An empty directory.
        seed: Seed of the durations and the delays.

    Returns:
        The directory.
    """
    rng, root = random.Random(f"schedules-{seed}"), where / "schedules"
    root.mkdir()
    (root / "longpath.toml").write_text("allow_writes = true\n")
    names = [name for tasks in _PHASES.values() for name in tasks]
    planned = {name: rng.randrange(2, 12) for name in names}
    later = {name: days + rng.choice((0, 0, 1, 3)) for name, days in planned.items()}
    crews = {name: rng.randrange(len(_CREWS)) for name in names}
    # A task also waits for an earlier one that is not just before it, so that some have float.
    waits = {
        at: {at - 1, rng.randrange(at)} if rng.random() < 0.5 else {rng.randrange(at)} for at in range(1, len(names))
    }
    for file, days, status in (("september", planned, _BEGIN), ("october", later, date(2026, 10, 9))):
        tree = _schedule(planned, days, crews, waits, status)
        ElementTree.indent(tree)
        (root / f"school-{file}.xml").write_bytes(ElementTree.tostring(tree, "utf-8", xml_declaration=True))
    return root


def _schedule(
    planned: dict[str, int], days: dict[str, int], crews: dict[str, int], waits: dict[int, set[int]], status: date
) -> ElementTree.Element:
    """A schedule at a date. Its tasks take `days` working days, and those of its baseline `planned` ones."""
    root = ElementTree.Element("Project", xmlns="http://schemas.microsoft.com/project")

    def add(parent: ElementTree.Element, kind: str, **fields: object) -> ElementTree.Element:
        made = ElementTree.SubElement(parent, kind)
        for name, value in fields.items():
            ElementTree.SubElement(made, name).text = str(value)
        return made

    spans, baseline = _spans(days, waits), _spans(planned, waits)
    last = max(end for _, end in spans)
    head = {"Name": "school", "Title": "Repair of the school", "StartDate": _at(_BEGIN, 8), "FinishDate": _at(last, 17)}
    for name, value in {**head, "StatusDate": _at(status, 17), "MinutesPerDay": 480, "CalendarUID": 1}.items():
        ElementTree.SubElement(root, name).text = str(value)
    calendar = add(ElementTree.SubElement(root, "Calendars"), "Calendar", UID=1, Name="Standard", IsBaseCalendar=1)
    week = ElementTree.SubElement(calendar, "WeekDays")
    for day in range(1, 8):
        times = add(week, "WeekDay", DayType=day, DayWorking=int(1 < day < 7))
        if 1 < day < 7:
            hours = ElementTree.SubElement(times, "WorkingTimes")
            add(hours, "WorkingTime", FromTime="08:00:00", ToTime="12:00:00")
            add(hours, "WorkingTime", FromTime="13:00:00", ToTime="17:00:00")
    tasks, at, uid = ElementTree.SubElement(root, "Tasks"), 0, 0
    uids: list[int] = []
    for number, (phase, names) in enumerate(_PHASES.items(), 1):
        uid += 1
        add(tasks, "Task", UID=uid, ID=uid, Name=phase, OutlineNumber=number, OutlineLevel=1, WBS=number, Summary=1)
        for place, name in enumerate(names, 1):
            uid += 1
            uids.append(uid)
            (begin, end), (first, final) = spans[at], baseline[at]
            done = 100 if end <= status else 0 if begin >= status else 50
            fields = {"UID": uid, "ID": uid, "Name": name, "OutlineNumber": f"{number}.{place}", "OutlineLevel": 2}
            fields |= {"WBS": f"{number}.{place}", "Summary": 0, "Start": _at(begin, 8), "Finish": _at(end, 17)}
            fields |= {"Duration": f"PT{8 * days[name]}H0M0S", "PercentComplete": done}
            fields |= {"RemainingDuration": f"PT{8 * days[name] * (100 - done) // 100}H0M0S"}
            fields |= {"ActualStart": _at(begin, 8)} if done else {}
            fields |= {"ActualFinish": _at(end, 17)} if done == 100 else {}
            task = add(tasks, "Task", **fields)
            length = f"PT{8 * planned[name]}H0M0S"
            add(task, "Baseline", Number=0, Start=_at(first, 8), Finish=_at(final, 17), Duration=length)
            for other in sorted(waits.get(at, ())):
                add(task, "PredecessorLink", PredecessorUID=uids[other], Type=1, LinkLag=0, LagFormat=7)
            at += 1
    resources = ElementTree.SubElement(root, "Resources")
    for number, crew in enumerate(_CREWS, 1):
        add(resources, "Resource", UID=number, ID=number, Name=crew, Type=1)
    assignments = ElementTree.SubElement(root, "Assignments")
    for number, (task_uid, name) in enumerate(zip(uids, days, strict=True), 1):
        work, cost = f"PT{16 * days[name]}H0M0S", 900 * days[name]
        add(assignments, "Assignment", UID=number, TaskUID=task_uid, ResourceUID=crews[name] + 1, Work=work, Cost=cost)
    return root


def _spans(days: dict[str, int], waits: dict[int, set[int]]) -> list[tuple[date, date]]:
    """First and last day of each task, on working days."""
    spans: list[tuple[date, date]] = []
    for at, length in enumerate(days.values()):
        begin = max((_after(spans[other][1], 1) for other in waits.get(at, ())), default=_BEGIN)
        spans.append((begin, _after(begin, length - 1)))
    return spans


def _after(day: date, count: int) -> date:
    """The working day `count` working days later."""
    while count:
        day += timedelta(days=1)
        count -= day.weekday() < 5
    return day


def _at(day: date, hour: int) -> str:
    return datetime.combine(day, time(hour)).isoformat()


SERVER = BenchmarkServer(
    "longpath",
    lambda: [pypi("longpath", "longpath==0.1.0")],
    make_schedules,
    {"HOME": "{world}", "LONGPATH_HOME": "{world}", "LONGPATH_CONFIG": "{world}/longpath.toml"},
    use="untouched",
)
