"""Operands at URLs on a cluster: the workers read them from the server, and see what the client sees."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import tilewright as tw
from support.file_server import file_server
from tilewright.errors import ClusterError, UsageError
from tilewright.large.files import open_matrix

pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'fsspec[http]'")


@pytest.mark.slow
def test_workers_read_operands_at_urls(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((300, 200), (200, 250)))
    with file_server() as server:
        for name, matrix in {"a.npy": a, "b.npy": np.asfortranarray(b)}.items():
            np.save(file := io.BytesIO(), matrix)
            server.files[name] = file.getvalue()
        server.key = "me"
        urls = [f"{server.url}{name}" for name in ("a.npy", "b.npy")]
        sources = [open_matrix(url, storage_options={"headers": {"X-Key": "me"}}) for url in urls]
        before = len(server.asked)
        tw.multiply(*sources, tmp_path / "c.npy", cluster=client)
        assert np.array_equal(np.load(tmp_path / "c.npy"), tw.multiply(a, b, device="cpu"))
        assert len(server.asked) > before
        for source in sources:
            source.close()
        server.key = None
        out = (tmp_path / "d.npy").as_uri()
        assert tw.multiply(urls[0], b, out, cluster=client) == out
        assert np.array_equal(np.load(tmp_path / "d.npy"), np.load(tmp_path / "c.npy"))
        monkeypatch.setattr("tilewright.large.files.remote.Remote.identity", lambda _: "something else")
        with pytest.raises(ClusterError, match="reads another file as a than the client"):
            tw.multiply(*urls, tmp_path / "e.npy", cluster=client)
        with pytest.raises(UsageError, match="give a file on a disk as the result"):
            tw.multiply(*urls, "s3://bucket/c.npy", cluster=client)


@pytest.mark.slow
def test_a_file_that_only_the_client_reaches_names_a_worker(client: Client) -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    with system.open("/only/here.npy", "wb") as file:
        np.save(file, np.eye(9))
    try:
        with pytest.raises(ClusterError, match=r"worker tcp://\S+ cannot read a: memory://only/here\.npy .* not exist"):
            tw.multiply("memory://only/here.npy", "memory://only/here.npy", np.empty((9, 9)), cluster=client)
    finally:
        system.rm("/only/here.npy")
