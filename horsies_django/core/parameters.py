"""The parameters of a function, except the context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from .annotations import bare_signature


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a function, except the context."""

    signature: inspect.Signature
    takes_context: bool
    own: tuple[str, ...]
    positional: tuple[str, ...]
    by_name: frozenset[str]
    required: frozenset[str]
    accepts_any: bool

    def accept(self, names: Set[str]) -> bool:
        """Whether a call with only these keyword arguments certainly fits the signature."""
        return names <= self.by_name and self.required <= names

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], path: str) -> Sequence[str]:
        """Return the names of the parameters that take ``args``. Raises TypeError if the call doesn't fit."""
        names = list(self.positional[: len(args)])
        context = (None,) if self.takes_context else ()
        try:
            self.signature.bind(*context, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{path}{self.signature}: {error}.") from None
        parameters = self.signature.parameters.values()
        rest = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), "")
        return names + [f"{rest}[{place}]" for place in range(len(args) - len(names))]

    def replace(
        self, args: list[Any], kwargs: dict[str, Any], new: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call with these values, which are given by name, in the place of theirs."""
        new = dict(new)
        named = dict(zip(self.positional, args, strict=False))
        return [new.pop(name, value) for name, value in named.items()] + args[len(named) :], kwargs | new

    def bind_partial(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments by parameter name, including defaults. Raises TypeError if the call doesn't fit."""
        context = (None,) if self.takes_context else ()
        bound = self.signature.bind_partial(*context, *args, **kwargs)
        bound.apply_defaults()
        return bound.arguments


def signature_of(func: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that calls have to fit.

    A wrapper has that of the function it wraps. Its own ``**kwargs`` may take more, so any other keyword fits as well.
    """
    signature = bare_signature(func)
    if not hasattr(func, "__wrapped__"):
        return signature
    parameters = signature.parameters
    for rest in bare_signature(func, follow_wrapped=False).parameters.values():
        if rest.kind is rest.VAR_KEYWORD and all(parameter.kind is not rest.kind for parameter in parameters.values()):
            name = rest.name
            while name in parameters:
                name += "_"
            return signature.replace(parameters=[*parameters.values(), rest.replace(name=name)])
    return signature


@functools.cache
def parameters_of(func: Callable[..., Any], takes_context: bool) -> Parameters:
    """Return the parameters of a function."""
    signature = signature_of(func)
    own = list(signature.parameters.values())[int(takes_context) :]
    by_name = frozenset(
        parameter.name
        for parameter in own
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )
    plain = [parameter for parameter in own if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)]
    required = frozenset(parameter.name for parameter in plain if parameter.default is parameter.empty)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own)
    positional = tuple(
        parameter.name
        for parameter in own
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )
    return Parameters(
        signature, takes_context, tuple(parameter.name for parameter in own), positional, by_name, required, takes_any
    )
