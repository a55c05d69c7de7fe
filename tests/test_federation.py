"""Real SuperLink and SuperNodes on loopback (slow), and the mistakes that are found before anything starts."""

from __future__ import annotations

import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import profl

pytest.importorskip("flwr")

from cryptography import x509

from profl.deploy import LocalFederation, certificates, write_app
from profl.deploy.ports import free_port
from profl.run.flower import InProcessGrid, ProFLStrategy, make_client_app
from profl.run.flower.federation import from_config
from tests.federation import wait_for_round


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder, 3)
    return folder


def test_certificates_are_whole_and_private(keys):
    certificates.check(keys, 3)
    assert (keys / "server.key").stat().st_mode & 0o077 == 0
    assert (keys / "client-0").stat().st_mode & 0o077 == 0
    assert (keys / "submit.token").stat().st_mode & 0o077 == 0
    bound = json.loads((keys / "clients.json").read_text())
    assert bound == {str(i): (keys / f"client-{i}.pub").read_text().strip() for i in range(3)}
    assert (keys / "client-0.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(profl.InputError, match="has certificates already"):
        certificates.make(keys, 3)


def test_a_certificate_is_for_loopback_as_well(tmp_path):
    certificates.make(tmp_path, 1, ["shops.example.org"])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["shops.example.org", "localhost", "127.0.0.1"]


def test_missing_certificates(keys, tmp_path):
    with pytest.raises(profl.InputError, match=r"has no ca.crt, server.pem.*: profl flower certificates"):
        LocalFederation(tmp_path, 3, tmp_path)
    with pytest.raises(profl.InputError, match=r"has no client-3, client-3.pub"):
        LocalFederation(tmp_path, 4, keys)


def test_expired_and_broken_certificates(tmp_path):
    trustme = pytest.importorskip("trustme", reason="needs trustme: pip install -e '.[dev]'")
    authority = trustme.CA()
    expired = authority.issue_cert("localhost", not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    expired.private_key_pem.write_to_path(tmp_path / "server.key")
    expired.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    with pytest.raises(profl.InputError, match=r"server.pem expired on 2020-01-01: make new certificates"):
        LocalFederation(tmp_path, 0, tmp_path)
    authority.issue_cert("localhost").cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    certificates.check(tmp_path)
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(profl.InputError, match=r"ca.crt is no certificate"):
        certificates.check(tmp_path)


def test_settings_reach_the_app_as_they_are(tmp_path):
    settings = {"case": 'a "quoted" \\ name\nin two lines', "rounds": 3, "wait": 0.5, "share": True}
    app = write_app(tmp_path, settings)
    assert tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] == settings


def call(*arguments):
    return subprocess.run([sys.executable, "-m", "profl.cli", "flower", *arguments], capture_output=True, text=True)


def test_a_port_that_is_taken_and_a_superlink_that_is_not_there(keys, tmp_path):
    app = write_app(tmp_path / "app", {"case": "pricing", "clients": 3, "rounds": 1})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(profl.InputError, match=f"port {port} is taken"):
            LocalFederation(tmp_path, 3, keys, port)
        with pytest.raises(profl.InputError, match=f"port {port} is taken"):
            LocalFederation(tmp_path, 3, keys, control_port=port)
    with pytest.raises(profl.InputError, match="need two ports"):
        LocalFederation(tmp_path, 3, keys, port, control_port=port)
    started = time.monotonic()
    done = call("submit", str(app), "--keys", str(keys), "--port", str(port))
    assert done.returncode == 2
    assert "no SuperLink answers" in done.stderr.replace("\n", " ")
    assert time.monotonic() - started < 30


@pytest.mark.slow
def test_the_smoke_test_cleans_up_after_a_failure():
    from tests import federation

    with pytest.raises(RuntimeError, match="a failure in the middle"):
        federation.main(fail=True)  # it looks for what is left itself


@pytest.mark.slow
def test_a_real_node_is_killed_and_restarted(keys, tmp_path):
    """Client 2 is missing for some rounds, comes back with its state, and the run completes.

    In short, and back at once: ``test_flower``; over TLS: ``tests.federation``.
    """
    settings = {"case": "pricing", "algorithm": "pofl", "clients": 3, "rounds": 8, "local-steps": 2, "samples": 50}
    settings |= {"out": str(tmp_path / "run.npz"), "checkpoint": str(tmp_path / "server"), "timeout": 40, "wait": 60}
    app = write_app(tmp_path / "app", settings)
    with LocalFederation(tmp_path / "federation", 3, keys) as federation:
        run = federation.submit(app)
        wait_for_round(tmp_path / "server", 2)
        federation.kill("node-2")
        wait_for_round(tmp_path / "server", 4)  # without it
        federation.start_node(2)
        assert federation.wait(run, 1200) == "finished:completed", federation.log("superlink", 60)
    found = profl.load(tmp_path / "run.npz")
    assert np.all(np.isfinite(found.theta))
    assert found.incidents
    assert {client for _, client, _ in found.incidents} == {2}
    assert not any("lost its state" in what for _, _, what in found.incidents)
    assert found.live.absent[0, -1] == 0  # it took part again


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_servers_side_of_a_run_is_killed(keys, tmp_path):
    """The run is said to have failed, and the next one with its checkpoint ends with the bits of one without a kill."""
    settings = {"case": "pricing", "algorithm": "pofl", "clients": 3, "rounds": 4, "local-steps": 2, "samples": 50}
    settings |= {"out": str(tmp_path / "run.npz"), "checkpoint": str(tmp_path / "server"), "timeout": 60, "wait": 60}
    app = write_app(tmp_path / "app", settings)
    with LocalFederation(tmp_path / "federation", 3, keys) as federation:
        run = federation.submit(app)
        wait_for_round(tmp_path / "server", 2)
        (server,) = [
            int(place.parent.name)
            for place in Path("/proc").glob("[0-9]*/cmdline")
            if "flwr-serverapp" in (text := place.read_text(errors="replace"))
            and f"127.0.0.1:{federation.control_port}" in text
        ]
        os.kill(server, signal.SIGKILL)
        assert federation.wait(run, 200) == "finished:failed"
        run = federation.submit(app)
        assert federation.wait(run, 400) == "finished:completed", federation.log("superlink", 60)
    found = profl.load(tmp_path / "run.npz")
    assert not found.incidents
    own = from_config(settings)
    undisturbed = ProFLStrategy(own, wait=1.0).run(InProcessGrid(make_client_app(own), 3))
    np.testing.assert_array_equal(found.theta, undisturbed.theta)


@pytest.mark.slow
def test_flowers_own_simulation_agrees(tmp_path):
    done = call(
        "run", "pricing", "-a", "profl", "--share", "2", "--participation", "0.75", "--clients", "4", "--rounds", "4",
        "-n", "100", "--out", str(tmp_path / "run.npz"),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished:completed" in done.stdout
    run = profl.load(tmp_path / "run.npz")
    fast = profl.simulate(
        profl.cases.pricing(clients=4), profl.profl(share=2), rounds=4, samples=100, seeds=[0], participation=0.75,
        progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(run.theta, fast.theta, atol=1e-5)


@pytest.mark.slow
def test_a_run_that_fails_says_so(tmp_path):
    done = call(
        "run", "pricing", "-a", "pfl", "--clients", "2", "--rounds", "1", "-R", "0", "--out", str(tmp_path / "x")
    )
    assert done.returncode == 1
    assert "finished:failed" in done.stdout


@pytest.mark.slow
def test_certificates_up_and_submit_on_the_command_line(tmp_path):
    """A federation that one terminal brings up and another one submits to; it ends when it is asked to."""
    places = [str(tmp_path / name) for name in ("keys", "federation", "app")]
    assert call("certificates", places[0], "--clients", "2").returncode == 0
    settings = {"case": "pricing", "algorithm": "pfl", "clients": 2, "rounds": 1, "local-steps": 1, "samples": 50}
    write_app(places[2], {**settings, "out": str(tmp_path / "run.npz"), "wait": 120, "timeout": 120})
    port, public = str(free_port()), str(free_port())
    command = [sys.executable, "-m", "profl.cli", "flower", "up", places[0], "--clients", "2", "--control-port", port]
    command += ["--port", public, "--folder", places[1]]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert "with 2 SuperNodes" in process.stdout.readline()
        done = call("submit", places[2], "--keys", places[0], "--port", port)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "finished:completed" in done.stdout
        assert profl.load(tmp_path / "run.npz").rounds.tolist() == [0, 1]
        write_app(places[2], {**settings, "federation": "no_such_module:federation", "wait": 20})
        failed = call("submit", places[2], "--keys", places[0], "--port", port)
        assert failed.returncode == 1
        assert "cannot import no_such_module" in failed.stderr
        nodes = call("submit", places[2], "--keys", places[0], "--port", public)
        assert nodes.returncode == 2
        assert "is for nodes alone: give the SuperLink's control port" in nodes.stderr.replace("\n", " ")
        (Path(places[0]) / "submit.token").write_text("x" * 40)
        stranger = call("submit", places[2], "--keys", places[0], "--port", port)
        assert stranger.returncode == 2
        assert "refuses this submit.token" in stranger.stderr.replace("\n", " ")
    finally:
        process.terminate()
        assert process.wait(timeout=40) == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port))) != 0
