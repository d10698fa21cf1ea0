"""The claims ledger: what the published study says, and what the evidence makes of it.

`claims.yaml` holds each claim, what would refute it and the tests that decide it: rows of an evidence table (`evidence`) and
a predicate over them (`predicates`, `rules`). A verdict is always computed, never written down.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field, ValidationError, model_validator

from lib.ledger import evidence, rules  # noqa: F401 - rules make themselves known
from lib.ledger.predicates import PREDICATES, Finding, Verdict
from lib.results.records import ROOT
from lib.results.run import Frozen
from lib.results.settings import nearest, read_yaml

PATH = Path(__file__).with_name("claims.yaml")
NOT_TESTABLE = "not testable here"
STUDY = ("published", "arithmetic")
COLUMNS = ["id", "section", "claim", "study", "measured", "value", "low", "high", "verdict", "confidence", "notebook"]
Lookup = Callable[..., pd.DataFrame]
FLIPPED: dict[str, Verdict] = {"supported": "refuted", "refuted": "supported"}


class Test(Frozen):
    """One test, written flat: `{on: source, where: rows, is: predicate, argument: value, …}`.

    on: one source or several, none for arithmetic; where: `{column: value or values}` or a pandas query; says: what is looked
    at, in words; reverse: the claim says the predicate's contrary; context: shown, but no part of the verdict; recount: of
    counts and settings that no further run would change.
    """

    on: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    base: str = "vanilla"
    where: dict[str, Any] | str = ""
    predicate: str = Field(alias="is")
    says: str = ""
    reverse: bool = False
    context: bool = False
    recount: bool = False
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        own = {"on", "settings", "base", "where", "is", "says", "reverse", "context", "recount"}
        kept = {k: v for k, v in value.items() if k in own}
        if isinstance(kept.get("on"), str):
            kept["on"] = [kept["on"]]
        return kept | {"arguments": {k: v for k, v in value.items() if k not in own}}

    @model_validator(mode="after")
    def _known(self) -> Test:
        if self.predicate not in PREDICATES:
            near = nearest(self.predicate, PREDICATES)
            raise ValueError(f"is must be one of {', '.join(PREDICATES)}, got {self.predicate!r}{near}")
        try:
            inspect.signature(PREDICATES[self.predicate]).bind(None, **self.arguments)
        except TypeError as error:
            raise ValueError(
                f"arguments must be those of {self.predicate}, got {list(self.arguments)} ({error})"
            ) from None
        return self

    def findings(self, lookup: Lookup) -> list[Finding]:
        """One finding a source that has such rows."""
        if not self.on:
            return [self._judge(None, "arithmetic")]
        found = {source: self._rows(lookup(source, self.settings, self.base)) for source in self.on}
        return [self._judge(rows, source) for source, rows in found.items() if len(rows)]

    def _rows(self, rows: pd.DataFrame) -> pd.DataFrame:
        if isinstance(self.where, str):
            rows = rows.query(self.where, engine="python") if self.where and len(rows) else rows
        else:
            for column, value in self.where.items() if len(rows) else ():
                rows = rows[rows[column].isin(value if isinstance(value, list | tuple) else [value])]
        quantity = self.arguments.get("quantity")
        if quantity:
            rows = rows.dropna(subset=[quantity]) if quantity in rows else rows.iloc[:0]
        return rows.reset_index(drop=True)

    def _judge(self, rows: pd.DataFrame | None, source: str) -> Finding:
        found = PREDICATES[self.predicate](rows, **self.arguments)
        verdict = FLIPPED.get(found.verdict, found.verdict) if self.reverse else found.verdict
        text = f"{self.says}: {found.text}" if self.says else found.text
        return found._replace(verdict=verdict, text=text, source=source, context=self.context, recount=self.recount)


class Claim(Frozen):
    """One claim of the study. scope: how several findings make a verdict (`combine`); why: what keeps it from being decided."""

    id: str = Field(pattern=r"^C\d{2}$")
    section: int = Field(ge=0)
    claim: str = Field(min_length=10)
    refuted_if: str = Field(min_length=10)
    scope: Literal["every", "some", "agree"] = "agree"
    notebook: str = Field(pattern=r"^0[1-8]$")
    carries: bool = False  # one of the few that carry the article
    tests: tuple[Test, ...] = ()
    why: str = ""

    @model_validator(mode="after")
    def _testable(self) -> Claim:
        if not any(not test.context for test in self.tests) and not self.why:
            raise ValueError("why must say why no test decides the claim, got none")
        return self

    def findings(self, lookup: Lookup = evidence.table) -> list[Finding]:
        return [finding for test in self.tests for finding in test.findings(lookup)]


def combine(scope: str, findings: Iterable[Finding]) -> Verdict:
    """One verdict: every: one refutation refutes; some: one example supports; agree: contradictions leave it undecided."""
    found = {f.verdict for f in findings if not f.context} - {"undecided"}
    if scope == "every" and "refuted" in found:
        return "refuted"
    if scope == "some" and "supported" in found:
        return "supported"
    return found.pop() if len(found) == 1 else "undecided"


def confidence(verdict: str, findings: Iterable[Finding]) -> str:
    """high: two sources agree, or a recount that no further run would change; medium: one source of ours; low: the study's
    single runs only; empty where nothing is decided."""
    found = [f for f in findings if f.verdict == verdict and not f.context]
    if not found or verdict == "undecided":
        return ""
    sources = {f.source for f in found}
    if len(sources) > 1 or all(f.recount for f in found):
        return "high"
    return "low" if sources <= {"published"} else "medium"


def read(path: Path) -> tuple[Claim, ...]:
    """The claims of a file. Raises ValueError, one sentence, if an entry is not valid or an id comes twice."""
    claims: list[Claim] = []
    for entry in read_yaml(path)["claims"]:
        try:
            claims.append(Claim.model_validate(entry))
        except ValidationError as error:
            first = error.errors()[0]
            said = [*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")]
            raise ValueError(f"{path.name} {entry.get('id')}: {' '.join(said)}") from None
        if sum(c.id == claims[-1].id for c in claims) > 1:
            raise ValueError(f"{path.name}: id must be there once, got {claims[-1].id} twice")
    return tuple(claims)


@cache
def load() -> tuple[Claim, ...]:
    """All claims, in the study's order."""
    return read(PATH)


