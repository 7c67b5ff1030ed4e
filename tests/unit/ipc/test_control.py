"""Control channels, run folders and sockets between processes."""

from __future__ import annotations

import socket
import stat
import struct
import threading

import pytest
import zmq

from headrace.errors import ProtocolError, StartupError
from headrace.ipc.control import ControlChannel, channel_pair
from headrace.ipc.run_dir import FALLBACK, run_dir, socket_folder
from headrace.ipc.sockets import Keys, bind, connect


def test_frames_arrive_whole_and_in_order():
    ours, theirs = channel_pair()
    child = ControlChannel(theirs)
    frames = [b"", b"x", bytes(1_000_000), b"last"]
    sender = threading.Thread(target=lambda: [ours.send(frame) for frame in frames])
    sender.start()
    assert [child.receive() for _ in frames] == frames
    sender.join()
    ours.close()
    assert child.receive() is None
    child.close()


def test_end_in_the_middle_of_a_frame_is_an_end():
    left, right = socket.socketpair()
    channel = ControlChannel(right)
    left.sendall(struct.pack("<I", 100) + b"only this")
    left.close()
    assert channel.receive() is None
    channel.close()


def test_an_absurd_length_is_refused_before_anything_is_allocated():
    left, right = socket.socketpair()
    left.sendall(struct.pack("<I", 2**32 - 1))
    with pytest.raises(ProtocolError):
        ControlChannel(right).receive()
    left.close()
    right.close()


def test_sending_to_the_dead_is_no_error():
    ours, theirs = channel_pair()
    theirs.close()
    assert not ours.send(bytes(1_000_000))
    ours.close()


def test_run_dir_is_private_and_dead_ones_are_swept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("headrace.ipc.run_dir.MAX_FOLDER_BYTES", 4096)
    dead = tmp_path / "headrace-dead"
    dead.mkdir()
    (dead / "lock").touch()
    (tmp_path / "headrace-no-run-of-ours").mkdir()
    with run_dir() as first:
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
        with run_dir() as second:
            assert first.exists()  # its launcher lives, whatever process ids say in this namespace
            names = {p.name for p in tmp_path.iterdir()}
            assert names == {"headrace-no-run-of-ours", first.name, second.name}
    assert not first.exists()


def test_a_temporary_folder_too_deep_for_sockets_is_not_used(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    assert socket_folder() == FALLBACK


def test_no_place_for_a_run_is_a_clear_error(monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(StartupError, match="/nowhere"), run_dir():
        pass


@pytest.mark.parametrize("transport", ["unix", "tcp"])
def test_sockets(tmp_path, transport):
    with zmq.Context() as context:
        keys = Keys.generate() if transport == "tcp" else None
        receiver, endpoint = bind(context, zmq.PULL, tmp_path, "out", keys)
        sender = connect(context, zmq.PUSH, endpoint)
        sender.send(b"hello")
        assert receiver.poll(10_000)
        assert receiver.recv() == b"hello"
        sender.close()
        receiver.close()


def test_tcp_without_the_key_gets_nowhere(tmp_path):
    with zmq.Context() as context:
        receiver, endpoint = bind(context, zmq.PULL, tmp_path, "out", Keys.generate())
        stranger = connect(context, zmq.PUSH, type(endpoint)(endpoint.address))
        friend = connect(context, zmq.PUSH, endpoint)
        stranger.send(b"stranger")
        friend.send(b"friend")
        assert receiver.poll(10_000)
        assert receiver.recv() == b"friend"
        assert not receiver.poll(100)
        for sock in (stranger, friend, receiver):
            sock.close()
