"""`trueline trial bisect` where a job has a fault since one of its commits, or since a release of what it uses."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.cli import in_process

from trueline.trials.bisect.commits import Commits

JOB = Path(__file__).parents[1] / "faulty_job.py"


@pytest.fixture
def repository(tmp_path, monkeypatch, alike):
    """Nine commits: the fault is in the sixth, whose predecessor does not run; the Run of the last is `../first`."""
    root = tmp_path / "repository"
    (root / "job").mkdir(parents=True)
    monkeypatch.chdir(root)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b.c")

    def git(*words):
        return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    shutil.copy(JOB, root / "job" / "train.py")
    healthy = JOB.read_text()
    for number in range(9):
        text = healthy.replace('"none": True', f'"none": {number >= 5}')
        (root / "job" / "train.py").write_text("raise SystemExit(125)" if number == 4 else text)
        (root / "notes").write_text(str(number))
        git("add", ".")
        git("commit", "-qm", f"Change {number}")
    monkeypatch.chdir(root / "job")
    alike.record(str(tmp_path / "first"), Path("train.py"), "none")
    (root / "job" / "ended").unlink(missing_ok=True)
    return git


@pytest.mark.in_turn
def test_the_commit_is_named_with_the_one_before_it_that_does_not_run(
    repository, python, tmp_path, monkeypatch, capsys
):
    words = ("trial", "bisect", "../../first", "--good", "HEAD~8", "--json", "--", python, "train.py", "none")
    code, out, err = in_process.trueline(monkeypatch, capsys, *words)
    assert out, err
    found = json.loads(out)
    assert (code, found["answer"]) == (0, "confirmed"), found
    assert [name.partition(" ")[2] for name in found["credible"]] == ["Change 4", "Change 5"]
    assert found["rate"]["showed"] == found["rate"]["runs"]
    assert repository("status", "--porcelain", "--untracked-files=no") == ""
    assert len(repository("worktree", "list").splitlines()) == 1, "the checkout is gone"
    assert not Path("ended").exists(), "the job ran in the checkout"


def test_words_that_name_a_file_of_the_repository_name_that_of_the_checkout(repository, python, tmp_path):
    commits = Commits.between("HEAD~8", None, tree=tmp_path / "checkout")
    script = str(Path("train.py").resolve())
    way = commits.way("bad", 8, [python, script, "train.py", "/etc/hosts"])
    assert way.words == [python, str(tmp_path / "checkout" / "job" / "train.py"), "train.py", "/etc/hosts"]
    assert way.folder == tmp_path / "checkout" / "job"
    assert Path(way.words[1]).read_text() == Path(script).read_text()
    commits.way("x", 4, [])
    assert Path(way.words[1]).read_text() == "raise SystemExit(125)"
    assert commits.says(4).endswith("Change 4")
    commits.remove()
    assert not (tmp_path / "checkout").exists()


def test_bad_input_is_one_sentence(repository, python, monkeypatch, capsys, tmp_path):
    for words, told in [
        (("--good", "nowhere"), "git rev-parse failed"),
        (("--good", "HEAD"), "is no first-parent ancestor"),
        (("--good", "HEAD", "--bad", "HEAD~3"), "is no first-parent ancestor"),
    ]:
        asked = ("trial", "bisect", "../../first", *words, "--", python, "train.py", "none")
        code, _, err = in_process.trueline(monkeypatch, capsys, *asked)
        assert (code, err.count("\n")) == (2, 1)
        assert told in err
    Path("train.py").write_text("# changed")
    asked = ("trial", "bisect", "../../first", "--good", "HEAD~8", "--", python, "train.py", "none")
    code, _, err = in_process.trueline(monkeypatch, capsys, *asked)
    assert code == 2
    assert "has changes that are in no commit" in err
    code, out, _ = in_process.trueline(
        monkeypatch, capsys, "trial", "bisect", "../../first", "--dry-run", *asked[3:5], "--bad", "HEAD", *asked[5:]
    )
    assert code == 0
    assert "Commits: 9, from" in out
    monkeypatch.chdir(tmp_path)
    code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "bisect", "first", *asked[3:6], python, "x.py")
    assert (code, "git rev-parse failed" in err) == (2, True), err


@pytest.fixture
def releases(tmp_path, monkeypatch, alike):
    """Eight releases of a package, of which the sixth and later have a fault, and the fourth cannot be imported; a job
    that uses it, and its Run with the last one as `first`.
    """
    dist = tmp_path / "dist"
    dist.mkdir()
    for number in range(1, 9):
        info = f"scaled_loss-1.{number}.dist-info"
        code = f"def factor(): return float('{'nan' if number >= 6 else 1}')\n"
        with zipfile.ZipFile(dist / f"scaled_loss-1.{number}-py3-none-any.whl", "w") as wheel:
            wheel.writestr("scaled_loss/__init__.py", "raise ImportError('it needs another')" if number == 4 else code)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: scaled-loss\nVersion: 1.{number}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(dist))
    text = JOB.read_text().replace('"none": True', '"none": scaled_loss.factor() != 1')
    (tmp_path / "train.py").write_text(f"import scaled_loss\n{text}")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", "now", "scaled-loss==1.8"], check=True)
    alike.record("first", Path("train.py"), "none", PYTHONPATH="now")
    alike.as_processes = True  # as users have them


@pytest.mark.in_turn
def test_the_release_of_a_package_is_named_and_one_that_cannot_be_imported_is_left_out(
    releases, python, monkeypatch, capsys
):
    words = ("trial", "bisect", "first", "--package", "scaled-loss", "--good", "1.1", "--bad", "1.8")
    job = ("--", python, "train.py", "none")
    code, out, err = in_process.trueline(monkeypatch, capsys, *words, "--json", *job)
    assert out, err
    found = json.loads(out)
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["1.6 of scaled-loss"]), found
    assert "the changelog of scaled-loss" in found["next"][0]
    assert not Path("trials/bisect/releases").exists()

    for more, told in (
        (("--good", "0.9"), "--good is '0.9', which is no release of scaled-loss that pip finds: it finds 1.1, 1.2"),
        (("--good", "1.8", "--bad", "1.2"), "scaled-loss 1.8 is no older than 1.2"),
        (("--package", "no-such-package-at-all", "--bad", "2"), "pip index failed"),
        (("--package", "no-such-package-at-all"), "is not installed for"),
    ):
        given = words[:-2] if told.startswith("is not installed") else words
        code, _, err = in_process.trueline(monkeypatch, capsys, *given, *more, "--out", "other", *job)
        assert (code, told in " ".join(err.split())) == (2, True), err
