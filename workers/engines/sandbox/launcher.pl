# Starts a job's command, as the last program inside the sandbox; the docstring of this package says why in Perl. The
# launch spec (records: tag, length, bytes) comes from one descriptor. A socket connects it with the worker: the
# messages "mounts", "port" and "notices" carry a descriptor, "ready" waits for "go", and "failed ERRNO" ends a launch
# whose command cannot be started. If the worker is gone, it exits. Where it is pid 1 of a namespace, it hides the mount
# table and forks first: the child becomes the command, the parent stays as init.
use strict;
use warnings;

my ($spec_fd, $control, $end) = map { $_ + 0 } @ARGV;
my $NOFILE = 7;

sub fail { print STDERR "sandbox: $_[0]\n"; exit 125 }
sub must { my ($what, $result) = @_; fail("$what: $!") if !defined $result || $result == -1; return $result }

sub send_to_worker {
    my ($text, $fd) = @_;
    my $part = pack 'P Q', $text, length $text;
    my $rights = defined $fd ? pack('Q l l l x4', 20, 1, 1, $fd) : '';
    my $message = pack 'Q L x4 P Q P Q l x4', 0, 0, $part, 1, $rights, length $rights, 0;
    must("message to the worker", syscall 46, $control, $message, 0x4000);
}

sub read_spec {
    open my $file, '<&=', $spec_fd or fail("launch spec: $!");
    binmode $file;
    local $/;
    my $bytes = <$file>;
    my (%one, %many);
    while (length $bytes) {
        my ($tag, $value) = unpack 'a1 V/a', $bytes;
        substr $bytes, 0, 5 + length $value, '';
        $one{$tag} = $value;
        push @{ $many{$tag} }, $value;
    }
    return (\%one, \%many);
}

sub limit {
    my ($which, $soft, $hard) = @_;
    my $pair = pack 'Q Q', $soft, $hard;
    must("limit $which", syscall 302, 0, $which + 0, $pair, 0);
}

# The egress proxy: a listening socket in the network namespace of the sandbox. The worker receives it and accepts on
# it.
sub open_port {
    my ($port) = @_;
    my $socket = must("socket", syscall 41, 2, 1 | 02000000, 0);
    my $address = pack 'S n C4 x8', 2, $port, 127, 0, 0, 1;
    must("port $port", syscall 49, $socket, $address, 16);
    must("listen", syscall 50, $socket, 64);
    send_to_worker("port", $socket);
    must("close", syscall 3, $socket);
}

sub enter_landlock {
    my ($shape, @rules) = @_;
    my ($size, $files, $network, $scopes) = split / /, $shape;
    my $attributes = pack 'Q Q Q', $files, $network, $scopes;
    my $ruleset = must("landlock", syscall 444, $attributes, $size + 0, 0);
    for (@rules) {
        my ($for_directory, $for_file, $path) = split / /, $_, 3;
        my $fd = syscall 2, $path, 010000000 | 02000000, 0;    # O_PATH | O_CLOEXEC
        next if $fd == -1 && ($!{ENOENT} || $!{EACCES});
        must($path, $fd);
        my $rule = pack 'Q l', (-d $path ? $for_directory : $for_file), $fd;
        must("landlock $path", syscall 445, $ruleset, 1, $rule, 0);
        syscall 3, $fd;
    }
    must("landlock", syscall 446, $ruleset, 0);
}

