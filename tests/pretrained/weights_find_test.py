"""Where Inception's weights are found, and how they are brought: from a server on this machine."""

import functools
import hashlib
import http.server
import threading
from pathlib import Path

import numpy as np
import pytest

from tinygen.errors import UserError
from tinygen.pretrained import weights


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Empty caches of this user, as the environment names them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_HOME", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return tmp_path


@pytest.fixture
def served(tmp_path_factory):
    """(folder, address of its files on this machine)"""
    folder = tmp_path_factory.mktemp("served")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("folder", ["tinygen/weights", "torch/hub/checkpoints"])
@pytest.mark.parametrize("name", weights.NAMES)
def test_the_public_file_is_found_where_this_tool_and_torch_hub_keep_it(caches, folder, name):
    (caches / folder).mkdir(parents=True)
    path = caches / folder / name
    path.write_bytes(b"anything")
    assert weights.find(None, url="http://127.0.0.1:9/nothing") == path
    assert weights.find(str(path)) == path


def test_a_download_gets_its_name_when_its_sum_is_right(caches, served):
    folder, address = served
    content = np.random.default_rng(0).bytes(3 * 2**20)
    (folder / "file").write_bytes(content)
    path = weights.download(f"{address}/file", caches / "a" / "weights.pth", hashlib.sha256(content).hexdigest())
    assert path.read_bytes() == content
    assert [each.name for each in path.parent.iterdir()] == ["weights.pth"]


def test_other_bytes_than_the_expected_ones_leave_nothing_behind(caches, served):
    folder, address = served
    (folder / "file").write_bytes(b"<html>log in first</html>")
    with pytest.raises(UserError, match=r"could not be downloaded \(SHA-256 \w{8}... in place of 6726825d"):
        weights.find(None, url=f"{address}/file")
    assert not list((caches / "tinygen" / "weights").iterdir())


def test_without_a_network_it_says_what_to_put_where(caches):
    with pytest.raises(UserError) as caught:
        weights.find(None, url="http://127.0.0.1:9/nothing")  # nobody listens there
    said = str(caught.value)
    for part in (weights.NAMES[0], str(Path(caches, "tinygen", "weights")), "--weights=FILE", weights.PUBLIC, "Connection refused"):
        assert part in said
    assert said.count("\n") == 1
