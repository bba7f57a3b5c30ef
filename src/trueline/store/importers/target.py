"""The Run that an import makes: written under a hidden name next to its path, and renamed when it is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from trueline.schema.errors import InputError, RunExistsError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.text import documents
from trueline.store import file_names
from trueline.store.log.durable import replace_file
from trueline.store.writer import RunWriter


class NewRun:
    """A Run under a temporary name. Ranks are written one after the other."""

    def __init__(self, folder: str, manifest: Manifest) -> None:
        self.manifest = manifest
        """Written with the first rank, and again at the end."""
        self._folder = folder
        self._leads = True

    @contextlib.contextmanager
    def rank(self, rank: int) -> Iterator[RunWriter]:
        """What takes the records of ``rank``; sealed at the end."""
        writer = RunWriter(self._folder, rank=rank, creates=self._leads)
        try:
            env = RankEnv(rank=rank, world_size=self.manifest.world_size, device="", grad_dtype="")
            writer.describe(self.manifest if self._leads else None, env)
            self._leads = False
            yield writer
        finally:
            writer.close()
        findings_path = os.path.join(self._folder, file_names.findings_name(rank))
        if os.path.exists(
            findings_path
        ):  # values that could not be stored are a Finding, as training would go on without
            raise OSError("not all values could be stored")

    def finish(self) -> None:
        """Write the manifest as it is now: the writers have given their shares back."""
        replace_file(os.path.join(self._folder, file_names.MANIFEST), documents.encode(self.manifest.model_dump()))


@contextlib.contextmanager
def new_run(path: str | os.PathLike[str], manifest: Manifest) -> Iterator[NewRun]:
    """A Run at ``path``, there when the block ends and not at all where it raises.

    Raises ``InputError`` where it cannot be written; ask ``require_free`` before what is to be imported is read.
    """
    final = os.path.abspath(os.fspath(path))
    draft = os.path.join(
        os.path.dirname(final), f".{os.path.basename(final)}.{os.getpid()}{file_names.TEMPORARY_SUFFIX}"
    )
    try:
        os.makedirs(draft)
        run = NewRun(draft, manifest)
        yield run
        run.finish()
        os.rename(draft, final)
    except OSError as error:
        raise InputError(
            f"The Run '{os.fspath(path)}' cannot be written: {error.strerror or error}. Free space, or pass another "
            "path."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def require_free(path: str | os.PathLike[str]) -> None:
    """Raise ``RunExistsError`` where there is something at ``path``; an empty directory is nothing."""
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise RunExistsError(f"'{os.fspath(path)}' exists already. Pass another path; nothing was overwritten.")
