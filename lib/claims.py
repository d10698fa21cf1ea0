"""The claims ledger: what the published study says, and what the evidence makes of it.

Each claim is a row of figures/data/published/claims.yaml: one sentence, what would refute it, where it is
tested, and the rules (`lib.rules`) that decide it. A verdict is always computed, never written down; without
a finding it is undecided.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import yaml
from pydantic import Field, ValidationError, model_validator

import lib.reanalysis  # noqa: F401 - its rules register themselves
from lib import records, rules
from lib.cells import Frozen
from lib.params import Profile
from lib.rules import ARITHMETIC, PUBLISHED, Bench, Evidence, Finding, Verdict

if TYPE_CHECKING:
    import pandas as pd

PATH = records.ROOT / "figures" / "data" / "published" / "claims.yaml"
SECTIONS = (
    "The headline", "One picture", "Four settings", "One inequality", "One setting at a "
    "time", "Why workloads differ",
    "Model size", "Decision tree", "GPU busy share", "Pitfalls", "Summary",
)  # fmt: skip
VERDICTS: tuple[Verdict, ...] = ("supported", "refuted", "undecided")
KINDS = {
    "measured": "measured here",
    "reanalysis": "re-analysis",
    "not_testable": "not testable here",
    "missing": "no record yet",
}


class RuleCall(Frozen):
    """A rule's name and arguments, written flat in the YAML: `{rule: name, argument: value}`."""

    rule: str
    arguments: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if isinstance(value, dict) and "arguments" not in value:
            return {"rule": value.get("rule"), "arguments": {k: v for k, v in value.items() if k != "rule"}}
        return value

    @model_validator(mode="after")
    def _known(self) -> RuleCall:
        if self.rule not in rules.RULES:
            raise ValueError(f"rule is {self.rule!r}, allowed: {', '.join(sorted(rules.RULES))}")
        try:
            inspect.signature(rules.RULES[self.rule]).bind(None, **self.arguments)
        except TypeError as error:
            raise ValueError(f"rule {self.rule} has arguments {self.arguments}, allowed: its own ({error})") from None
        return self

    @property
    def reads_records(self) -> bool:
        """Whether the rule looks at this collection's records and not only at the study's numbers."""
        return self.rule in rules.ON_RECORDS

    @property
    def how(self) -> str:
        """How the rule decides: its docstring, on one line."""
        return " ".join(inspect.getdoc(rules.RULES[self.rule]).split())

    def findings(self, evidence: Evidence) -> list[Finding]:
        return rules.RULES[self.rule](evidence, **self.arguments)


class Claim(Frozen):
    """One claim of the study. Fields: see the head of claims.yaml."""

    id: str = Field(pattern=r"^C\d{2}$")
    section: int = Field(ge=0, lt=len(SECTIONS))
    claim: str = Field(min_length=10)
    refuted_if: str = Field(min_length=10)
    kind: Literal["measured", "reanalysis", "not_testable"]
    scope: Literal["every", "some", "agree"] = "agree"
    notebook: str = Field(pattern=r"^0[1-8]$")
    figure: str | None = None
    rules: tuple[RuleCall, ...] = ()
    why: str = ""

    @model_validator(mode="after")
    def _kind_fits(self) -> Claim:
        reads = any(call.reads_records for call in self.rules)
        if self.kind == "not_testable" and (self.rules or not self.why):
            raise ValueError("kind is 'not_testable', allowed: no rules, and a why")
        if self.kind == "measured" and not reads:
            raise ValueError("kind is 'measured', allowed: at least one rule that reads records")
        if self.kind == "reanalysis" and (reads or not self.rules or self.notebook != "08"):
            raise ValueError("kind is 'reanalysis', allowed: rules on the study's numbers only, and notebook '08'")
        return self

    @property
    def notebook_file(self) -> str | None:
        """File name of the notebook that tests the claim; None while it does not exist."""
        return next(
            (path.name for path in sorted((records.ROOT / "notebooks").glob(f"{self.notebook}_*.ipynb"))),
            None,
        )

    @property
    def figure_file(self) -> str | None:
        """File name of the committed figure that shows it, a GPU's before the CPU's; None while there is
        none."""
        if self.figure is None:
            return None
        found = sorted(
            (records.ROOT / "figures").glob(f"{self.figure}_*.png"),
            key=lambda path: path.stem.endswith("_cpu"),
        )
        return found[0].name if found else None


