"""Control channels, run folders and sockets between processes."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import threading

import pytest
import zmq

from headrace.errors import ProtocolError
from headrace.ipc.control import ControlChannel, channel_pair
from headrace.ipc.run_dir import make_run_dir, remove_run_dir
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
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"headrace-{ended.pid}-abc").mkdir()
    (tmp_path / "headrace-unrelated-name").mkdir()
    mine = make_run_dir()
    assert stat.S_IMODE(mine.stat().st_mode) == 0o700
    assert mine.name.startswith(f"headrace-{os.getpid()}-")
    another = make_run_dir()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["headrace-unrelated-name", mine.name, another.name])
    remove_run_dir(mine)
    assert not mine.exists()


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
