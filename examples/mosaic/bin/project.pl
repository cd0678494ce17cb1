#!/usr/bin/env perl

# project.pl --window WxH+X+Y --detail N INPUT OUTPUT
#
# Brings an exposure onto the grid of the picture: for N x N places in every pixel of the window, where the exposure saw
# them (rotation, scale and distortion undone) and the value there by cubic interpolation over 4 x 4 neighbours.
# Pixels that the exposure did not see in full stay blank.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options whole window read_raster write_raster);

my ($option, $input, $output, @surplus) = options([qw(window detail)], @ARGV);
die "usage: project.pl --window WxH+X+Y --detail N INPUT OUTPUT\n" if !defined $output || @surplus;
my ($width, $height, $left, $top) = window('window', $option->{window});
my $detail = whole('detail', $option->{detail});

my $raw = read_raster($input);
my ($x, $y, $turn, $scale, $barrel) = map { $raw->{facts}{$_} // die "$0: $input: no camera in its header\n" } qw(centrex centrey turn scale barrel);
my ($wide, $high) = @$raw{qw(width height)};
my @levels = unpack 'n*', $raw->{pixels};
my ($cosine, $sine) = (cos $turn, sin $turn);
my $radius = ($wide + $high) / 4;
my $bend = $barrel / ($radius * $radius);

# Weights of the four neighbours for a place between the second and the third (Catmull and Rom's cubic).
sub weights {
    my ($t) = @_;
    my $s = 1 - $t;
    return (-0.5 * $t * $s * $s, 1 + $t * $t * (1.5 * $t - 2.5), 1 + $s * $s * (1.5 * $s - 2.5), -0.5 * $s * $t * $t);
}

# The colour of one place of the picture, or nothing where the exposure does not reach.
sub seen_at {
    my ($dx, $dy) = @_;
    my $a0 = ($dx * $cosine + $dy * $sine) / $scale;
    my $b0 = ($dy * $cosine - $dx * $sine) / $scale;
    my ($a, $b) = ($a0, $b0);
    for (1 .. 4) {
        my $stretch = 1 + $bend * ($a * $a + $b * $b);
        $a = $a0 / $stretch;
        $b = $b0 / $stretch;
    }
    $a += $wide / 2 - 0.5;
    $b += $high / 2 - 0.5;
    my ($i, $j) = (int $a, int $b);
    return if $a < 1 || $b < 1 || $i > $wide - 3 || $j > $high - 3;
    my @across = weights($a - $i);
    my ($red, $green, $blue) = (0, 0, 0);
    my $at = 3 * (($j - 1) * $wide + $i - 1);
    for my $down (weights($b - $j)) {
        my ($p, $q, $r, $s) = map { $_ * $down } @across;
        $red += $p * $levels[$at] + $q * $levels[ $at + 3 ] + $r * $levels[ $at + 6 ] + $s * $levels[ $at + 9 ];
        $green += $p * $levels[ $at + 1 ] + $q * $levels[ $at + 4 ] + $r * $levels[ $at + 7 ] + $s * $levels[ $at + 10 ];
        $blue += $p * $levels[ $at + 2 ] + $q * $levels[ $at + 5 ] + $r * $levels[ $at + 8 ] + $s * $levels[ $at + 11 ];
        $at += 3 * $wide;
    }
    return ($red, $green, $blue);
}

my @places = map { (0.5 + $_) / $detail } 0 .. $detail - 1;
my @projected;
for my $row (0 .. $height - 1) {
    PIXEL: for my $column (0 .. $width - 1) {
        my @sum = (0, 0, 0);
        for my $down (@places) {
            for my $across (@places) {
                my @colour = seen_at($left + $column + $across - $x, $top + $row + $down - $y);
                if (!@colour) {
                    push @projected, 0, 0, 0;
                    next PIXEL;
                }
                $sum[$_] += $colour[$_] for 0 .. 2;
            }
        }
        push @projected, map { my $mean = $_ / $detail**2; $mean < 1 ? 1 : $mean > 65535 ? 65535 : int($mean + 0.5) } @sum;
    }
}
write_raster($output, { width => $width, height => $height, x => $left, y => $top, pixels => pack('n*', @projected) });
