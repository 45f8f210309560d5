"""Whether a matrix C is the product of A and B: found out afterwards, by work of O(n²), with NumPy alone.

1. Random vectors x show where to look (Freivalds 1977): in each row C·x is compared with A·(B·x), over blocks of columns,
   because in a shorter sum an error of one element is larger beside the roundings of the others. No weight in x is near
   zero, and no two are equal, so that a wrong element counts, and two that cancel with weights of ±1 do not cancel.
2. Of the rows where these differ most, and of some random ones, every element is compared with A·B in float64.
3. Those elements that are farthest off are compared again, in wider arithmetic than the product's, with the bound that was
   promised: |C − A·B| ≤ bound · (|A||B|). This decides. It is left out where float64 is precise enough to decide.

A right product is never rejected, because the bound holds for each element. A wrong one is found if the difference that its
errors make in C·x stands out from the roundings of all other rows.

``comparing`` does this with any matrices that can be read by rectangles, within a limit of memory: ``arrays`` with those in
memory, ``files`` with those in files, of which A and C are read once, and B twice or three times.
"""

from .arrays import multiply_verified as multiply_verified
from .arrays import verify as verify
from .found import Verification as Verification
