"""Triples from the installed library and from users' files."""

import json
import re
import sys

import pytest

from trueline.demo import corpus
from trueline.demo.corpus import Triple, library_triples, load_triples
from trueline.schema.errors import InputError

SOURCE = '''
import os
import a_module_that_does_not_exist

SECRET = os.environ

def documented(value, env=os.environ, where=os.path.expanduser("~")):
    """Return the value.

    It stays as it is.
    """
    \x0c
    later = value
    return later

def bare(value):
    first = value
    second = first
    return second

class Holder:
    def method(self):
        """Give nothing."""
        return None
'''


@pytest.fixture
def library(tmp_path):
    package = tmp_path / "lib" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SOURCE)
    (package / "broken.py").write_text("def (:\n")
    (package / "latin.py").write_bytes(b"# \xff\n")
    (tmp_path / "lib" / "test").mkdir()
    (tmp_path / "lib" / "test" / "test_it.py").write_text('def test():\n    """Not library."""\n    return 1\n')
    return tmp_path / "lib"


def test_a_documented_function_gives_a_description_and_a_body(library):
    triples = library_triples(root=library)
    header = 'def documented(value, env=os.environ, where=os.path.expanduser("~")):'
    docstring = "Return the value.\n\nIt stays as it is."
    assert Triple("Describe what this function of the module pkg does.", header, docstring) in triples
    asked = "Write the body of the function documented, which is described below."
    assert Triple(asked, f"{header}\n{docstring}", "\x0c\nlater = value\nreturn later") in triples


def test_an_undocumented_function_is_cut_in_its_middle(library):
    cut = Triple(
        "Finish this function of the module pkg.",
        "def bare(value):\n    first = value",
        "second = first\nreturn second",
    )
    assert cut in library_triples(root=library)


def test_methods_are_read_and_tests_are_not(library):
    inputs = [triple.input for triple in library_triples(root=library)]
    assert "def method(self):" in inputs
    assert not any("def test" in text for text in inputs)


PLACES = {
    "otherwise": "if x:\n  pass\nelse:\n@",
    "tried": "try:\n@\nexcept E:\n  pass",
    "handled": "try:\n  pass\nexcept E:\n@",
    "at_last": "try:\n  pass\nfinally:\n@",
    "matched": "match x:\n  case 1:\n@",
    "deep": "with x:\n while y:\n  def f():\n@",
}


def test_functions_are_found_inside_of_any_statement(tmp_path):
    for name, text in PLACES.items():
        function = f'    def {name}():\n        """Say so."""\n        return 1\n'
        (tmp_path / f"{name}.py").write_text(text.replace("@", function))
    inputs = {triple.input for triple in library_triples(root=tmp_path)}
    assert inputs >= {f"def {name}():" for name in PLACES}


def test_a_folder_without_sources_is_an_error_that_offers_data(tmp_path):
    with pytest.raises(InputError, match="--data"):
        library_triples(root=tmp_path)


@pytest.mark.in_turn
def test_the_installed_library_is_read_but_never_imported_or_evaluated(monkeypatch):
    monkeypatch.setenv("TRUELINE_TEST_SECRET", "do-not-leak-7f3a9c")
    before = set(sys.modules)
    triples = library_triples()
    assert set(sys.modules) == before
    assert len(triples) == corpus.NUM_TRIPLES
    assert len(set(triples)) == len(triples)
    assert max(triple.num_chars for triple in triples) <= corpus.MAX_CHARS
    everything = "".join(f"{triple.instruction}{triple.input}{triple.output}" for triple in triples)
    assert "do-not-leak-7f3a9c" not in everything
    assert "os.environ" in everything


def test_triples_come_in_the_order_of_the_files(library):
    for name in ("d", "a", "c", "f", "b", "e"):
        (library / f"{name}.py").write_text(SOURCE)
    triples = library_triples(root=library)
    assert triples == library_triples(root=library)
    asked = " ".join(triple.instruction for triple in triples)
    modules = re.findall(r"module (\w+)", asked)
    assert len(modules) == 7 * 3
    assert modules == sorted(modules)


