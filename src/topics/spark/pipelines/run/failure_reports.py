"""The failure of a run in its report, and the report of a run that failed."""

from __future__ import annotations

from topics.spark.failures import explain, kind_of, next_step
from topics.spark.pipelines.run.report import RunProblem, RunReport


def problem_of(error: BaseException, *, resumes: bool = True, began: bool = True) -> RunProblem:
    step = next_step(error, resumes=resumes, began=began)
    return RunProblem(kind=kind_of(error).wire, message=explain(error), next=step)


def attach(error: BaseException, report: RunReport) -> None:
    """Attach the report of the failed run to the exception."""
    error.__dict__["report"] = report


def report_of(error: BaseException, *, pipeline: str, dry_run: bool) -> RunReport:
    """Return the report of a failed run; an empty one if it failed before the job began."""
    known = error.__dict__.get("report")
    if isinstance(known, RunReport):
        return known
    report = RunReport(pipeline=pipeline, run_id="", dry_run=dry_run)
    report.fail(problem_of(error, resumes=False, began=False))
    return report
