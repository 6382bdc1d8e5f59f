#include "reward/verifiers/math_words.h"

#include <algorithm>

namespace tailrace {

namespace {

// "second" is left out: it is a unit.
constexpr std::string_view kValueWords[] = {
    // numbers
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred",
    "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions", "trillion",
    "trillions", "dozen", "dozens", "tens", "score", "scores", "gross", "lakh", "lakhs", "crore",
    "crores", "myriad", "googol",
    // fractions
    "half", "halves", "third", "thirds", "quarter", "quarters", "fourth", "fourths", "fifth",
    "fifths", "sixth", "sixths", "seventh", "sevenths", "eighth", "eighths", "ninth", "ninths",
    "tenth", "tenths", "eleventh", "elevenths", "twelfth", "twelfths", "sixteenth", "sixteenths",
    "twentieth", "twentieths", "hundredth", "hundredths", "thousandth", "thousandths", "millionth",
    "millionths", "billionth", "billionths", "permille", "ppm",
    // operators
    "plus", "minus", "times", "divided", "over", "multiplied", "added", "subtracted", "squared",
    "cubed", "factorial", "power", "root", "raised", "choose", "mod", "modulo", "doubled",
    "tripled", "halved", "twice", "double", "triple", "negative", "below", "not", "wrong"};

struct Unit {
  std::string_view word, name;
};
constexpr Unit kUnitNames[] = {{"nm", "nm"},
                               {"nanometer", "nm"},
                               {"mm", "mm"},
                               {"millimeter", "mm"},
                               {"millimetre", "mm"},
                               {"cm", "cm"},
                               {"centimeter", "cm"},
                               {"centimetre", "cm"},
                               {"m", "m"},
                               {"meter", "m"},
                               {"metre", "m"},
                               {"km", "km"},
                               {"kilometer", "km"},
                               {"kilometre", "km"},
                               {"in", "in"},
                               {"inch", "in"},
                               {"inche", "in"},
                               {"ft", "ft"},
                               {"foot", "ft"},
                               {"feet", "ft"},
                               {"yd", "yd"},
                               {"yard", "yd"},
                               {"mi", "mi"},
                               {"mile", "mi"},
                               {"mg", "mg"},
                               {"milligram", "mg"},
                               {"g", "g"},
                               {"gram", "g"},
                               {"kg", "kg"},
                               {"kilogram", "kg"},
                               {"ton", "ton"},
                               {"tonne", "ton"},
                               {"oz", "oz"},
                               {"ounce", "oz"},
                               {"lb", "lb"},
                               {"pound", "lb"},
                               {"ml", "ml"},
                               {"mL", "ml"},
                               {"milliliter", "ml"},
                               {"millilitre", "ml"},
                               {"l", "l"},
                               {"L", "l"},
                               {"liter", "l"},
                               {"litre", "l"},
                               {"cup", "cup"},
                               {"pint", "pint"},
                               {"quart", "quart"},
                               {"gallon", "gallon"},
                               {"ms", "ms"},
                               {"millisecond", "ms"},
                               {"s", "s"},
                               {"sec", "s"},
                               {"second", "s"},
                               {"min", "min"},
                               {"minute", "min"},
                               {"h", "h"},
                               {"hr", "h"},
                               {"hour", "h"},
                               {"day", "day"},
                               {"week", "week"},
                               {"month", "month"},
                               {"year", "year"},
                               {"decade", "decade"},
                               {"century", "century"},
                               {"centurie", "century"},
                               {"mph", "mph"},
                               {"kmh", "kmh"},
                               {"dollar", "dollar"},
                               {"USD", "dollar"},
                               {"usd", "dollar"},
                               {"cent", "cent"},
                               {"penny", "cent"},
                               {"pennie", "cent"},
                               {"euro", "euro"},
                               {"EUR", "euro"},
                               {"eur", "euro"},
                               {"degree", "degree"},
                               {"deg", "degree"},
                               {"radian", "radian"},
                               {"rad", "radian"},
                               {"am", "am"},
                               {"pm", "pm"}};

}  // namespace

bool changes_value(std::string_view word) {
  return std::ranges::find(kValueWords, word) != std::end(kValueWords);
}

// An ending s is taken off without more grammar, so the table also has "inche" and "centurie",
// which are left of "inches" and "centuries".
std::string unit_of(std::string_view word) {
  const auto find = [](std::string_view singular) {
    const auto* unit = std::ranges::find(kUnitNames, singular, &Unit::word);
    return unit == std::end(kUnitNames) ? std::string() : std::string(unit->name);
  };
  std::string unit = find(word);
  if (unit.empty() && word.size() > 2 && word.ends_with('s'))
    unit = find(word.substr(0, word.size() - 1));
  return unit;
}

}  // namespace tailrace
