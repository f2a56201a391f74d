"""The way out as a job sees it: through the proxy only, to what is on the list only, and written down."""

import time

import pytest

from tests.workers.engines.conftest import FIRST_UID, Bench
from tests.workers.engines.upstreams import NAME, to_loopback
from workers.engines import engine_named
from workers.engines.contract import EgressPolicy

CLIENT = r"""
use IO::Socket::INET;
my ($authority, $text) = @ARGV;
my ($host, $port) = $ENV{https_proxy} =~ m{//([\d.]+):(\d+)};
my $proxy = IO::Socket::INET->new(PeerAddr => $host, PeerPort => $port, Timeout => 5) or die "no proxy: $@";
print $proxy "CONNECT $authority HTTP/1.1\r\n\r\n"; $proxy->flush;
while (my $line = <$proxy>) { print $line; last if $line eq "\r\n" }
exit 0 if !defined $text;
print scalar <$proxy>;
print $proxy "$text\n"; $proxy->flush;
print scalar <$proxy>;
"""


@pytest.fixture(params=["bubblewrap", "restricted"])
def outgoing(request, base):
    """An engine whose names lead to loopback."""
    return Bench(engine_named(request.param, first_uid=FIRST_UID, resolver=to_loopback(**{NAME: ["127.0.0.1"]})), base)


def test_a_job_goes_out_through_the_proxy_only(outgoing, upstream):
    authority = f"{NAME}:{upstream.port}"
    run = outgoing.run("/usr/bin/perl", "-e", CLIENT, authority, "ping", egress=EgressPolicy((authority,)))
    assert run.output.split("\r\n")[0] == "HTTP/1.1 200 Connection established"
    assert run.output.endswith("hello\nping\n")
    (record,) = run.result.network
    assert (record.name, record.port, record.verdict, record.address) == (NAME, upstream.port, "allowed", "127.0.0.1")
    assert (record.bytes_sent, record.bytes_received) == (5, 11)
    assert "egress_proxy" in run.result.enforced_layers
    assert run.seen("connect(", "htons(3128)", "= 0")


def test_a_job_is_refused_what_is_not_on_the_list(outgoing, upstream):
    run = outgoing.run("/usr/bin/perl", "-e", CLIENT, f"127.0.0.1:{upstream.port}", egress=EgressPolicy((NAME,)))
    assert run.output.startswith("HTTP/1.1 403 Forbidden")
    assert [(record.name, record.verdict) for record in run.result.network] == [("127.0.0.1", "refused")]
    assert upstream.came == []


def test_a_plain_request_of_a_job_gets_the_reason(outgoing):
    script = CLIENT.replace("CONNECT $authority HTTP/1.1", "GET http://$authority/ HTTP/1.1").replace(
        'last if $line eq "\\r\\n"', "1"
    )
    run = outgoing.run("/usr/bin/perl", "-e", script, f"{NAME}:80", egress=EgressPolicy((NAME,)))
    assert run.output.startswith("HTTP/1.1 405 ")
    assert "Only CONNECT is supported" in run.output


def test_several_connections_go_out_at_a_time(outgoing, upstream):
    authority = f"{NAME}:{upstream.port}"
    script = f"for my $n (1 .. 5) {{ fork or do {{ {CLIENT}; exit }} }} 1 while wait != -1"
    run = outgoing.run("/usr/bin/perl", "-e", script, authority, "ping", egress=EgressPolicy((authority,)))
    assert run.output.count("ping\n") == 5
    assert len(run.result.network) == 5


def test_a_job_without_network_has_no_proxy(bench):
    run = bench.perl("use IO::Socket::INET; print IO::Socket::INET->new('127.0.0.1:3128') ? 'open' : $!")
    assert run.output == "Connection refused"
    assert run.result.network == ()


def test_the_environment_names_the_proxy(outgoing):
    run = outgoing.run("env", egress=EgressPolicy((NAME,)))
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy"):
        assert f"{name}=http://127.0.0.1:3128\n" in run.output
    assert "no_proxy=localhost,127.0.0.1,::1\n" in run.output


def test_a_connection_that_is_left_open_does_not_hold_up_the_end(outgoing, upstream):
    authority = f"{NAME}:{upstream.port}"
    script = CLIENT + "; my $child = fork; sleep 60 if !$child; print 'left';"
    started = time.monotonic()
    run = outgoing.run("/usr/bin/perl", "-e", script, authority, "ping", egress=EgressPolicy((authority,)))
    assert run.output.endswith("left")
    assert time.monotonic() - started < 18
    assert [record.verdict for record in run.result.network] == ["allowed"]
