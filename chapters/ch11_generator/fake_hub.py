"""A model hub on 127.0.0.1 for the tests: the part of the hub's HTTP interface that a download uses."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves repositories held in memory.

    Attributes:
        repos: name → file name → contents.
        refusals: name → (status, X-Error-Code) in place of the repository.
        break_at: file name → how often and after how many bytes its transfer breaks off; then it is served whole.
        gets: how often the contents of each file were asked for.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}
        self.break_at: dict[str, tuple[int, int]] = {}
        self.gets: Counter[str] = Counter()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self._thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the server."""
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._serve(body=False)

            def do_GET(self) -> None:
                self._serve(body=True)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

            def _serve(self, body: bool) -> None:
                path = urlsplit(self.path).path
                api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/main", path)
                file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)
                name = (api or file).group(1) if api or file else ""  # type: ignore[union-attr]
                if name in hub.refusals:
                    self._refuse(*hub.refusals[name])
                elif api and name in hub.repos:
                    self._info(name)
                elif file and file.group(2) in hub.repos.get(name, {}):
                    self._file(file.group(2), hub.repos[name][file.group(2)], body)
                else:
                    self._refuse(404, "RepoNotFound" if api else "EntryNotFound")

            def _refuse(self, status: int, code: str) -> None:
                self.send_response(status)
                self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _info(self, name: str) -> None:
                siblings = [{"rfilename": file, "size": len(data)} for file, data in hub.repos[name].items()]
                data = json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _file(self, file: str, data: bytes, body: bool) -> None:
                asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                start = int(asked.group(1)) if asked else 0
                self.send_response(206 if asked else 200)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
                self.send_header("Accept-Ranges", "bytes")
                if asked:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                if not body:
                    return
                hub.gets[file] += 1
                times, length = hub.break_at.get(file, (0, 0))
                if times:
                    hub.break_at[file] = times - 1, length
                    self.wfile.write(data[start : max(start, length)])
                    self.close_connection = True
                else:
                    self.wfile.write(data[start:])

        return Handler
