package Mosaic;

# Code that the programs of this example share: their arguments, their raster format and their random numbers.
#
# A raster is a PPM file of 16-bit samples, so every intermediate file opens in an image viewer. Its header always has
# 256 bytes, so the data dependencies of the workflow document can give file sizes before any program runs.
# The comment in the header holds `key=value` pairs: `x` and `y` place the raster in the picture. A pixel of three
# zeros is blank (the camera saw nothing there).
#
# Only modules of perl-base are used, which every Debian system has.

use strict;
use warnings;
use Exporter 'import';

our @EXPORT_OK = qw(options whole pair window read_raster write_raster write_padded level sample generator);

use constant HEADER_BYTES => 256;

# Brightness -0.5 .. 1.5 is stored as 1 .. 65535.
use constant LOWEST => -0.5;
use constant STEPS  => 65534 / 2;

sub level  { return int(1.5 + ($_[0] < -0.5 ? 0 : $_[0] > 1.5 ? 2 : $_[0] + 0.5) * STEPS) }
sub sample { return ($_[0] - 1) / STEPS + LOWEST }

# `--name value` pairs, then file names. Every expected option must be present, and no other.
sub options {
    my ($names, @arguments) = @_;
    my %expected = map { $_ => 1 } @$names;
    my (%given, @files);
    while (@arguments) {
        my $word = shift @arguments;
        if ($word =~ /^--(.+)$/) {
            die "$0: unknown option --$1; known: @$names\n" unless $expected{$1};
            die "$0: --$1 needs a value\n" unless @arguments;
            $given{$1} = shift @arguments;
        } else {
            push @files, $word;
        }
    }
    for my $name (@$names) { die "$0: --$name is missing\n" unless defined $given{$name} }
    return (\%given, @files);
}

sub whole {
    my ($name, $text) = @_;
    die "$0: --$name $text: give a whole number above 0\n" unless $text =~ /^[1-9][0-9]{0,8}$/;
    return $text;
}

# `640x480`
sub pair {
    my ($name, $text) = @_;
    die "$0: --$name $text: give WIDTHxHEIGHT\n" unless $text =~ /^([1-9][0-9]{0,4})x([1-9][0-9]{0,4})$/;
    return ($1, $2);
}

# `640x480+10+20`
sub window {
    my ($name, $text) = @_;
    die "$0: --$name $text: give WIDTHxHEIGHT+X+Y\n" unless $text =~ /^([1-9][0-9]{0,4})x([1-9][0-9]{0,4})\+([0-9]{1,5})\+([0-9]{1,5})$/;
    return ($1, $2, $3, $4);
}

# { width, height, x, y, facts, pixels }: pixels is one packed string, six bytes a pixel, row by row.
sub read_raster {
    my ($file) = @_;
    open my $in, '<:raw', $file or die "$0: $file: $!\n";
    read($in, my $header, HEADER_BYTES) == HEADER_BYTES or die "$0: $file: too short for a raster\n";
    $header =~ /^P6\n# ([^\n]*)\n(\d+) (\d+)\n65535\n$/ or die "$0: $file: not a raster of this example\n";
    my ($comment, $width, $height) = ($1, $2, $3);
    my %facts = map { /^([^=]+)=(.*)$/ ? ($1 => $2) : () } split ' ', $comment;
    my $bytes = 6 * $width * $height;
    read($in, my $pixels, $bytes + 1) == $bytes or die "$0: $file: $bytes bytes of pixels expected\n";
    close $in;
    return { width => $width, height => $height, x => $facts{x} || 0, y => $facts{y} || 0, facts => \%facts, pixels => $pixels };
}

sub write_raster {
    my ($file, $raster) = @_;
    my %facts = (%{ $raster->{facts} || {} }, x => $raster->{x}, y => $raster->{y});
    my $comment = join ' ', map { "$_=$facts{$_}" } sort keys %facts;
    my $rest = "\n$raster->{width} $raster->{height}\n65535\n";
    my $room = HEADER_BYTES - length("P6\n# ") - length($rest);
    die "$0: $file: the facts do not fit the header\n" if length($comment) > $room;
    open my $out, '>:raw', $file or die "$0: $file: $!\n";
    print $out "P6\n# ", $comment, ' ' x ($room - length $comment), $rest, $raster->{pixels};
    close $out or die "$0: $file: $!\n";
    return;
}

# Text padded with blanks to a size known in advance.
sub write_padded {
    my ($file, $text, $bytes) = @_;
    die "$0: $file: more than $bytes bytes\n" if length($text) > $bytes - 1;
    open my $out, '>:raw', $file or die "$0: $file: $!\n";
    print $out $text, ' ' x ($bytes - 1 - length $text), "\n";
    close $out or die "$0: $file: $!\n";
    return;
}

# Random numbers 0 <= r < 1 that are the same on every machine (a multiplicative generator modulo a prime).
sub generator {
    my ($seed) = @_;
    my $state = ($seed * 7919 + 104729) % 2147483647 || 1;
    my $next = sub { $state = $state * 48271 % 2147483647; return $state / 2147483647 };
    $next->() for 1 .. 8;
    return $next;
}

1;
