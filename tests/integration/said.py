"""Whether every number of a sentence of simgrad.why is one of its facts."""

import re

from simgrad.why.sentence import Sentence

NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|\binf\b|\bnan\b)%?")


def unbacked(sentence: Sentence) -> list[str]:
    """Numbers of the text that are no fact, as a sentence writes them. Names, which are facts too, hold none."""
    text = sentence.text
    names = [value for value in sentence.facts.values() if isinstance(value, str) and value]
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "")
    numbers = [x for x in sentence.facts.values() if not isinstance(x, (str, bool))]
    written = {form.format(x) for x in numbers for form in ("{}", "{:g}", "{:.3g}", "{:.4g}", "{:.1%}")}
    return [found for found in NUMBER.findall(text) if found not in written]