class Row(NamedTuple):
    """A claim with what was found about it."""

    claim: Claim
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return combine(self.claim.scope, self.findings)

    @property
    def sources(self) -> list[str]:
        """Where the findings come from, each once, the study's own numbers first."""
        return sorted({f.source for f in self.findings}, key=lambda s: (s != PUBLISHED, s))

    @property
    def measured_in(self) -> list[str]:
        """Profiles whose records said something about the claim."""
        return [source for source in self.sources if source not in (PUBLISHED, ARITHMETIC)]

    @property
    def kind(self) -> str:
        """The best evidence there is: one of KINDS, as far as records exist now."""
        if self.claim.kind == "not_testable" or not self.findings:
            return KINDS["not_testable" if self.claim.kind == "not_testable" else "missing"]
        return KINDS["measured" if self.measured_in else "reanalysis"]

    @property
    def evidence(self) -> str:
        """The numbers, source by source."""
        if self.claim.kind == "not_testable":
            return self.claim.why
        return " | ".join(f"{f.source}: {f.text} [{f.verdict}]" for f in self.findings) or "no record yet"


def combine(scope: str, findings: Iterable[Finding]) -> Verdict:
    """One verdict out of several findings.

    every: one refutation refutes; some: one example supports; agree: findings that contradict each other
    leave it undecided.
    """
    found = {f.verdict for f in findings} - {"undecided"}
    if scope == "every" and "refuted" in found:
        return "refuted"
    if scope == "some" and "supported" in found:
        return "supported"
    return found.pop() if len(found) == 1 else "undecided"


def read(path: Path) -> tuple[Claim, ...]:
    """The claims of a file. Raises ValueError, one sentence, if a row is not valid or an id comes twice."""
    claims: list[Claim] = []
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")):
        name = entry.get("id", f"entry {len(claims) + 1}")
        try:
            claims.append(Claim.model_validate(entry))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ValueError(
                f"{path.name} {name}: {where} {first['msg'].removeprefix('Value error, ')}".strip()
            ) from None
        if sum(c.id == claims[-1].id for c in claims) > 1:
            raise ValueError(f"{path.name}: id is {name} twice, allowed: once")
    return tuple(claims)


@cache
def load() -> tuple[Claim, ...]:
    """All claims, in the study's order."""
    return read(PATH)


def get(claim_id: str) -> Claim:
    """The claim of an id; ValueError if there is none."""
    for claim in load():
        if claim.id == claim_id:
            return claim
    raise ValueError(f"claim id is {claim_id!r}, allowed: {load()[0].id} to {load()[-1].id}")


def tested_by(notebook: str) -> list[str]:
    """Ids of the claims that a notebook (`02`, or its file name) tests."""
    return [claim.id for claim in load() if claim.notebook == notebook[:2]]


def evidence(profile: Profile | None = None, mode: str = "replay") -> Evidence:
    """The committed records of all profiles; in measure mode those of `profile` come from its own run."""
    if profile is None or mode == "replay":
        return Evidence.committed()
    return Evidence.committed(Bench(profile, records.Store(records.runs_folder(profile.profile) / "records")))


def row(claim_id: str, found: Evidence | None = None) -> Row:
    """The ledger's row of one claim; `found` defaults to the committed evidence."""
    found = found or evidence()
    claim = get(claim_id)
    return Row(claim, tuple(finding for call in claim.rules for finding in call.findings(found)))


def ledger(found: Evidence | None = None, ids: Sequence[str] | None = None) -> list[Row]:
    """Rows of all claims (or of `ids`), in the study's order."""
    found = found or evidence()
    return [row(claim.id, found) for claim in load() if ids is None or claim.id in ids]


def counts(rows: Sequence[Row]) -> pd.DataFrame:
    """How many claims of each verdict, by the best evidence there is; one row a kind and a total."""
    import pandas as pd

    table = pd.DataFrame(0, index=[*KINDS.values(), "all"], columns=[*VERDICTS, "all"])
    for r in rows:
        for name in (r.kind, "all"):
            table.loc[name, [r.verdict, "all"]] += 1
    return table


def frame(rows: Sequence[Row]) -> pd.DataFrame:
    """The ledger as a DataFrame, one row a claim."""
    import pandas as pd

    return pd.DataFrame(
        {
            "id": r.claim.id,
            "section": f"{r.claim.section} · {SECTIONS[r.claim.section]}",
            "claim": r.claim.claim,
            "verdict": r.verdict,
            "evidence": r.evidence,
            "kind": r.kind + (f" ({', '.join(r.measured_in)})" if r.measured_in else ""),
            "refuted if": r.claim.refuted_if,
            "rule": " ".join(call.how for call in r.claim.rules) or r.claim.why,
            "notebook": r.claim.notebook,
            "figure": r.claim.figure or "",
        }
        for r in rows
    )


