#!/usr/bin/env perl

# observe.pl --picture WxH --frame WxH --centre X,Y --tile N --seed N --detail N OUTPUT
#
# Takes one exposure of the sky: what a camera sees that points at a place of the picture, a little askew. Each tile has
# its own rotation, scale, barrel distortion and pointing error (written into the header, as a real camera would), and its
# own brightness plane per colour (not written: finding it is the work of the steps that follow).
# The sky depends on the seed alone, so exposures of the same place agree. --detail N takes N x N samples a pixel.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options whole pair write_raster level generator);

my ($option, $output, @surplus) = options([qw(picture frame centre tile seed detail)], @ARGV);
die "usage: observe.pl --picture WxH --frame WxH --centre X,Y --tile N --seed N --detail N OUTPUT\n" if !defined $output || @surplus;
my ($picture_width, $picture_height) = pair('picture', $option->{picture});
my ($width, $height) = pair('frame', $option->{frame});
my ($x, $y) = $option->{centre} =~ /^(\d+(?:\.\d+)?),(\d+(?:\.\d+)?)$/ or die "$0: --centre $option->{centre}: give X,Y\n";
my ($tile, $seed, $detail) = map { whole($_, $option->{$_}) } qw(tile seed detail);

# The camera.
my $random = generator($seed * 1000 + $tile);
my $swing = sub { return (2 * $random->() - 1) * $_[0] };
my $turn = $swing->(0.05);
my $scale = 1 + $swing->(0.015);
my $barrel = 0.004 + $swing->(0.004);
$x += $swing->(0.012 * $width);
$y += $swing->(0.012 * $height);
my @plane = map { [ $swing->(0.11), $swing->(0.07), $swing->(0.07) ] } 1 .. 3;

# Value noise on a lattice of 256 x 256 that repeats.
my $chance = generator($seed);
my @lattice = map { $chance->() } 0 .. 65535;

sub noise {
    my ($u, $v) = @_;
    my $i = int $u;
    my $j = int $v;
    my $a = $u - $i;
    my $b = $v - $j;
    $a *= $a * (3 - 2 * $a);
    $b *= $b * (3 - 2 * $b);
    my $row = ($j & 255) << 8;
    my $below = (($j + 1) & 255) << 8;
    my $left = $i & 255;
    my $right = ($i + 1) & 255;
    my $top = $lattice[ $row + $left ] * (1 - $a) + $lattice[ $row + $right ] * $a;
    return $top + ($lattice[ $below + $left ] * (1 - $a) + $lattice[ $below + $right ] * $a - $top) * $b;
}

sub clouds {
    my ($u, $v, $octaves) = @_;
    my ($sum, $weight) = (0, 0.5);
    for (1 .. $octaves) {
        $sum += $weight * noise($u, $v);
        $u = $u * 2.03 + 17.3;
        $v = $v * 2.03 + 9.1;
        $weight /= 2;
    }
    return $sum;
}

# Ridges of mountains: [height of the foot, height, roughness, offset, colour]; far ones first.
my @ridges = ([ 0.80, 0.20, 2.6, 3, [ 0.20, 0.21, 0.33 ] ], [ 0.90, 0.24, 3.7, 41, [ 0.10, 0.11, 0.19 ] ], [ 1.02, 0.26, 5.5, 87, [ 0.028, 0.034, 0.055 ] ]);
my %crests;

# Colour at a place of the picture; u runs 0 .. width / height, v 0 .. 1 downwards, both a little beyond.
sub sky {
    my ($u, $v) = @_;
    for my $nearer (2, 1, 0) {
        my ($foot, $rise, $rough, $offset, $colour) = @{ $ridges[$nearer] };
        next if $v < $foot - $rise;
        # In steps of the picture's width that are the same for every exposure.
        my $step = int($u * 4000);
        my $crest = $crests{$nearer}{$step} //= $foot - $rise * clouds($step / 4000 * $rough + $offset, $offset + 0.5, 6);
        next if $v < $crest;
        my $haze = ($v - $crest) * 0.55 * (2 - $nearer);
        my $grain = 0.02 * (clouds($u * 55 + 7, $v * 55 + 7, 2) - 0.35);
        return ($colour->[0] + $haze * 0.9 + $grain, $colour->[1] + $haze * 0.75 + $grain, $colour->[2] + $haze * 0.8 + $grain);
    }
    # Dusk below, night above.
    my $dusk = $v < 0 ? 0 : $v**3.2;
    my ($red, $green, $blue) = (0.035 + 0.80 * $dusk, 0.05 + 0.40 * $dusk, 0.13 + 0.22 * $dusk);
    # A band of the galaxy across, torn by dust.
    my $warp = clouds($u * 2.2 + 5, $v * 2.2 + 5, 4);
    my $along = $u * 0.62 + $v * 0.78 - 0.78 + 0.34 * ($warp - 0.5);
    my $band = exp(-$along * $along * 22) * (1 - 0.75 * $dusk);
    if ($band > 0.01) {
        my $gas = clouds($u * 5 + 3 * $warp + 20, $v * 5 + 31, 6);
        my $dust = clouds($u * 8 + 60, $v * 8 + 4 * $warp + 50, 5);
        my $glow = $band * $gas * $gas * 2.3;
        my $shade = $dust > 0.5 ? 1 - 2.6 * ($dust - 0.5) * $band : 1;
        $red = ($red + $glow * (0.50 + 0.75 * $warp)) * $shade;
        $green = ($green + $glow * 0.47) * $shade;
        $blue = ($blue + $glow * (1.35 - 0.70 * $warp)) * $shade;
    }
    return ($red, $green, $blue);
}

