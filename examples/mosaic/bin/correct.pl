#!/usr/bin/env perl

# correct.pl --size WxH --tile N CORRECTIONS INPUT OUTPUT
#
# Takes the plane of its tile off a projected tile.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options whole pair read_raster write_raster level sample);

my ($option, $corrections, $input, $output, @surplus) = options([qw(size tile)], @ARGV);
die "usage: correct.pl --size WxH --tile N CORRECTIONS INPUT OUTPUT\n" if !defined $output || @surplus;
my ($wide, $high) = pair('size', $option->{size});
my $tile = whole('tile', $option->{tile});

my @plane;
open my $in, '<', $corrections or die "$0: $corrections: $!\n";
while (my $line = <$in>) {
    my ($number, @values) = split ' ', $line;
    @plane = @values if defined $number && $number eq $tile;
}
close $in;
die "$0: $corrections: nothing about tile $tile\n" unless @plane == 9;

my $raster = read_raster($input);
my @levels = unpack 'n*', $raster->{pixels};
my $at = 0;
for my $row (0 .. $raster->{height} - 1) {
    my $y = 2 * ($raster->{y} + $row + 0.5) / $high - 1;
    for my $column (0 .. $raster->{width} - 1) {
        if ($levels[$at]) {
            my $x = 2 * ($raster->{x} + $column + 0.5) / $wide - 1;
            $levels[$at] = level(sample($levels[$at]) - $plane[0] - $plane[1] * $x - $plane[2] * $y);
            $levels[ $at + 1 ] = level(sample($levels[ $at + 1 ]) - $plane[3] - $plane[4] * $x - $plane[5] * $y);
            $levels[ $at + 2 ] = level(sample($levels[ $at + 2 ]) - $plane[6] - $plane[7] * $x - $plane[8] * $y);
        }
        $at += 3;
    }
}
$raster->{pixels} = pack 'n*', @levels;
write_raster($output, $raster);
