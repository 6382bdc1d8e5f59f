# Lists of mistakes, for the scripts that plant them: blocks between empty lines,
#
#   FILE: what goes wrong         `FILE #2:` where the text is there more than once: the second
#   -text as it stands            must be there once; several lines are several of these
#   +text in its place            none: it is taken away
#   KEY: VALUE                    as far as the script knows the key
#
# and comments, which begin with #. What does not fit its source is an error: a list follows the
# code.
package mutants;
use strict;
use warnings;
use Exporter 'import';
our @EXPORT = qw(read_mutants slurp spill);

sub slurp {
  my ($path) = @_;
  open(my $file, '<', $path) or die "$path: $!\n";
  local $/;
  return scalar <$file>;
}

sub spill {
  my ($path, $text) = @_;
  open(my $file, '>', $path) or die "$path: $!\n";
  print $file $text;
  close $file or die "$path: $!\n";
}

# Of each in the list: file, below $folder; what goes wrong; text, the mutated source; and the keys.
sub read_mutants {
  my ($list, $folder, @keys) = @_;
  my @mutants;
  for my $block (split /\n(?:[ \t]*\n)+/, slurp($list)) {
    my @lines = grep { !/^#/ && $_ ne '' } split /\n/, $block;
    next unless @lines;
    my ($file, $nth, $what) = shift(@lines) =~ /^(\S+?)(?: #(\d+))?: (.+)$/
      or die "$list: not a mutant: $block\n";
    my %mutant = (file => $file, what => $what, map { $_ => '' } @keys);
    my (@from, @to);
    for my $line (@lines) {
      if ($line =~ /^-(.*)/) { push @from, $1 }
      elsif ($line =~ /^\+(.*)/) { push @to, $1 }
      elsif ($line =~ /^(\w+): (.+)$/ && exists $mutant{$1}) { $mutant{$1} = $2 }
      else { die "$list: $what: not understood: $line\n" }
    }
    my ($from, $to) = (join("\n", @from), join("\n", @to));
    die "$list: $file: $what: nothing is changed\n" if $from eq '' || $from eq $to;
    my $text = slurp("$folder/$file");
    my @at;
    for (my $p = -1; ($p = index($text, $from, $p + 1)) >= 0;) { push @at, $p }
    die "$list: $file: $what: the text is there " . @at . " times\n"
      if defined $nth ? $nth < 1 || $nth > @at : @at != 1;
    substr($text, $at[($nth || 1) - 1], length $from) = $to;
    push @mutants, { %mutant, text => $text };
  }
  return @mutants;
}

1;