@cache
def sections() -> tuple[str, ...]:
    """The study's sections."""
    return tuple(read_yaml(PATH)["sections"])


def get(claim_id: str) -> Claim:
    """The claim of an id; ValueError if there is none."""
    for claim in load():
        if claim.id == claim_id:
            return claim
    raise ValueError(f"claim id must be one of {load()[0].id} to {load()[-1].id}, got {claim_id!r}")


def row(claim: Claim, lookup: Lookup = evidence.table) -> dict[str, Any]:
    """A claim with what was found about it, under COLUMNS."""
    findings = claim.findings(lookup)
    verdict = combine(claim.scope, findings)
    study, ours = ([f for f in findings if (f.source in STUDY) == own] for own in (True, False))
    ranked = sorted([*ours, *study], key=lambda f: (f.verdict != verdict, f.context))  # what decided comes first
    shown = ranked[0] if ranked else Finding("undecided", "")
    lacking = {s: "no such run" for test in claim.tests for s in test.on} | {f.source: f.text for f in findings}
    measured = [f"{f.source}: {f.text}" for f in ours] + [
        f"{s}: {text}" for s, text in lacking.items() if text == "no such run"
    ]
    measured += [claim.why] * (verdict == "undecided" and bool(claim.why))
    if verdict == "undecided" and not any(not t.context for t in claim.tests):
        verdict = NOT_TESTABLE
    texts = {"study": "; ".join(f.text for f in study), "measured": "; ".join(measured)}
    return {
        "id": claim.id, "section": f"{claim.section} {sections()[claim.section]}", "claim": claim.claim, **texts,
        "value": shown.value, "low": shown.low, "high": shown.high, "verdict": verdict,
        "confidence": confidence(verdict, findings), "notebook": claim.notebook,
    }  # fmt: skip


def table(claims: Iterable[Claim] | None = None, lookup: Lookup = evidence.table) -> pd.DataFrame:
    """The ledger, one row a claim (default: all)."""
    return pd.DataFrame([row(claim, lookup) for claim in (load() if claims is None else claims)], columns=COLUMNS)


def headline() -> pd.DataFrame:
    """The claims that carry the article."""
    return table(claim for claim in load() if claim.carries)


def tested_by(notebook: str) -> pd.DataFrame:
    """id, claim and verdict of the claims that a notebook (`02`, or its file name) shows."""
    return table(c for c in load() if c.notebook == notebook[:2])[["id", "claim", "verdict"]]


def file_of(notebook: str) -> str:
    """File name of a notebook by its number; its number where there is none."""
    return next((path.name for path in sorted((ROOT / "notebooks").glob(f"{notebook[:2]}_*.ipynb"))), notebook)


def page(rows: pd.DataFrame) -> str:
    """Rows of the ledger as HTML for a page in notebooks/; the last column links to the notebook that shows the claim."""
    links = [f'<a href="{file_of(n)}">{n}</a>' for n in rows.notebook]
    names = {"study": "its own data", "measured": "measured here"}
    shown = rows[["id", "claim", "study", "measured", "verdict", "confidence"]].rename(columns=names)
    look = {"text-align": "left", "vertical-align": "top"}
    return (
        shown.assign(**{"shown in": links}).style.hide(axis="index").set_uuid("ledger").set_properties(**look).to_html()
    )
