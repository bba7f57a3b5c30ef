"""SQL over a Run sees the Run's own tables, and reaches nothing else."""

from __future__ import annotations

import pytest

from trueline.schema.errors import RunError
from trueline.store import query
from trueline.store.reader import Run
from trueline.store.writer import RunWriter


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("query") / "run"
    writer = RunWriter(path, rank=0)
    for step in range(3):
        writer.write({"step": step, "loss": 2.0 - step})
    writer.close()
    return Run(path)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("select step, loss from workers where loss > 0 order by step;", [(0, 2.0), (1, 1.0)]),
        ("with w as (from workers) select count(*), stddev_samp(loss) from w", [(3, 1.0)]),
        ("select a.step from workers a join workers b on a.step = b.step + 2", [(2,)]),
        ("select count(*) from records", [(0,)]),
        ("select sum(range) from range(5)", [(10,)]),
        ("select 'duckdb_settings()' as text", [("duckdb_settings()",)]),
    ],
)
def test_questions_about_the_run_are_answered(run, sql, rows):
    assert run.query(sql) == rows


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("INSTALL x", "is INSTALL, and one SELECT is answered"),
        ("-- load\ninstall x", "is INSTALL,"),
        ("checkpoint", "is CHECKPOINT,"),
        ("update extensions", "is UPDATE,"),
        ("select 1; select 2", "holds 2 statements,"),
        ("select * from pg_clas", "asks for 'pg_clas', which is not part of the Run"),
        ("select * from pg_tables", "asks for 'pg_tables'"),
        ("select * from workrs", r"name workrs does not exist\. The tables are 'workers' and"),
        ("select lot(loss) from workers", r"name lot does not exist\. The tables are"),
    ],
)
def test_what_is_refused_is_named_in_the_users_words(run, sql, told):
    with pytest.raises(RunError, match=told) as caught:
        run.query(sql)
    assert "Did you mean" not in str(caught.value)


def test_columns_are_described_and_pivoted(run):
    assert "loss" in {row[0] for row in run.query("describe workers")}
    assert run.query("pivot workers on step using sum(loss) group by rank") == [(0, 2.0, 1.0, 0.0)]
    assert run.query("explain select * from workers")


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('{here}')", "select * from '{here}'", "select * from read_text('{here}')",
        "select * from read_blob('{here}')", "select * from glob('/*')", "select * from parquet_scan('{here}')",
        "select * from sniff_csv('{here}')", "copy workers to '{new}'", "copy (select 1) to '{new}' (format parquet)",
        "explain judge copy workers to '{new}'", "attach '{new}' as x", "install httpfs", "load httpfs",
        "export database '{new}'", "import database '{here}'", "set memory_limit = '64GB'", "reset memory_limit",
        "set enable_external_access = true", "pragma database_list", "call pragma_version()", "select getenv('HOME')",
        "select * from duckdb_settings()", "select * from DUCKDB_SECRETS()", "select current_setting('x')",
        "select * from information_schema.tables", "create table a as select 1", "create secret (type s3)",
        "drop view workers", "insert into workers select * from workers", "delete from workers", "begin",
        "select 1; select 2", "select 1; copy workers to '{new}'", "select * from connection", "checkpoint", "", ";",
        "select * from sqlite_scan('{here}', 'x')", "select * from query('copy workers to ''{new}''')", "use memory",
        "select", "sel", "\0", "'", "select * from nothing", "prepare a as select 1",
    ],
)  # fmt: skip
def test_anything_else_is_one_sentence(run, sql, tmp_path):
    here, new = tmp_path / "here", tmp_path / "new"
    here.write_text("a,b\n1,2\n")
    with pytest.raises(RunError) as caught:
        run.query(sql.format(here=here, new=new))
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_what_takes_too_long_or_too_much_is_one_sentence(run, monkeypatch):
    monkeypatch.setattr(query, "TIME_LIMIT_S", 0.2)
    with pytest.raises(RunError, match="longer than"):
        run.query("select count(*) from range(1000000000000) where hash(range) = 0")
    monkeypatch.setattr(query, "TIME_LIMIT_S", 60)
    monkeypatch.setattr(query, "MAX_ROWS", 10)
    with pytest.raises(RunError, match="more than 10 rows"):
        run.query("select * from range(11)")
    settings = tuple(one.replace(query.MEMORY_LIMIT, "50MiB") for one in query._SETTINGS)
    monkeypatch.setattr(query, "_SETTINGS", settings)
    with pytest.raises(RunError, match="failed: Out of Memory"):
        run.query("select list(range) from range(20000000)")
