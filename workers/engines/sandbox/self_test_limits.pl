# Runs as a job while the worker starts. Takes more than its limits allow: `memory PROCESSES BYTES` forks, then
# allocates; `bytes LIMIT` and `files LIMIT` fill the disk and wait to be stopped.
use strict;
use warnings;

my ($what, @amounts) = @ARGV;

sub take_processes_and_memory {
    my ($processes, $bytes) = @_;
    my @children;
    for (1 .. $processes) {
        my $child = fork;
        if (!defined $child) { print 'processes refused after ', scalar @children, "\n"; last }
        if (!$child) { sleep 20; exit 0 }
        push @children, $child;
    }
    kill 9, @children;
    waitpid $_, 0 for @children;
    $| = 1;
    print "memory\n";
    my $memory = "\1" x $bytes;
    print 'memory taken ', length $memory, "\n";
}

sub take_files {
    my ($limit) = @_;
    for my $number (1 .. $limit / 4096 + 512) { open my $file, '>', "file$number" or last }
    sleep 60;
}

# Space without a name: fallocate, map one page, remove the name, close.
sub take_bytes {
    my ($limit) = @_;
    my $size = $limit / 4;
    for my $number (1 .. 12) {
        open my $file, '+>', 'held' or last;
        syscall(285, fileno $file, 0, 0, $size + 0) == 0 or last;
        my $address = syscall 9, 0, 4096, 3, 1, fileno $file, 0;
        unlink 'held';
        last if $address == -1;
    }
    sleep 60;
}

if    ($what eq 'memory') { take_processes_and_memory(@amounts) }
elsif ($what eq 'files')  { take_files(@amounts) }
else                      { take_bytes(@amounts) }
