# Runs as a job while the worker starts: takes more processes, then more memory, than its limits allow.
use strict;
use warnings;

my ($processes, $bytes) = @ARGV;
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
