"""The Python blocks of a page that begin with the name of a file, as modules that can be imported."""

import re
import sys
import types

from tests.conftest import ROOT


class Recipe(types.ModuleType):
    """A module with the code of a block, which runs when its first name is needed: after Django has started."""

    def __init__(self, name: str, code: str) -> None:
        super().__init__(name)
        self.__dict__["__code"] = code

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.__class__ = types.ModuleType
        exec(self.__dict__.pop("__code"), self.__dict__)
        return getattr(self, name)


def install(page: str) -> dict[str, str]:
    """Make the blocks of a page importable, and return their code by the name of the file."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    blocks = dict(re.findall(r"^```python\n# (shop/\S+\.py)\n(.*?)^```$", text, re.M | re.S))
    sys.modules["shop"] = types.ModuleType("shop")
    for file, code in blocks.items():
        name = file.removesuffix(".py").replace("/", ".")
        sys.modules[name] = Recipe(name, code)
    return blocks
