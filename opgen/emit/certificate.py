"""The certificate as a constant of the generated module, for people and for programs."""

from __future__ import annotations

from opgen.emit.python_text import Node, dict_of, layout, quoted, strings
from opgen.ir.certificate import Accesses, Certificate, Proofs, Trials

UNTRIED = "not checked numerically"
"""What stands in place of numbers where `opgen build` ran without `--certify`."""


def certificate_text(certificate: Certificate) -> str:
    """The assignment of `CERTIFICATE`."""
    forms = {form.op: form for form in certificate.derivatives}
    everything = dict_of(
        {
            "proved for all sizes": dict_of(
                {proofs.op: _proofs(proofs) for proofs in certificate.proofs}, tall=True
            ),
            "launch checks": dict_of(
                {proofs.op: strings(proofs.launch_checks) for proofs in certificate.proofs},
                tall=True,
            ),
            "derivatives": dict_of(
                {name: quoted(form.form.value) for name, form in forms.items()}, tall=True
            ),
            "numbers": _trials(certificate.trials),
        },
        tall=True,
    )
    return layout(everything, before="CERTIFICATE: dict[str, Any] = ")


def _proofs(proofs: Proofs) -> Node:
    return dict_of(
        {
            "reads": _accesses(proofs.reads),
            "writes": _accesses(proofs.writes),
            "assigned once": strings(proofs.written_once),
            "written before read": strings(proofs.written_first),
        },
        tall=True,
    )


def _accesses(accesses: Accesses) -> Node:
    return dict_of(
        {
            "inside": str(accesses.proved),
            "with a boundary mode": str(accesses.bounded),
            "checked at run time": str(accesses.checked),
        }
    )


def _trials(trials: Trials | None) -> Node:
    if trials is None:
        return quoted(UNTRIED)
    ops: dict[str, dict[str, Node]] = {}
    for trial in trials.results:
        found = ops.setdefault(trial.op, {"against": quoted(trial.against)})
        found[trial.property] = str(trial.calls)
    return dict_of(
        {
            "seed": str(trials.seed),
            "device": quoted(trials.device),
            "calls": dict_of({name: dict_of(found) for name, found in ops.items()}, tall=True),
        },
        tall=True,
    )
