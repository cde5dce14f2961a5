"""The page, live: a small server that reads studies, and tells episodes by the code of the command line.

What keeps others out:

- it listens on this computer alone, unless a host is named; then every question needs a token;
- the Host of a request must be an address or a name of this computer, so that no other site's name can be
  made to point here;
- what changes a study must come from this very page (Origin) as JSON, which other sites cannot send;
- the page may load and run nothing but its own files (Content-Security-Policy), and shows what is in a study
  as text, never as HTML.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from klimb._command import number, strict_json
from klimb.dashboard.data import Follower
from klimb.dashboard.folder import FILMS, Folder, films
from klimb.dashboard.report import page_file
from klimb.optimizer import Progress
from klimb.study import Study, StudyError

LARGEST_BODY = 64 * 1024

KINDS = {"page.css": "text/css", "plots.js": "text/javascript", "page.js": "text/javascript"}

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data: blob:; "
        "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this computer can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for browsers, or a ValueError that says why not."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise ValueError(
            f"--host must be an address or a name of this computer, but {host!r} came."
        ) from None
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        made.close()
        reason = error.strerror or str(error)
        raise ValueError(
            f"{host} port {port} cannot be listened on ({reason}): choose another with --port; 0 is any "
            "that is free."
        ) from None
    return made


def url_of(waiting: socket.socket, host: str, token: str | None) -> str:
    """What to open in a browser; the part after # is never sent, and stays out of logs."""
    port = waiting.getsockname()[1]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if address.is_unspecified:
            host = socket.gethostname()
        elif address.version == 6:
            host = f"[{host}]"
    return f"http://{host}:{port}/" + ("" if token is None else f"#token={quote(token)}")


def make_server(folder: Folder, host: str, token: str | None) -> uvicorn.Server:
    """What answers browsers; ``run(sockets=[...])`` starts it, and Ctrl-C ends it by KeyboardInterrupt."""
    application = guarded(make_application(folder), host, token)
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


# who may ask


def guarded(application: Application, host: str, token: str | None) -> Application:
    """Let through what may pass: see the top of this file."""
    names = {"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    names |= {f"{name}.local" for name in names if "." not in name}

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refusal = _refusal(scope["method"], scope["path"], headers, names, token)
        if refusal is not None:
            await _with_headers(refusal, scope, receive, send)
        else:
            await _with_headers(application, scope, receive, send)

    return guard


def _refusal(method: str, path: str, headers: Headers, names: set[str], token: str | None) -> Response | None:
    """What to answer to a request that may not pass, or None."""
    place = headers.get("host", "")
    if not _is_ours(place, names):
        return _sorry(
            "this computer is not called that: open the page by its address, as klimb dashboard says.", 421
        )
    if method not in ("GET", "HEAD"):
        if headers.get("origin") != f"http://{place}":
            return _sorry("an episode can be told from klimb's own page only.", 403)
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _sorry("what is told must be JSON.", 415)
    if token is not None and path.startswith("/api/"):
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind != "Bearer" or not secrets.compare_digest(given.encode(), token.encode()):
            return _sorry(
                "the token is missing or wrong: it stands in the address that klimb dashboard says.", 401
            )
    return None


def _is_ours(place: str, names: set[str]) -> bool:
    """Whether a Host is an address, or a name of this computer."""
    host = place.rsplit(":", 1)[0] if not place.endswith("]") else place
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.lower() in names
    return True


async def _with_headers(application: Application, scope: Scope, receive: Receive, send: Send) -> None:
    async def add(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [
                (name, value) for name, value in message["headers"] if name.title().decode() not in HEADERS
            ]
            message["headers"] = [
                *kept,
                *((key.lower().encode(), value.encode()) for key, value in HEADERS.items()),
            ]
        await send(message)

    await application(scope, receive, add)


def _sorry(message: str, code: int) -> Response:
    return _answer({"error": message}, code)


def _answer(value: Any, code: int = 200) -> Response:
    return Response(strict_json(value), code, media_type="application/json")


# what is answered


def make_application(folder: Folder) -> Starlette:
    """The answers to a page."""

    def page(request: Request) -> Response:
        return Response(page_file("page.html"), media_type="text/html")

    def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in KINDS:
            return PlainTextResponse("there is no such file.", 404)
        return Response(page_file(name), media_type=KINDS[name])

    def studies(request: Request) -> Response:
        return _answer(folder.overview())

    def study(request: Request) -> Response:
        def show(follower: Follower) -> Response:
            with follower.lock:
                follower.refresh()
                told = follower.data(request.query_params.get("epoch", ""), *_seen(request))
            shown = [
                {"name": path.name, "kind": FILMS[path.suffix.lower()], "made": str(path.stat().st_mtime_ns)}
                for path in films(follower.path)
            ]
            return _answer(told | {"films": shown})

        return with_study(request, show)

    def film(request: Request) -> Response:
        def show(follower: Follower) -> Response:
            for path in films(follower.path):
                if path.name == request.query_params.get("name"):
                    return FileResponse(path, media_type=FILMS[path.suffix.lower()])
            return _sorry("that film is no longer there.", 404)

        return with_study(request, show)

    async def tell(request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST_BODY:
                return _sorry("that is too long.", 413)
        return await run_in_threadpool(
            with_study, request, lambda follower: tell_episode(follower.path, body)
        )

    def with_study(request: Request, action: Callable[[Follower], Response]) -> Response:
        """Do it with the study that the request names; what goes wrong is said in words."""
        follower = folder.follower(request.query_params.get("study", ""))
        if follower is None:
            return _sorry("there is no such study any more.", 404)
        try:
            return action(follower)
        except (StudyError, MemoryError) as error:
            return _sorry(str(error) or "no memory left.", 500)
        except (ValueError, OSError) as error:
            return _sorry(str(error), 400)

    return Starlette(
        routes=[
            Route("/", page),
            Route("/page/{name}", part),
            Route("/api/studies", studies),
            Route("/api/study", study),
            Route("/api/film", film),
            Route("/api/tell", tell, methods=["POST"]),
        ]
    )


def _seen(request: Request) -> tuple[int, int, int]:
    """How much of a study a page has: points, updates, changes."""
    try:
        points, updates, changes = (
            int(request.query_params.get(name, default))
            for name, default in (("points", "0"), ("updates", "0"), ("changes", "-1"))
        )
    except ValueError:
        return 0, 0, -1
    return max(0, points), max(0, updates), changes


def tell_episode(path: Path, body: bytes) -> Response:
    """Tell the study how an episode ended, as ``klimb study tell`` does."""
    try:
        told: dict[str, Any] = dict(json.loads(body))
        episode, value, reason = told["episode"], told.get("return"), told.get("failed")
        if (value is None) == (reason is None):
            raise ValueError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError("say which episode, and either its return or why it failed.") from None
    seen: list[Progress] = []
    with Study(path, callback=seen.append) as study:
        if value is not None:
            study.tell(episode, value)
        else:
            study.fail(episode, str(reason))
    words = f"Episode {episode} is stored" + (" as failed" if reason is not None else "")
    if seen:
        info = seen[-1].info
        words += f"; update {seen[-1].optimizer.iteration} from {info.n_used} samples, KL {number(info.kl)}"
    return _answer({"message": f"{words}."})
