"""A folder that proves with torch alone what one operation does."""

from __future__ import annotations

import inspect
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.capture.record.values import stored
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run
from trueline.store.records.tensor_files import TensorFile
from trueline.trials.frame.trial import Answer, Arm, TrialAnswer
from trueline.trials.op import proof, recalled
from trueline.trials.op.judged_call import JudgedCall, judged_on
from trueline.trials.op.places import calls_at
from trueline.trials.op.recorded_calls import RecordedCall

FILES = ("op.py", "expected.json", "inputs.safetensors")
QUESTION = "Is the error of this operation more than rounding explains?"


@dataclass(frozen=True)
class OpAnswer:
    """The ``answer`` at ``site``, what each output is (``proof.proved``), and the files that were written."""

    answer: TrialAnswer
    site: str
    outputs: Mapping[str, Mapping[str, Any]]
    written: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract, with what is known of the outputs."""
        facts = {"site": self.site, "outputs": dict(self.outputs), "written": list(self.written)}
        return self.answer.to_json() | facts


def prove_op(
    run: Run,
    site: str,
    *,
    device: str,
    folder: Path,
    overwrite: bool = False,
    seed: int = 0,
    modules: Sequence[str] = (),
) -> OpAnswer:
    """Judge the call at ``site`` (``places.calls_at``) on ``device``, of several the one that is worst, and write it to
    ``folder``; ``modules`` were imported for its operator, and who calls it again needs them. Raises ``InputError`` for
    a site where no operation was recorded, or a place that cannot be written to.
    """
    calls = list({call.signature: call for call in reversed(calls_at(run, site))}.values())[::-1]
    require_free(folder, overwrite=overwrite)
    judged, outputs, why = _judged(run, calls[0], device, seed)
    for call in calls[1:]:  # one after the other: the inputs of all of a model may be more than memory has
        judgement = _judged(run, call, device, seed)
        if _badness(judgement[1]) > _badness(outputs):
            judged, outputs, why = judgement
    if judged is None:
        call = calls[0]
        says = f"The call of {call.api} at {call.site} cannot be judged: {why}."
        return OpAnswer(_answer("undecided", (says,), device, 0), call.site, {}, ())
    call = judged.call
    written = write(judged, folder)
    verdicts = [output["verdict"] for output in outputs.values()]
    answer: Answer = "confirmed" if "beyond" in verdicts else "undecided"
    if verdicts and all(verdict == "within" for verdict in verdicts):
        answer = "excluded"
    options = [*(("--device", device) if device != "cpu" else ()), *(f"--import={module}" for module in modules)]
    runs = shlex.join(["python", os.fspath(folder / FILES[0]), *options])
    next_ = (f"{runs} asks it again, with torch alone: copy the folder to another machine, and name its --device.",)
    if answer == "confirmed":
        next_ = (f"{runs} proves it again, with torch alone: send the folder to whoever maintains the kernel.",)
    if judged.inputs.drawn:
        next_ += ('Record this step with depth = "tensor": what it does may depend on its true inputs.',)
    says = _says(judged, outputs)
    if len(calls) > 1:
        says = (f"The worst of {len(calls)} operations that '{site}' is of: {call.site}.", *says)
    return OpAnswer(_answer(answer, says, device, 2, next_), call.site, outputs, written)


_ORDER = ("within", "cannot tell", "beyond")


def _judged(
    run: Run, call: RecordedCall, device: str, seed: int
) -> tuple[JudgedCall | None, dict[str, dict[str, Any]], str]:
    """The call and its outputs as they are judged, or why they cannot be."""
    try:
        return *judged_on(run, call, device, seed=seed), ""
    except CannotTell as why:
        return None, {}, str(why)


def _badness(outputs: Mapping[str, Mapping[str, Any]]) -> tuple[int, float]:
    """By verdict, then by how many times what is expected; below all others where nothing was judged."""
    return max(
        ((_ORDER.index(output["verdict"]), output["rel"] / (output["expected"] or 1.0)) for output in outputs.values()),
        default=(-1, 0.0),
    )


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Raise ``InputError`` where the files cannot go to ``folder``."""
    files = [name for name in FILES if (folder / name).exists()]
    if folder.exists() and not folder.is_dir():
        raise InputError(f"'{folder}' is a file, and a folder is written. Pass another --out.")
    if files and not overwrite:
        raise InputError(
            f"'{folder}' has a file '{files[0]}' already. Pass another --out, or --overwrite to replace it."
        )


def write(judged: JudgedCall, folder: Path) -> tuple[str, ...]:
    """Write the files, and return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILES[0]).write_text(alone())
        (folder / FILES[1]).write_text(json.dumps(judged.document, indent=1) + "\n")
        file = TensorFile(os.fspath(folder / FILES[2]), reserve_bytes=4096)
        for slot, x in judged.inputs.tensors.items():
            entry = stored(x.detach(), step=0, key=slot)
            if entry is None:
                raise InputError(f"The input {slot} is {x.dtype}, which safetensors does not know.")
            file.add(entry[1])
        file.finish()
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written to: {error}. Pass another --out.") from None
    return tuple(os.fspath(folder / name) for name in FILES)


def alone() -> str:
    """``proof`` as one file, with the text of ``recalled`` where it imports that."""
    # the text and not the module: whoever runs the proof has torch alone
    _, _, recalled_text = inspect.getsource(recalled).partition("from __future__ import annotations\n")
    begins, _, rest = inspect.getsource(proof).partition(f"from {recalled.__name__} import")
    return begins + recalled_text.strip() + "\n" + rest.partition(")\n")[2]


def _says(judged: JudgedCall, outputs: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    call = judged.document["call"]
    says = [f"{call['function']} at {judged.call.site}, against the same in float64:"]
    for slot, output in outputs.items():
        says.append(f"{slot}: {output['verdict']}: {output['why']}.")
        if output["verdict"] == "beyond" and output["worst"]:
            worst = output["worst"]
            says.append(f"{slot}: worst at {worst['index']}: {worst['is']}, exact {worst['exact']}.")
        if output["as_recorded"] is not None:
            says.append(
                f"{slot}: {'the same bits as' if output['as_recorded'] else 'other bits than'} the Run recorded."
            )
        if not output["repeats"]:
            says.append(f"{slot}: a second call with the same inputs returns other bits.")
    if judged.inputs.drawn:
        alike = ", with three of four rows alike" if judged.repeated else ""
        says.append(
            f"Drawn to the recorded statistics{alike}, as they were not stored: {', '.join(judged.inputs.drawn)}."
        )
    return tuple(says)


def _answer(answer: Answer, says: Sequence[str], device: str, runs: int, next_: tuple[str, ...] = ()) -> TrialAnswer:
    arms = (Arm(device, runs, runs if answer == "confirmed" else 0),)
    return TrialAnswer("op", QUESTION, answer, tuple(says), arms, next_)
