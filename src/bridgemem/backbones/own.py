"""Own models: any callable or scorer as a backbone, classes that are registered by name, and those in a Python file."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from bridgemem.backbones import BACKBONES, REGISTERED
from bridgemem.backbones.base import Backbone
from bridgemem.backbones.reads import Reads
from bridgemem.backbones.scorer import Scores, as_scores, called
from bridgemem.errors import NO_MEMORY, BackboneError, BridgeMemError, NotFoundError
from bridgemem.events.dataset import Dataset
from bridgemem.events.queries import Queries
from bridgemem.memory.past import Past
from bridgemem.training.checkpoint import Training

T = TypeVar("T")
_AT_IMPORT: dict[str, tuple[str, ...]] = {}  # what the module of each name opened when it was imported
IN_FILE = re.compile(r"(?P<file>.+\.py)(?::(?P<attribute>[^/\\:]*))?")
ONE_VALUE = "more than 1 value per channel"  # what torch says of a batch of one
IN_TRAINING = "batch normalisation in training mode, so call .eval() on the network before it scores"
TWO = "; it takes 2 arguments, so it is called with (queries, past); for arrays take (actor, relation, step)"
SHAPE = "(actor, relation, step), three arrays of n ids, and return log scores [n, entities]"


class Wrapped(Backbone):
    """A model that was trained elsewhere: it scores, and cannot be trained again. `wrapped` makes a class of each."""

    model: ClassVar[Any]
    retrained: ClassVar[bool] = False

    @classmethod
    def train(cls, dataset: Dataset, settings: Any, training: Training) -> Self:
        raise BackboneError(
            f"{cls.name} only scores and cannot be trained here; leave cross_fit out, or derive a class from "
            "bridgemem.Backbone."
        )

    def score(self, queries: Queries, past: Past) -> Scores:
        scores = as_scores(asked(self.model, queries, past), self.name, queries.actor.device)
        log_p = scores.log_p
        if log_p.ndim == 2 and len(log_p) and log_p.min() >= 0 and ((log_p.sum(1) - 1).abs() < 1e-3).all():
            raise BackboneError(f"{self.name} returned probabilities, whose rows sum to 1; return their logarithm.")
        u = scores.uncertainty
        device = queries.actor.device
        return Scores(log_p.to(device), None if u is None else u.to(device), scores.members, scores.absent)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    @classmethod
    def restore(cls, settings: Any, tensors: dict[str, Tensor]) -> Self:
        return cls()


def wrapped(model: Any, name: str | None = None) -> type[Wrapped]:
    """The class of backbones that a callable on arrays, a torch module or a scorer makes."""
    name = name or _name_of(model)
    if name in BACKBONES:
        raise BackboneError(f"{name!r} is the name of a built-in backbone; give your model another one.")
    _, arrays = _call_of(model)
    if isinstance(model, nn.Module):
        model.eval()  # dropout would make every score a random one
    held = {"name": name, "reads_past": not arrays, "model": staticmethod(model) if inspect.isroutine(model) else model}
    held |= {key: value for key in ("own_uncertainty", "n_members") if (value := getattr(model, key, None))}
    held |= {"__module__": getattr(_defined(model), "__module__", ""), "__doc__": _defined(model).__doc__}
    return type(_defined(model).__name__, (Wrapped,), held)


def asked(model: Any, queries: Queries, past: Past) -> Any:
    """A model's scores of queries, in the form it takes them; every exception becomes one sentence."""
    ask, arrays = _call_of(model)
    given: tuple[Any, ...] = (queries, past)
    if arrays and isinstance(model, nn.Module):
        weights = next(model.parameters(), None)
        own = queries if weights is None else queries.to(weights.device)
        given = (own.actor, own.relation, own.step)
    elif arrays:
        own = queries.to("cpu")
        given = (own.actor.numpy(), own.relation.numpy(), own.step.numpy())
    try:
        with torch.no_grad():
            return ask(*given)
    except (BridgeMemError, MemoryError):
        raise
    except Exception as problem:
        if any(words in str(problem) for words in NO_MEMORY):
            raise
        scorer = callable(getattr(model, "score", None))  # whose two arguments are meant
        hint = _hint(problem, past) if arrays or scorer else TWO
        said = f"{_name_of(model)} cannot score the queries: {_said(problem, _file_of(model))}{hint}."
        raise BackboneError(said) from None  # `Backbone.check` takes one with a cause for a model of other data


