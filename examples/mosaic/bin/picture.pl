#!/usr/bin/env perl

# picture.pl --size WxH PNG STATISTICS STRIP...
#
# Puts the strips together, maps brightness to what a screen shows and writes a PNG (its data is stored, not compressed:
# that needs no library) and statistics of the mosaic as JSON.

use strict;
use warnings;
use File::Basename 'dirname';
use lib dirname(__FILE__);
use Mosaic qw(options pair read_raster sample);

my ($option, $output, $statistics, @strips) = options([qw(size)], @ARGV);
die "usage: picture.pl --size WxH PNG STATISTICS STRIP...\n" if !defined $statistics || !@strips;
my ($width, $height) = pair('size', $option->{size});

my @crc_table = map {
    my $value = $_;
    $value = $value & 1 ? 0xedb88320 ^ ($value >> 1) : $value >> 1 for 1 .. 8;
    $value;
} 0 .. 255;

sub crc32 {
    my $crc = 0xffffffff;
    $crc = $crc_table[ ($crc ^ $_) & 255 ] ^ ($crc >> 8) for unpack 'C*', $_[0];
    return $crc ^ 0xffffffff;
}

sub chunk {
    my ($type, $data) = @_;
    return pack('N', length $data) . $type . $data . pack('N', crc32($type . $data));
}

# A zlib stream of stored blocks.
sub stored {
    my ($data) = @_;
    my ($stream, $low, $high) = ("\x78\x01", 1, 0);
    for (my $from = 0 ; $from < length $data ; $from += 65535) {
        my $block = substr $data, $from, 65535;
        $stream .= pack('Cvv', $from + 65535 >= length $data, length $block, 0xffff & ~length $block) . $block;
    }
    # The sums of Adler-32; 5552 bytes cannot overflow before the remainder is taken.
    for (my $from = 0 ; $from < length $data ; $from += 5552) {
        $high += $low += $_ for unpack 'C*', substr $data, $from, 5552;
        $low %= 65521;
        $high %= 65521;
    }
    return $stream . pack('nn', $high, $low);
}

# From stored sample to screen: black and white point, then the screen's curve.
my @tone = (0) x 65536;
for my $level (1 .. 65535) {
    my $value = (sample($level) + 0.01) / 1.02;
    $tone[$level] = $value <= 0 ? 0 : $value >= 1 ? 255 : int(255 * $value**(1 / 1.8) + 0.5);
}

my @rows;
my ($seen, @total, @least, @most) = (0, 0, 0, 0);
@least = (65535) x 3;
@most = (0) x 3;
for my $file (@strips) {
    my $strip = read_raster($file);
    die "$0: $file is not as wide as the picture\n" if $strip->{width} != $width || $strip->{x} != 0;
    for my $row (0 .. $strip->{height} - 1) {
        my @levels = unpack 'n*', substr $strip->{pixels}, 6 * $row * $width, 6 * $width;
        $rows[ $strip->{y} + $row ] = pack 'C*', 0, @tone[@levels];
        for (my $at = 0 ; $at < @levels ; $at += 3) {
            next unless $levels[$at];
            $seen++;
            for my $colour (0 .. 2) {
                my $level = $levels[ $at + $colour ];
                $total[$colour] += $level;
                $least[$colour] = $level if $level < $least[$colour];
                $most[$colour] = $level if $level > $most[$colour];
            }
        }
    }
}
die "$0: the strips do not fill $height rows\n" if @rows != $height || grep { !defined } @rows;
die "$0: the mosaic is blank\n" unless $seen;

open my $out, '>:raw', $output or die "$0: $output: $!\n";
print $out "\x89PNG\r\n\x1a\n", chunk('IHDR', pack 'NNCCCCC', $width, $height, 8, 2, 0, 0, 0), chunk('IDAT', stored(join '', @rows)), chunk('IEND', '');
close $out or die "$0: $output: $!\n";

open my $facts, '>', $statistics or die "$0: $statistics: $!\n";
printf $facts qq({"width":%d,"height":%d,"coverage":%.6f,"strips":%d), $width, $height, $seen / ($width * $height), scalar @strips;
for my $colour (0 .. 2) {
    printf $facts qq(,"%s":{"mean":%.6f,"least":%.6f,"most":%.6f}), (qw(red green blue))[$colour], sample($total[$colour] / $seen), sample($least[$colour]), sample($most[$colour]);
}
print $facts "}\n";
close $facts or die "$0: $statistics: $!\n";
