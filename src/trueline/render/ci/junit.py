"""JUnit XML, which most systems of continuous integration read: a test case for each check.

There is no one standard; what is written here is what Ant's ``junitreport`` and Jenkins' xUnit schema have in common.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from trueline.schema.live import whose_and_since, with_advice

if TYPE_CHECKING:
    from trueline.judge.check_run import CheckReport
    from trueline.schema.finding import Finding

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML 1.0 document may hold: https://www.w3.org/TR/xml/#charsets."""


def junit(report: CheckReport) -> str:
    """The document. A check that found an error or a warning is a failure, one that could not run is skipped; where too
    little was judged the case ``enough was judged`` is an error, so that this does not look like health.
    """
    suite = ET.Element("testsuite", name=_clean(f"trueline check {report.run}"))
    findings_by_code: dict[str, list[Finding]] = {code: [] for code in report.checks_run}
    for finding in report.findings:
        findings_by_code.setdefault(finding.code, []).append(finding)
    for code, findings in findings_by_code.items():
        _add_case(suite, code, findings)
    for entry in report.checks_not_run:
        if entry.check not in findings_by_code:
            ET.SubElement(_case(suite, entry.check), "skipped", message=_clean(f"{entry.reason}: {entry.why}"))
    judged = _case(suite, "enough was judged")
    if report.exit_code == 3:
        ET.SubElement(judged, "error", type="cannot-tell", message=_clean(report.verdict.line))
    ET.SubElement(suite, "system-out").text = _clean("\n".join((report.verdict.line, *report.notes)))
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f".//{tag}"))))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=False)


def _add_case(suite: ET.Element, code: str, findings: list[Finding]) -> None:
    case = _case(suite, code)
    grave = [finding for finding in findings if finding.is_grave]
    if grave:
        text = "\n\n".join(_text(finding) for finding in grave)
        ET.SubElement(case, "failure", type=grave[0].severity, message=_clean(grave[0].claim)).text = _clean(text)
    notices = [_text(finding) for finding in findings if not finding.is_grave]
    if notices:
        ET.SubElement(case, "system-out").text = _clean("\n\n".join(notices))


def _case(suite: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname="trueline.check", name=_clean(name), time="0")


def _text(finding: Finding) -> str:
    head = ", ".join((finding.severity, *whose_and_since(finding)))
    return with_advice(f"{head}: {finding.claim}", finding)


def _clean(text: str) -> str:
    return _NO_XML.sub("�", text)
