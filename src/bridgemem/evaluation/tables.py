"""Tables: figures as the field prints them, in plain cells."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridgemem.ranking.intervals import NONE
from bridgemem.showing import html_table

HEADINGS = {"mrr": "MRR", "hits1": "H@1", "hits3": "H@3", "hits10": "H@10"}
FILTER_WORDS = {"raw": "raw", "static": "static filter", "time": "time-aware filter"}
SHORT = {"raw": "raw", "static": "static", "time": "time-aware"}
MAIN_METHODS = ("backbone", "bridgemem", "learned")
CROSS_FITTED = "learned, cross-fitted"


@dataclass(frozen=True)
class Table:
    """A table as plain cells, to be printed, or written as Markdown."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {_one_line(self.title)}", "", _line(self.header)]
        lines.append("|" + "|".join("---" if i == 0 else "---:" for i in range(len(self.header))) + "|")
        lines += [_line(row) for row in self.rows]
        return "\n".join(lines) + "\n" + (f"\n{self.note}\n" if self.note else "")

    def latex(self) -> str:
        r"""A booktabs table: it needs \usepackage{booktabs} alone; the first column is text, the others are figures."""
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.title)}}}"]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}", r"\toprule", _latex_line(self.header)]
        lines += [r"\midrule", *(_latex_line(row) for row in self.rows), r"\bottomrule", r"\end{tabular}"]
        if self.note:
            lines.append(rf"\par\smallskip\footnotesize {_latex(self.note)}")
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def __str__(self) -> str:
        """Aligned columns, for a terminal."""
        lines = [[_one_line(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        first, *others = widths or [0]
        cells = [[row[0].ljust(first), *map(str.rjust, row[1:], others)] if row else [] for row in lines]
        shown = [_one_line(self.title), "", *("  ".join(row).rstrip() for row in cells)]
        return "\n".join([*shown, "", self.note] if self.note else shown)

    def _repr_html_(self) -> str:
        return html_table(self.title, self.header, self.rows, self.note)


LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
MINUS = re.compile(r"(?<![^\s\[])-(?=[.\d])")  # of a number; 2-4 and icews05-15 have none


def _latex(text: str) -> str:
    """Text escaped for LaTeX."""
    plain = "".join(LATEX.get(c, c) for c in _one_line(text))
    return MINUS.sub("$-$", plain)  # a hyphen in text is shorter than a minus


def _latex_line(cells: list[str]) -> str:
    line = " & ".join(map(_latex, cells)) + r" \\"
    return f"{{}}{line}" if line.startswith("[") else line  # which the line before would take for a length


def _line(cells: list[str]) -> str:
    """One line of a Markdown table; names come from data and may hold a bar or a line break."""
    return "| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in cells) + " |"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def figure(value: float) -> str:
    """A metric as the field prints it: .5903."""
    return f"{value:.4f}".replace("0.", ".", 1)


def interval(gain: list[float]) -> str:
    """A gain with its 95 % interval, if it has one."""
    if gain[1] <= NONE[0] and gain[2] >= NONE[1]:
        return f"{gain[0]:+.4f} (no interval)"
    return f"{gain[0]:+.4f} [{gain[1]:+.4f}, {gain[2]:+.4f}]"


def place(dataset: str, split: str) -> str:
    """The data set, and the split where it is not test."""
    return dataset if split == "test" else f"{dataset} ({split})"


def method_name(method: str, cross_fit: float) -> str:
    """A method as tables name it."""
    return CROSS_FITTED if cross_fit else method


def fitted_here(method: str, split: str) -> str:
    """What is said after the name of a residual that was fitted on the very queries it is measured on."""
    return ", fitted on these queries" if split == "valid" and method in MAIN_METHODS[2:] else ""
