"""The numbers of the advisory locks."""

import re
from collections import Counter

from leases import advisory_locks


def test_each_lock_has_a_number_of_its_own_which_the_table_describes():
    names = {name: value for name, value in vars(advisory_locks).items() if name.isupper() and isinstance(value, int)}
    del names["_KEY_BITS"]
    assert [number for number, count in Counter(names.values()).items() if count > 1] == []
    described = {int(number) for number in re.findall(r"^\| (\d+) \|", advisory_locks.__doc__, re.MULTILINE)}
    assert set(names.values()) <= described
