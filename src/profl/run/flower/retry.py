"""A grid that sends an order again to a node that was disconnected and came back in time.

Messages that a node had fetched when it was killed are lost with it; the SuperLink says that the node is not available.
Where it is back before the turn's time is over, the same order goes out again under another name: the client works from
the state that the order names, so its report is the one that it would have sent.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import DEFAULT_TTL, Message, MessageType
from flwr.common.constant import ErrorCode

ATTEMPTS = 3  # at one turn, the first one among them
MIN_SECONDS = 1.0  # seconds in which it is worth asking again
POLL = 0.5  # seconds


class RetryGrid:
    """``grid``, in which ``renew(message, seconds)`` makes the message anew for a node that is back within ``wait``."""

    def __init__(self, grid: Any, wait: float, renew: Callable[[Message, float], Message]) -> None:
        self.grid, self.wait, self.renew = grid, wait, renew

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        waiting, final_replies = list(messages), []
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        for attempt in range(ATTEMPTS):
            remaining = deadline - time.monotonic()
            replies = list(self.grid.send_and_receive(waiting, timeout=remaining if math.isfinite(remaining) else None))
            lost = {reply.metadata.reply_to_message_id for reply in replies if _unavailable(reply)}
            gone = [message for message in waiting if message.metadata.message_id in lost and _order(message)]
            until = min(deadline - MIN_SECONDS, time.monotonic() + self.wait)
            back = self._wait_for_return(gone, until) if attempt < ATTEMPTS - 1 else []
            again = {message.metadata.message_id for message in back}
            final_replies += [reply for reply in replies if reply.metadata.reply_to_message_id not in again]
            if not back:
                break
            remaining = deadline - time.monotonic()
            waiting = [self.renew(message, remaining if math.isfinite(remaining) else DEFAULT_TTL) for message in back]
        return final_replies

    def _wait_for_return(self, gone: list[Message], until: float) -> list[Message]:
        """The messages whose nodes are connected again, once all are or the time is over."""
        while gone and time.monotonic() < until:
            present = set(self.grid.get_node_ids())
            back = [message for message in gone if message.metadata.dst_node_id in present]
            if len(back) == len(gone) or time.monotonic() + POLL > until:
                return back
            time.sleep(POLL)
        return []


def _order(message: Message) -> bool:
    return message.metadata.message_type == MessageType.TRAIN


def _unavailable(reply: Message) -> bool:
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE
