#!/usr/bin/env perl

# coadd.pl --window WxH+X+Y OUTPUT TILE...
#
# Adds tiles into one strip of the picture: the mean of what is not blank. No feathering at the edges of the tiles:
# the picture has no seams because the backgrounds agree, not because they are painted over.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options window read_raster write_raster);

my ($option, $output, @tiles) = options([qw(window)], @ARGV);
die "usage: coadd.pl --window WxH+X+Y OUTPUT TILE...\n" if !defined $output || !@tiles;
my ($width, $height, $left, $top) = window('window', $option->{window});

my @sum = (0) x (3 * $width * $height);
my @count = (0) x ($width * $height);
for my $file (@tiles) {
    my $tile = read_raster($file);
    for my $row (0 .. $tile->{height} - 1) {
        my $down = $tile->{y} + $row - $top;
        next if $down < 0 || $down >= $height;
        my @levels = unpack 'n*', substr $tile->{pixels}, 6 * $row * $tile->{width}, 6 * $tile->{width};
        for my $column (0 .. $tile->{width} - 1) {
            my $from = 3 * $column;
            my $across = $tile->{x} + $column - $left;
            next if !$levels[$from] || $across < 0 || $across >= $width;
            my $to = $down * $width + $across;
            $count[$to]++;
            $to *= 3;
            $sum[$to] += $levels[$from];
            $sum[ $to + 1 ] += $levels[ $from + 1 ];
            $sum[ $to + 2 ] += $levels[ $from + 2 ];
        }
    }
}
for my $at (0 .. $width * $height - 1) {
    my $seen = $count[$at] or next;
    $sum[ 3 * $at + $_ ] = int($sum[ 3 * $at + $_ ] / $seen + 0.5) for 0 .. 2;
}
write_raster($output, { width => $width, height => $height, x => $left, y => $top, pixels => pack('n*', @sum) });
