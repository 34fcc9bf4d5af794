# The library makes its names at run time; to the type checker they are anything.
from typing import Any

def __getattr__(name: str) -> Any: ...
