# Puts a frame around the text of one banner.
use strict;
use warnings;

open my $file, '<', $ARGV[0] or die "$ARGV[0]: $!\n";
chomp(my @lines = <$file>);
my $width = (sort { $b <=> $a } map { length } @lines)[0];
select undef, undef, undef, 0.8;    # rendering is hard work

print '+', '-' x ($width + 2), "+\n";
printf "| %-${width}s |\n", $_ for @lines;
print '+', '-' x ($width + 2), "+\n";
