"""The end of the demo: what was expected, beside what happened.

What happened is counted from the request logs of the two servers and from the
workers' stopwatches. The library's own counters and events play no part in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo_plan import MARGIN, WORKERS, Plan
from demo_workers import WAITED, Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loopback_api import APIRecord

    from freshtoken.testing import RequestRecord


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left of a run.

    Attributes:
        api: The API's log.
        token: The token requests in the authorization server's log.
        calls: The workers' calls.
        told_at: When each worker learned that a new sign-in is needed.
        revoked_at: When the grant was revoked, monotonic seconds.
        before: Token requests that had come until then.
        visits: How often a browser was sent to the authorization server.
        key_fetches: How often its keys were fetched.
    """

    api: Sequence[APIRecord]
    token: Sequence[RequestRecord]
    calls: Sequence[Call]
    told_at: Sequence[float]
    revoked_at: float
    before: int
    visits: int
    key_fetches: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    what: str
    expected: str
    happened: str
    holds: bool


def judge(plan: Plan, seen: Evidence) -> list[Row]:
    """Compare the evidence with the plan."""
    return [
        *_calls(plan, seen),
        *_token_requests(plan, seen),
        # Once to sign in; and once more when the first token came with a new key.
        _same("browser sent to sign in", 1, seen.visits),
        _same("key sets fetched", 2, seen.key_fetches),
        _sign_in(seen),
    ]


def _calls(plan: Plan, seen: Evidence) -> list[Row]:
    """Judge what the workers met."""
    tries = Counter(record.call for record in seen.api)
    left = [call for call in seen.calls if call.left_at is not None]
    lost = sum(not tries[str(call.number)] for call in left)
    refused, late = _refused(seen)
    repeated = sum(n - 1 for call, n in tries.items() if call not in late)
    failed = Counter(
        call.trouble or f"status {call.status}"
        for call in seen.calls
        if call.trouble or call.status not in {None, 200, 401}
    )
    waited = sum(call.wait > WAITED for call in seen.calls)
    longest = max((call.wait for call in seen.calls), default=0.0)
    return [
        Row(
            "API calls",
            f"more than {plan.fewest_calls:,}",
            f"{len(seen.api):,}",
            len(seen.api) > plan.fewest_calls,
        ),
        Row(
            "401 before the revocation",
            "0",
            _count(refused, f"{len(late)} were too long under way" if late else ""),
            not refused,
        ),
        Row(
            "calls that failed otherwise",
            "0",
            _count(failed.total(), ", ".join(sorted(failed))),
            not failed,
        ),
        Row(
            "API requests lost, repeated",
            "0, 0",
            f"{lost}, {repeated}",
            not lost and not repeated,
        ),
        Row(
            "callers that waited for a refresh",
            "0",
            _count(waited, f"longest {longest * 1000.0:.0f} ms" if waited else ""),
            not waited,
        ),
    ]


def _refused(seen: Evidence) -> tuple[int, set[str]]:
    """Count 401s before the revocation, and return the calls that came too late.

    A token leaves with a margin of life. On a machine so busy that a request is under
    way for longer than that, a token can end on the way, whoever manages it.
    """
    left = {str(call.number): call.left_at for call in seen.calls}
    refused, late = 0, set[str]()
    for record in seen.api:
        if record.saw == "live" or record.at >= seen.revoked_at:
            continue
        left_at = left.get(record.call)
        if left_at is not None and record.at - left_at > MARGIN:
            late.add(record.call)
        else:
            refused += 1
    return refused, late


def _token_requests(plan: Plan, seen: Evidence) -> list[Row]:
    """Judge what the token endpoint met."""
    total = len(seen.token)
    wanted = plan.token_requests
    repeats = total - len({record.form.get("refresh_token") for record in seen.token})
    met = Counter(record.fault for record in seen.token if record.fault)
    faults = Counter({moment.log_name: moment.times for moment in plan.moments})
    return [
        Row(
            "token requests",
            f"{wanted.start} to {wanted.stop - 1}",
            f"{total}",
            total in wanted,
        ),
        Row(
            "of these, repeats after a fault",
            f"{plan.repeats}",
            f"{repeats}",
            repeats == plan.repeats,
        ),
        Row(
            "faults met: slow, 503, answer lost",
            _in_order(faults, plan),
            _in_order(met, plan),
            met == faults,
        ),
    ]


def _same(what: str, expected: int, happened: int) -> Row:
    """Judge a number that has to be exact."""
    return Row(what, f"{expected}", f"{happened}", happened == expected)


def _sign_in(seen: Evidence) -> Row:
    """Judge the end: one refusal by the server, after the revocation, told to all."""
    refusals = [n for n, one in enumerate(seen.token) if one.error == "invalid_grant"]
    in_order = all(n >= seen.before for n in refusals)
    told_early = sum(at < seen.revoked_at for at in seen.told_at)
    happened = {0: "never", 1: "once"}.get(len(refusals), f"{len(refusals)} times")
    if refusals and in_order and not told_early:
        happened += ", at the end"
    elif refusals or told_early:
        happened += ", before the revocation"
    happened += f"; {len(seen.told_at)} workers told"
    return Row(
        "sign-in demanded",
        f"once, at the end; {WORKERS} workers told",
        happened,
        len(refusals) == 1
        and in_order
        and not told_early
        and len(seen.told_at) == WORKERS,
    )


def _count(number: int, detail: str) -> str:
    """Return a number with what there is to say about it."""
    return f"{number:,} ({detail})" if detail else f"{number:,}"


def _in_order(counts: Counter[str], plan: Plan) -> str:
    """Return how often each fault was met."""
    return ", ".join(str(counts[moment.log_name]) for moment in plan.moments)


def as_text(rows: Sequence[Row]) -> str:
    """Return the table as plain text."""
    lines = [("", "expected", "happened", "")]
    lines += [
        (row.what, row.expected, row.happened, "ok" if row.holds else "DIFFERS")
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(
            text.ljust(width) for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
