#!/usr/bin/env perl

# fit-table.pl IMAGES OUTPUT FIT...
#
# The table of fits that mBgModel reads: one line for each file `fit-A-B.txt` with what mFitplane printed about the
# difference of tiles A and B. Tiles are called by the number (cntr) that they have in the table of images.

use strict;
use warnings;

my ($images, $output, @fits) = @ARGV;
die "usage: fit-table.pl IMAGES OUTPUT FIT...\n" unless @fits;

# Columns in the middle may be blank or hold several terms; the number is the first and the name the last.
my %number;
open my $in, '<', $images or die "$0: $images: $!\n";
while (my $line = <$in>) {
    next if $line =~ /^[\\|]/;
    my @values = split ' ', $line;
    $number{$1} = $values[0] if @values && $values[-1] =~ /projected-(\d+)\.fits$/;
}
close $in;

my @columns = qw(a b c crpix1 crpix2 xmin xmax ymin ymax xcenter ycenter npixel rms boxx boxy boxwidth boxheight boxang);
open my $out, '>', $output or die "$0: $output: $!\n";
print $out '|', join('|', map { sprintf '%16s', $_ } qw(plus minus), @columns), "|\n";
for my $file (@fits) {
    my ($plus, $minus) = $file =~ /fit-(\d+)-(\d+)\.txt$/ or die "$0: $file: not called fit-A-B.txt\n";
    for my $tile ($plus, $minus) { die "$0: tile $tile is not in $images\n" unless defined $number{$tile} }
    open my $fit, '<', $file or die "$0: $file: $!\n";
    my $text = join '', <$fit>;
    close $fit;
    $text =~ /stat="OK"/ or die "$0: $file: $text\n";
    my %found = $text =~ /(\w+)=([-+.0-9eE]+)/g;
    my @values = map { $found{$_} // die "$0: $file: no $_\n" } @columns;
    print $out ' ', join(' ', map { sprintf '%16s', $_ } $number{$plus}, $number{$minus}, @values), " \n";
}
close $out or die "$0: $output: $!\n";
