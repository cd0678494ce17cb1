#!/usr/bin/env perl

# background.pl --tiles N OUTPUT FIT...
#
# Finds one plane for each tile and colour. With the planes subtracted, all tiles agree where they
# overlap: least squares over all fitted differences at once, each weighted by its overlap.
# Differences cannot show a plane that all tiles share, so the planes have to be zero on average.
# Writes one line of 160 bytes for each tile, after a heading.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options whole);

my ($option, $output, @fits) = options([qw(tiles)], @ARGV);
die "usage: background.pl --tiles N OUTPUT FIT...\n" if !defined $output || !@fits;
my $tiles = whole('tiles', $option->{tiles});

my @pairs;
for my $file (@fits) {
    open my $in, '<', $file or die "$0: $file: $!\n";
    my %found;
    while (my $line = <$in>) {
        my ($key, @values) = split ' ', $line;
        push @{ $found{$key} }, [@values] if defined $key;
    }
    close $in;
    die "$0: $file: not a fit\n" unless $found{pair} && $found{sums} && @{ $found{plane} || [] } == 3;
    my ($first, $second) = map { $_ - 1 } @{ $found{pair}[0] };
    die "$0: $file: tile beyond $tiles\n" if $first < 0 || $second < 0 || $first >= $tiles || $second >= $tiles;
    push @pairs, { first => $first, second => $second, sums => $found{sums}[0], planes => $found{plane} };
}

# Gauss with pivoting: the solution of a dense system, given as rows with the right side as last column.
sub solve {
    my ($rows) = @_;
    my $last = $#$rows;
    for my $k (0 .. $last) {
        my $pivot = $k;
        for ($k + 1 .. $last) { $pivot = $_ if abs $rows->[$_][$k] > abs $rows->[$pivot][$k] }
        @$rows[ $k, $pivot ] = @$rows[ $pivot, $k ];
        die "$0: the overlaps do not connect all tiles\n" if abs $rows->[$k][$k] < 1e-9;
        for my $row ($k + 1 .. $last) {
            my $times = $rows->[$row][$k] / $rows->[$k][$k] or next;
            $rows->[$row][$_] -= $times * $rows->[$k][$_] for $k .. $last + 1;
        }
    }
    my @solution;
    for my $k (reverse 0 .. $last) {
        my $value = $rows->[$k][ $last + 1 ];
        $value -= $rows->[$k][$_] * $solution[$_] for $k + 1 .. $last;
        $solution[$k] = $value / $rows->[$k][$k];
    }
    return @solution;
}

my @planes;
for my $colour (0 .. 2) {
    my $unknowns = 3 * $tiles;
    my @rows = map { [ (0) x ($unknowns + 1) ] } 1 .. $unknowns;
    for my $pair (@pairs) {
        my ($n, $sx, $sy, $sxx, $sxy, $syy) = @{ $pair->{sums} };
        my @moments = ([ $n, $sx, $sy ], [ $sx, $sxx, $sxy ], [ $sy, $sxy, $syy ]);
        my @fit = @{ $pair->{planes}[$colour] }[ 0 .. 2 ];
        my ($p, $q) = (3 * $pair->{first}, 3 * $pair->{second});
        for my $i (0 .. 2) {
            my $wanted = 0;
            for my $j (0 .. 2) {
                my $moment = $moments[$i][$j];
                $rows[ $p + $i ][ $p + $j ] += $moment;
                $rows[ $p + $i ][ $q + $j ] -= $moment;
                $rows[ $q + $i ][ $q + $j ] += $moment;
                $rows[ $q + $i ][ $p + $j ] -= $moment;
                $wanted += $moment * $fit[$j];
            }
            $rows[ $p + $i ][$unknowns] += $wanted;
            $rows[ $q + $i ][$unknowns] -= $wanted;
        }
    }
    # The sum of each coefficient over all tiles is zero.
    for my $i (0 .. 2) {
        for my $one (0 .. $tiles - 1) {
            $rows[ 3 * $one + $i ][ 3 * $_ + $i ] += 1 for 0 .. $tiles - 1;
        }
    }
    $planes[$colour] = [ solve(\@rows) ];
}

open my $out, '>:raw', $output or die "$0: $output: $!\n";
printf $out "%-159s\n", 'tile, then a b c of the plane a + b x + c y in red, green and blue';
for my $tile (0 .. $tiles - 1) {
    printf $out "%-159s\n", join ' ', $tile + 1, map { my $plane = $_; map { sprintf '%.7e', $plane->[ 3 * $tile + $_ ] } 0 .. 2 } @planes;
}
close $out or die "$0: $output: $!\n";
