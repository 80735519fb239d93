"""Bodies that give back what no database takes."""

from horsies_django import task


@task
def fail_with(hexadecimal: str):
    raise ValueError(bytes.fromhex(hexadecimal).decode("utf-8", "surrogatepass"))


@task
def give(kind: str):
    return {
        "nan": float("nan"),
        "infinity": float("-inf"),
        "nul": "a\0b",
        "surrogate": "\ud800",
        "nested nan": {"deep": [1, {"er": float("nan")}]},
        "key": {"\0": 1},
    }[kind]