# The mount table shows for each mount its path on the machine's file system. The kernel lists only mounts of a
# process's own namespace below its root. With a root in the namespace that bwrap made, and in a copy of that namespace,
# nothing is listed, and all paths stay valid. The first namespace lives as long as a descriptor of it, which is the
# worker's: a process loses its descriptors when it begins to exit. With one of pid 1, the files would be gone before
# the kernel has killed the other processes, which would say so in the job's log. The capabilities for this are the only
# ones, and are dropped at once.
#
# The root of an image is a copy of the mounts below it, which are in no namespace: they live as long as a descriptor of
# them. The kernel shows all paths relative to it, also to the tracer, as the command knows them.
sub hide_mounts {
    my ($image) = @_;
    my ($root, $self) = ('/', '/proc/self/ns/mnt');
    my $top = must("root", syscall 2, $root, 010000000 | 0200000 | 02000000, 0);    # O_PATH, O_DIRECTORY, O_CLOEXEC
    my $kept = must("mount namespace", syscall 2, $self, 02000000, 0);
    must("mount namespace", syscall 272, 0x20000);
    if (length $image) {
        must("close", syscall 3, $_) for $top, $kept;
        $top = must("image", syscall 428, -100, $image, 1 | 0100000 | 02000000);    # open_tree: clone, with all below
        $kept = $top;
    }
    must("root", syscall 81, $top);
    my $here = '.';
    must("root", syscall 161, $here);
    send_to_worker("mounts", $kept);
    must("close", syscall 3, $top);
    $kept == $top or must("close", syscall 3, $kept);
    must("ambient capabilities", syscall 157, 47, 4, 0, 0, 0);
    must("bounding capability $_", syscall 157, 24, $_, 0, 0, 0) for 18, 21, 8;    # SYS_CHROOT, SYS_ADMIN, SETPCAP
    my ($header, $none) = (pack('L l', 0x20080522, 0), pack('L6', (0) x 6));
    must("capabilities", syscall 126, $header, $none);
    @INC = ();    # from here on they would be those of the image
}

# Pid 1 runs under the job's own uid, so the job must not be able to control it. Its memory, registers and descriptors
# are inaccessible (not dumpable), and a filter kills the namespace at any call but the few of this loop. It uses system
# calls only, because Perl's own functions may allocate memory or set signals. The child starts the command when all
# descriptors of pid 1 are closed. The kernel writes the end of each child into memory that the worker can read: the exit
# code of pid 1 does not distinguish a signal from a code above 128.
sub be_init {
    my ($main, $filter) = @_;
    my $program = pack 'S x6 P', length($filter) / 8, $filter;
    my $page = must("memory for the end", syscall 9, 0, 4096, 3, 1, $end, 0);    # shared, to read and write
    my $pointer = pack 'Q', $page;
    my $status = unpack 'P4', $pointer;    # once before the filter, which allows no memory to be allocated
    my $pid = 0;
    must("not dumpable", syscall 157, 4, 0, 0, 0, 0);
    must("filter of pid 1", syscall 317, 1, 0, $program);
    syscall 436, 0, 0xFFFFFFFF, 0;
    $pid = syscall 61, -1, $page, 0, 0 while $pid != $main && ($pid != -1 || $! == 4);
    $status = unpack 'P4', $pointer;
    my $word = unpack 'l', $status;
    syscall 231, $pid == -1 ? 125 : $word & 127 ? 128 + ($word & 127) : $word >> 8 & 255;
}

sub wait_for_init {
    my ($gate) = @_;
    sysread($gate, my $nothing, 1) // fail("waiting for pid 1: $!");
}

# WAIT_KILLABLE (32, Linux 5.19): otherwise each signal would repeat the request to the worker.
sub enter_seccomp {
    my ($filter) = @_;
    my $program = pack 'S x6 P', length($filter) / 8, $filter;
    my $listener = syscall 317, 1, 8 | 32, $program;
    $listener = syscall 317, 1, 8, $program if $listener == -1 && $!{EINVAL};
    must("seccomp", $listener);
    send_to_worker("notices", $listener);
    must("close", syscall 3, $listener);
}

sub cannot {
    my ($what) = @_;
    my $code = $! + 0;
    syswrite STDOUT, "sandbox: cannot $what: $!\n";    # into the job's own output
    send_to_worker("failed $code");
    exit 127;
}

sub find {
    my ($command) = @_;
    return $command if $command =~ m{/};
    for my $directory (split /:/, $ENV{PATH} // '') {
        my $path = "$directory/$command";
        return $path if -f $path && -x _;
    }
    $! = 2;
    return;
}

