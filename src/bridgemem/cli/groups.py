"""The commands by group, each with one line that fits in a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

GROUPS = {
    "Model": {
        "demo": "Run the whole method on a simulated world.",
        "train": "Train a backbone on the train split.",
        "fit": "Fit residuals on a backbone and select on validation.",
        "evaluate": "Measure a run, or a model of your own on data.",
        "calibrate": "Fit the probabilities of a run on validation.",
        "reproduce": "Run the paper's experiment: train, fit, evaluate, record.",
    },
    "Ask": {
        "forecast": "Rank the candidates of one query or of a file of queries.",
        "outlook": "List the likeliest or most surprising events ahead.",
        "explain": "Explain the score of a candidate by the pair's events.",
        "names": "Find names of a run by what one would type.",
        "explore": "Ask and inspect a run in the browser.",
        "mcp": "Give a run to agents as tools (Model Context Protocol).",
    },
    "Data": {
        "data": "List, check, import and describe data sets.",
    },
    "Live": {
        "serve": "Serve forecasts over HTTP and take in new events.",
        "config": "Show the settings of serve and explore.",
        "ingest": "Add the events of a file to an event store.",
        "stored": "List the events of a store with their ids.",
        "retract": "Retract stored events by their ids.",
        "ledger": "List and score the forecasts issued to a store.",
        "rejected": "List, export, replay or drop rejected rows of a store.",
        "prune": "Permanently remove events of a store by age or source.",
        "erase": "Permanently remove a name and its events from a store.",
        "compact": "Merge new events into the base, and shrink a store's file.",
        "backup": "Copy an event store and verify the copy.",
        "refresh": "Fit a run again on everything known now.",
        "promote": "Point the link that is served to a run.",
        "rollback": "Point the link that is served to the run before.",
    },
    "Scale": {
        "mine": "Mine counts, examples and a pair index out of core.",
        "memory": "Write a run's events and indices as a memory-mapped folder.",
    },
    "Research": {
        "ablate": "Change one part of a residual at a time and measure it.",
        "compare": "Compare methods by paired differences with intervals.",
        "strata": "Measure a run by what had happened before each query.",
        "headroom": "Measure what the error of a run is made of.",
        "ranks": "Rank every query by a run's rows and by baselines.",
        "audit": "Check a run for leakage and integrity.",
        "check-backbone": "Check a model for leaks, also by training it again.",
        "leakage": "Measure what the other queries of a step give away.",
        "tgb": "Measure a run with the evaluator of TGB.",
        "report": "Print tables of recorded metrics.",
        "push": "Push a run to a model hub.",
        "pull": "Pull a run from a model hub.",
        "new-backbone": "Write a model of your own to start from.",
        "backbones": "List the backbones and their settings.",
        "schema": "Print the JSON Schema of a command's --json document.",
    },
}


class Grouped(TyperGroup):
    """A program whose help lists its commands by group."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))
