"""What `import trueline` offers, as a shell and `help` show it."""

import textwrap
import types

import trueline


def test_what_a_shell_completes_is_public() -> None:
    names = dir(trueline)

    assert set(names) == {*trueline.__all__, "rl", "__version__"}
    assert {name for name in names if isinstance(getattr(trueline, name), types.ModuleType)} == {"rl"}


def test_the_help_of_watch_has_an_example_that_compiles() -> None:
    _, _, after = trueline.watch.__doc__.partition("Example, on every rank:\n")
    code = textwrap.dedent("\n".join(line for line in after.splitlines() if line.startswith(" " * 8)))

    assert "trueline.watch(" in code
    compile(code, "example", "exec")