# `#!/usr/bin/env NAME` would be a second program, so NAME is searched here.
sub interpreter {
    my ($line) = @_;
    my ($program, $option) = $line =~ /^#![ \t]*(\S+)(?:[ \t]+(.*?))?[ \t\r]*$/ or return;
    return ($program, defined $option && length $option ? $option : ()) if $program !~ m{(?:^|/)env$};
    my @words = grep { !/^-/ && !/=/ } split /[ \t]+/, $option // '';
    my $found = @words ? find(shift @words) : undef;
    return defined $found ? ($found, @words) : ();
}

sub unwrap_scripts {
    my ($path, @argv) = @_;
    for (1 .. 4) {
        -x $path or do { $! = -e $path ? 13 : 2; cannot("run '$argv[0]'") };
        open my $file, '<', $path or return ($path, @argv);
        my $line = '';
        sysread $file, $line, 256;
        return ($path, @argv) if $line !~ /^#!/;
        my ($program, @rest) = interpreter((split /\n/, $line)[0]);
        defined $program or do { $! = 2; cannot("run '$argv[0]'") };
        @argv = ($program, @rest, $path, @argv[1 .. $#argv]);
        $path = $program;
    }
    $! = 40;
    cannot("run '$argv[0]'");
}

# See one_program_rules in seccomp.py. The descriptor must be moved up before the limit closes over it.
sub pin {
    my ($path, $number, $soft, $hard) = @_;
    limit($NOFILE, $hard, $hard);
    my $fd = syscall 2, $path, 02000000, 0;
    $fd = syscall 2, $path, 010000000 | 02000000, 0 if $fd == -1 && $!{EACCES};
    return if $fd == -1;
    must("pin", syscall 72, $fd, 1030, $number + 0);
    syscall 3, $fd;
    limit($NOFILE, $soft, $number);
    return 1;
}

sub run_pinned {
    my ($number, @argv) = @_;
    my $arguments = pack 'p' x @argv . ' Q', @argv, 0;
    my @pairs = map { "$_=$ENV{$_}" } sort keys %ENV;
    my $environment = pack 'p' x @pairs . ' Q', @pairs, 0;
    my $empty = '';    # a literal would be read-only, and syscall wants to write
    syscall 322, $number + 0, $empty, $arguments, $environment, 0x1000;
}

my ($one, $many) = read_spec();
must("close on exec", syscall 436, 3, 0xFFFFFFFF, 4);
must("no new privileges", syscall 157, 38, 1, 0, 0, 0);
must("die with parent", syscall 157, 1, 9, 0, 0, 0);
my $gate;
hide_mounts($one->{o}) if $one->{m};
if ($one->{i}) {
    pipe $gate, my $open or fail("pipe: $!");
    my $main = fork // fail("fork: $!");
    be_init($main, $one->{i}) if $main;
}
must("session", syscall 112) if $one->{s};
limit(split / /) for @{ $many->{r} // [] };
open_port($one->{n}) if $one->{n};
%ENV = map { split /=/, $_, 2 } @{ $many->{e} // [] };
chdir $one->{c} or cannot("enter the working directory '$one->{c}'");
my @argv = @{ $many->{a} };
my $path = find($argv[0]) // cannot("run '$argv[0]'");
if ($one->{x}) {
    ($path, @argv) = unwrap_scripts($path, @argv);
    pin($path, split / /, $one->{x}) or cannot("run '$argv[0]'");
}
enter_landlock($one->{l}, @{ $many->{p} // [] }) if $one->{l};
wait_for_init($gate) if $gate;
enter_seccomp($one->{f});
send_to_worker("ready");
my $answer = '';
must("waiting for the worker", syscall 45, $control, $answer = "\0" x 2, 2, 0, 0, 0);
exit 125 if $answer ne 'go';
must("output", syscall 33, 1, 2) if !$one->{d};    # stderr was for the errors of the sandbox until here
if   ($one->{x}) { run_pinned((split / /, $one->{x})[0], @argv) }
else             { no warnings 'exec'; exec {$path} @argv }
cannot("run '$argv[0]'");
