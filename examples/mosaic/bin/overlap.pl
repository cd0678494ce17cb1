#!/usr/bin/env perl

# overlap.pl --size WxH --first N --second N FIRST SECOND OUTPUT
#
# Where two projected tiles overlap, the difference first - second is the difference of their
# backgrounds. The program fits a plane for each colour to it by least squares, in rounds that leave
# out values beyond three deviations (edges of stars and mountains that the two exposures drew a
# little apart). The output holds, per colour, the plane and the deviation, and the sums over the
# overlap (count, x, y, xx, xy, yy), which are the weights of the next step. Coordinates are -1 .. 1
# over the whole picture of --size.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options whole pair read_raster write_padded sample);

my ($option, $first_file, $second_file, $output, @surplus) = options([qw(size first second)], @ARGV);
die "usage: overlap.pl --size WxH --first N --second N FIRST SECOND OUTPUT\n" if !defined $output || @surplus;
my ($wide, $high) = pair('size', $option->{size});
my ($first_tile, $second_tile) = map { whole($_, $option->{$_}) } qw(first second);
my ($first, $second) = map { read_raster($_) } $first_file, $second_file;

sub larger  { return $_[0] > $_[1] ? $_[0] : $_[1] }
sub smaller { return $_[0] < $_[1] ? $_[0] : $_[1] }
my $left = larger($first->{x}, $second->{x});
my $right = smaller($first->{x} + $first->{width}, $second->{x} + $second->{width});
my $top = larger($first->{y}, $second->{y});
my $bottom = smaller($first->{y} + $first->{height}, $second->{y} + $second->{height});
die "$0: $first_file and $second_file do not meet\n" if $left >= $right || $top >= $bottom;

my (@x, @y, @difference);
for my $row ($top .. $bottom - 1) {
    my ($one, $other) = map {
        [ unpack 'n*', substr $_->{pixels}, 6 * (($row - $_->{y}) * $_->{width} + $left - $_->{x}), 6 * ($right - $left) ]
    } $first, $second;
    for my $column (0 .. $right - $left - 1) {
        my $at = 3 * $column;
        next if !$one->[$at] || !$other->[$at];
        push @x, 2 * ($left + $column + 0.5) / $wide - 1;
        push @y, 2 * ($row + 0.5) / $high - 1;
        push @{ $difference[$_] }, sample($one->[ $at + $_ ]) - sample($other->[ $at + $_ ]) for 0 .. 2;
    }
}
my $count = @x;
die "$0: $first_file and $second_file share fewer than 64 pixels\n" if $count < 64;

sub solve3 {
    my ($n, $sx, $sy, $sxx, $sxy, $syy, $d, $dx, $dy) = @_;
    my @rows = ([ $n, $sx, $sy, $d ], [ $sx, $sxx, $sxy, $dx ], [ $sy, $sxy, $syy, $dy ]);
    for my $k (0 .. 2) {
        my ($pivot) = sort { abs $rows[$b][$k] <=> abs $rows[$a][$k] } $k .. 2;
        @rows[ $k, $pivot ] = @rows[ $pivot, $k ];
        die "$0: the overlap is a line, no plane fits it\n" if abs $rows[$k][$k] < 1e-12;
        for my $row (grep { $_ != $k } 0 .. 2) {
            my $times = $rows[$row][$k] / $rows[$k][$k];
            $rows[$row][$_] -= $times * $rows[$k][$_] for $k .. 3;
        }
    }
    return map { $rows[$_][3] / $rows[$_][$_] } 0 .. 2;
}

my @planes;
for my $values (@difference) {
    my ($a, $b, $c, $deviation) = (0, 0, 0, 1e9);
    for my $round (1 .. 6) {
        my ($n, $sx, $sy, $sxx, $sxy, $syy, $sd, $sdx, $sdy, $square) = (0) x 10;
        for my $at (0 .. $count - 1) {
            my ($x, $y, $d) = ($x[$at], $y[$at], $values->[$at]);
            my $off = $d - $a - $b * $x - $c * $y;
            next if abs $off > 3 * $deviation;
            $n++;
            $sx += $x;
            $sy += $y;
            $sxx += $x * $x;
            $sxy += $x * $y;
            $syy += $y * $y;
            $sd += $d;
            $sdx += $d * $x;
            $sdy += $d * $y;
            $square += $off * $off;
        }
        $deviation = sqrt($square / $n) + 1e-9 if $round > 1;
        ($a, $b, $c) = solve3($n, $sx, $sy, $sxx, $sxy, $syy, $sd, $sdx, $sdy) if $round < 6;
    }
    push @planes, sprintf '%.9e %.9e %.9e %.4e', $a, $b, $c, $deviation;
}
my ($sx, $sy, $sxx, $sxy, $syy) = (0) x 5;
for my $at (0 .. $count - 1) {
    $sx += $x[$at];
    $sy += $y[$at];
    $sxx += $x[$at]**2;
    $sxy += $x[$at] * $y[$at];
    $syy += $y[$at]**2;
}
my $sums = sprintf '%d %.9e %.9e %.9e %.9e %.9e', $count, $sx, $sy, $sxx, $sxy, $syy;
write_padded($output, join("\n", "pair $first_tile $second_tile", "sums $sums", map({ "plane $_" } @planes), ''), 512);