def _hint(problem: Exception, past: Past) -> str:
    """The usual cause of an error of a model that is asked for the first time."""
    if ONE_VALUE in str(problem):
        return f"; this is {IN_TRAINING}"
    if "ndarray" in str(problem):
        return "; plain functions get NumPy arrays, torch.from_numpy makes tensors of them"
    if isinstance(problem, IndexError):
        events = past.events
        ids = f"0..{events.n_entities - 1} for entities and 0..{2 * events.n_relations - 1} for relations"
        return f"; ids are {ids}, of which those from {events.n_relations} on ask for the subject"
    return ""


def _call_of(model: Any) -> tuple[Callable[..., Any], bool]:
    """How a model is asked, and whether with three arrays; else with the queries and the past."""
    ask = getattr(model, "score", None)
    if not callable(ask):
        ask = model.forward if isinstance(model, nn.Module) else model
    unfinished = isinstance(model, nn.Module) and ask == model.forward and type(model).forward is nn.Module.forward
    if isinstance(model, type) or unfinished or not callable(ask):
        raise BackboneError(f"{_name_of(model)} cannot be called; your model must take {SHAPE}.")
    try:
        signature = inspect.signature(ask)
    except (TypeError, ValueError):
        return ask, True
    for arrays, places in ((True, 3), (False, 2)):
        try:
            signature.bind(*range(places))
            return ask, arrays
        except TypeError:
            continue
    raise BackboneError(f"{_name_of(model)} takes {signature}; it must take {SHAPE}, or (queries, past).")


def _defined(model: Any) -> Any:
    """Where the source of a model is: its class, or the function itself."""
    return model if isinstance(model, type) or inspect.isroutine(model) else type(model)


def _name_of(model: Any) -> str:
    name = getattr(model, "name", None)
    name = name if isinstance(name, str) else getattr(_defined(model), "__name__", called(model))
    return "own-model" if name == "<lambda>" else name


def _said(problem: BaseException, file: str | None = None) -> str:
    """An error of foreign code in one line, with the last place in its file, or the last of all."""
    text = (str(problem).strip() or "no message").splitlines()[0].rstrip(".")
    if isinstance(problem, SyntaxError):
        return f"SyntaxError: {problem.msg} (line {problem.lineno})"
    frames = traceback.extract_tb(problem.__traceback__)
    last = ([frame for frame in frames if frame.filename == file] or frames)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(problem).__name__}: {text}{where}"


def _file_of(model: Any) -> str | None:
    try:
        return inspect.getsourcefile(_defined(model))
    except (OSError, TypeError):
        return None


@contextmanager
def blaming(model: Any) -> Iterator[None]:
    """Make one sentence of what the code of a model raises, with the place in its file; other errors pass."""
    try:
        yield
    except (BridgeMemError, MemoryError):
        raise
    except Exception as problem:
        if any(words in str(problem) for words in NO_MEMORY):
            raise
        file = None if isinstance(model, str | Path) else _file_of(model)
        if file is None or file not in {frame.filename for frame in traceback.extract_tb(problem.__traceback__)}:
            raise
        raise BackboneError(f"{_name_of(model)} failed: {_said(problem, file)}.") from problem


