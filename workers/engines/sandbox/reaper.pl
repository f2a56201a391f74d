# The parent of all that a job starts, outside of its restrictions. Whatever detaches itself (and has no namespace's
# first process to fall to) falls back to this one, which ends it all when the tracer has ended, or when the worker lets
# go or is gone: then the pipe that only the worker holds is closed.
use strict;
use warnings;

my ($pipe, $uid, $setpriv, @command) = @ARGV;
$_ += 0 for $pipe, $uid;    # syscall takes a string for a pointer
my ($KILL, $STOP, $NPROC) = (9, 19, 6);
my $main;
my $status;

sub reap {
    while ((my $pid = waitpid -1, 1) > 0) { $status = $? if $pid == $main }
}

# [pid, parent, state] of everybody
sub everyone {
    opendir my $proc, '/proc' or return;
    my @found;
    for my $pid (grep { /^\d+$/ } readdir $proc) {
        open my $file, '<', "/proc/$pid/stat" or next;
        my $line = <$file> // next;
        push @found, [$pid, $2, $1] if $line =~ /.*\) (\S) (\d+)/s;
    }
    return @found;
}

sub descendants {
    my %below;
    push @{ $below{ $_->[1] } }, $_ for everyone();
    my @found;
    my @open = ($$);
    while (defined(my $pid = shift @open)) {
        for (@{ $below{$pid} // [] }) {
            push @found, $_->[0] if $_->[2] !~ /[ZX]/;
            push @open, $_->[0];
        }
    }
    return @found;
}

# Who was killed five times and is still there forks faster than this sweeps: stopped, and with no right to fork, nobody
# outruns it. Not sooner, since a shell that may not fork exits with an error of its own, and that would be told.
my $rounds = 0;

sub strike {
    $rounds++ if @_;
    for my $pid ($rounds > 5 ? @_ : ()) {
        kill $STOP, $pid;
        my $none = pack 'Q Q', 0, 0;
        syscall 302, $pid + 0, $NPROC, $none, 0;
    }
    kill $KILL, @_;
}

# All processes of the slot's uid at once, by one of them: as that uid the kernel lets it hit no one else. By programs
# of their own, since whoever starts one without being root has no capability left, whatever the worker was given.
sub strike_uid {
    my $child = fork // return;
    if (!$child) {
        my $script = '[ "$(id -ru)" = ' . $uid . ' ] && [ "$(id -u)" = ' . $uid . ' ] && kill -KILL -1';
        $ENV{PATH} = '/usr/bin:/bin';
        no warnings 'exec';
        exec $setpriv, "--reuid=$uid", "--regid=$uid", '--clear-groups', '--inh-caps=-all', '--', '/bin/sh', '-c', $script;
        syscall 231, 1;
    }
    waitpid $child, 0;
}

sub pause { select undef, undef, undef, $_[0] }

sub tracer_runs {
    open my $file, '<', "/proc/$main/comm" or return;
    return (<$file> // '') eq "strace\n";
}

sub end_all {
    for (1 .. 50) {    # the tracer is last, so that it can write down how the others ended
        last if !tracer_runs();
        my @others = grep { $_ != $main } descendants();
        strike(@others);
        reap();
        last if defined $status && !@others;
        pause(0.01);
    }
    for (1 .. 200) {
        my @left = descendants();
        last if !@left;
        strike_uid() if $uid;
        strike(@left);
        reap();
        pause(0.01);
    }
}

sub worker_is_gone {
    my $ready = '';
    vec($ready, $pipe, 1) = 1;
    return select($ready, undef, undef, $_[0]) > 0;
}

syscall(157, 36, 1, 0, 0, 0) == 0 or die "keeper: subreaper: $!\n";
syscall(72, $pipe, 2, 1) == 0     or die "keeper: pipe: $!\n";
$SIG{CHLD} = sub { };              # wakes up select
exit 125 if worker_is_gone(0);
$main = fork // die "keeper: fork: $!\n";
if (!$main) {
    $SIG{CHLD} = 'DEFAULT';
    exec {$command[0]} @command;
    die "keeper: $command[0]: $!\n";
}
while (!defined $status) {
    last if worker_is_gone(0.05);
    reap();
}
end_all();
$status //= $KILL;
exit($status & 127 ? 128 + ($status & 127) : $status >> 8);
