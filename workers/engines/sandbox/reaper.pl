# The parent of all processes of a job, outside of its restrictions. A process that detaches itself becomes its child,
# unless a pid namespace has an init of its own. It kills all of them when the tracer has ended, when the worker closes
# the pipe or dies, or at the deadline that the worker has last written into the pipe: one that is stopped writes none.
# Its child joins the control group, limits itself, becomes the slot's user and drops every capability, in this order,
# before it is the tracer: each step needs rights that a later one drops.
use strict;
use warnings;

my ($pipe, $uid, $setpriv, $limits, $entrances, @command) = @ARGV;
$_ += 0 for $pipe, $uid;    # syscall takes a string for a pointer
my ($KILL, $STOP, $NPROC) = (9, 19, 6);
open my $lifeline, '<&=', $pipe or die "reaper: pipe: $!\n";
my $deadline = 9**9**9;    # seconds of the boot time
my $parent = $$;
my $main;
my $status;

# Returns whether a child is left. Without one there is no descendant: those that detach themselves become children.
sub reap {
    my $pid;
    while (($pid = waitpid -1, 1) > 0) { $status = $? if $pid == $main }
    return $pid == 0;
}

# [pid, parent, state] of all processes
sub all_processes {
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
    push @{ $below{ $_->[1] } }, $_ for all_processes();
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

# Processes that are left after five rounds fork faster than they are killed. Then they are stopped, and may not fork.
# Not earlier: a shell that may not fork exits with an error of its own, which would be reported.
my $rounds = 0;

sub kill_processes {
    $rounds++ if @_;
    for my $pid ($rounds > 5 ? @_ : ()) {
        kill $STOP, $pid;
        my $none = pack 'Q Q', 0, 0;
        syscall 302, $pid + 0, $NPROC, $none, 0;
    }
    kill $KILL, @_;
}

# Kills all processes of the slot's uid at once. `kill -1` runs as that uid, so that it reaches no other one, and in a
# program of its own, which has no capability left, whatever the worker had.
sub kill_uid {
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
    for (1 .. 50) {    # the tracer is last, so that it can record the ends of the others
        last if !tracer_runs();
        my @others = grep { $_ != $main } descendants();
        kill_processes(@others);
        reap();
        last if defined $status && !@others;
        pause(0.01);
    }
    for (1 .. 200) {
        last if !reap();
        my @left = descendants();
        kill_uid() if $uid;
        kill_processes(@left);
        pause(0.01);
    }
}

sub must {
    my ($what, $result) = @_;
    return if defined $result && $result != -1;
    print STDERR "reaper: $what: $!\n";
    syscall 231, 125;
}

sub join_groups {
    for (@_) {
        must($_, open my $file, '>', $_);
        must($_, syswrite $file, $$);
        must($_, close $file);
    }
}

sub limit {
    my ($which, $soft, $hard) = @_;
    my $pair = pack 'Q Q', $soft, $hard;
    must("limit $which", syscall 302, 0, $which + 0, $pair, 0);
}

# Nothing is inherited by what is executed: no capability, whatever the worker had, and no group. The death signal comes
# last, because a change of the user cancels it, and the parent may have died before it was set.
sub drop_privileges {
    if ($uid) {
        my $capability = 0;
        $capability++ while syscall(157, 24, $capability, 0, 0, 0) == 0;    # until there is none of this number
        must("capabilities", $!{EINVAL} ? 0 : -1);
        my $none = '';
        must("groups", syscall 116, 0, $none);
        must("group", syscall 119, $uid, $uid, $uid);
        must("user", syscall 117, $uid, $uid, $uid);
    }
    my ($header, $empty) = (pack('L l', 0x20080522, 0), pack('L6', (0) x 6));
    must("capabilities", syscall 126, $header, $empty);
    must("no new privileges", syscall 157, 38, 1, 0, 0, 0);
    must("death signal", syscall 157, 1, $KILL, 0, 0, 0);
    syscall 231, 125 if getppid != $parent;
}

sub boot_time {
    my $time = "\0" x 16;
    syscall 228, 7, $time;
    my ($seconds, $nanoseconds) = unpack 'q q', $time;
    return $seconds + $nanoseconds / 1e9;
}

sub worker_is_gone {
    my $ready = '';
    vec($ready, $pipe, 1) = 1;
    if (select($ready, undef, undef, $_[0]) > 0) {
        sysread $lifeline, my $written, 4096 or return 1;
        $deadline = (unpack 'd*', $written)[-1];
    }
    return boot_time() >= $deadline;
}

syscall(157, 36, 1, 0, 0, 0) == 0 or die "reaper: subreaper: $!\n";
syscall(72, $pipe, 2, 1) == 0     or die "reaper: pipe: $!\n";
$SIG{CHLD} = sub { };              # wakes up select
exit 125 if worker_is_gone(0);
$main = fork // die "reaper: fork: $!\n";
if (!$main) {
    $SIG{CHLD} = 'DEFAULT';
    join_groups(split /\n/, $entrances);
    limit(split /:/) for split /,/, $limits;
    drop_privileges();
    exec {$command[0]} @command;
    die "reaper: $command[0]: $!\n";
}
while (!defined $status) {
    last if worker_is_gone(0.05);
    reap();
}
end_all();
$status //= $KILL;
exit($status >> 8) if !($status & 127);
syscall 157, 4, 0, 0, 0, 0;    # it ends by the signal that has ended the first process, without a core dump
kill $status & 127, $$;
exit(128 + ($status & 127));