def test_fewer_triples_are_spread_over_the_whole_library(library):
    every = library_triples(root=library)
    assert library_triples(2, root=library) == [every[0], every[len(every) // 2]]


ROWS = [
    {"instruction": "Add.", "input": "1 + 1", "output": "2"},
    {"instruction": "Say hello.", "output": "Hello."},
    {"instruction": "Nothing.", "input": None, "output": "", "history": []},
]
TRIPLES = [Triple("Add.", "1 + 1", "2"), Triple("Say hello.", "", "Hello."), Triple("Nothing.", "", "")]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        "\ufeff\n " + json.dumps(ROWS, indent=2),
        "\n".join(json.dumps(row) for row in ROWS),
        "\r\n\r\n".join(json.dumps(row) for row in ROWS) + "\n",
        "\n".join(json.dumps(row) for row in ROWS).replace("hello.", "he\u2028llo.").replace("\\u2028", "\u2028"),
    ],
    ids=[
        "array",
        "array with a mark and indents",
        "lines",
        "lines with blanks",
        "lines with a line separator in a text",
    ],
)
def test_an_array_and_lines_are_both_read(tmp_path, text):
    (tmp_path / "data").write_text(text, encoding="utf-8")
    triples = load_triples(tmp_path / "data")
    assert [triple.output for triple in triples] == ["2", "Hello.", ""]
    assert [Triple(each.instruction.replace("\u2028", ""), each.input, each.output) for each in triples] == TRIPLES


BAD = {
    "empty": (b"", "is empty"),
    "blank": (b" \n\n", "is empty"),
    "empty array": (b"[]", "empty array"),
    "not text": (b"PK\x03\x04\xff\xfe", "not UTF-8 text \\(byte 4\\)"),
    "not JSON": (b"hello there", "Line 1 .* is not JSON"),
    "truncated array": (b'[{"instruction": "a", "output": "b"},\n {"instr', "stops being JSON at line 2"),
    "truncated line": (b'{"instruction": "a", "output": "b"}\n{"instr', "Line 2 .* is not JSON"),
    "an object around it": (b'{\n "rows": []\n}', "Line 1 .* is not JSON"),
    "one object of another kind": (b'{"rows": []}', "Line 1 .* has no 'instruction' \\(it has 'rows'\\)"),
    "not an object": (b'[{"instruction": "a", "output": "b"}, 7]', "Item 1 .* is a JSON number"),
    "no instruction": (
        b'[{"prompt": "a", "output": "b"}]',
        "Item 0 .* has no 'instruction' \\(it has 'prompt', 'output'\\)",
    ),
    "no output": (b'\n{"instruction": "a"}', "Line 2 .* has no 'output'"),
    "empty object": (b"[{}]", "it has no field"),
    "a number as text": (b'[{"instruction": "a", "output": 3}]', "a JSON number as 'output'"),
    "null output": (b'[{"instruction": "a", "output": null}]', "a JSON null as 'output'"),
    "a boolean as input": (b'[{"instruction": "a", "input": true, "output": "b"}]', "a JSON boolean as 'input'"),
    "half a character": (b'[{"instruction": "\\ud800", "output": "b"}]', "Item 0 .* surrogate"),
    "a deep nest": (b"[" * 200_000, "nested too deeply"),
}


@pytest.mark.parametrize(("content", "pattern"), BAD.values(), ids=BAD.keys())
def test_a_file_of_no_use_is_named_with_its_place_in_one_sentence(tmp_path, content, pattern):
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=pattern) as caught:
        load_triples(path)
    assert f"'{path}'" in str(caught.value)
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "a folder"])
def test_a_path_that_is_no_file_is_named(tmp_path, make):
    make(tmp_path / "gone.json")
    with pytest.raises(InputError, match=r"gone\.json' cannot be read"):
        load_triples(tmp_path / "gone.json")
