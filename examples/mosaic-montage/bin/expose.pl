#!/usr/bin/env perl

# expose.pl --centre RA,DEC --turn DEGREES --pixels N --seed N --tile N OUTPUT
#
# Writes one exposure as a FITS file: N x N pixels of three arcseconds, tangential projection around its own centre, turned.
# The sky (a galaxy at 210.8 +54.35 and stars around it) depends on the seed alone. Each tile has a brightness plane of
# its own, like those of detectors and moonlight; the header does not hold it.

use strict;
use warnings;

my %option;
while (@ARGV > 1) {
    my ($name, $value) = splice @ARGV, 0, 2;
    $name =~ s/^--// && $name =~ /^(?:centre|turn|pixels|seed|tile)$/ or die "$0: unknown option $name\n";
    $option{$name} = $value;
}
my $output = shift @ARGV;
for my $name (qw(centre turn pixels seed tile)) { die "$0: --$name is missing\n" unless defined $option{$name} }
die "$0: no output named\n" unless defined $output;
my ($ra, $dec) = $option{centre} =~ /^([0-9.]+),([0-9.]+)$/ or die "$0: --centre $option{centre}: give RA,DEC in degrees\n";
my ($pixels, $seed, $tile) = map { $option{$_} =~ /^[1-9][0-9]{0,6}$/ ? $option{$_} : die "$0: --$_ $option{$_}: give a whole number above 0\n" } qw(pixels seed tile);
$option{turn} =~ /^-?[0-9]+(?:\.[0-9]+)?$/ or die "$0: --turn $option{turn}: give degrees\n";

use constant DEGREE => atan2(1, 1) / 45;
use constant SCALE  => 3 / 3600;
my @galaxy = (210.8, 54.35);

sub generator {
    my $state = ($_[0] * 7919 + 104729) % 2147483647 || 1;
    my $next = sub { $state = $state * 48271 % 2147483647; return $state / 2147483647 };
    $next->() for 1 .. 8;
    return $next;
}

# Place on the plane that touches the sky at a centre, in degrees.
sub on_plane {
    my ($ra, $dec, $ra0, $dec0) = map { $_ * DEGREE } @_;
    my $depth = sin($dec) * sin($dec0) + cos($dec) * cos($dec0) * cos($ra - $ra0);
    return (cos($dec) * sin($ra - $ra0) / $depth / DEGREE, (sin($dec) * cos($dec0) - cos($dec) * sin($dec0) * cos($ra - $ra0)) / $depth / DEGREE);
}

sub on_sky {
    my ($x, $y, $ra0, $dec0) = map { $_ * DEGREE } @_;
    my $depth = cos($dec0) - $y * sin($dec0);
    return (($ra0 + atan2($x, $depth)) / DEGREE, atan2((sin($dec0) + $y * cos($dec0)), sqrt($x * $x + $depth * $depth)) / DEGREE);
}

my ($cosine, $sine) = (cos($option{turn} * DEGREE), sin($option{turn} * DEGREE));
my $middle = ($pixels + 1) / 2;
my $random = generator($seed * 1000 + $tile);
my ($level, $across, $down) = map { $_->[0] + $_->[1] * $random->() } [ 40, 50 ], [ -25, 50 ], [ -25, 50 ];

my @image;
for my $j (1 .. $pixels) {
    for my $i (1 .. $pixels) {
        my ($a, $b) = (-($i - $middle) * SCALE, ($j - $middle) * SCALE);
        my ($x, $y) = on_plane(on_sky($a * $cosine - $b * $sine, $a * $sine + $b * $cosine, $ra, $dec), @galaxy);
        my $radius = sqrt($x * $x + $y * $y) + 1e-6;
        my $arm = cos(2 * (atan2($y, $x) - 3.2 * log($radius / 0.01)));
        my $light = 260 * exp(-$radius / 0.008) + 75 * exp(-$radius / 0.045) * (1 + 0.75 * $arm * (1 - exp(-$radius / 0.02)));
        push @image, $light + $level + $across * ($i - $middle) / $middle + $down * ($j - $middle) / $middle;
    }
}
my $chance = generator($seed);
for (1 .. 400) {
    my ($x, $y, $light) = (0.34 * $chance->() - 0.17, 0.34 * $chance->() - 0.17, 15 + 900 * $chance->()**7);
    my ($a0, $b0) = on_plane(on_sky($x, $y, @galaxy), $ra, $dec);
    my ($i0, $j0) = ($middle - ($a0 * $cosine + $b0 * $sine) / SCALE, $middle + ($b0 * $cosine - $a0 * $sine) / SCALE);
    for my $j (int($j0) - 7 .. int($j0) + 8) {
        next if $j < 1 || $j > $pixels;
        for my $i (int($i0) - 7 .. int($i0) + 8) {
            next if $i < 1 || $i > $pixels;
            $image[ ($j - 1) * $pixels + $i - 1 ] += $light * exp(-(($i - $i0)**2 + ($j - $j0)**2) / (2 * 1.3**2));
        }
    }
}

# FITS: cards of 80 characters, header and data each filled up to blocks of 2,880 bytes, numbers big-endian.
my @cards = (
    [ SIMPLE => 'T' ], [ BITPIX => -32 ], [ NAXIS => 2 ], [ NAXIS1 => $pixels ], [ NAXIS2 => $pixels ],
    [ CTYPE1 => "'RA---TAN'" ], [ CTYPE2 => "'DEC--TAN'" ], [ CRVAL1 => $ra ], [ CRVAL2 => $dec ], [ CRPIX1 => $middle ], [ CRPIX2 => $middle ],
    [ CDELT1 => sprintf '%.12f', -SCALE ], [ CDELT2 => sprintf '%.12f', SCALE ], [ CROTA2 => $option{turn} ], [ EQUINOX => '2000.0' ],
);
my $header = join '', map({ sprintf '%-80s', $_->[1] =~ /^'/ ? sprintf('%-8s= %s', @$_) : sprintf('%-8s= %20s', @$_) } @cards), sprintf('%-80s', 'END');
my $data = pack 'f>*', @image;
open my $out, '>:raw', $output or die "$0: $output: $!\n";
print $out $header, ' ' x (-length($header) % 2880), $data, "\0" x (-length($data) % 2880);
close $out or die "$0: $output: $!\n";