def plain(rows: Sequence[Row], width: int = 118) -> str:
    """The ledger as text: id, verdict, kind and claim, then one line a finding."""
    lines = []
    for section, title in enumerate(SECTIONS):
        chosen = [r for r in rows if r.claim.section == section]
        lines += ["", f"{section} · {title}"] if chosen else []
        for r in chosen:
            head = f"{r.claim.id}  {r.verdict:<10} {r.claim.claim}"
            lines += textwrap.wrap(head, width, subsequent_indent=" " * 16)
            tested = f"{r.claim.notebook}" + (f", figure {r.claim.figure}" if r.claim.figure else "")
            found = [f"{f.source}: {f.text} -> {f.verdict}" for f in r.findings] or [r.evidence]
            for text in [*found, f"tested in {tested}"]:
                lines += textwrap.wrap(text, width, initial_indent=" " * 16, subsequent_indent=" " * 18)
    return "\n".join(lines[1:])


def markdown(ids: Sequence[str], found: Evidence | None = None) -> str:
    """The verdicts of some claims as a Markdown list, for the conclusion of the notebook that tests them."""
    return "\n".join(
        f"- **{r.claim.id}** {r.claim.claim} **{r.verdict.capitalize()}.** {r.evidence}" for r in ledger(found, ids)
    )


def table(rows: Sequence[Row]) -> Any:
    """The ledger as a great_tables table, grouped by section; its links hold for a page in notebooks/."""
    from great_tables import GT, loc, style

    shown = frame(rows)[["section", "id", "claim", "verdict", "evidence", "kind", "refuted if"]]
    shown["evidence"] = ["<br>".join(escape(part) for part in r.evidence.split(" | ")) for r in rows]
    shown["tested in"] = [_links(r.claim) for r in rows]
    shades = {"supported": "#E3F1E8", "refuted": "#F9E3DC", "undecided": "#EFEFEF"}
    gt = GT(shown, rowname_col="id", groupname_col="section", id="ledger").fmt_markdown(["evidence", "tested in"])
    for verdict, shade in shades.items():
        chosen = [i for i, r in enumerate(rows) if r.verdict == verdict]
        if chosen:
            gt = gt.tab_style(style.fill(shade), loc.body(columns="verdict", rows=chosen))
    widths = {"claim": "22%", "evidence": "31%", "refuted if": "15%", "kind": "9%", "tested in": "9%"}
    gt = gt.cols_width(widths).cols_align("left")
    return gt.tab_options(table_font_size="12px", data_row_padding="3px", table_width="100%")


def _links(claim: Claim) -> str:
    file, figure = claim.notebook_file, claim.figure_file
    text = f"[{claim.notebook}]({file})" if file else claim.notebook
    if claim.figure:
        text += f" · [figure {claim.figure}](../figures/{figure})" if figure else f" · figure {claim.figure}"
    return text


def explore(rows: Sequence[Row]) -> Any:
    """The ledger with filters (verdict, evidence, section, notebook, words), for JupyterLab: an ipywidgets
    box."""
    import ipywidgets as widgets

    choices = {
        "verdict": [r.verdict for r in rows],
        "evidence": [r.kind for r in rows],
        "section": [f"{r.claim.section} · {SECTIONS[r.claim.section]}" for r in rows],
        "notebook": [r.claim.notebook for r in rows],
    }
    menus = {
        name: widgets.Dropdown(options=["all", *sorted(set(values))], description=name, layout={"width": "250px"})
        for name, values in choices.items()
    }
    words = widgets.Text(description="words", placeholder="e.g. suffix", layout={"width": "250px"})
    shown, number = widgets.HTML(), widgets.Label()

    def update(*_) -> None:
        chosen = [
            r
            for i, r in enumerate(rows)
            if all(menu.value in ("all", choices[name][i]) for name, menu in menus.items())
            and words.value.lower() in f"{r.claim.id} {r.claim.claim} {r.evidence}".lower()
        ]
        number.value = f"{len(chosen)} of {len(rows)} claims"
        shown.value = table(chosen).as_raw_html() if chosen else "no such claim"

    for control in (*menus.values(), words):
        control.observe(update, names="value")
    update()
    box = widgets.HBox([*menus.values(), words, number], layout={"flex_flow": "row wrap"})
    return widgets.VBox([box, shown])
