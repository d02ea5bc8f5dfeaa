"""The URL of a request, and the hosts that the settings allow."""

from __future__ import annotations

import pytest

from evsched import GiveUp
from evsched.client.target_tasks import Target, read_url
from evsched.config import Config
from evsched.targets.allowed_hosts import read_allowed


@pytest.mark.parametrize(
    ("text", "target", "origin"),
    [
        ("https://api.example.com", Target("https", "api.example.com", 443, "/"), "https://api.example.com"),
        ("HTTP://API.Example.com:80/A", Target("http", "api.example.com", 80, "/A"), "http://api.example.com"),
        ("http://a-b.c_d:8080?x=1#y", Target("http", "a-b.c_d", 8080, "/?x=1"), "http://a-b.c_d:8080"),
        ("https://h/a//b/../c;d?e=/@:?", Target("https", "h", 443, "/a//b/../c;d?e=/@:?"), "https://h"),
        ("https://xn--bcher-kva.example/", Target("https", "xn--bcher-kva.example", 443, "/"), None),
        ("http://192.0.2.7:81/", Target("http", "192.0.2.7", 81, "/"), "http://192.0.2.7:81"),
        ("http://[2001:DB8:0:0::7]:81/", Target("http", "2001:db8::7", 81, "/"), "http://[2001:db8::7]:81"),
    ],
)
def test_a_url_is_read(text: str, target: Target, origin: str | None) -> None:
    assert read_url(text) == target
    assert read_url(text).origin == origin or origin is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty: write the whole URL"),
        ("http://a/ b", "a character that cannot be sent"),
        ("http://a/\r\nX: y", "a character that cannot be sent"),
        ("http://a/\x00", "a character that cannot be sent"),
        ("http://bücher.example/", "xn--"),
        ("http://ex\u0430mple.com/", "xn--"),  # a Cyrillic letter
        ("http://a\\b/", "a character that cannot be sent"),
        ("ftp://a/", "does not begin with http://"),
        ("file:///etc/passwd", "does not begin with http://"),
        ("//a/", "does not begin with http://"),
        ("http:/a/", "does not begin with http://"),
        ("unix://a", "does not begin with http://"),
        ("https://name:hidden@a/", "the header Authorization"),
        ("https://hidden@a/", "the header Authorization"),
        ("http:///path", "a host that is not valid"),
        ("http://a:/", "a host or a port that is not valid"),
        ("http://a:0/", "a host or a port that is not valid"),
        ("http://a:65536/", "a host or a port that is not valid"),
        ("http://a:8o/", "a host or a port that is not valid"),
        ("http://a:80:80/", "a host or a port that is not valid"),
        ("http://a./", "leave out the dot at its end"),
        ("http://a..b/", "a host that is not valid"),
        ("http://-a/", "a host that is not valid"),
        ("http://a%2eb/", "a host that is not valid"),
        (f"http://{'a' * 64}.b/", "a host that is not valid"),
        (f"http://{'a.' * 130}b/", "a host that is not valid"),
        ("http://127.1/", "an IPv4 address in an unusual form"),
        ("http://2130706433/", "an IPv4 address in an unusual form"),
        ("http://0x7f000001/", "an IPv4 address in an unusual form"),
        ("http://0177.0.0.1/", "an IPv4 address in an unusual form"),
        ("http://1.2.3.4.5/", "an IPv4 address in an unusual form"),
        ("http://a.0x7f/", "an IPv4 address in an unusual form"),
        ("http://256.0.0.1/", "an IPv4 address in an unusual form"),
        ("http://[127.0.0.1]/", "brackets around something that is not an IPv6 address"),
        ("http://[fe80::1%25eth0]/", "brackets around something that is not an IPv6 address"),
        ("http://[::1/", "a host or a port that is not valid"),
    ],
)
def test_a_url_that_could_be_misunderstood_is_refused(text: str, words: str) -> None:
    with pytest.raises(GiveUp, match=r"^the url ") as error:
        read_url(text)
    assert words in str(error.value)
    assert "hidden" not in str(error.value)


def allows(url: str, *hosts: str) -> bool:
    return read_allowed(Config(http_hosts=hosts)).allows(read_url(url))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://a.example/", "a.example"),
        ("http://A.example/", "a.EXAMPLE"),
        ("https://a.example:8443/", "a.example:8443"),
        ("https://b.a.example/", "*.a.example"),
        ("https://c.b.a.example/", "*.a.example"),
        ("http://c.a.example:81/", "*.a.example:81"),
        ("https://anything.example/", "*"),
        ("https://192.0.2.1/", "*"),
        ("http://anything.example:81/", "*:81"),
        ("http://[::1]:81/", "[0:0::1]:81"),
        ("http://127.0.0.1/", "127.0.0.1"),
    ],
)
def test_host_on_the_allow_list_is_accepted(url: str, host: str) -> None:
    assert allows(url, "other.example", host)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://b.a.example/", "a.example"),
        ("https://aa.example/", "a.example"),
        ("https://a.example.net/", "a.example"),
        ("https://a.example:8443/", "a.example"),
        ("http://a.example:443/", "a.example"),
        ("https://a.example/", "a.example:80"),
        ("https://a.example/", "*.a.example"),
        ("https://aa.example/", "*.a.example"),
        ("https://any.example:444/", "*"),
        ("https://any/", "*.any"),
    ],
)
def test_host_outside_the_allow_list_is_refused(url: str, host: str) -> None:
    assert not allows(url, host)
