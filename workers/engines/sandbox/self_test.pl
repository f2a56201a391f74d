# Runs as a job while the worker starts. Tries what a job must not be able to do, and prints for each: name, result.
use strict;
use warnings;

sub attempt { my ($name, $call) = @_; $! = 0; my $result = $call->(); print "$name ", $result == -1 ? $! + 0 : 'done', "\n" }

print "uid $< $>\n";
if (opendir my $open, '/dev/fd') {
    my $own = fileno $open;
    print 'descriptors ', join(',', sort grep { /^\d+$/ && $_ != $own } readdir $open), "\n";
}
my ($header, $held) = (pack('L l', 0x20080522, 0), "\0" x 24);
print 'capabilities ', (syscall(125, $header, $held) == 0 && $held eq "\0" x 24 ? 'none' : unpack 'H*', $held), "\n";
my $mounts = 0;
if (open my $file, '<', '/proc/self/mountinfo') { $mounts++ while <$file> }
print "mounts $mounts\n";
attempt('user_namespace', sub { syscall 272, 0x10000000 });
attempt('vsock', sub { syscall 41, 40, 1, 0 });
attempt('internet', sub {
    my $socket = syscall 41, 2, 1, 0;
    my $address = pack 'S n C4 x8', 2, 443, 203, 0, 113, 1;
    return $socket == -1 ? -1 : syscall 42, $socket, $address, 16;
});
my $socket = syscall 41, 2, 1, 0;
my $proxy_address = pack 'S n C4 x8', 2, 3128, 127, 0, 0, 1;
if ($socket != -1 && syscall(42, $socket, $proxy_address, 16) != -1 && open my $proxy, '+<&=', $socket) {
    syswrite $proxy, "GET http://selftest.invalid/ HTTP/1.0\r\n\r\n";
    print 'egress ', (<$proxy> // '') =~ / (\d+) / ? $1 : 'silent', "\n";
}
attempt('outside', sub { my $flags = 0; syscall 2, $ARGV[0], $flags, 0 });
for (['core_pattern', '/proc/sys/kernel/core_pattern'], ['system', '/usr/selftest'], ['root', '/selftest']) {
    my ($name, $path) = @$_;
    attempt($name, sub { my $flags = 1 | 0100; my $fd = syscall 2, $path, $flags, 0600; unlink $path if $fd > -1; $fd });
}
# The parent: pid 1 of the sandbox, or the tracer where there is no pid namespace. Both have the job's uid.
my $above = getppid;
attempt('above_state', sub {
    open my $file, '<', "/proc/$above/syscall" or return -1;
    return defined sysread($file, my $text, 1) ? 0 : -1;    # root of an image may open it
});
attempt('above_memory', sub { my ($path, $flags) = ("/proc/$above/mem", 2); syscall 2, $path, $flags, 0 });
attempt('above_write', sub {
    my $byte = "\0";
    my $part = pack 'P Q', $byte, 1;
    syscall 311, $above, $part, 1, $part, 1, 0;
});
attempt('above_limits', sub { my $limit = pack 'Q Q', 0, 0; syscall 302, $above, 4, $limit, 0 });
attempt('above_signal', sub { syscall 62, $above, 0 });
if (open my $file, '<', "/proc/$above/status") {
    my %status = map { /^(\w+):\s*(\d+)/ ? ($1, $2) : () } <$file>;
    print 'above_filters ', ($status{Seccomp} // 0) == 2 ? $status{Seccomp_filters} // 0 : 0, "\n";
}
print 'above_owner ', (stat "/proc/$above/mem")[4] // 'unknown', "\n";
my $environment = '';
if (open my $file, '<', '/proc/1/environ') { $environment = do { local $/; <$file> } // '' }
print 'environment ', length $environment, "\n";
my $child = fork;
if (!$child) { syscall 0x40000027; exit 0 }
waitpid $child, 0;
print 'foreign_call ', $? & 127, "\n";
system '/bin/true';
print 'exec ', $? == -1 ? $! + 0 : 'done', "\n";