def own_backbone(given: Any, dataset: Dataset) -> Any:
    """Your own model, as a forecaster takes it.

    A class that is no `Backbone` is constructed with the data, without its test split; a scorer or a callable is
    wrapped. All else, as names, folders and backbones, is left as it is.
    """
    if isinstance(given, str | Path | Backbone) or (isinstance(given, type) and issubclass(given, Backbone)):
        return given
    if isinstance(given, type):
        try:
            inspect.signature(given).bind(dataset)
        except (TypeError, ValueError):
            raise BackboneError(
                f"{given.__name__} is constructed as {given.__name__}(data); give __init__ one parameter for the data, "
                "or derive the class from bridgemem.Backbone."
            ) from None
        with blaming(given):
            given = given(dataset.without_test())
    return wrapped(given)()


def register(model: T, *, name: str | None = None) -> T:
    """Make a model of your own known by name, for this process; a saved one can then be loaded again.

    Args:
        model: A class derived from `Backbone`, or a trained model: a scorer, or a callable on arrays.
        name: What it is called; of a class, its own `name`.

    Returns:
        The model, so that it also works as a decorator.

    Raises:
        BackboneError: The name is that of a built-in backbone, or the class is no backbone.

    Example:
        >>> import bridgemem as bm, numpy as np
        >>> def first_names_first(actor, relation, step):
        ...     return -np.tile(np.arange(30.0), (len(actor), 1))
        >>> _ = bm.register(first_names_first)
        >>> world = bm.simulate(bm.WorldSettings(actors=30, relations=8, steps=60, events=2400)).dataset
        >>> quick = {"max_epochs": 1}
        >>> len(bm.evaluate(world, first_names_first, residual="bridgemem", settings=quick).table().rows)
        8
    """
    if isinstance(model, type) and not issubclass(model, Backbone):
        raise BackboneError(
            f"{model.__name__} does not derive from bridgemem.Backbone, so its weights cannot be saved; derive it, or "
            "register a trained instance."
        )
    kind = model if isinstance(model, type) else wrapped(model, name)
    own = getattr(kind, "name", None)
    if not isinstance(own, str) or not own or own in BACKBONES or name not in (None, own):
        raise BackboneError(f"{kind.__name__} needs a name of its own, as in name = 'my-model'; {own!r} is taken.")
    REGISTERED[own] = kind
    return model


def in_file(text: str) -> bool:
    """Whether a text names a class or function in a Python file, as mymodel.py:MyModel does."""
    return IN_FILE.fullmatch(text) is not None and not Path(text).is_dir()


def from_file(text: str) -> Any:
    """The class, function or object that mymodel.py:MyModel names; the file is run, so only a user may name it."""
    found = IN_FILE.fullmatch(text)
    assert found is not None
    path, wanted = Path(found["file"]), found["attribute"]
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}; `bridgemem new-backbone {path}` writes one to start from.")
    module = _imported(path)
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    if wanted and hasattr(module, wanted):
        return getattr(module, wanted)
    close = difflib.get_close_matches(wanted or "", own, 1) or own
    example = f"{path}:{close[0] if close else 'MyModel'}"
    missing = f"{path} has no {wanted!r}" if wanted else f"name the class in {path} too"
    raise NotFoundError(f"{missing}, as in {example}; it defines {', '.join(own) or 'no class or function'}.")


def _imported(path: Path) -> ModuleType:
    """A Python file as a module, under a name that hides no other; what it imports may lie next to it."""
    name = f"bridgemem_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and inspect look their classes up there
    home = str(path.absolute().parent)
    if home not in sys.path:
        sys.path.append(home)
    reads = Reads()
    try:
        with reads.watching():
            spec.loader.exec_module(module)
    except BridgeMemError:
        raise
    except (Exception, SystemExit) as problem:
        raise BackboneError(f"{path} cannot be imported: {_said(problem, str(path))}.") from problem
    _AT_IMPORT[name] = tuple(reads.sources)
    return module


def read_at_import(model: Any) -> tuple[str, ...]:
    """What the file of a model opened while it was imported, if `from_file` imported it."""
    return _AT_IMPORT.get(getattr(_defined(model), "__module__", ""), ())
