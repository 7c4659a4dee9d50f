"""When a server, or this client's credentials, are left alone for a while.

Pure state machines with *now* as an argument: seconds on the monotonic clock. They
may be shared by threads and event loops.
"""

from __future__ import annotations

import threading

OPEN_AFTER = 5
LONGEST_PAUSE = 300.0
LONGEST_PROBE_INTERVAL = 60.0
CLIENT_PROBE_INTERVAL = 60.0
# A probe is given back when its holder ends. This is for holders that vanish: longer
# than the slack, the settle time and the time limit of a request together.
PROBE_HOLD = 60.0


class ServerBreaker:
    """Leaves a server alone that does not answer, or answers 5xx, in a row.

    Opens after five such failures on at least two sessions: a single session may
    have a fault of its own. While it is open, one caller at a time may probe, after
    1, 2, 4 … 60 s; any success closes it. Keep code exchanges out of it.
    """

    def __init__(self) -> None:
        """Start closed."""
        self._lock = threading.Lock()
        self._failures = 0
        self._first_session: str | None = None
        self._several_sessions = False
        self._interval = 0.0
        self._probe_at = 0.0
        self._prober: str | None = None
        self._probing_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the server is left alone now."""
        return self._interval > 0.0

    @property
    def failures(self) -> int:
        """How many failures there were in a row."""
        return self._failures

    def check(self, now: float, session_id: str) -> float | None:
        """Return ``None`` to go ahead, else seconds until it makes sense to ask again.

        Going ahead while the breaker is open makes this session the prober, until it
        reports what happened, is released, or the time for a probe is over.
        """
        with self._lock:
            if not self.is_open:
                return None
            if self._prober not in {None, session_id} and now < self._probing_until:
                return self._interval
            if now < self._probe_at:
                return self._probe_at - now
            self._prober = session_id
            self._probing_until = now + PROBE_HOLD
            return None

    def success(self) -> None:
        """Note an answer that is no 5xx: whatever it says, the server is there."""
        with self._lock:
            self._failures = 0
            self._first_session = None
            self._several_sessions = False
            self._interval = 0.0
            self._prober = None

    def failure(self, now: float, session_id: str) -> bool:
        """Note no answer or a 5xx; return whether this opened the breaker."""
        with self._lock:
            self._failures += 1
            if self._first_session is None:
                self._first_session = session_id
            elif self._first_session != session_id:
                self._several_sessions = True
            if self.is_open:
                if self._prober == session_id:
                    self._prober = None
                    self._interval = min(self._interval * 2, LONGEST_PROBE_INTERVAL)
                    self._probe_at = now + self._interval
                return False
            if self._failures < OPEN_AFTER or not self._several_sessions:
                return False
            self._interval = 1.0
            self._probe_at = now + self._interval
            return True

    def release(self, session_id: str) -> None:
        """Give a probe back that was not used."""
        with self._lock:
            if self._prober == session_id:
                self._prober = None


class RetryAfterPause:
    """Makes a ``Retry-After`` count for all sessions once two have met one.

    One session's limit is its own affair (that session's record keeps it). When two
    sessions have met one, all pause for as long as both agree: until the earlier of
    the two longest ends. At most 300 s.
    """

    def __init__(self) -> None:
        """Start without any pause."""
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}

    def check(self, now: float) -> float | None:
        """Return ``None`` to go ahead, else the seconds that the pause still lasts."""
        with self._lock:
            if len(self._ends) < 2:  # noqa: PLR2004 -- two sessions have to agree
                return None
            left = min(self._ends.values()) - now
            return left if left > 0.0 else None

    def success(self, session_id: str) -> None:
        """Note that this session is not limited any more."""
        with self._lock:
            self._ends.pop(session_id, None)

    def failure(self, now: float, session_id: str, retry_after: float) -> None:
        """Note the ``Retry-After`` that a session has met."""
        end = now + min(retry_after, LONGEST_PAUSE)
        with self._lock:
            ends = {name: at for name, at in self._ends.items() if at > now}
            ends[session_id] = end
            longest = sorted(ends, key=ends.__getitem__, reverse=True)[:2]
            self._ends = {name: ends[name] for name in longest}


class ClientBreaker:
    """Leaves a server alone that refuses this client's credentials.

    The first ``invalid_client`` opens it. While it is open one caller a minute may
    probe, and a credential with another fingerprint is tried at once. A success
    closes it.
    """

    def __init__(self) -> None:
        """Start closed."""
        self._lock = threading.Lock()
        self._refused: str | None = None
        self._probe_at = 0.0
        self._prober: str | None = None
        self._trying: str | None = None
        self._probing_until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the credentials count as refused."""
        return self._refused is not None

    def check(self, now: float, session_id: str, fingerprint: str) -> float | None:
        """Return ``None`` to go ahead, else seconds until it makes sense to ask again.

        Args:
            fingerprint: Of the credential that would be sent now.
        """
        with self._lock:
            wait = self._wait(now, session_id, fingerprint)
            if wait is None and self.is_open:
                self._prober = session_id
                self._trying = fingerprint
                self._probing_until = now + PROBE_HOLD
            return wait

    def look(self, now: float, fingerprint: str | None) -> float | None:
        """Return the same as `check` would, without becoming the prober.

        Args:
            fingerprint: ``None`` if the credential is not known: then it is taken
                for the refused one.
        """
        with self._lock:
            return self._wait(now, None, fingerprint or self._refused)

    def _wait(
        self, now: float, session_id: str | None, fingerprint: str | None
    ) -> float | None:
        """Return ``None`` to go ahead, else seconds to wait."""
        if not self.is_open:
            return None
        changed = fingerprint != self._refused
        if self._prober not in {None, session_id} and now < self._probing_until:
            if fingerprint == self._trying:
                return 1.0
            if not changed:
                return max(self._probe_at - now, 1.0)
        elif not changed and now < self._probe_at:
            return self._probe_at - now
        return None

    def success(self) -> None:
        """Note that the server took the credentials."""
        with self._lock:
            self._refused = None
            self._prober = None
            self._trying = None

    def failure(self, now: float, fingerprint: str) -> bool:
        """Note ``invalid_client``.

        Returns:
            Whether this is the first one: then the session that met it is cleared.
        """
        with self._lock:
            first = self._refused is None
            self._refused = fingerprint
            self._probe_at = now + CLIENT_PROBE_INTERVAL
            self._prober = None
            self._trying = None
            return first

    def release(self, session_id: str) -> None:
        """Give a probe back that was not used."""
        with self._lock:
            if self._prober == session_id:
                self._prober = None
                self._trying = None
