# Runs as a job while the worker starts: takes more disk, or more files, than its limit allows, and waits to be stopped.
use strict;
use warnings;

my ($what, $limit) = @ARGV;
if ($what eq 'files') {
    for my $number (1 .. $limit / 4096 + 512) { open my $file, '>', "file$number" or last }
}
else {
    my $size = $limit / 4;
    for my $number (1 .. 12) {    # fallocate, map one page, remove the name, close
        open my $file, '+>', 'held' or last;
        syscall(285, fileno $file, 0, 0, $size + 0) == 0 or last;
        my $address = syscall 9, 0, 4096, 3, 1, fileno $file, 0;
        unlink 'held';
        last if $address == -1;
    }
}
sleep 60;
