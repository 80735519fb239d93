"""Bodies with errors and results that no database can store."""

from horsies_django import task


@task
def fail_with(hexadecimal: str):
    raise ValueError(bytes.fromhex(hexadecimal).decode("utf-8", "surrogatepass"))


@task
def return_unstorable(kind: str):
    return {
        "nan": float("nan"),
        "infinity": float("-inf"),
        "nul": "a\0b",
        "surrogate": "\ud800",
        "nested nan": {"deep": [1, {"er": float("nan")}]},
        "key": {"\0": 1},
    }[kind]