# [u, v, brightness, warmth]; drawn as small discs by every exposure that they fall into.
my @stars = map { [ $chance->() * 1.5 - 0.05, $chance->() * 0.85 - 0.05, 0.06 + 0.9 * $chance->()**9, $chance->() ] } 1 .. 1400;

my ($cosine, $sine) = (cos $turn, sin $turn);
my $radius = ($width + $height) / 4;
my (@red, @green, @blue);
for my $j (0 .. $height - 1) {
    for my $i (0 .. $width - 1) {
        my ($red, $green, $blue) = (0, 0, 0);
        for my $part (0 .. $detail * $detail - 1) {
            my $a = $i + (0.5 + $part % $detail) / $detail - $width / 2;
            my $b = $j + (0.5 + int($part / $detail)) / $detail - $height / 2;
            my $stretch = $scale * (1 + $barrel * ($a * $a + $b * $b) / ($radius * $radius));
            my ($r, $g, $l) = sky(
                ($x + $stretch * ($a * $cosine - $b * $sine)) / $picture_height,
                ($y + $stretch * ($a * $sine + $b * $cosine)) / $picture_height,
            );
            $red += $r;
            $green += $g;
            $blue += $l;
        }
        push @red, $red / $detail**2;
        push @green, $green / $detail**2;
        push @blue, $blue / $detail**2;
    }
}

# Stars above the mountains, through the inverse of the camera (two rounds undo so small a distortion).
my $disc = 0.0011 * $picture_height;
for my $star (@stars) {
    my ($u, $v, $light, $warmth) = @$star;
    next if $v > 0.60 + 0.1 * $warmth;
    my ($dx, $dy) = ($u * $picture_height - $x, $v * $picture_height - $y);
    my ($a0, $b0) = (($dx * $cosine + $dy * $sine) / $scale, ($dy * $cosine - $dx * $sine) / $scale);
    my ($a, $b) = ($a0, $b0);
    for (1 .. 4) {
        my $stretch = 1 + $barrel * ($a * $a + $b * $b) / ($radius * $radius);
        ($a, $b) = ($a0 / $stretch, $b0 / $stretch);
    }
    $a += $width / 2 - 0.5;
    $b += $height / 2 - 0.5;
    my $size = ($disc < 0.75 ? 0.75 : $disc) * (1 + 0.8 * $light);
    my $reach = int(4 * $size) + 1;
    for my $j (int($b) - $reach .. int($b) + $reach) {
        next if $j < 0 || $j >= $height;
        for my $i (int($a) - $reach .. int($a) + $reach) {
            next if $i < 0 || $i >= $width;
            my $shine = $light * exp(-(($i - $a)**2 + ($j - $b)**2) / (2 * $size * $size));
            my $at = $j * $width + $i;
            $red[$at] += $shine * (0.75 + 0.25 * $warmth);
            $green[$at] += $shine * 0.88;
            $blue[$at] += $shine * (1.05 - 0.3 * $warmth);
        }
    }
}

# The brightness that this exposure adds: one plane for each colour.
my @levels;
for my $j (0 .. $height - 1) {
    my $down = 2 * $j / $height - 1;
    for my $i (0 .. $width - 1) {
        my $across = 2 * $i / $width - 1;
        my $at = $j * $width + $i;
        my $colour = 0;
        for my $value ($red[$at], $green[$at], $blue[$at]) {
            my $plane = $plane[ $colour++ ];
            push @levels, level($value + $plane->[0] + $plane->[1] * $across + $plane->[2] * $down);
        }
    }
}
write_raster($output, {
    width => $width, height => $height, x => 0, y => 0, pixels => pack('n*', @levels),
    facts => { map { ($_->[0] => sprintf '%.9f', $_->[1]) } [ centrex => $x ], [ centrey => $y ], [ turn => $turn ], [ scale => $scale ], [ barrel => $barrel ] },
});
