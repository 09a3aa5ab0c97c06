"""Reading endpoints, --rdzv-conf and ETCDCTL_*; what is wrong before any connection; what must never be shown."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ftlaunch.rendezvous.common.node import address_towards, describe_node, machine_digest
from ftlaunch.rendezvous.etcd import library
from ftlaunch.rendezvous.etcd.conf import Job, settings_from
from ftlaunch.rendezvous.etcd.settings import (
    Credentials,
    Endpoint,
    EtcdSettings,
    Tls,
    check,
    check_tls,
    parse_endpoints,
)
from ftlaunch.rendezvous.interface import SettingsError
from support.etcd import make_certificates

JOB = Job("job", 2, 2)


@pytest.mark.parametrize(
    ("text", "targets", "tls"),
    [
        ("etcd", ["etcd:2379"], None),
        ("etcd:1234", ["etcd:1234"], None),
        ("http://etcd:1234/", ["etcd:1234"], False),
        ("https://a,https://b:1", ["a:2379", "b:1"], True),
        ("a, b ,c:3,", ["a:2379", "b:2379", "c:3"], None),
        ("[::1]:5", ["[::1]:5"], None),
        ("[fe80::1]", ["[fe80::1]:2379"], None),
        ("::1", ["[::1]:2379"], None),
    ],
)
def test_endpoints_are_read(text: str, targets: list[str], tls: bool | None) -> None:
    endpoints, found = parse_endpoints(text)
    assert [e.target for e in endpoints] == targets
    assert found is tls


@pytest.mark.parametrize(
    "text", ["", ",", "etcd:x", "etcd:0", "etcd:70000", "ftp://etcd", "http://a,https://b", "a/b", ":1"]
)
def test_endpoints_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="endpoint"):
        parse_endpoints(text)


def test_defaults_are_those_of_the_documentation() -> None:
    settings = settings_from("etcd", JOB, {}, {})
    assert settings == EtcdSettings((Endpoint("etcd", 2379),), "job", 2, 2)
    assert (settings.node_timeout_s, settings.margin_s, settings.stop_on_outage) == (10.0, 2.0, True)


def test_conf_keys_of_torchelastic_are_understood() -> None:
    conf = {
        "timeout": "100",
        "last_call_timeout": "3",
        "etcd_prefix": "/x",
        "node_timeout": "4",
        "outage_policy": "continue",
    }
    settings = settings_from("etcd", JOB, conf, {})
    assert (settings.join_timeout_s, settings.last_call_s, settings.root) == (100, 3, "/x")
    assert (settings.node_timeout_s, settings.stop_on_outage) == (4, False)
    assert settings_from("etcd", JOB, {"timeout": "100", "join_timeout": "7"}, {}).join_timeout_s == 7


@pytest.mark.parametrize(
    "conf",
    [{"join_timeout": "soon"}, {"join_timeout": "-1"}, {"outage_policy": "x"}, {"protocol": "ftp"}, {"timeout": "nan"}],
)
def test_conf_values_that_make_no_sense_are_refused(conf: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(conf.values()))):
        settings_from("etcd", JOB, conf, {})


def test_endpoints_may_come_from_the_environment() -> None:
    settings = settings_from("", JOB, {}, {"ETCDCTL_ENDPOINTS": "https://a:1,https://b:2"})
    assert settings.endpoints == (Endpoint("a", 1), Endpoint("b", 2))
    assert settings.tls == Tls()


def test_tls_names_of_torchelastic_and_etcdctl() -> None:
    legacy = settings_from("e", JOB, {"protocol": "https", "cacert": "c", "cert": "d", "key": "k"}, {})
    assert legacy.tls == Tls("c", "d", "k")
    assert settings_from("e", JOB, {"ca_cert": "c", "ssl_cert": "d", "ssl_cert_key": "k"}, {}).tls == Tls("c", "d", "k")
    environment = {"ETCDCTL_CACERT": "c", "ETCDCTL_CERT": "d", "ETCDCTL_KEY": "k"}
    assert settings_from("e", JOB, {"cacert": "mine"}, environment).tls == Tls("mine", "d", "k")
    assert settings_from("https://e", JOB, {}, {}).tls == Tls()
    assert settings_from("http://e", JOB, {}, environment).tls is None
    with pytest.raises(SettingsError, match="protocol is http"):
        settings_from("http://e", JOB, {"cacert": "c"}, {})
    with pytest.raises(SettingsError, match="contradicts"):
        settings_from("http://e", JOB, {"protocol": "https"}, {})


def test_passwords_come_from_files_and_variables_only(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\nrest")
    assert settings_from("e", JOB, {"user": "u", "password_file": str(secret)}, {}).credentials == Credentials(
        "u", "s3cret"
    )
    assert settings_from("e", JOB, {}, {"ETCDCTL_USER": "u:p:q"}).credentials == Credentials("u", "p:q")
    environment = {"ETCDCTL_USER": "u", "ETCDCTL_PASSWORD": "p"}
    assert settings_from("e", JOB, {"username": "v"}, environment).credentials == Credentials("v", "p")
    for conf in ({"password": "p"}, {"user": "u:p"}):
        with pytest.raises(SettingsError, match="command line") as caught:
            settings_from("e", JOB, conf, {})
        assert "u:p" not in str(caught.value)
    with pytest.raises(SettingsError, match="no password"):
        settings_from("e", JOB, {"user": "u"}, {})
    with pytest.raises(SettingsError, match="No such file"):
        settings_from("e", JOB, {"user": "u", "password_file": str(tmp_path / "none")}, {})


def test_a_password_is_never_shown() -> None:
    settings = settings_from("e", JOB, {}, {"ETCDCTL_USER": "u", "ETCDCTL_PASSWORD": "hidden"})
    assert "hidden" not in repr(settings)
    assert "hidden" not in str(settings.credentials)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"job_id": ""}, "--rdzv-id"),
        ({"min_nodes": 3}, "--nnodes"),
        ({"node_timeout_s": 1.0}, "2 seconds"),
        ({"fence_margin_s": 10.0}, "shorter"),
    ],
)
def test_settings_that_cannot_work_are_refused(change: dict[str, object], text: str) -> None:
    settings = EtcdSettings(**{"endpoints": (Endpoint("e", 1),), "job_id": "j", "max_nodes": 2, **change})  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=text):
        check(settings)


def test_tls_files_are_read_before_the_first_connection(tmp_path: Path) -> None:
    good = make_certificates(tmp_path)
    other = make_certificates(tmp_path, "other")
    check_tls(Tls(good.ca, good.cert, good.key))
    check_tls(Tls())
    junk = tmp_path / "junk"
    junk.write_text("no certificate")
    for tls, text in (
        (Tls(str(tmp_path / "none")), "none: No such file"),
        (Tls(str(junk)), "not a PEM file"),
        (Tls(good.key), "cacert file"),
        (Tls(good.ca, good.cert), "go together"),
        (Tls(good.ca, good.cert, other.key), "not usable"),
    ):
        with pytest.raises(SettingsError, match=text):
            check_tls(tls)


def test_a_missing_or_old_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    old = ModuleType("google.protobuf")
    old.__version__ = "4.25.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.protobuf", old)
    with pytest.raises(SettingsError, match=r"protobuf >= 5\.27, installed is 4\.25\.3: pip install"):
        library.load()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(SettingsError, match="needs the Python package protobuf: pip install"):
        library.load()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pyetcd.etcdrpc.rpc_pb2", None)
    with pytest.raises(SettingsError, match="cannot be used"):
        library.load()


def test_the_own_address_is_the_one_that_reaches_etcd() -> None:
    assert address_towards([("127.0.0.1", 9)]) == "127.0.0.1"
    assert address_towards([("::1", 9)]) == "::1"
    assert address_towards([("does-not-resolve.invalid", 9), ("127.0.0.2", 9)]) == "127.0.0.1"
    with pytest.raises(SettingsError, match=r"does-not-resolve\.invalid"):
        address_towards([("does-not-resolve.invalid", 9)])


def test_each_process_is_a_node_of_its_own_on_the_same_machine() -> None:
    one, two = describe_node({"nproc": "2"}, node_rank=3), describe_node({"nproc": "2"})
    assert one.node_id != two.node_id
    assert one.machine == two.machine != ""
    assert one.node_rank == 3
    assert machine_digest("a") != machine_digest("b")
