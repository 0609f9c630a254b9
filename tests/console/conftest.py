"""A broker with a console and three people: an administrator, one who reads `open-*`, one who may nothing."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.client.server import Server, running

PEOPLE = [
    {"name": "reader", "password": "reader-word", "roles": ["open-reader"]},
    {"name": "nobody", "password": "nobody-word", "roles": ["guest"]},
    {"name": "other", "password": "other-word", "roles": ["admin"]},
]
ROLES = [{"name": "open-reader", "read": ["open-*"]}]
SAME_SITE = {"sec-fetch-site": "same-origin"}


OPEN: "list[Browser]" = []


class Browser:
    """The requests of one person's browser."""

    def __init__(self, address: str, **options: Any) -> None:
        self.address = address
        OPEN.append(self)
        self.client = httpx2.Client(base_url=f"http://{address}", trust_env=False, **{"timeout": 60, **options})

    def log_in(self, name: str, password: str) -> "Browser":
        answer = self.post("/api/login", name=name, password=password)
        assert answer.status_code == 200, answer.text
        return self

    def get(self, path: str, **fields: object) -> httpx2.Response:
        return self.client.get(path, params={name: str(value) for name, value in fields.items()})

    def post(self, path: str, /, **body: object) -> httpx2.Response:
        return self.client.post(path, json=body, headers=SAME_SITE)

    def ask(self, path: str, **fields: object) -> Any:
        """The answer to a question that is not refused."""
        answer = self.get(path, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def do(self, path: str, /, **body: object) -> Any:
        """The answer to a change that is not refused."""
        answer = self.post(path, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, **fields: object) -> Iterator[tuple[str, Any]]:
        """What a stream of events says."""
        params = {name: str(value) for name, value in fields.items()}
        with self.client.stream("GET", path, params=params, timeout=30) as answer:
            assert answer.status_code == 200, answer.read()
            event = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    yield event, json.loads(line[6:])


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(
        QUINTET_USERS=json.dumps(PEOPLE),
        QUINTET_ROLES=json.dumps(ROLES),
        QUINTET_LISTENERS__FLIGHT__ENABLED="false",
        QUINTET_LISTENERS__CONSOLE__REQUESTS_PER_SECOND_MAX="1000",
        QUINTET_TOPICS__TOPICS_MAX="20000",
    ) as made:
        yield made


@pytest.fixture(scope="module")
def address(server: Server) -> str:
    return server.console


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().client.close()


@pytest.fixture
def admin(address: str) -> Browser:
    return Browser(address).log_in("admin", "admin")
