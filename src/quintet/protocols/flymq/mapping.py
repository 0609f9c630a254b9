"""FlyMQ's operations <-> the broker's verbs: one handler per row of frames.OPERATIONS, nothing of bytes.

The handlers stand in files by subject; what they are given and what they answer with is `call.Call`.
"""

from typing import Final

from quintet.protocols.flymq import frames, group_requests, message_requests, topic_requests, user_requests
from quintet.protocols.flymq.call import Handler

HANDLERS: Final[dict[int, Handler]] = {
    **message_requests.HANDLERS,
    **topic_requests.HANDLERS,
    **group_requests.HANDLERS,
    **user_requests.HANDLERS,
}

# PRODUCE and AUTH are the session's own: the hot path, and the one before anybody is known.
assert set(HANDLERS) | {frames.PRODUCE, frames.AUTH} == set(frames.OPERATIONS), "every operation has one handler"
