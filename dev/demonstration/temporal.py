"""Drives Temporal as a person would: with its own command line."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .failure import DemoError

PROGRAM = Path(sys.executable).parent / "temporal"
TASK_QUEUE = "batch-exports"
WORKFLOW = "s3-export"
CALL_SECONDS = 30.0
POLL_SECONDS = 0.4
COMPLETED = "WORKFLOW_EXECUTION_STATUS_COMPLETED"
RUNNING = "WORKFLOW_EXECUTION_STATUS_RUNNING"


@dataclass(frozen=True)
class Execution:
    """One run of a workflow, as the server lists it."""

    workflow_id: str
    run_id: str
    status: str
    started: datetime
    closed: datetime | None

    @classmethod
    def of(cls, found: dict) -> "Execution":
        closed = found.get("closeTime")
        return cls(
            found["execution"]["workflowId"],
            found["execution"]["runId"],
            found["status"],
            instant(found["startTime"]),
            instant(closed) if closed else None,
        )

    @property
    def is_open(self) -> bool:
        return self.status == RUNNING


def start(workflow_id: str, input_file: Path) -> None:
    """Starts one export by hand."""
    _call("workflow", "start", "--workflow-id", workflow_id, *_action(input_file))


def create_schedule(name: str, interval: str, input_file: Path, *, paused: bool) -> None:
    """Creates a schedule whose runs each export the interval that ends when they are due."""
    arguments = ["--schedule-id", name, "--interval", interval, "--workflow-id", name]
    if paused:
        arguments += ["--paused", "--notes", "paused, since the demo only backfills it"]
    _call("schedule", "create", *arguments, *_action(input_file))


def backfill(name: str, first: datetime, last: datetime) -> None:
    """Lets a schedule do what it would have done from `first` to `last`."""
    _call(
        "schedule",
        "backfill",
        *("--schedule-id", name, "--overlap-policy", "AllowAll"),
        *("--start-time", rfc3339(first), "--end-time", rfc3339(last)),
    )


def pause(name: str, reason: str) -> None:
    _call("schedule", "toggle", "--pause", "--schedule-id", name, "--reason", reason)


def delete_schedule(name: str) -> None:
    """Removes a schedule, if there is one."""
    # A schedule is a workflow; what was removed a moment ago has ended rather than vanished.
    _call("schedule", "delete", "--schedule-id", name, accepted=("not found", "already completed"))


def clean_up(schedules: list[str], workflow_ids: list[str]) -> None:
    """Removes what an earlier demo, perhaps one that was interrupted, has left."""
    for name in schedules:
        delete_schedule(name)
    of_schedules = " OR ".join(f"TemporalScheduledById = '{name}'" for name in schedules)
    by_hand = " OR ".join(f"WorkflowId = '{each}'" for each in workflow_ids)
    for each in executions(f"({of_schedules} OR {by_hand}) AND ExecutionStatus = 'Running'"):
        arguments = ["--workflow-id", each.workflow_id, "--run-id", each.run_id]
        reason = ["--reason", "a new demo begins"]
        _call("workflow", "terminate", *arguments, *reason, accepted=("already completed", "not found"))


def executions(query: str) -> list[Execution]:
    found = json.loads(_call("workflow", "list", "--query", query, "-o", "json") or "[]")
    return [Execution.of(each) for each in found]


def result(execution: Execution) -> dict:
    """What a run says it has done."""
    arguments = ["--workflow-id", execution.workflow_id, "--run-id", execution.run_id]
    return json.loads(_call("workflow", "result", *arguments, "-o", "json"))["result"]


def wait_for(query: str, count: int, seconds: float, show: Callable[[int], None]) -> list[Execution]:
    """Waits until `count` runs that match the query have completed; any other end is a failure."""
    deadline = time.monotonic() + seconds
    while True:
        found = executions(query)
        completed = [each for each in found if each.status == COMPLETED]
        failed = [each for each in found if not each.is_open and each.status != COMPLETED]
        show(len(completed))
        if failed:
            raise DemoError(f"{failed[0].workflow_id} did not complete:\n{_why(failed[0])}")
        if len(completed) >= count:
            return completed
        if time.monotonic() > deadline:
            waiting = next((each for each in found if each.is_open), None)
            why = _why(waiting) if waiting else "nothing was started"
            raise DemoError(f"{len(completed)} of {count} runs completed in {seconds:.0f} s; {why}")
        time.sleep(POLL_SECONDS)


def seconds(runs: list[Execution]) -> float:
    """From the first start to the last end."""
    first = min(each.started for each in runs)
    last = max(each.closed for each in runs if each.closed)
    return (last - first).total_seconds()


def phase(due: datetime, every_seconds: int) -> int:
    """The offset at which a schedule with this interval is due at this moment."""
    return int(due.timestamp()) % every_seconds


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def instant(text: str) -> datetime:
    """Reads what the server writes: it has nanoseconds, which Python doesn't know."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{fraction[:6] or '0'}+00:00")


def _action(input_file: Path) -> list[str]:
    # The file holds names of connections only, so no key gets into a history.
    return ["--type", WORKFLOW, "--task-queue", TASK_QUEUE, "--input-file", str(input_file)]


def _why(execution: Execution) -> str:
    """The message of the failure that lies deepest, of the workflow or of what it waits for."""
    described = json.loads(_call("workflow", "describe", "-w", execution.workflow_id, "-r", execution.run_id, *_JSON))
    for activity in described.get("pendingActivities", []):
        if "lastFailure" in activity:
            return f"attempt {activity.get('attempt')}: {message_of(activity['lastFailure'])}"
    if execution.is_open:
        return f"{execution.workflow_id} still runs"
    arguments = ["-w", execution.workflow_id, "-r", execution.run_id, *_JSON]
    close = json.loads(_call("workflow", "result", *arguments, accepted=("workflow failed",)))
    attributes = close.get("closeEvent", {}).get("workflowExecutionFailedEventAttributes", {})
    return message_of(attributes["failure"]) if "failure" in attributes else execution.status


def message_of(failure: dict) -> str:
    while "cause" in failure:
        failure = failure["cause"]
    return failure.get("message", "no message")


_JSON = ("-o", "json")


def _call(*arguments: str, accepted: tuple[str, ...] = ()) -> str:
    """Runs the command line; an error that says something `accepted` is none."""
    command = [str(PROGRAM), *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=CALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise DemoError(f"temporal {' '.join(arguments[:2])}: no answer") from None
    said = done.stderr + done.stdout
    if done.returncode and not any(text in said for text in accepted):
        raise DemoError(f"temporal {' '.join(arguments[:2])}: {done.stderr.strip()}")
    return done.stdout
